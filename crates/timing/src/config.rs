//! The settings the lab hands to the timing plugin: one JSON file, written by the lab, read by the plugin.
//!
//! Figures are the real machine's; with [`Clock::Wait`] the model multiplies every duration by `slow_motion` (and so
//! divides every bandwidth). Nodes are referred to by their guest node id, vCPUs by index.

use serde::{Deserialize, Serialize};

/// Everything the model needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How the guest is made to feel time.
    pub clock: Clock,
    /// The node of each vCPU, by vCPU index.
    pub cpu_nodes: Vec<u16>,
    /// Memory nodes.
    pub nodes: Vec<MemoryNode>,
    /// Guest-physical ranges; what lies in none belongs to the first node.
    pub ranges: Vec<Range>,
    /// Access paths, one per CPU node and memory node.
    pub paths: Vec<Path>,
    /// Interconnect links by index, each one direction.
    pub links: Vec<Link>,
    /// The processor.
    pub processor: Processor,
    /// Where to write per-node statistics as JSON at exit and on demand; nowhere if absent.
    pub stats: Option<std::path::PathBuf>,
}

/// How guest time passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Clock {
    /// Guest clocks show modelled time where the emulator allows it, else as `Wait` with `fallback_slow_motion`.
    Auto {
        /// Slow motion of the fallback.
        fallback_slow_motion: f64,
    },
    /// Guest clocks show modelled time; the plugin refuses to load where the emulator does not allow it.
    Virtual,
    /// Real waits: the whole machine runs `slow_motion` times slower than the real one.
    Wait {
        /// Factor, at least 1.
        slow_motion: f64,
    },
}

/// A memory controller, or a CXL device with its link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryNode {
    /// Guest node id.
    pub id: u16,
    /// Read capacity, 10^9 bytes per second.
    pub read_gbps: f64,
    /// Write capacity, 10^9 bytes per second.
    pub write_gbps: f64,
    /// True: reads and writes have a capacity each. False: they share one; a read takes 64 B / `read_gbps` of it and
    /// a write 64 B / `write_gbps`.
    pub duplex: bool,
}

/// A guest-physical range `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Guest node id.
    pub node: u16,
}

/// From the CPUs of one node to the memory of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Path {
    /// CPU node.
    pub from: u16,
    /// Memory node.
    pub to: u16,
    /// Unloaded latency of a dependent load.
    pub latency_ns: f64,
    /// The most this CPU node can draw from that memory node, reads and writes together; no limit if absent.
    pub gbps_max: Option<f64>,
    /// Links crossed by data on its way to the CPU (reads).
    pub read_links: Vec<u16>,
    /// Links crossed by data on its way to the memory (writes).
    pub write_links: Vec<u16>,
}

/// One direction of an interconnect link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Name for statistics, such as `0>1`.
    pub name: String,
    /// Capacity, 10^9 bytes per second.
    pub gbps: f64,
}

/// What the CPUs are like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Time of one instruction that hits the first cache, in picoseconds.
    pub instruction_ps: u64,
    /// First-level cache per vCPU, KiB (a power of two).
    pub l1_kib: u64,
    /// Last-level cache shared by the CPUs of a node, KiB (a power of two).
    pub llc_kib: u64,
    /// Latency of a hit there.
    pub llc_latency_ns: f64,
    /// Lines a vCPU can have under way (streams and stores; a lone dependent load has one).
    pub lines_in_flight: u32,
    /// Shape of the loaded latency: latency = idle * (1 + load_factor * u^load_power / (1 - u)), u the utilisation,
    /// up to `load_limit` times the idle latency before queueing.
    pub load_factor: f64,
    /// See `load_factor`.
    pub load_power: f64,
    /// See `load_factor`.
    pub load_limit: f64,
}
