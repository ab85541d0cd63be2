//! The types of a machine's memory: nodes, tiers, access attributes, CXL regions and devices.
//!
//! A [`Topology`] is a value: read once, passed as an argument, never a global. Everything that a kernel may not report
//! is an `Option` or an empty list; "unknown" is never an invented number.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::kind::{KnownBy, MemoryKind};
use crate::nodeset::NodeSet;
use crate::units::{Bytes, BytesPerSecond, CpuId, Nanoseconds, NodeId};

/// A machine's memory as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Online nodes, by id. Nodes without memory or without CPUs are here too.
    pub nodes: BTreeMap<NodeId, Node>,
    /// Nodes that could come online but are offline (`possible` less `online`).
    pub offline: NodeSet,
    /// Tiers, fastest first; the index is the rank of `tier:N`.
    pub tiers: Vec<Tier>,
    /// SLIT distances, by origin and target.
    pub distances: BTreeMap<NodeId, BTreeMap<NodeId, u32>>,
    /// CXL memory regions, in order of name.
    pub cxl_regions: Vec<CxlRegion>,
    /// CXL memory devices, in order of name.
    pub cxl_devices: Vec<CxlDevice>,
    /// CXL root decoders, in order of name.
    pub cxl_decoders: Vec<CxlDecoder>,
    /// dax devices, in order of name.
    pub dax: Vec<Dax>,
    /// Memory controllers that the kernel counts errors of (EDAC), in order of name.
    pub controllers: Vec<Controller>,
    /// Vendor and product, from firmware.
    pub product: Option<String>,
    /// The kernel's release (`uname -r`). For display: no decision may depend on it.
    pub kernel: Option<String>,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its CPUs, in order; none for a memory-only node.
    pub cpus: Vec<CpuId>,
    /// Total memory; zero for a node without memory.
    pub size: Bytes,
    /// Free memory when read.
    pub free: Bytes,
    /// Kind of the memory.
    pub kind: MemoryKind,
    /// Evidence for the kind.
    pub known_by: KnownBy,
    /// Access from the best initiator of any type (`access0`).
    pub access0: Option<Initiator>,
    /// Access from the best CPU (`access1`).
    pub access1: Option<Initiator>,
    /// Figures measured by a saved probe of this machine.
    pub measured: Option<Measured>,
    /// Caches of other memory in front of this node's (DRAM before persistent memory in memory mode), nearest to the
    /// memory last.
    pub caches: Vec<SideCache>,
    /// Whether its memory is its driver's and no program's (`has_private_memory`).
    pub private: bool,
    /// Pages with memory errors, where the kernel counts them.
    pub failures: Option<Failures>,
}

/// Pages of a node that hardware reported as corrupted, since the restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Failures {
    /// All of them.
    pub total: u64,
    /// Those taken out of use in time;
    pub recovered: u64,
    /// left for later;
    pub delayed: u64,
    /// not taken out of use;
    pub failed: u64,
    /// of no kind that the kernel handles.
    pub ignored: u64,
}

/// A memory controller and its errors since the restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Controller {
    /// `mcN`.
    pub name: String,
    /// The driver's name for it.
    pub model: Option<String>,
    /// Errors that were corrected.
    pub corrected: u64,
    /// Errors that were not.
    pub uncorrected: u64,
}

/// Figures of a node's memory from its best CPUs, measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Latency of a load on an idle machine.
    pub latency: Nanoseconds,
    /// Read bandwidth.
    pub read_bandwidth: BytesPerSecond,
}

/// A memory-side cache, as HMAT describes it. Its memory is no part of any node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SideCache {
    /// The level, from 1.
    pub level: u32,
    /// Its size.
    pub size: Option<Bytes>,
    /// Bytes of a line.
    pub line: Option<Bytes>,
    /// `direct-mapped`, `associative`, or the kernel's number.
    pub associativity: Option<String>,
    /// `write-back`, `write-through`, or the kernel's number.
    pub write: Option<String>,
}

/// The best initiators of a node, and their access attributes: the values of the HMAT or CDAT as the kernel shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Initiator {
    /// The initiator nodes.
    pub nodes: NodeSet,
    /// The values.
    pub attributes: Attributes,
}

/// Access attributes; the kernel omits those that firmware did not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Read latency.
    pub read_latency: Option<Nanoseconds>,
    /// Write latency.
    pub write_latency: Option<Nanoseconds>,
    /// Read bandwidth (the kernel shows 10^6 bytes per second).
    pub read_bandwidth: Option<BytesPerSecond>,
    /// Write bandwidth.
    pub write_bandwidth: Option<BytesPerSecond>,
}

/// A rank of nodes by abstract distance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tier {
    /// The kernel's number (`memory_tierN`), if it has tiers. Tiers with the same number are one tier for the kernel.
    pub kernel_id: Option<u32>,
    /// Its nodes.
    pub nodes: NodeSet,
    /// Evidence for the ranking.
    pub known_by: KnownBy,
}

/// A CXL region: an address range interleaved over devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CxlRegion {
    /// `regionN`.
    pub name: String,
    /// Size.
    pub size: Option<Bytes>,
    /// `ram`, `pmem`, or the kernel's text.
    pub mode: Option<String>,
    /// Devices interleaved.
    pub interleave_ways: Option<u32>,
    /// Consecutive bytes on one device.
    pub interleave_granularity: Option<Bytes>,
    /// Whether it is committed and enabled.
    pub committed: bool,
    /// The memory devices behind it (`memN`).
    pub devices: Vec<String>,
    /// Its dax devices (`daxX.Y`).
    pub dax: Vec<String>,
    /// The node its memory is, or would be, on.
    pub target_node: Option<NodeId>,
}

/// A CXL memory device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CxlDevice {
    /// `memN`.
    pub name: String,
    /// Serial number.
    pub serial: Option<u64>,
    /// Volatile capacity.
    pub ram_size: Option<Bytes>,
    /// Persistent capacity.
    pub pmem_size: Option<Bytes>,
    /// Firmware version.
    pub firmware: Option<String>,
    /// The node of its host bridge.
    pub numa_node: Option<NodeId>,
    /// PCI address, if it is in the device's link.
    pub pci: Option<String>,
}

/// A CXL root decoder: a window of addresses in which regions are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CxlDecoder {
    /// `decoder0.N`.
    pub name: String,
    /// Whether it takes volatile memory.
    pub ram: bool,
    /// Whether it takes persistent memory.
    pub pmem: bool,
}

/// A dax device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dax {
    /// `daxX.Y`.
    pub name: String,
    /// Size.
    pub size: Option<Bytes>,
    /// The node its memory is, or would be, on.
    pub target_node: Option<NodeId>,
    /// Its driver: `kmem` for system memory, `device_dax` for a character device.
    pub driver: Option<String>,
    /// The CXL region it belongs to.
    pub region: Option<String>,
    /// Whether it belongs to a persistent-memory (nd) region.
    pub persistent: bool,
    /// The state of its memory blocks where the kernel has one attribute for all of them: `unplugged`, `offline`, `online`,
    /// `online_kernel`, `online_movable`.
    pub hotplug: Option<String>,
    /// The tag of its extents, on a device of dynamic capacity.
    pub uuid: Option<String>,
}

/// An entry of the tree that could not be understood, or that contradicts others. Never fatal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The path.
    pub path: String,
    /// The finding and its treatment.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// `memory errors on 2 pages (1 recovered, 1 failed)`
impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total, recovered, delayed, failed, ignored } = *self;
        write!(f, "memory errors on {total} page{}", if total == 1 { "" } else { "s" })?;
        let parts = [
            (recovered, "recovered"),
            (delayed, "delayed"),
            (failed, "failed"),
            (ignored, "ignored"),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}

/// `mc0 (Intel_10nm): 3 errors corrected, 1 uncorrected`
impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(model) = &self.model {
            write!(f, " ({model})")?;
        }
        write!(f, ": {} errors corrected, {} uncorrected", self.corrected, self.uncorrected)
    }
}

impl Node {
    /// Whether it has memory that programs may use.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.size > Bytes(0) && !self.private
    }

    /// Access attributes from the best CPU, or else from the best initiator of any type.
    #[must_use]
    pub fn access(&self) -> Option<&Initiator> {
        self.access1.as_ref().or(self.access0.as_ref())
    }
}

impl Topology {
    /// Online nodes with memory for any program: all but those of GPUs and private ones.
    #[must_use]
    pub fn memory_nodes(&self) -> NodeSet {
        self.select(|node| node.has_memory() && node.kind != MemoryKind::Gpu)
    }

    /// Online nodes with CPUs.
    #[must_use]
    pub fn cpu_nodes(&self) -> NodeSet {
        self.select(|node| !node.cpus.is_empty())
    }

    /// Nodes with memory of `kind`.
    #[must_use]
    pub fn of_kind(&self, kind: MemoryKind) -> NodeSet {
        self.select(|node| node.has_memory() && node.kind == kind)
    }

    /// The nodes of tier `rank` (0 is the fastest), empty if there is no such tier.
    #[must_use]
    pub fn tier(&self, rank: u16) -> NodeSet {
        self.tiers.get(usize::from(rank)).map(|tier| tier.nodes.clone()).unwrap_or_default()
    }

    /// The SLIT distance between two nodes, if firmware gives it.
    #[must_use]
    pub fn distance(&self, from: NodeId, to: NodeId) -> Option<u32> {
        self.distances.get(&from)?.get(&to).copied()
    }

    /// The rank of a node's tier; `None` if it is in no tier.
    #[must_use]
    pub fn tier_of(&self, node: NodeId) -> Option<usize> {
        self.tiers.iter().position(|tier| tier.nodes.contains(node))
    }

    /// `nodes` by tier, then by distance from the nearest of `homes` (if empty, by tier only), then by number.
    #[must_use]
    pub fn nearest_first(&self, nodes: &NodeSet, homes: &NodeSet) -> Vec<NodeId> {
        let rows: Vec<_> = homes.iter().filter_map(|home| self.distances.get(&home)).collect();
        let distance = |node: NodeId| {
            rows.iter().filter_map(|row| row.get(&node)).min().copied().unwrap_or(u32::MAX)
        };
        let mut nodes: Vec<_> = nodes.iter().collect();
        nodes.sort_by_cached_key(|node| (self.tier_of(*node), distance(*node), *node));
        nodes
    }

    /// Near memory: the nodes with memory of the machine's fastest tier, independent of the CPU.
    #[must_use]
    pub fn near(&self) -> NodeSet {
        let present = self.memory_nodes();
        let with_memory =
            |tier: &Tier| tier.nodes.iter().filter(|id| present.contains(*id)).collect::<NodeSet>();
        let fastest = self.tiers.iter().map(with_memory).find(|nodes| !nodes.is_empty());
        fastest.unwrap_or(present)
    }

    /// Far memory: all nodes with memory that are not [`Topology::near`]. A machine with one tier has none.
    #[must_use]
    pub fn far(&self) -> NodeSet {
        let near = self.near();
        self.memory_nodes().without(&near)
    }

    /// The machine's nodes in a few words, for an error: `node 0 (dram, 16 GiB), node 1 (cxl, 8 GiB)`.
    #[must_use]
    pub fn inventory(&self) -> String {
        use core::fmt::Write as _;
        let mut text = String::new();
        for (id, node) in &self.nodes {
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = if node.private {
                write!(text, "{comma}node {id} (private memory of its driver)")
            } else if node.size > Bytes(0) {
                write!(text, "{comma}node {id} ({}, {})", node.kind, node.size)
            } else {
                write!(text, "{comma}node {id} (no memory)")
            };
        }
        if text.is_empty() { String::from("no nodes") } else { text }
    }

    fn select(&self, wanted: impl Fn(&Node) -> bool) -> NodeSet {
        self.nodes.iter().filter(|(_, node)| wanted(node)).map(|(id, _)| *id).collect()
    }
}
