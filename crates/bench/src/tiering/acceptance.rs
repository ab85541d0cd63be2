//! Figures of each row, and acceptance thresholds.
//!
//! A phase is the time with one hot set: from the start, and from each of its moves. The steady part of a phase begins
//! after its warm-up; throughput is the median of its intervals, each relative to busy time. Of the slowdown between
//! DRAM only and no tiering a row recovers (its throughput - that of no tiering) / (that of DRAM only - that of no
//! tiering).
//!
//! Two boots of one row differ by some per cent, as pages map differently to caches. Of several boots throughput and
//! far lines are medians, and other figures are those of the boot with median throughput.

use nearfar_topology::median;
use serde::Serialize;

use super::loads;
use super::results::{Compared, Found, Ran};
use super::rows::Row;
use crate::workload::results::{Interval, Run};
use nearfar_report::model::Machine;
use nearfar_report::words;

/// Least recovered share of the slowdown.
const RECOVERED: f64 = 0.8;
/// Least share of the hot set in near memory.
const HOT_NEAR: f64 = 0.9;
/// Least ratio to no tiering's throughput where tiering can't help.
const UNHARMED: f64 = 0.98;
/// A smaller slowdown leaves nothing to recover.
const SLOWDOWN_MIN: f64 = 0.02;
/// Maximum share of one CPU for the daemon.
const DAEMON_CPU: f64 = 0.01;
/// Maximum memory of the daemon.
const DAEMON_MIB: f64 = 20.0;
const MIB: f64 = (1u64 << 20) as f64;
const PAGE_BYTES: u64 = 4096;

/// Figures of a row; unknown ones are `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// The row.
    pub(crate) row: Row,
    /// Throughput in the steady part.
    pub(crate) steady_operations_per_s: f64,
    /// Number of boots.
    pub(crate) boots: usize,
    /// The lowest and the highest of theirs.
    pub(crate) between: [f64; 2],
    /// Relative to DRAM only.
    pub(crate) to_dram: Option<f64>,
    /// Recovered share of the slowdown.
    pub(crate) recovered: Option<f64>,
    /// Share of the memory time spent in near memory, derived from throughput: linear between far only and DRAM only.
    pub(crate) near_by_time: Option<f64>,
    /// Cache lines that an operation reads from far memory in the steady part, as counted by the emulator.
    pub(crate) far_lines: Option<f64>,
    /// Reduction of those relative to no tiering.
    pub(crate) far_lines_gone: Option<f64>,
    /// Share of the program's memory in near memory, averaged over the steady part.
    pub(crate) data_near: Option<f64>,
    /// By phase.
    pub(crate) phases: Vec<Phase>,
    /// Bytes of migrated pages, by the kernel's counters.
    pub(crate) moved_bytes: u64,
    /// CPU time of the daemon, as a share of one CPU.
    pub(crate) daemon_cpu: f64,
    /// CPU time of the kernel's threads that scan and migrate, likewise.
    pub(crate) kernel_cpu: f64,
    /// Maximum memory of the daemon.
    pub(crate) daemon_resident_bytes: u64,
}

/// The time with one hot set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Phase {
    /// Its start, in seconds.
    pub(crate) began_s: f64,
    /// Time until nine tenths of the hot set were in near memory for the first time.
    pub(crate) near_after_s: Option<f64>,
    /// Share of the hot set in near memory in the steady part: the minimum,
    pub(crate) lowest: Option<f64>,
    /// and the mean.
    pub(crate) mean: Option<f64>,
}

/// A figure and its threshold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Check {
    /// The workload.
    pub(crate) workload: String,
    /// The compared figure.
    pub(crate) what: String,
    /// The measured value; `None` if unknown.
    pub(crate) found: Option<f64>,
    /// The threshold.
    pub(crate) wanted: f64,
    /// Whether it is an upper limit.
    pub(crate) at_most: bool,
    /// The unit of both.
    pub(crate) unit: Unit,
    /// Whether it was reached.
    pub(crate) reached: bool,
}

/// The unit of a check's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// A share of one.
    Share,
    /// A ratio.
    Ratio,
    /// MiB.
    Mib,
}

/// Starts of phases: the end of the last interval before each move.
pub(crate) fn phases(intervals: &[Interval]) -> Vec<f64> {
    let moves =
        |of: &Interval| of.more.get("moves").and_then(serde_json::Value::as_u64).unwrap_or(0);
    let mut began = vec![0.0];
    for pair in intervals.windows(2) {
        if moves(&pair[1]) > moves(&pair[0]) {
            began.push(pair[0].end_s);
        }
    }
    began
}

/// Whether a time is in the steady part of a phase.
fn settled(at_s: f64, began: &[f64], warm_up_s: f64) -> bool {
    let last = began.iter().copied().filter(|began| *began < at_s).fold(0.0, f64::max);
    // An interval that began before then counts only in part, so it is left out.
    at_s - last > warm_up_s
}

/// Throughput in the steady part: the median of the intervals, as emulation occasionally delays one; `None` without
/// any.
fn steady(run: &Run, warm_up_s: f64) -> Option<f64> {
    let began = phases(&run.intervals);
    let settled = run.intervals.iter().filter(|of| settled(of.end_s, &began, warm_up_s));
    median(settled.map(|of| of.operations_per_s))
}

/// Cache lines that an operation reads from far memory in the steady part.
fn far_lines(ran: &Ran, warm_up_s: f64) -> Option<f64> {
    let run = ran.run.as_ref()?;
    let began = phases(&run.intervals);
    let settled = |at_s: f64| settled(at_s, &began, warm_up_s);
    let intervals = run.intervals.windows(2).filter(|pair| settled(pair[0].end_s));
    #[expect(clippy::cast_precision_loss, reason = "operations of a run")]
    let (operations, seconds) = intervals.fold((0.0, 0.0), |(operations, seconds), pair| {
        (operations + pair[1].operations as f64, seconds + (pair[1].end_s - pair[0].end_s))
    });
    let lines = loads::far_per_s(&ran.loads, settled)?;
    (operations > 0.0).then(|| lines * seconds / operations)
}

/// The boots of a row that ran long enough, by steady throughput, ascending.
fn by_throughput<'a>(ran: &'a Ran, warm_up_s: f64) -> Vec<(f64, &'a Ran)> {
    let of = |boot: &'a Ran| Some((steady(boot.run.as_ref()?, warm_up_s)?, boot));
    let mut boots: Vec<_> = ran.boots().filter_map(of).collect();
    boots.sort_by(|a, b| a.0.total_cmp(&b.0));
    boots
}

/// The share of the hot set in near memory over time.
pub(crate) fn hot(run: &Run, machine: &Machine) -> Vec<(f64, f64)> {
    let near = |node: &str| machine.nodes.iter().any(|of| of.near && of.id.to_string() == node);
    let share = |interval: &Interval| {
        let pages = interval.more.get("hot_pages_by_node")?.as_object()?;
        let count = |only_near: bool| {
            let counted = pages.iter().filter(|(node, _)| !only_near || near(node));
            counted.filter_map(|(_, pages)| pages.as_f64()).fold(0.0, |sum, pages| sum + pages)
        };
        (count(false) > 0.0).then(|| (interval.end_s, count(true) / count(false)))
    };
    run.intervals.iter().filter_map(share).collect()
}

/// The share of the program's memory in near memory over time.
pub(crate) fn data(run: &Run, machine: &Machine) -> Vec<(f64, f64)> {
    let near = |id: u16| machine.nodes.iter().any(|of| of.near && of.id == id);
    let share = |look: &crate::workload::results::Look| {
        let shares = words::shares(&look.nodes);
        let near = shares.iter().filter(|(node, _)| near(*node));
        // Not `sum`: that of no elements is -0.
        let of_near = near.fold(0.0, |sum, (_, share)| sum + share);
        (!shares.is_empty()).then_some((look.at_s, of_near))
    };
    run.residency.iter().filter_map(share).collect()
}

fn phase(hot: &[(f64, f64)], began: &[f64], index: usize, warm_up_s: f64) -> Phase {
    let (from, to) = (began[index], began.get(index + 1).copied().unwrap_or(f64::INFINITY));
    let within = || hot.iter().filter(move |(at, _)| *at > from && *at <= to);
    let after = within().filter(|(at, _)| at - from > warm_up_s).map(|(_, share)| *share);
    let settled: Vec<f64> = after.collect();
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    let mean = |of: &[f64]| (!of.is_empty()).then(|| of.iter().sum::<f64>() / of.len() as f64);
    Phase {
        began_s: from,
        near_after_s: within().find(|(_, share)| *share >= HOT_NEAR).map(|(at, _)| at - from),
        lowest: settled.iter().copied().reduce(f64::min),
        mean: mean(&settled),
    }
}

/// The figures of every row that ran long enough.
pub(crate) fn figures(compared: &Compared, warm_up_s: u64) -> Vec<Figures> {
    #[expect(clippy::cast_precision_loss, reason = "seconds of a run")]
    let warm_up_s = warm_up_s as f64;
    let rate_of =
        |ran: &Ran| median(ran.boots().filter_map(|boot| steady(boot.run.as_ref()?, warm_up_s)));
    let rate = |row| rate_of(compared.ran(row)?);
    let [dram, far, none] = [Row::Dram, Row::Far, Row::None].map(rate);
    let lines = |ran: &Ran| median(ran.boots().filter_map(|boot| far_lines(boot, warm_up_s)));
    let none_lines = compared.ran(Row::None).and_then(lines).filter(|lines| *lines > 0.0);
    let of = |row: &Ran| {
        let boots = by_throughput(row, warm_up_s);
        let found = rate_of(row)?;
        let (_, ran) = *boots.get(boots.len() / 2)?;
        let (run, machine) = (ran.run.as_ref()?, ran.machine.as_ref()?);
        let (began, hot) = (phases(&run.intervals), hot(run, machine));
        let far_lines = lines(row);
        let data: Vec<f64> = data(run, machine)
            .iter()
            .filter(|(at, _)| settled(*at, &began, warm_up_s))
            .map(|(_, share)| *share)
            .collect();
        let slowdown = dram.zip(none).filter(|(dram, none)| 1.0 - none / dram >= SLOWDOWN_MIN);
        let apart = dram.zip(far).filter(|(dram, far)| 1.0 - far / dram >= SLOWDOWN_MIN);
        let elapsed_ns = run.intervals.last().map_or(1.0, |last| last.end_s * 1e9);
        #[expect(clippy::cast_precision_loss, reason = "shares for people")]
        let share = |ns: u64| ns as f64 / elapsed_ns;
        #[expect(clippy::cast_precision_loss, reason = "a few dozen")]
        let data_near = (!data.is_empty()).then(|| data.iter().sum::<f64>() / data.len() as f64);
        let resident = run.residency.iter().map(|look| look.effort.daemon_resident_bytes).max();
        Some(Figures {
            row: ran.row,
            steady_operations_per_s: found,
            boots: boots.len(),
            between: [boots.first()?.0, boots.last()?.0],
            to_dram: dram.map(|dram| found / dram),
            recovered: slowdown.map(|(dram, none)| (found - none) / (dram - none)),
            near_by_time: apart
                .map(|(dram, far)| (1.0 / far - 1.0 / found) / (1.0 / far - 1.0 / dram)),
            far_lines,
            far_lines_gone: far_lines.zip(none_lines).map(|(lines, none)| 1.0 - lines / none),
            data_near,
            phases: match hot.as_slice() {
                [] => Vec::new(),
                hot => (0..began.len()).map(|at| phase(hot, &began, at, warm_up_s)).collect(),
            },
            moved_bytes: run.effort.moved_pages * PAGE_BYTES,
            daemon_cpu: share(run.effort.daemon_cpu_ns),
            kernel_cpu: share(run.effort.kernel_cpu_ns),
            daemon_resident_bytes: resident.unwrap_or(0),
        })
    };
    compared.rows.iter().filter_map(of).collect()
}

/// All checks, for every workload that nearfar ran.
pub(crate) fn checks(found: &Found) -> Vec<Check> {
    found.workloads.iter().flat_map(|compared| of_workload(compared, found.warm_up_s)).collect()
}

fn of_workload(compared: &Compared, warm_up_s: u64) -> Vec<Check> {
    let figures = figures(compared, warm_up_s);
    let row = |row: Row| figures.iter().find(|of| of.row == row);
    let Some(ours) = row(Row::Nearfar) else { return Vec::new() };
    let mut checks = Vec::new();
    let mut check = |what: String, found: Option<f64>, wanted: f64, at_most: bool, unit: Unit| {
        let reached =
            found.is_some_and(|found| if at_most { found <= wanted } else { found >= wanted });
        let workload = compared.workload.clone();
        checks.push(Check { workload, what, found, wanted, at_most, unit, reached });
    };
    let to = |row: Option<&Figures>| {
        row.map(|of| ours.steady_operations_per_s / of.steady_operations_per_s)
    };
    if compared.tiering_helps {
        check("of the slowdown recovered".into(), ours.recovered, RECOVERED, false, Unit::Share);
        for peer in Row::PEERS.iter().filter_map(|peer| row(*peer)) {
            check(
                format!("throughput to {}", peer.row.name()),
                to(Some(peer)),
                1.0,
                false,
                Unit::Ratio,
            );
        }
        for (at, phase) in ours.phases.iter().enumerate() {
            let since = if at == 0 { "the start".into() } else { format!("move {at}") };
            let what = format!("hot set near, lowest from {warm_up_s} s after {since}");
            check(what, phase.lowest, HOT_NEAR, false, Unit::Share);
        }
    } else {
        check("throughput to no tiering".into(), to(row(Row::None)), UNHARMED, false, Unit::Ratio);
    }
    check("CPU of the daemon".into(), Some(ours.daemon_cpu), DAEMON_CPU, true, Unit::Share);
    #[expect(clippy::cast_precision_loss, reason = "a size for people")]
    let resident_mib = ours.daemon_resident_bytes as f64 / MIB;
    check("memory of the daemon".into(), Some(resident_mib), DAEMON_MIB, true, Unit::Mib);
    checks
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::sample::{found, ran};
    use super::*;

    #[test]
    fn phases_begin_at_the_start_and_at_each_move() {
        let ran = ran(Row::None, [100.0, 100.0], [0.0, 0.0]);
        assert_eq!(phases(&ran.run.unwrap().intervals), [0.0, 10.0]);
        assert_eq!(phases(&[]), [0.0]);
    }

    #[test]
    fn recovery_is_a_share_of_the_slowdown() {
        let found = found();
        let figures = figures(&found.workloads[0], found.warm_up_s);
        let of = |row| figures.iter().find(|of| of.row == row).unwrap();
        let recovered = of(Row::Nearfar).recovered.unwrap();
        assert!((recovered - 0.9).abs() < 1e-9, "{recovered}");
        assert_eq!(of(Row::None).recovered, Some(0.0));
        assert_eq!(of(Row::Dram).to_dram, Some(1.0));
        assert_eq!(
            (of(Row::None).far_lines, of(Row::None).far_lines_gone),
            (Some(10.0), Some(0.0))
        );
        assert_eq!((of(Row::Far).near_by_time, of(Row::Dram).near_by_time), (Some(0.0), Some(1.0)));
        assert!(figures.iter().all(|of| of.row != Row::Memtierd), "it was absent");
    }

    #[test]
    fn the_median_of_several_boots_is_used_in_any_order() {
        let mut found = found();
        let rows = &mut found.workloads[0].rows;
        let at = rows.iter().position(|ran| ran.row == Row::Nearfar).unwrap();
        rows[at] = ran(Row::Nearfar, [140.0, 140.0], [0.2, 0.2]);
        let mut never = Ran::of(Row::Nearfar);
        never.absent = Some("failed".into());
        let boot = |rate| ran(Row::Nearfar, [rate, rate], [0.95, 0.9]);
        rows[at].again = vec![boot(190.0), never, boot(195.0)];
        let figures = figures(&found.workloads[0], found.warm_up_s);
        let ours = figures.iter().find(|of| of.row == Row::Nearfar).unwrap();
        assert_eq!((ours.steady_operations_per_s, ours.boots), (190.0, 3));
        assert_eq!(ours.between, [140.0, 195.0]);
        assert!(ours.phases[0].lowest.unwrap() > 0.9, "of the boot in the middle");
        assert!((ours.recovered.unwrap() - 0.9).abs() < 1e-9);
    }

    #[test]
    fn the_time_to_settle_is_not_judged() {
        let mut slow_at_first = ran(Row::Nearfar, [100.0, 100.0], [1.0, 1.0]);
        let run = slow_at_first.run.as_mut().unwrap();
        for at in [0, 1, 2, 10, 11, 12] {
            run.intervals[at].operations_per_s = 1.0;
        }
        assert!((steady(run, 4.0).unwrap() - 100.0).abs() < 1e-6);
        assert_eq!(steady(run, 100.0), None);
    }

    #[test]
    fn a_hot_set_is_judged_after_the_start_and_after_each_move() {
        let checks = checks(&found());
        let hot: Vec<_> = checks.iter().filter(|check| check.what.starts_with("hot set")).collect();
        assert_eq!(hot.iter().map(|check| check.reached).collect::<Vec<_>>(), [true, false]);
        assert!(hot[1].what.ends_with("after move 1"), "{hot:?}");
        assert!(
            checks
                .iter()
                .any(|check| check.what == "throughput to NUMA balancing" && check.reached)
        );
    }

    #[test]
    fn a_workload_that_tiering_can_not_help_must_not_suffer() {
        let mut found = found();
        found.workloads[0].tiering_helps = false;
        let checks = checks(&found);
        assert_eq!(checks[0].what, "throughput to no tiering");
        assert!(checks[0].reached && checks.iter().all(|check| !check.what.contains("slowdown")));
    }

    #[test]
    fn without_a_slowdown_no_recovery_is_reported() {
        let mut found = found();
        found.workloads[0].rows = vec![
            ran(Row::Dram, [100.0, 100.0], [1.0, 1.0]),
            ran(Row::None, [99.5, 99.5], [1.0, 1.0]),
            ran(Row::Nearfar, [99.9, 99.9], [1.0, 1.0]),
        ];
        let checks = checks(&found);
        assert_eq!((checks[0].found, checks[0].reached), (None, false));
    }
}
