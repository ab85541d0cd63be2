//! The results of a demo: one value, from which the table, the page and the picture are made.
//!
//! JSON `nearfar.demo/1`. All values are of the machine that was modelled or measured: where the emulated machine runs
//! in slow motion, that factor is already taken out of bandwidths, rates and latencies ([`Emulation::slow_motion`] is
//! the factor). An absent value was not reported by the client or the kernel; it is never zero.

use nearfar_topology::Mix;
use serde::{Deserialize, Serialize};

/// The `schema` of a [`Report`].
pub const SCHEMA: &str = "nearfar.demo/1";

/// The whole result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of nearfar.
    pub nearfar: String,
    /// The machine it ran on.
    pub machine: Machine,
    /// The placements compared, in the order shown; the first is the one ratios refer to.
    pub placements: Vec<Placement>,
    /// The bandwidth kernels, unless left out.
    pub bandwidth: Option<Bandwidth>,
    /// The servers, in the order shown.
    pub servers: Vec<Server>,
    /// Parts that could not be run, with the reason.
    pub left_out: Vec<LeftOut>,
}

/// The machine a report is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Present when nothing here was measured on hardware.
    pub emulation: Option<Emulation>,
    /// Kernel release.
    pub kernel: String,
    /// CPUs online.
    pub cpus: u32,
    /// Nodes with memory.
    pub nodes: Vec<Node>,
}

/// The emulation, as the lab reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Emulation {
    /// Name of the machine file.
    pub machine: String,
    /// `virtual` (guest clocks show modelled time), `wait` (the emulated CPUs really wait), or `off` (no timing).
    pub clock: String,
    /// Slow-motion factor of the guest relative to the modelled machine.
    pub slow_motion: f64,
}

/// A node with memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its id.
    pub id: u16,
    /// `dram`, `cxl`, `hbm`, `pmem` or `unknown`.
    pub kind: String,
    /// Its memory.
    pub size_bytes: u64,
    /// Its CPUs.
    pub cpus: u32,
    /// Whether it is near memory as seen from all CPUs.
    pub near: bool,
}

/// A placement of a program's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// Word used in the results: `near`, `far`, `default`, `interleave`, `auto`.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// The command-line prefix of the program; empty for the kernel's default. `-w auto` also takes the program's
    /// `--mix`, where it is known.
    pub prefix: String,
    /// The reason why it is not in the results, if this kernel or machine does not support it.
    pub unavailable: Option<String>,
}

/// Results of the bandwidth kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    /// Streaming threads.
    pub threads: u32,
    /// Total size of all threads' buffers, in bytes.
    pub buffer_bytes: u64,
    /// Repetitions; values are their medians.
    pub repeats: u32,
    /// One per placement and mix.
    pub runs: Vec<BandwidthRun>,
    /// Each memory node alone, one per node and mix.
    pub peaks: Vec<Peak>,
}

/// One placement under one mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BandwidthRun {
    /// [`Placement::id`].
    pub placement: String,
    /// Read:write mix: `1:0`, `2:1`, `1:1`.
    pub mix: Mix,
    /// Median of the repetitions, reads and writes together.
    pub bytes_per_second: u64,
    /// Largest less smallest repetition, in hundredths of a per cent of the median.
    pub spread_bp: u32,
    /// Location of the buffer.
    pub residency: Vec<Resident>,
    /// The command line to repeat it.
    pub command: String,
}

/// Bandwidth of one node alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peak {
    /// The node.
    pub node: u16,
    /// Read:write mix.
    pub mix: Mix,
    /// Median.
    pub bytes_per_second: u64,
}

/// Bytes of a process on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resident {
    /// The node.
    pub node: u16,
    /// Bytes there.
    pub bytes: u64,
}

/// An unmodified server under each placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// `redis-server`, `memcached`.
    pub program: String,
    /// Its version, as it reports it.
    pub version: String,
    /// The client used.
    pub client: String,
    /// The requests, in words: `GET, 1 KiB values, 8 connections`.
    pub workload: String,
    /// Total size of the values.
    pub data_bytes: u64,
    /// Operations timed per placement.
    pub operations: u64,
    /// A note on how the client reports latencies, if needed.
    pub latency_note: Option<String>,
    /// One per placement.
    pub runs: Vec<ServerRun>,
}

/// A server under one placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerRun {
    /// [`Placement::id`].
    pub placement: String,
    /// Throughput.
    pub operations_per_second: u64,
    /// Latencies measured by the client.
    pub latency: Latency,
    /// Location of the server's memory at the end.
    pub residency: Vec<Resident>,
    /// The command lines to repeat it: server, load, measurement.
    pub commands: Vec<String>,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Half of the operations took at most this.
    pub p50_ns: Option<u64>,
    /// 99 % took at most this.
    pub p99_ns: Option<u64>,
    /// 99.9 % took at most this.
    pub p999_ns: Option<u64>,
}

/// A part that did not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Its name.
    pub what: String,
    /// The reason, and the remedy.
    pub why: String,
}

/// The mixes compared, in the order shown.
pub const MIXES: [Mix; 3] = [Mix::READS, Mix::TWO_TO_ONE, Mix::ONE_TO_ONE];

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

    /// Sum of all nodes' bandwidths alone: the most that any placement could reach.
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

/// `a / b`; `None` if `b` is zero.
#[expect(clippy::cast_precision_loss, reason = "a ratio for people; 53 bits are plenty")]
pub fn ratio(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}
