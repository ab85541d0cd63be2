//! Reads of near and far memory by the programs' CPU over time, as counted by the emulator.
//!
//! The lab's statistics (`nearfar.labstats/1`, `--stats-every`) count the lines that each CPU reads of each node: loads
//! that missed its caches, and prefetches. Throughput differs between two boots of the same row by some per cent; far
//! lines per operation do not, and show how much of the work still waits for far memory. (Near lines show less: they
//! include the kernel's own, which vary.)

use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use nearfar_report::model::Machine;

/// The file of a guest's statistics, beside its result.
pub(crate) const FILE: &str = "labstats.json";
/// Sampling interval in milliseconds.
pub(crate) const EVERY_MS: u64 = 500;

/// Cumulative reads at one time, since the start of the timed part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Loads {
    /// The time; to some tenths of a second, because the machine samples before its kernel counts time.
    pub(crate) at_s: f64,
    /// Lines of near memory.
    pub(crate) near: u64,
    /// Lines of far memory.
    pub(crate) far: u64,
}

/// The required part of `nearfar.labstats/1`.
#[derive(Deserialize)]
struct Stats {
    #[serde(default)]
    series: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    at_ns: u64,
    nodes: Vec<NodeSample>,
}

#[derive(Deserialize)]
struct NodeSample {
    id: u16,
    reads: Vec<u64>,
}

/// The reads of a CPU since a time in seconds after power-on; `None` where time is not modelled.
pub(crate) fn read(
    file: &Path,
    machine: &Machine,
    cpu: Option<u32>,
    began_s: f64,
) -> anyhow::Result<Vec<Loads>> {
    let text = nearfar_kernel::fs::read_input(file, 64 << 20)
        .with_context(|| format!("reading the emulator's counts, {}", file.display()))?;
    let stats: Stats = serde_json::from_str(&text)
        .with_context(|| format!("understanding the emulator's counts, {}", file.display()))?;
    Ok(stats.series.iter().filter_map(|sample| sample.loads(machine, cpu, began_s)).collect())
}

impl Sample {
    #[expect(clippy::cast_precision_loss, reason = "days have less than 2^53 nanoseconds")]
    fn loads(&self, machine: &Machine, cpu: Option<u32>, began_s: f64) -> Option<Loads> {
        let is_near = |id: u16| machine.nodes.iter().any(|of| of.near && of.id == id);
        let ours = |node: &NodeSample| {
            let by_cpu = node.reads.iter().zip(0u32..);
            by_cpu.filter(|(_, of)| cpu.is_none_or(|cpu| cpu == *of)).map(|(reads, _)| reads).sum()
        };
        let of = |near: bool| {
            let nodes = self.nodes.iter().filter(|node| is_near(node.id) == near);
            nodes.map(ours).fold(0, u64::saturating_add)
        };
        let at_s = self.at_ns as f64 / 1e9 - began_s;
        (at_s >= 0.0).then(|| Loads { at_s, near: of(true), far: of(false) })
    }
}

/// Far lines per second over the times that are `settled`.
#[expect(clippy::cast_precision_loss, reason = "a rate")]
pub(crate) fn far_per_s(loads: &[Loads], settled: impl Fn(f64) -> bool) -> Option<f64> {
    let between = loads.windows(2).filter(|pair| settled(pair[0].at_s) && settled(pair[1].at_s));
    let (lines, seconds) = between.fold((0, 0.0), |(lines, seconds), pair| {
        let more = pair[1].far.saturating_sub(pair[0].far);
        (lines + more, seconds + (pair[1].at_s - pair[0].at_s))
    });
    (seconds > 0.0).then(|| lines as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::super::sample::machine;
    use super::*;

    #[test]
    fn loads_of_one_cpu_are_split_into_near_and_far() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let sample = |at_ns: u64, near: [u64; 2], far: [u64; 2]| {
            serde_json::json!({ "at_ns": at_ns, "nodes": [
                { "id": 0, "reads": near, "writes": [0, 0], "stall_ns": [0, 0] },
                { "id": 1, "reads": far, "writes": [0, 0], "stall_ns": [0, 0] } ] })
        };
        let second = 1_000_000_000;
        let series = [
            sample(second, [1, 1], [1, 1]),
            sample(3 * second, [9, 10], [9, 20]),
            sample(5 * second, [100, 40], [100, 30]),
        ];
        std::fs::write(&file, serde_json::json!({ "series": series }).to_string()).unwrap();
        let loads = read(&file, &machine(), Some(1), 2.0).unwrap();
        assert_eq!(
            loads,
            [Loads { at_s: 1.0, near: 10, far: 20 }, Loads { at_s: 3.0, near: 40, far: 30 }]
        );
        assert_eq!(far_per_s(&loads, |_| true), Some(5.0));
        assert_eq!(far_per_s(&loads, |at_s| at_s > 2.0), None, "one moment is no time");
        let all = read(&file, &machine(), None, 2.0).unwrap();
        assert_eq!((all[1].near, all[1].far), (140, 130));
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(read(&file, &machine(), None, 0.0).unwrap(), []);
        assert!(read(&dir.path().join("none"), &machine(), None, 0.0).is_err());
    }
}
