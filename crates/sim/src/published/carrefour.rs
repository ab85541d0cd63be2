//! Traffic management (Dashti et al., 2013): streamcluster and PCA on four nodes, first touch against interleaving.
//!
//! The machine's figures come from its file. Chosen with these tables in view: there the constant of concurrent operation
//! and the probe share, and in [`crate::workload`] lines, think times, PCA's 83 % and 1.4, and the number of hot pages. What
//! chance decides, which pages are hot, is averaged over [`DRAWS`] draws: the published figures are of one run each, and
//! one draw of the interleaved controllers' imbalance may be half or twice the mean.
//!
//! The same figures are asked of Carrefour at work: from first touch, the policy's own code ends up where interleaving by hand
//! does, by what it counts and samples, over [`RUNS`] draws. Its controllers may stay as uneven as its own gate allows, 35 %;
//! that is its row, as nobody published what it came to there.

use super::{How, Row, Unit};
use crate::compare::{Compared, compare, run};
use crate::machine::Machine;
use crate::metrics::Figures;
use crate::policy::Policy;
use crate::{threads, workload};

/// Draws of which pages are hot.
pub const DRAWS: u64 = 200;
/// Of these, draws in which Carrefour is at work, and for how many seconds.
pub const RUNS: u64 = 4;
const RUN_S: u32 = 9;
/// Above this imbalance of controllers Carrefour interleaves; below, it lets them be.
const GATE: f64 = 0.35;

/// How far a figure may be off.
const TOLERANCE: f64 = 0.10;

/// A table as published: a figure under first touch and interleaved each, and how the model has it.
struct Table {
    workload: &'static str,
    title: &'static str,
    latency: [(f64, How); 2],
    controllers: [(f64, How); 2],
    links: [(f64, How); 2],
    local: [(f64, How); 2],
    gain: (f64, How),
}

use How::{Fitted, Predicted};

const TABLES: [Table; 2] = [
    Table {
        workload: "streamcluster",
        title: "Carrefour, streamcluster",
        latency: [(1169.0, Fitted), (471.0, Fitted)],
        controllers: [(2.00, Predicted), (0.07, Fitted)],
        links: [(0.86, Fitted), (0.21, Fitted)],
        local: [(0.25, Predicted), (0.25, Predicted)],
        gain: (1.05, Fitted),
    },
    Table {
        workload: "pca",
        title: "Carrefour, PCA",
        latency: [(665.0, Fitted), (480.0, Predicted)],
        controllers: [(1.54, Fitted), (0.04, Fitted)],
        links: [(0.64, Predicted), (0.19, Predicted)],
        local: [(0.33, Fitted), (0.25, Predicted)],
        gain: (0.38, Predicted),
    },
];

/// The rows of both tables; none for a machine on which the workloads can't run.
#[must_use]
pub fn rows(machine: &Machine) -> Vec<Row> {
    let of = |table: &Table| {
        let mut rows = table.rows(machine).unwrap_or_default();
        rows.extend(table.at_work(machine).unwrap_or_default());
        rows
    };
    TABLES.iter().flat_map(of).collect()
}

impl Table {
    fn rows(&self, machine: &Machine) -> Option<Vec<Row>> {
        let workload = workload::find(self.workload, machine).ok()?;
        let policies = [Policy::FirstTouch, Policy::Interleave];
        let draws: Vec<[Compared; 2]> = (0..DRAWS)
            .filter_map(|seed| compare(machine, &workload, &policies, seed).ok()?.try_into().ok())
            .collect();
        let mean = |of: &dyn Fn(&[Compared; 2]) -> f64| -> f64 {
            #[expect(clippy::cast_precision_loss, reason = "a small count")]
            let count = draws.len() as f64;
            draws.iter().map(of).sum::<f64>() / count
        };
        let both =
            |what: &str, unit, published: [(f64, How); 2], figure: &dyn Fn(&Figures) -> f64| {
                let placements =
                    ["first touch", "interleaved"].into_iter().zip(published).enumerate();
                let row = |(at, (placement, (paper, how))): (usize, (&str, (f64, How)))| {
                    let model = mean(&|pair: &[Compared; 2]| figure(&pair[at].figures));
                    self.row((format!("{what}, {placement}"), unit), (paper, model), how)
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
        let gain = mean(&|pair: &[Compared; 2]| pair[1].speedup - 1.0);
        rows.push(self.row(
            ("gain of interleaving".into(), Unit::Gain),
            (self.gain.0, gain),
            self.gain.1,
        ));
        Some(rows)
    }

    /// What Carrefour comes to from first touch, by what it counts and samples.
    fn at_work(&self, machine: &Machine) -> Option<Vec<Row>> {
        let workload = workload::find(self.workload, machine).ok()?;
        let seeds: Vec<u64> = (0..RUNS).collect();
        let figures = threads::map(&seeds, |seed| {
            let of = |policy, seconds| run((machine, &workload), policy, *seed, seconds).0;
            let (still, at_work) = (of(Policy::FirstTouch, 0), of(Policy::Carrefour, RUN_S));
            (at_work.gbps / still.gbps - 1.0, at_work)
        });
        let mean = |of: &dyn Fn(&(f64, Figures)) -> f64| -> f64 {
            #[expect(clippy::cast_precision_loss, reason = "a small count")]
            let count = RUNS as f64;
            figures.iter().map(of).sum::<f64>() / count
        };
        let row = |what: &str, unit, published, how| {
            let model = match unit {
                Unit::Cycles => mean(&|(_, of)| machine.cycles(of.latency_ns)),
                Unit::Gain => mean(&|(gain, _)| *gain),
                _ if how == How::Limit => mean(&|(_, of)| of.controller_imbalance),
                _ => mean(&|(_, of)| of.local_access_ratio),
            };
            self.row((format!("{what}, Carrefour at work"), unit), (published, model), how)
        };
        Some(vec![
            row("latency", Unit::Cycles, self.latency[1].0, Predicted),
            row("controller imbalance", Unit::Share, GATE, How::Limit),
            row("local accesses", Unit::Share, self.local[1].0, Predicted),
            row("gain", Unit::Gain, self.gain.0, Predicted),
        ])
    }

    fn row(&self, (what, unit): (String, Unit), (paper, model): (f64, f64), how: How) -> Row {
        Row { table: self.title, what, unit, paper, model, tolerance: TOLERANCE, how }
    }
}
