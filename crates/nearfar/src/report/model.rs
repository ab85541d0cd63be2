//! What a demo found: one value, from which the table, the page and the picture are made.
//!
//! JSON `nearfar.demo/1`. All figures are of the machine that was modelled or measured: where the emulated machine runs
//! in slow motion, that factor is already taken out of bandwidths, rates and latencies ([`Emulation::slow_motion`]
//! says by how much). Absent means that the client or the kernel did not say, never zero.

use nearfar_topology::Mix;
use serde::{Deserialize, Serialize};

/// The `schema` of a [`Report`].
pub(crate) const SCHEMA: &str = "nearfar.demo/1";

/// The whole result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// Version of nearfar.
    pub(crate) nearfar: String,
    /// The machine it ran on.
    pub(crate) machine: Machine,
    /// The placements compared, in the order shown; the first is the one ratios refer to.
    pub(crate) placements: Vec<Placement>,
    /// The bandwidth kernels, unless left out.
    pub(crate) bandwidth: Option<Bandwidth>,
    /// The servers, in the order shown.
    pub(crate) servers: Vec<Server>,
    /// What could not be run, and why.
    pub(crate) left_out: Vec<LeftOut>,
}

/// The machine a report is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    /// Present when nothing here was measured on hardware.
    pub(crate) emulation: Option<Emulation>,
    /// Kernel release.
    pub(crate) kernel: String,
    /// CPUs online.
    pub(crate) cpus: u32,
    /// Nodes with memory.
    pub(crate) nodes: Vec<Node>,
}

/// How the machine was emulated, by the lab's own word.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Emulation {
    /// Name of the machine file.
    pub(crate) machine: String,
    /// `virtual` (guest clocks show modelled time), `wait` (the emulated CPUs really wait), or `off` (no timing).
    pub(crate) clock: String,
    /// How many times slower than the modelled machine the guest ran.
    pub(crate) slow_motion: f64,
}

/// A node with memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Node {
    /// Its id.
    pub(crate) id: u16,
    /// `dram`, `cxl`, `hbm`, `pmem` or `unknown`.
    pub(crate) kind: String,
    /// Its memory.
    pub(crate) size_bytes: u64,
    /// Its CPUs.
    pub(crate) cpus: u32,
    /// Whether it is near memory as seen from all CPUs.
    pub(crate) near: bool,
}

/// One way to place a program's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Placement {
    /// Word used in the results: `near`, `far`, `default`, `interleave`, `auto`.
    pub(crate) id: String,
    /// For people.
    pub(crate) name: String,
    /// What stands before the program on the command line; empty for the kernel's default. `-w auto` also takes the
    /// program's `--mix`, where it is known.
    pub(crate) prefix: String,
    /// Why it is not in the results, if this kernel or machine can't do it.
    pub(crate) unavailable: Option<String>,
}

/// Results of the bandwidth kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bandwidth {
    /// Threads that streamed.
    pub(crate) threads: u32,
    /// Bytes streamed over by all threads together.
    pub(crate) buffer_bytes: u64,
    /// Repetitions; figures are their medians.
    pub(crate) repeats: u32,
    /// One per placement and mix.
    pub(crate) runs: Vec<BandwidthRun>,
    /// Each memory node alone, one per node and mix.
    pub(crate) peaks: Vec<Peak>,
}

/// One placement under one mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BandwidthRun {
    /// [`Placement::id`].
    pub(crate) placement: String,
    /// Reads to writes: `1:0`, `2:1`, `1:1`.
    pub(crate) mix: Mix,
    /// Median of the repetitions, reads and writes together.
    pub(crate) bytes_per_second: u64,
    /// Largest less smallest repetition, in hundredths of a per cent of the median.
    pub(crate) spread_bp: u32,
    /// Where the buffer was.
    pub(crate) residency: Vec<Resident>,
    /// The line to repeat it with.
    pub(crate) command: String,
}

/// What one node gives alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Peak {
    /// The node.
    pub(crate) node: u16,
    /// Reads to writes.
    pub(crate) mix: Mix,
    /// Median.
    pub(crate) bytes_per_second: u64,
}

/// Bytes of a process on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resident {
    /// The node.
    pub(crate) node: u16,
    /// Bytes there.
    pub(crate) bytes: u64,
}

/// An unmodified server under each placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    /// `redis-server`, `memcached`.
    pub(crate) program: String,
    /// Its version as it says it.
    pub(crate) version: String,
    /// The client that measured.
    pub(crate) client: String,
    /// What was asked of it, in words: `GET, 1 KiB values, 8 connections`.
    pub(crate) workload: String,
    /// Size of the values held, all together.
    pub(crate) data_bytes: u64,
    /// Operations timed per placement.
    pub(crate) operations: u64,
    /// How the client gives latencies, if that needs saying.
    pub(crate) latency_note: Option<String>,
    /// One per placement.
    pub(crate) runs: Vec<ServerRun>,
}

/// A server under one placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerRun {
    /// [`Placement::id`].
    pub(crate) placement: String,
    /// Throughput.
    pub(crate) operations_per_second: u64,
    /// Latencies as the client saw them.
    pub(crate) latency: Latency,
    /// Where the server's memory was at the end.
    pub(crate) residency: Vec<Resident>,
    /// The lines to repeat it with: server, load, measurement.
    pub(crate) commands: Vec<String>,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Latency {
    /// Half of the operations took at most this.
    pub(crate) p50_ns: Option<u64>,
    /// 99 % took at most this.
    pub(crate) p99_ns: Option<u64>,
    /// 99.9 % took at most this.
    pub(crate) p999_ns: Option<u64>,
}

/// Something that did not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeftOut {
    /// What.
    pub(crate) what: String,
    /// Why, and what to do.
    pub(crate) why: String,
}

/// The mixes compared, in the order shown.
pub(crate) const MIXES: [Mix; 3] = [Mix::READS, Mix::TWO_TO_ONE, Mix::ONE_TO_ONE];

impl Report {
    /// The placement with this id.
    pub(crate) fn placement(&self, id: &str) -> Option<&Placement> {
        self.placements.iter().find(|placement| placement.id == id)
    }

    /// The name of the placement that ratios refer to.
    pub(crate) fn baseline(&self) -> &str {
        self.placements.first().map_or("", |placement| placement.id.as_str())
    }
}

impl Bandwidth {
    /// The run of a placement under a mix.
    pub(crate) fn run(&self, placement: &str, mix: Mix) -> Option<&BandwidthRun> {
        self.runs.iter().find(|run| run.placement == placement && run.mix == mix)
    }

    /// What all nodes give alone, summed: the most that any placement could draw.
    pub(crate) fn peak_sum(&self, mix: Mix) -> Option<u64> {
        let of_mix = self.peaks.iter().filter(|peak| peak.mix == mix);
        let sum = of_mix.map(|peak| peak.bytes_per_second).sum();
        (sum > 0).then_some(sum)
    }

    /// Bandwidth of a placement relative to another's.
    pub(crate) fn ratio(&self, placement: &str, to: &str, mix: Mix) -> Option<f64> {
        let of = |id| self.run(id, mix).map(|run| run.bytes_per_second);
        ratio(of(placement)?, of(to)?)
    }
}

impl Server {
    /// The run of a placement.
    pub(crate) fn run(&self, placement: &str) -> Option<&ServerRun> {
        self.runs.iter().find(|run| run.placement == placement)
    }

    /// Throughput of a placement relative to another's.
    pub(crate) fn ratio(&self, placement: &str, to: &str) -> Option<f64> {
        let of = |id| self.run(id).map(|run| run.operations_per_second);
        ratio(of(placement)?, of(to)?)
    }
}

/// `a / b`, where there is a `b`.
#[expect(clippy::cast_precision_loss, reason = "a ratio for people; 53 bits are plenty")]
pub(crate) fn ratio(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}
