//! Free parameters: every number of the model that was chosen with published figures in view, and those figures.
//!
//! Values are read from the model, so the list can't differ from it. Figures of a machine that a publication states
//! (latencies, the bandwidth of a controller) are inputs and not listed, nor are assumed ones that hardly matter.

use super::{colloid, duplex};
use crate::machine::Machine;
use crate::workload::{PCA, STREAMCLUSTER};

/// A free parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The study.
    pub study: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its value; `None` for a choice between alternatives.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: &'static str,
    /// The figures that it was fitted to.
    pub fitted_to: &'static str,
}

const BOTH: &str = "Carrefour";
const SC: &str = "Carrefour, streamcluster";
const PCA_TABLE: &str = "Carrefour, PCA";
const COLLOID: &str = "Colloid on HeMem";
const HMSDK: &str = "HMSDK, weights 2:1";

const LATENCIES: &str = "streamcluster: both latencies and the gain";

/// A number that was fitted.
const fn number(
    study: &'static str,
    (name, value, unit): (&'static str, f64, &'static str),
    fitted_to: &'static str,
) -> Parameter {
    Parameter { study, name, value: Some(value), unit, fitted_to }
}

/// All of them; `machine` is that of the traffic management studies.
#[must_use]
pub fn parameters(machine: &Machine) -> Vec<Parameter> {
    let mut all = of_links(machine);
    all.extend(of_programs());
    all.extend(of_tiers());
    all
}

/// Those of the traffic management studies' machine.
fn of_links(machine: &Machine) -> Vec<Parameter> {
    let links = "streamcluster: both imbalances of links";
    let gbps = machine.links.first().map_or(0.0, |link| link.gbps);
    let cycles = machine.cycles(machine.concurrent_ns);
    vec![
        number(BOTH, ("latency of concurrent operation", cycles, "cycles"), LATENCIES),
        number(BOTH, ("coherence probes of an access", machine.probe_lines, "lines"), links),
        number(BOTH, ("bandwidth of a link", gbps, "GB/s"), links),
        Parameter {
            study: BOTH,
            name: "routes of both diagonals (over the links 1>3 and 3>1)",
            value: None,
            unit: "",
            fitted_to: links,
        },
    ]
}

/// Those of its programs.
fn of_programs() -> Vec<Parameter> {
    let [sc, pca] = [&STREAMCLUSTER, &PCA];
    let hot = |count: u32| f64::from(count);
    let even = "imbalance of controllers, interleaved";
    vec![
        number(SC, ("outstanding lines of a node", sc.lines[0], "lines"), LATENCIES),
        number(SC, ("think time", sc.think_cycles, "cycles"), LATENCIES),
        number(SC, ("hot pages", hot(sc.hot_pages), "pages"), even),
        number(SC, ("share of accesses to hot pages", sc.hot_share, ""), even),
        number(
            PCA_TABLE,
            ("accesses to pages of the first thread", pca.first, ""),
            "imbalance of controllers, first touch",
        ),
        number(
            PCA_TABLE,
            ("outstanding lines of the first node", pca.lines[0], "lines"),
            "latency, first touch",
        ),
        number(
            PCA_TABLE,
            ("lines of the first node over another's", pca.lines[0] / pca.lines[1], ""),
            "local accesses, first touch",
        ),
        number(PCA_TABLE, ("think time", pca.think_cycles, "cycles"), "the gain"),
        number(PCA_TABLE, ("hot pages", hot(pca.hot_pages), "pages"), even),
        number(PCA_TABLE, ("share of accesses to hot pages", pca.hot_share, ""), even),
    ]
}

/// Those of two tiers.
fn of_tiers() -> Vec<Parameter> {
    let (rows, both, fitted) = ("the rows of 135 and 192 ns", "both gains", colloid::FITTED);
    vec![
        number(COLLOID, ("bandwidth of near memory", fitted.gbps[0], "GB/s"), rows),
        number(COLLOID, ("bandwidth of far memory", fitted.gbps[1], "GB/s"), rows),
        number(COLLOID, ("scale of the waiting curve, a", fitted.factor_ns, "ns"), rows),
        number(COLLOID, ("exponent of the waiting curve, k", fitted.power, ""), rows),
        number(COLLOID, ("outstanding lines of the application", fitted.lines, "lines"), rows),
        number(
            COLLOID,
            ("outstanding lines per unit of contention", fitted.contending, "lines"),
            rows,
        ),
        number(
            HMSDK,
            ("bandwidth of CXL memory in each direction", duplex::CXL_GBPS, "GB/s"),
            both,
        ),
        number(HMSDK, ("outstanding lines", duplex::LINES, "lines"), both),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testkit::ring;

    /// The value of a parameter.
    fn value(all: &[Parameter], study: &str, name: &str) -> f64 {
        let found = all.iter().find(|of| of.study == study && of.name == name);
        found.and_then(|of| of.value).unwrap()
    }

    #[test]
    fn each_parameter_is_listed_once_with_the_figures_that_it_was_fitted_to() {
        let all = parameters(&ring());
        let names: BTreeSet<(&str, &str)> = all.iter().map(|of| (of.study, of.name)).collect();
        assert_eq!((all.len(), names.len()), (22, 22));
        assert!(all.iter().all(|of| !of.fitted_to.is_empty()));
        // Routes are a choice and not a number.
        assert_eq!(all.iter().filter(|of| of.value.is_none()).count(), 1);
    }

    #[test]
    fn parameter_values_match_the_model_in_the_listed_units() {
        let all = parameters(&ring());
        for (study, name, expected) in [
            // 58.26 ns at 2.3 GHz.
            (BOTH, "latency of concurrent operation", 134.0),
            (BOTH, "bandwidth of a link", 8.0),
            (SC, "outstanding lines of a node", 12.9),
            (PCA_TABLE, "lines of the first node over another's", 10.0 / 7.2),
            (COLLOID, "outstanding lines of the application", 128.0),
            (COLLOID, "bandwidth of far memory", 70.0),
            (HMSDK, "bandwidth of CXL memory in each direction", 68.0),
        ] {
            let found = value(&all, study, name);
            assert!((found / expected - 1.0).abs() < 1e-3, "{study}, {name}: {found} {expected}");
        }
    }

    #[test]
    fn a_changed_machine_changes_the_corresponding_parameter_only() {
        let mut changed = (*ring()).clone();
        changed.probe_lines = 0.5;
        let [before, after] = [ring(), changed.build().unwrap()].map(|of| parameters(&of));
        let differ: Vec<&Parameter> =
            before.iter().zip(&after).filter(|(a, b)| a != b).map(|(_, after)| after).collect();
        assert_eq!(differ.len(), 1);
        assert_eq!((differ[0].name, differ[0].value), ("coherence probes of an access", Some(0.5)));
    }
}
