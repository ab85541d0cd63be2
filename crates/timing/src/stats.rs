//! What a run came to: counts per vCPU, node and link, and their JSON, `nearfar.labstats/1`.
//!
//! Figures are the model's, on a machine that is not there; nothing here was measured on hardware. Counts are kept by
//! the vCPU they belong to alone, and may be read at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// A count that one thread adds to and any may read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds; only ever from one thread.
    #[inline]
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    /// The count.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What one vCPU did to one node.
#[derive(Debug, Default)]
pub(crate) struct NodeCounts {
    pub(crate) reads: Count,
    pub(crate) writes: Count,
    pub(crate) stall_ps: Count,
    pub(crate) latency_ps: Count,
}

/// What one vCPU did.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct VcpuCounts {
    pub(crate) nodes: Vec<NodeCounts>,
    pub(crate) first_level_misses: Count,
    pub(crate) last_level_misses: Count,
    pub(crate) in_streams: Count,
    pub(crate) stall_ps: Count,
    pub(crate) busy_ps: Count,
    pub(crate) time_ps: Count,
}

/// The statistics file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// `nearfar.labstats/1`.
    pub schema: &'static str,
    /// True once QEMU has ended; false in what is written when it starts.
    pub complete: bool,
    /// `virtual` or `wait`.
    pub clock: &'static str,
    /// Why it is not `virtual`, where `auto` was asked for.
    pub clock_reason: Option<String>,
    /// How many times slower than the machine file's figures the guest ran by its own clock; 1 for `virtual`.
    pub slow_motion: f64,
    /// Per node, in the order of the settings.
    pub nodes: Vec<NodeStats>,
    /// Per vCPU.
    pub cpus: Vec<CpuStats>,
    /// Per link, in the order of the settings.
    pub links: Vec<LinkStats>,
    /// Counts up to moments, each a little later than the last, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Sample>,
}

/// What had been counted at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// The modelled time, since the machine was switched on.
    pub at_ns: u64,
    /// Per node, in the order of the settings.
    pub nodes: Vec<NodeSample>,
}

/// A node's share of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeSample {
    /// Guest node id.
    pub id: u16,
    /// Lines read by each vCPU.
    pub reads: Vec<u64>,
    /// Lines written by each vCPU.
    pub writes: Vec<u64>,
    /// Time each vCPU stood still for this node.
    pub stall_ns: Vec<u64>,
}

/// A node's share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeStats {
    /// Guest node id.
    pub id: u16,
    /// Lines read.
    pub reads: u64,
    /// Lines written.
    pub writes: u64,
    /// Both, in bytes.
    pub bytes: u64,
    /// Time vCPUs stood still for this node.
    pub stall_ns: u64,
    /// Mean time from asking for a line to having it, queueing included; absent where nothing was read.
    pub mean_loaded_latency_ns: Option<f64>,
}

/// A vCPU's share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuStats {
    /// Index.
    pub cpu: usize,
    /// The modelled time it reached.
    pub virtual_time_ns: u64,
    /// Instructions executed; absent where they cost nothing, as they are told by their time.
    pub instructions: Option<u64>,
    /// Accesses that missed the first-level cache.
    pub first_level_misses: u64,
    /// Accesses that missed the last-level cache.
    pub last_level_misses: u64,
    /// Of the first-level misses, those in streams.
    pub stream_share: Option<f64>,
    /// Time it stood still for memory.
    pub stall_ns: u64,
}

/// A link direction's share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkStats {
    /// Its name in the settings.
    pub name: String,
    /// Bytes that crossed it.
    pub bytes: u64,
}

/// `part` over `whole`, unless there is nothing to divide by.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
