//! Statistics of a run: counts per vCPU, node and link, and their JSON, `nearfar.labstats/1`.
//!
//! Values come from the model of an emulated machine; nothing here was measured on hardware. Only the vCPU that a count
//! belongs to writes it; any thread may read it at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use crate::timeline::Jumps;

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

/// One vCPU's traffic to one node.
#[derive(Debug, Default)]
pub(crate) struct NodeCounts {
    pub(crate) reads: Count,
    pub(crate) writes: Count,
    pub(crate) stall_ps: Count,
    pub(crate) latency_ps: Count,
    pub(crate) table_reads: Count,
}

/// One vCPU's counts.
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
    pub(crate) tlb_misses: Count,
    /// Page walks without a result.
    pub(crate) lost_walks: Count,
    pub(crate) walk_ps: Count,
    pub(crate) transfers: Count,
}

/// The statistics file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// `nearfar.labstats/1`.
    pub schema: &'static str,
    /// True once QEMU has ended; false in the file written at its start.
    pub complete: bool,
    /// `virtual` or `wait`.
    pub clock: &'static str,
    /// The reason why it is not `virtual` although `auto` was requested.
    pub clock_reason: Option<String>,
    /// The reason why page walks cost nothing although the machine has TLBs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk_reason: Option<String>,
    /// Slow-motion factor of the guest by its own clock, relative to the machine file; 1 for `virtual`.
    pub slow_motion: f64,
    /// Influence of the host on the guest's time; absent while the guest really waits.
    pub host: Option<HostStats>,
    /// Per node, in the order of the settings.
    pub nodes: Vec<NodeStats>,
    /// Per vCPU.
    pub cpus: Vec<CpuStats>,
    /// Per link, in the order of the settings.
    pub links: Vec<LinkStats>,
    /// Counts up to increasing points in time, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Sample>,
}

/// Counts up to one point in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Modelled time since the machine was switched on.
    pub at_ns: u64,
    /// Per node, in the order of the settings.
    pub nodes: Vec<NodeSample>,
}

/// A node's counts in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeSample {
    /// Guest node id.
    pub id: u16,
    /// Lines read by each vCPU.
    pub reads: Vec<u64>,
    /// Lines written by each vCPU.
    pub writes: Vec<u64>,
    /// Stall time of each vCPU for this node.
    pub stall_ns: Vec<u64>,
}

/// A node's statistics.
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
    /// Stall time of all vCPUs for this node.
    pub stall_ns: u64,
    /// Lines read from page tables, which the above includes; absent without a TLB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_reads: Option<u64>,
    /// Mean time from a line's request to its arrival, queueing included; absent without reads.
    pub mean_loaded_latency_ns: Option<f64>,
}

/// Guest time that did not come from the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostStats {
    /// Guest time that passed in jumps to the next timer while all vCPUs were idle. It distorts nothing.
    pub idle_ns: u64,
    /// How often a vCPU that had been left behind was moved forward.
    pub advanced: u64,
    /// By how much in all: time in which it did no work.
    pub advanced_ns: u64,
    /// Guest time that woken vCPUs missed because the host ran them late.
    pub late_ns: u64,
    /// Real time that the threads of vCPUs waited for a CPU of the host.
    pub waited_ns: u64,
    /// The distorted part: the two above `waited_ns`, of the time of all vCPUs.
    pub distorted_share: f64,
    /// Whether that is at most [`DISTORTED_MOST`].
    pub valid: bool,
}

/// Runs of which the host has distorted more are not valid: 1 %.
pub const DISTORTED_MOST: f64 = 0.01;

impl HostStats {
    /// From the jumps of a run; `reached_ps` is the sum of its vCPUs' times.
    #[must_use]
    pub fn new(jumps: Jumps, reached_ps: u64, waited_ns: u64) -> Self {
        let distorted_ps = jumps.advanced_ps + jumps.late_ps;
        let distorted_share = ratio(distorted_ps, reached_ps).unwrap_or(0.0);
        Self {
            idle_ns: jumps.idle_ps / 1000,
            advanced: jumps.advanced,
            advanced_ns: jumps.advanced_ps / 1000,
            late_ns: jumps.late_ps / 1000,
            waited_ns,
            distorted_share,
            valid: distorted_share <= DISTORTED_MOST,
        }
    }
}

/// A vCPU's statistics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuStats {
    /// Index.
    pub cpu: usize,
    /// The modelled time it reached.
    pub virtual_time_ns: u64,
    /// Instructions executed; absent where an instruction has zero cost, because they are computed from their time.
    pub instructions: Option<u64>,
    /// Accesses that missed the first-level cache.
    pub first_level_misses: u64,
    /// Accesses that missed the last-level cache.
    pub last_level_misses: u64,
    /// Fraction of the first-level misses that are in streams.
    pub stream_share: Option<f64>,
    /// Stall time for memory.
    pub stall_ns: u64,
    /// Its page walks; absent without a TLB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walks: Option<WalkStats>,
    /// Lines that came from, or were taken from, other vCPUs' caches; absent without coherence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfers: Option<u64>,
}

/// Page walks of a vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WalkStats {
    /// Accesses beyond the first-level cache that missed the TLB.
    pub tlb_misses: u64,
    /// Time of their walks, which overlap each other and other loads.
    pub walk_ns: u64,
    /// Walks that were not charged: the page tables changed, or could not be read.
    pub lost: u64,
}

/// A link direction's statistics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkStats {
    /// Its name in the settings.
    pub name: String,
    /// Bytes that crossed it.
    pub bytes: u64,
}

/// `part` over `whole`; `None` if `whole` is zero.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
