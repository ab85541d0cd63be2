//! Memory traffic during a row, as counted by the emulator.
//!
//! The lab's statistics (`nearfar.labstats/1`, `--stats-every`) count the cache lines that each CPU reads and writes of
//! each node, excluding cache hits. A row's traffic is the difference between the start of its counted part and its
//! end, less half a second: the emulator's clock is slightly ahead of the kernel's.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use super::results::{Found, Run, Traffic};

/// The file of a guest's statistics, beside its result.
pub(crate) const FILE: &str = "labstats.json";
/// Sampling interval in milliseconds.
pub(crate) const EVERY_MS: u64 = 250;
/// Maximum duration of powering the machine off.
const OFF_S: f64 = 0.5;

/// The required part of `nearfar.labstats/1`.
#[derive(Debug, Deserialize)]
struct Stats {
    #[serde(default)]
    series: Vec<Sample>,
}

/// Cumulative counts at one time.
#[derive(Debug, Deserialize)]
struct Sample {
    at_ns: u64,
    nodes: Vec<NodeSample>,
}

/// By CPU.
#[derive(Debug, Deserialize)]
struct NodeSample {
    id: u16,
    reads: Vec<u64>,
    writes: Vec<u64>,
}

impl Sample {
    #[expect(clippy::cast_precision_loss, reason = "days have less than 2^53 nanoseconds")]
    fn at_s(&self) -> f64 {
        self.at_ns as f64 / 1e9
    }
}

/// Fills in the traffic of each run; nothing where time is not modelled.
pub(crate) fn fill_in(found: &mut Found, file: &Path) -> anyhow::Result<()> {
    let text = nearfar_kernel::fs::read_input(file, 64 << 20)
        .with_context(|| format!("reading the emulator's counts, {}", file.display()))?;
    let stats: Stats = serde_json::from_str(&text)
        .with_context(|| format!("understanding the emulator's counts, {}", file.display()))?;
    let (node_of_cpu, settle_s) = (found.node_of_cpu.clone(), found.settle_s);
    let last = stats.series.last().map(Sample::at_s);
    let ahead_s = last.zip(found.done_s).map_or(0.0, |(last, done)| (last - done).max(0.0));
    for ran in found.programs.iter_mut().flat_map(|tried| &mut tried.rows) {
        let settle_s = ran.row.kind.settle_s(settle_s);
        for run in &mut ran.runs {
            run.traffic = of(run, (settle_s, ahead_s), &stats.series, &node_of_cpu);
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "shares and rates")]
fn of(
    run: &Run,
    (settle_s, ahead_s): (u64, f64),
    series: &[Sample],
    node_of_cpu: &[u16],
) -> Option<Traffic> {
    let began_s = run.began_s + ahead_s;
    let (from, to) = (began_s + settle_s as f64, began_s + run.ended_s - OFF_S);
    let within = |sample: &&Sample| (from..=to).contains(&sample.at_s());
    let mut samples = series.iter().filter(within);
    let first = samples.next()?;
    let last = samples.next_back()?;
    let mut local = 0;
    let mut served = Vec::new();
    for (before, after) in first.nodes.iter().zip(&last.nodes) {
        let lines = |of: &[u64], was: &[u64], cpu: usize| {
            of.get(cpu).zip(was.get(cpu)).map_or(0, |(now, then)| now.saturating_sub(*then))
        };
        let mut here = 0;
        for (cpu, node) in node_of_cpu.iter().enumerate() {
            let asked =
                lines(&after.reads, &before.reads, cpu) + lines(&after.writes, &before.writes, cpu);
            here += asked;
            local += if *node == after.id { asked } else { 0 };
        }
        served.push(here as f64);
    }
    let all: f64 = served.iter().sum();
    (all > 0.0).then(|| Traffic {
        local: local as f64 / all,
        imbalance: imbalance(&served),
        shares: served.iter().map(|lines| lines / all).collect(),
        lines_per_us: all / (last.at_s() - first.at_s()) / 1e6,
    })
}

/// Sample standard deviation to mean.
#[expect(clippy::cast_precision_loss, reason = "a handful of nodes")]
fn imbalance(served: &[f64]) -> f64 {
    let count = served.len() as f64;
    let mean = served.iter().sum::<f64>() / count;
    let squares: f64 = served.iter().map(|lines| (lines - mean).powi(2)).sum();
    if served.len() < 2 { 0.0 } else { (squares / (count - 1.0)).sqrt() / mean }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Kind;
    use super::super::sample;
    use super::*;

    /// The state at a second: cumulative lines that each of four nodes has served to CPU 0 and to CPU 1.
    fn at(second: u64, lines: [[u64; 2]; 4]) -> serde_json::Value {
        let nodes: Vec<_> = (0..4)
            .map(|id: usize| {
                let [zero, one] = lines[id];
                serde_json::json!({ "id": id, "reads": [zero, one, 0, 0], "writes": [zero, 0, 0, 0], "stall_ns": [] })
            })
            .collect();
        serde_json::json!({ "at_ns": second * 1_000_000_000, "nodes": nodes })
    }

    fn filled(series: &[serde_json::Value]) -> Found {
        filled_where_done(series, None)
    }

    fn filled_where_done(series: &[serde_json::Value], done_s: Option<f64>) -> Found {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        std::fs::write(&file, serde_json::json!({ "series": series }).to_string()).unwrap();
        let mut found = sample::found();
        (found.settle_s, found.done_s) = (2, done_s);
        for run in found.programs.iter_mut().flat_map(|of| &mut of.rows).flat_map(|of| &mut of.runs)
        {
            (run.began_s, run.ended_s) = (10.0, 6.0);
        }
        fill_in(&mut found, &file).unwrap();
        found
    }

    #[test]
    fn traffic_is_counted_between_settling_and_the_end() {
        let none = [[0, 0]; 4];
        let series = [
            at(11, none),
            at(12, [[1, 1], [1, 1], [1, 1], [1, 1]]),
            at(14, [[1, 1], [1, 1], [1, 1], [1, 1]]),
            at(15, [[201, 51], [1, 51], [1, 1], [1, 1]]),
            at(16, [[9999, 9999]; 4]),
        ];
        let found = filled(&series);
        let of = |kind: Kind| {
            let row = found.programs[0].rows.iter().find(|ran| ran.row.kind == kind);
            row.unwrap().runs[0].traffic.clone().unwrap()
        };
        // Static placements have a warm-up shorter by a second.
        assert!((of(Kind::FirstTouch).lines_per_us - 512.0 / 4e6).abs() < 1e-9);
        let traffic = of(Kind::Balanced);
        // CPU 0 reads and writes 200 lines of node 0, CPU 1 reads 50 of node 0 and 50 of its own.
        assert_eq!(traffic.shares, [0.9, 0.1, 0.0, 0.0]);
        assert_eq!(traffic.local, 0.9);
        assert!((traffic.imbalance - 1.744).abs() < 0.001, "{traffic:?}");
        assert!((traffic.lines_per_us - 500.0 / 3e6).abs() < 1e-9, "{traffic:?}");
    }

    #[test]
    fn traffic_windows_allow_for_an_emulator_clock_ahead_of_the_kernel() {
        let lines = |lines: u64| [[lines, 0], [0, 0], [0, 0], [0, 0]];
        // Four seconds ahead: the counted part is from 16 to 19.5 there, or from 15 for static placements.
        let series = [12, 15, 16, 17, 18, 19, 20, 24].map(|at_s| at(at_s, lines(at_s * at_s)));
        let of = |done_s: Option<f64>| {
            let found = filled_where_done(&series, done_s);
            let rows = &found.programs[0].rows;
            let row = rows.iter().find(|ran| ran.row.kind == Kind::Balanced).unwrap();
            row.runs[0].traffic.clone().unwrap().lines_per_us * 1e6
        };
        // Each line is counted as read and as written.
        assert!((of(Some(20.0)) - 2.0 * f64::from(19 * 19 - 16 * 16) / 3.0).abs() < 1e-6);
        assert!((of(None) - 2.0 * f64::from(15 * 15 - 12 * 12) / 3.0).abs() < 1e-6);
    }

    #[test]
    fn all_traffic_on_one_of_four_nodes_is_an_imbalance_of_twice_the_mean() {
        assert!((imbalance(&[8.0, 0.0, 0.0, 0.0]) - 2.0).abs() < 1e-12);
        assert!(imbalance(&[3.0; 4]).abs() < 1e-12);
    }

    #[test]
    fn a_run_without_samples_in_its_time_has_no_traffic() {
        let found = filled(&[at(1, [[5, 5]; 4]), at(2, [[9, 9]; 4])]);
        assert_eq!(found.programs[0].rows[0].runs[0].traffic, None);
        let dir = tempfile::tempdir().unwrap();
        let mut found = sample::found();
        assert!(fill_in(&mut found, &dir.path().join("none")).is_err());
        std::fs::write(dir.path().join("x"), "[").unwrap();
        assert!(fill_in(&mut found, &dir.path().join("x")).is_err());
    }
}
