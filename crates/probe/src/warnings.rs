//! Warnings about a report's values: signs that the machine was not idle.

use nearfar_topology::BasisPoints;

use crate::report::{LoadedPoint, Pair, ProbeReport};

/// A larger spread of repeats (10 %) causes a warning.
const SPREAD_MAX: BasisPoints = BasisPoints(1000);
/// A latency lower by this much (per cent) than at a lower load shows other activity.
const FALL_PERCENT: f64 = 15.0;

/// The warnings, one line each.
pub(crate) fn of(report: &ProbeReport) -> Vec<String> {
    report.pairs.iter().filter_map(of_pair).collect()
}

fn of_pair(pair: &Pair) -> Option<String> {
    let mut noisy = Vec::new();
    let mut note = |what: String, spread: BasisPoints| {
        if spread > SPREAD_MAX {
            noisy.push(format!("{what} varies by {} %", spread.0 / 100));
        }
    };
    note("idle latency".into(), pair.idle_latency.spread_bp);
    for at in &pair.bandwidth {
        note(format!("bandwidth at {}", at.mix), at.spread_bp);
    }
    if falls(&pair.loaded.points) {
        noisy.push("latency falls as the load rises".into());
    }
    let (cpu, memory) = (pair.cpu_node, pair.memory_node);
    (!noisy.is_empty()).then(|| {
        let what = noisy.join(", ");
        format!("CPU node {cpu}, memory node {memory}: {what}; the machine was busy or its clock frequency moved, measure again when it is quiet")
    })
}

/// Whether some point has a clearly lower latency than one at a lower load.
fn falls(points: &[LoadedPoint]) -> bool {
    let mut highest = 0.0f64;
    points.iter().any(|point| {
        let fell = point.latency_ns < highest * (1.0 - FALL_PERCENT / 100.0);
        highest = highest.max(point.latency_ns);
        fell
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit;

    #[test]
    fn a_quiet_machine_gives_no_warning() {
        assert_eq!(of(&testkit::report()), Vec::<String>::new());
    }

    #[test]
    fn a_warning_names_the_pair_and_the_unstable_value() {
        let mut report = testkit::report();
        report.pairs[1].bandwidth[1].spread_bp = BasisPoints(2312);
        report.pairs[1].loaded.points[3].latency_ns *= 3.0;
        let warnings = of(&report);
        assert_eq!(warnings.len(), 1);
        for part in ["memory node 1", "bandwidth at 2:1 varies by 23 %", "latency falls"] {
            assert!(warnings[0].contains(part), "{warnings:?}");
        }
    }
}
