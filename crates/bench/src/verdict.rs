//! The thresholds, and whether the figures reach them.
//!
//! `-w auto` reaches at least 95 % of the sum of the nodes' bandwidths alone; is at least 5 % above 1:1 interleave; is
//! at least 5 % above the kernel's weights from the HMAT, or equal to them (within 1 %) where these are already
//! optimal: where by the nodes' bandwidths they lose no more of the sum than nearfar's own may (2 %); and on the
//! machine modelled after a published set-up, exceeds the published gains over DRAM alone: 21 % at 2:1 and 31 % at 1:1
//! (weighted interleave over 8 DDR5 channels and 4 CXL expanders).

use nearfar_topology::Mix;
use serde::Serialize;

use super::bandwidth::{Candidate, Found};
use nearfar_report::model::{MIXES, ratio};

/// Least share of the sum of peaks.
const OF_PEAKS: f64 = 0.95;
/// Least ratio to its peers.
const ABOVE: f64 = 1.05;
/// Ratio that counts as equal.
const EQUAL: f64 = 0.99;
/// Published gains over DRAM alone, for the machine modelled after that set-up.
const PUBLISHED: (&str, [(Mix, f64); 2]) =
    ("cxl-2tier", [(Mix::TWO_TO_ONE, 1.21), (Mix::ONE_TO_ONE, 1.31)]);

/// One figure against one threshold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Check {
    /// Ratio of reads to writes.
    pub(crate) mix: Mix,
    /// The compared figure.
    pub(crate) what: String,
    /// The measured ratio.
    pub(crate) ratio: f64,
    /// The threshold.
    pub(crate) at_least: f64,
    /// Whether it was.
    pub(crate) reached: bool,
}

/// Every check that applies.
pub(crate) fn checks(found: &Found) -> Vec<Check> {
    MIXES.iter().flat_map(|&mix| of_mix(found, mix)).collect()
}

fn of_mix(found: &Found, mix: Mix) -> Vec<Check> {
    let auto = found.of(Candidate::Auto, mix).unwrap_or(0);
    let peaks = found.peaks(mix);
    // A candidate that was not run fails its check, as there is no ratio.
    let check = |what: &str, to: Option<u64>, at_least: f64| {
        let ratio = to.and_then(|to| ratio(auto, to)).unwrap_or(0.0);
        Check { mix, what: what.into(), ratio, at_least, reached: ratio >= at_least }
    };
    let mut checks = vec![
        check("-w auto to the sum of peaks", Some(peaks), OF_PEAKS),
        check("-w auto to 1:1 interleave", found.of(Candidate::Interleave, mix), ABOVE),
    ];
    if found.kernel_weights_unavailable.is_none() {
        let kernel = found.of(Candidate::KernelWeights, mix);
        let loss = found.loss(&found.kernel_weights, mix);
        let optimal = loss.is_some_and(|loss| loss <= nearfar_policy::TOLERANCE);
        checks.push(if optimal {
            check("-w auto to the kernel's weights, which are optimal here", kernel, EQUAL)
        } else {
            check("-w auto to the kernel's weights", kernel, ABOVE)
        });
    }
    let (machine, gains) = PUBLISHED;
    if found.machine.emulation.as_ref().is_some_and(|emulation| emulation.machine == machine) {
        let dram = found.dram().and_then(|dram| found.of(dram, mix));
        let gains = gains.iter().filter(|(of, _)| *of == mix);
        checks.extend(gains.map(|(_, gain)| check("-w auto to DRAM alone", dram, *gain)));
    }
    checks
}

/// Figures and checks of one machine, as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a> {
    /// The figures.
    #[serde(flatten)]
    pub(crate) found: &'a Found,
    /// The checks.
    pub(crate) checks: Vec<Check>,
}

/// One line of text per check.
pub(crate) fn text(checks: &[Check]) -> String {
    let line = |check: &Check| {
        let Check { mix, what, ratio, at_least, reached } = check;
        let verdict = if *reached { "reached" } else { "NOT REACHED" };
        format!("  {mix}  {what:<58} {ratio:>6.3}  at least {at_least:.2}  {verdict}\n")
    };
    checks.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::bandwidth::{Run, SCHEMA};
    use super::*;

    fn found(figures: &[(Candidate, u64)]) -> Found {
        let machine = nearfar_report::sample::report().machine;
        let run = |mix, (candidate, bytes_per_second): (Candidate, u64)| Run {
            candidate,
            mix,
            bytes_per_second,
            rounds_bytes_per_second: vec![bytes_per_second],
            residency: vec![],
            command: String::new(),
        };
        let runs = MIXES.iter().flat_map(|mix| figures.iter().map(|figure| run(*mix, *figure)));
        let kernel = figures.iter().any(|(candidate, _)| *candidate == Candidate::KernelWeights);
        Found {
            schema: SCHEMA.into(),
            machine,
            rounds: 1,
            kernel_weights_unavailable: (!kernel).then(|| "no".into()),
            // 8:1 loses a quarter where nodes give 55 and 27.
            kernel_weights: if kernel { [(0, 8), (1, 1)].into() } else { [].into() },
            runs: runs.collect(),
        }
    }

    const GOOD: [(Candidate, u64); 5] = [
        (Candidate::Node(0), 55),
        (Candidate::Node(1), 27),
        (Candidate::Interleave, 54),
        (Candidate::KernelWeights, 70),
        (Candidate::Auto, 80),
    ];

    fn failed(found: &Found) -> Vec<String> {
        let failed = checks(found)
            .into_iter()
            .filter(|check| !check.reached && check.mix == Mix::ONE_TO_ONE);
        failed.map(|check| check.what).collect()
    }

    #[test]
    fn good_figures_reach_everything_and_each_threshold_is_checked() {
        let found = found(&GOOD);
        assert_eq!(failed(&found), Vec::<String>::new());
        assert_eq!(checks(&found).len(), 3 * 3 + 2);
    }

    #[test]
    fn each_threshold_can_fail() {
        let with = |candidate, figure| {
            let mut figures = GOOD;
            figures.iter_mut().filter(|(of, _)| *of == candidate).for_each(|(_, of)| *of = figure);
            failed(&found(&figures))
        };
        assert_eq!(with(Candidate::Auto, 77), ["-w auto to the sum of peaks"]);
        assert_eq!(with(Candidate::Interleave, 77), ["-w auto to 1:1 interleave"]);
        assert_eq!(with(Candidate::KernelWeights, 77), ["-w auto to the kernel's weights"]);
        assert_eq!(
            with(Candidate::Node(0), 62),
            ["-w auto to the sum of peaks", "-w auto to DRAM alone"]
        );
    }

    #[test]
    fn optimal_kernel_weights_need_only_be_equalled() {
        let with = |kernel, weights: [u8; 2]| {
            let mut figures = GOOD;
            figures[3].1 = kernel;
            let mut found = found(&figures);
            found.kernel_weights = (0..).zip(weights).collect();
            failed(&found)
        };
        assert_eq!(with(80, [21, 10]), Vec::<String>::new());
        let name = "-w auto to the kernel's weights, which are optimal here";
        assert_eq!(with(82, [21, 10]), [name]);
        assert_eq!(with(80, [8, 1]), ["-w auto to the kernel's weights"]);
    }

    #[test]
    fn missing_kernel_weights_pass_and_a_missing_candidate_fails() {
        let mut without: Vec<_> = GOOD.to_vec();
        without.remove(3);
        assert_eq!(failed(&found(&without)), Vec::<String>::new());
        without.pop();
        assert_eq!(failed(&found(&without)).len(), 3);
    }
}
