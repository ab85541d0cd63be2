//! Traffic management (Dashti et al., 2013): streamcluster and PCA on four nodes, first touch against interleaving.
//!
//! The machine's figures come from its file. Fitted to these tables are: in that file the constant of concurrent
//! operation, the probe share and the bandwidth of links, and in [`crate::workload`] lines, think times, PCA's 83 % and 1.4,
//! hot pages and their share ([`super::parameters`]). The random choice of hot pages is averaged over [`DRAWS`] draws: the published figures are of one run
//! each, and one draw of the interleaved controllers' imbalance may be half or twice the mean.
//!
//! The same figures are compared with Carrefour itself: from first touch, the policy's code should reach the result of
//! manual interleaving from its own counters and samples, over [`RUNS`] draws. The imbalance of controllers may stay at
//! the limit of its gate, 35 %; its row has that limit, as no result is published.

use super::{How, Row, Unit};
use crate::compare::{Compared, compare, run};
use crate::machine::Machine;
use crate::metrics::Figures;
use crate::policy::Policy;
use crate::unable::Unable;
use crate::{threads, workload};

/// Random draws of the hot pages.
pub const DRAWS: u64 = 200;
/// Draws for Carrefour itself, and its simulated seconds.
pub const RUNS: u64 = 4;
const RUN_S: u32 = 9;
/// Carrefour interleaves above this imbalance of controllers.
const GATE: f64 = 0.35;

/// Allowed relative deviation of a figure.
const TOLERANCE: f64 = 0.10;

/// A published figure, the way the model obtains it, and the reason why it is implied.
type Published = (f64, How, &'static str);

/// A published table: a figure under first touch and one interleaved.
struct Table {
    workload: &'static str,
    title: &'static str,
    latency: [Published; 2],
    controllers: [Published; 2],
    links: [Published; 2],
    local: [Published; 2],
    gain: Published,
}

const fn fitted(paper: f64) -> Published {
    (paper, How::Fitted, "")
}

const fn predicted(paper: f64) -> Published {
    (paper, How::Predicted, "")
}

const fn implied(paper: f64, because: &'static str) -> Published {
    (paper, How::Implied, because)
}

const TOUCHED: &str = "follows from the input 97/1/1/1";
const SPREAD: &str = "a quarter, as pages are spread over four nodes";
const REACHED: &str =
    "the interleaved row, if the policy spreads pages: a test of the policy, not of the model";

const TABLES: [Table; 2] = [
    Table {
        workload: "streamcluster",
        title: "Carrefour, streamcluster",
        latency: [fitted(1169.0), fitted(471.0)],
        controllers: [implied(2.00, TOUCHED), fitted(0.07)],
        links: [fitted(0.86), fitted(0.21)],
        local: [implied(0.25, TOUCHED), implied(0.25, SPREAD)],
        gain: fitted(1.05),
    },
    Table {
        workload: "pca",
        title: "Carrefour, PCA",
        latency: [fitted(665.0), predicted(480.0)],
        controllers: [fitted(1.54), fitted(0.04)],
        links: [predicted(0.64), predicted(0.19)],
        local: [fitted(0.33), implied(0.25, SPREAD)],
        gain: fitted(0.38),
    },
];

/// The rows of both tables.
///
/// # Errors
/// A machine that does not support the programs.
pub fn rows(machine: &Machine) -> Result<Vec<Row>, Unable> {
    let mut rows = Vec::new();
    for table in &TABLES {
        rows.extend(table.rows(machine)?);
        rows.extend(table.at_work(machine)?);
    }
    Ok(rows)
}

impl Table {
    fn rows(&self, machine: &Machine) -> Result<Vec<Row>, Unable> {
        let workload = workload::find(self.workload, machine)?;
        let policies = [Policy::FirstTouch, Policy::Interleave];
        let draws: Vec<Vec<Compared>> = (0..DRAWS)
            .map(|seed| compare(machine, &workload, &policies, seed))
            .collect::<Result<_, _>>()?;
        let mean = |of: &dyn Fn(&[Compared]) -> f64| -> f64 {
            #[expect(clippy::cast_precision_loss, reason = "a small count")]
            let count = draws.len() as f64;
            draws.iter().map(|pair| of(pair)).sum::<f64>() / count
        };
        let both =
            |what: &str, unit, published: [Published; 2], figure: &dyn Fn(&Figures) -> f64| {
                let placements =
                    ["first touch", "interleaved"].into_iter().zip(published).enumerate();
                let row = |(at, (placement, published)): (usize, (&str, Published))| {
                    let model = mean(&|pair: &[Compared]| figure(&pair[at].figures));
                    self.row((format!("{what}, {placement}"), unit), model, published)
                };
                placements.map(row).collect::<Vec<_>>()
            };
        let mut rows =
            both("latency", Unit::Cycles, self.latency, &|of| machine.cycles(of.latency_ns));
        rows.extend(both("controller imbalance", Unit::Share, self.controllers, &|of| {
            of.controller_imbalance
        }));
        rows.extend(both("interconnect imbalance", Unit::Share, self.links, &|of| {
            of.interconnect_imbalance
        }));
        rows.extend(both("local accesses", Unit::Share, self.local, &|of| of.local_access_ratio));
        let gain = mean(&|pair: &[Compared]| pair[1].speedup - 1.0);
        rows.push(self.row(("gain of interleaving".into(), Unit::Gain), gain, self.gain));
        Ok(rows)
    }

    /// Results of Carrefour, starting from first touch, from its own counters and samples.
    fn at_work(&self, machine: &Machine) -> Result<Vec<Row>, Unable> {
        let workload = workload::find(self.workload, machine)?;
        let seeds: Vec<u64> = (0..RUNS).collect();
        let figures: Vec<(f64, Figures)> = threads::map(&seeds, |seed| {
            let of =
                |policy, seconds| run((machine, &workload), policy, *seed, seconds).map(|of| of.0);
            let (still, at_work) = (of(Policy::FirstTouch, 0)?, of(Policy::Carrefour, RUN_S)?);
            Ok((at_work.gbps / still.gbps - 1.0, at_work))
        })
        .into_iter()
        .collect::<Result<_, Unable>>()?;
        let mean = |of: &dyn Fn(&(f64, Figures)) -> f64| -> f64 {
            #[expect(clippy::cast_precision_loss, reason = "a small count")]
            let count = RUNS as f64;
            figures.iter().map(of).sum::<f64>() / count
        };
        let row = |what: &str, unit, model, published| {
            self.row((format!("{what}, Carrefour at work"), unit), model, published)
        };
        let latency = mean(&|(_, of)| machine.cycles(of.latency_ns));
        let controllers = mean(&|(_, of)| of.controller_imbalance);
        let local = mean(&|(_, of)| of.local_access_ratio);
        let gain = mean(&|(gain, _)| *gain);
        Ok(vec![
            row("latency", Unit::Cycles, latency, implied(self.latency[1].0, REACHED)),
            row("controller imbalance", Unit::Share, controllers, (GATE, How::Limit, "")),
            row("local accesses", Unit::Share, local, implied(self.local[1].0, SPREAD)),
            row("gain", Unit::Gain, gain, implied(self.gain.0, REACHED)),
        ])
    }

    fn row(
        &self,
        (what, unit): (String, Unit),
        model: f64,
        (paper, how, because): Published,
    ) -> Row {
        let tolerance = TOLERANCE;
        Row { table: self.title, what, unit, paper, model, tolerance, how, because, left_out: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::steady;
    use crate::pages::Pages;
    use crate::testkit::ring;

    /// The steady state of a program under a placement.
    fn placed(table: &Table, policy: Policy) -> Figures {
        let machine = ring();
        let workload = workload::find(table.workload, &machine).unwrap();
        let mut pages = Pages::of(&workload, 1);
        policy.place(&mut pages, &workload, &machine);
        steady(&machine, &workload, &pages)
    }

    #[test]
    fn first_touch_imbalance_follows_from_the_touched_shares() {
        // Of shares p, q, q, q: the root of ((p - 1/4)^2 + 3 (q - 1/4)^2) / 3, over 1/4.
        for (table, expected) in TABLES.iter().zip([1.92, 1.547]) {
            let found = placed(table, Policy::FirstTouch).controller_imbalance;
            assert!((found / expected - 1.0).abs() < 0.005, "{}: {found}", table.title);
            let row = table.row((String::new(), Unit::Share), found, table.controllers[0]);
            assert!(row.within(), "{row:?}");
        }
    }

    #[test]
    fn the_local_share_of_interleaved_lines_is_a_quarter_and_implied() {
        for table in &TABLES {
            let found = placed(table, Policy::Interleave).local_access_ratio;
            let row = table.row((String::new(), Unit::Share), found, table.local[1]);
            assert!(row.within() && row.how == How::Implied && !row.because.is_empty(), "{row:?}");
        }
    }

    #[test]
    fn only_an_implied_figure_has_a_reason() {
        for table in &TABLES {
            let all = [table.latency, table.controllers, table.links, table.local];
            for (paper, how, because) in all.into_iter().flatten().chain([table.gain]) {
                assert!(paper > 0.0 && because.is_empty() == (how != How::Implied), "{because}");
            }
        }
    }

    #[test]
    fn both_programs_have_parameters_of_their_own() {
        let listed = crate::published::parameters::parameters(&ring());
        for table in &TABLES {
            assert!(listed.iter().any(|of| of.study == table.title), "{}", table.title);
        }
    }

    #[test]
    fn a_machine_with_cpus_on_one_node_alone_is_refused() {
        let machine = crate::published::colloid::machine(135.0).unwrap();
        let error = rows(&machine).unwrap_err().to_string();
        assert!(error.contains("streamcluster") && error.contains("several nodes"), "{error}");
    }
}
