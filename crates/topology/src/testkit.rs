//! Synthetic machines for tests: `machine([node(0).cpus(0..4).gib(16), node(1).gib(8).kind(MemoryKind::Cxl)])`.
//!
//! Defaults are those of a plain machine: 4 GiB, half of it free, `dram`; distance 10 to itself and 20 to others; tiers
//! by kind. A machine built here is a value like one that was read, but has no tree.

use core::ops::Range;

use alloc::vec::Vec;

use crate::kind::{KnownBy, MemoryKind};
use crate::machine::{Attributes, Initiator, Node, Topology};
use crate::reader::Reader;
use crate::tiers;
use crate::tree::Tree;
use crate::units::{Bytes, BytesPerSecond, CpuId, Nanoseconds, NodeId};

/// Description of a node.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    id: NodeId,
    node: Node,
}

/// A node with 4 GiB of DRAM and no CPUs.
#[must_use]
pub fn node(id: u16) -> NodeSpec {
    let node = Node { kind: MemoryKind::Dram, ..Node::default() };
    NodeSpec { id: NodeId(id), node }.gib(4)
}

impl NodeSpec {
    /// With these CPUs.
    #[must_use]
    pub fn cpus(mut self, cpus: Range<u32>) -> Self {
        self.node.cpus = cpus.map(CpuId).collect();
        self
    }

    /// With this much memory, half of it free.
    #[must_use]
    pub fn bytes(mut self, bytes: u64) -> Self {
        (self.node.size, self.node.free) = (Bytes(bytes), Bytes(bytes / 2));
        self
    }

    /// With this much memory, half of it free.
    #[must_use]
    pub fn mib(self, mib: u64) -> Self {
        self.bytes(mib << 20)
    }

    /// With this much memory, half of it free; 0 for a node without memory.
    #[must_use]
    pub fn gib(self, gib: u64) -> Self {
        self.bytes(gib << 30)
    }

    /// With this much of it free.
    #[must_use]
    pub fn free(mut self, bytes: u64) -> Self {
        self.node.free = Bytes(bytes);
        self
    }

    /// Of this kind.
    #[must_use]
    pub fn kind(mut self, kind: MemoryKind) -> Self {
        self.node.kind = kind;
        self
    }

    /// With firmware's values for its best CPUs: latency in nanoseconds, bandwidths in 10^6 bytes per second.
    #[must_use]
    pub fn access(mut self, latency_ns: u64, read_mbps: u64, write_mbps: u64) -> Self {
        let rate = |mbps: u64| Some(BytesPerSecond(mbps * 1_000_000));
        let attributes = Attributes {
            read_latency: Some(Nanoseconds(latency_ns)),
            write_latency: Some(Nanoseconds(latency_ns)),
            read_bandwidth: rate(read_mbps),
            write_bandwidth: rate(write_mbps),
        };
        self.node.access1 = Some(Initiator { attributes, ..Initiator::default() });
        self
    }
}

/// The machine with these nodes.
#[must_use]
pub fn machine(nodes: impl IntoIterator<Item = NodeSpec>) -> Topology {
    let mut machine = Topology::default();
    for NodeSpec { id, mut node } in nodes {
        node.known_by = match node.kind {
            MemoryKind::Unknown => KnownBy::Nothing,
            _ if !node.cpus.is_empty() => KnownBy::Cpus,
            MemoryKind::Cxl => KnownBy::CxlRegion,
            MemoryKind::Pmem => KnownBy::NdRegion,
            MemoryKind::Dram | MemoryKind::Hbm => KnownBy::Hmat,
            MemoryKind::Gpu => KnownBy::Driver,
        };
        machine.nodes.insert(id, node);
    }
    let ids: Vec<NodeId> = machine.nodes.keys().copied().collect();
    for from in &ids {
        let row = ids.iter().map(|to| (*to, if from == to { 10 } else { 20 }));
        machine.distances.insert(*from, row.collect());
    }
    let cpus = machine.cpu_nodes();
    for node in machine.nodes.values_mut() {
        for access in [&mut node.access0, &mut node.access1].into_iter().flatten() {
            access.nodes = cpus.clone();
        }
    }
    let tree = Tree::new();
    machine.tiers = tiers::tiers(&mut Reader { tree: &tree, findings: Vec::new() }, &machine);
    machine
}

/// A DRAM node with 4 CPUs and a CXL node without, 100 and 250 ns, 40 and 13 GB/s.
#[must_use]
pub fn dram_and_cxl() -> Topology {
    machine([
        node(0).cpus(0..4).gib(16).access(100, 40_000, 40_000),
        node(1).gib(8).kind(MemoryKind::Cxl).access(250, 13_000, 13_000),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_pair_has_a_near_and_a_far_node() {
        let machine = dram_and_cxl();
        assert_eq!(machine.near().to_string(), "0");
        assert_eq!(machine.far().to_string(), "1");
        assert_eq!(machine.tiers.len(), 2);
    }

    #[test]
    fn on_two_sockets_near_memory_is_local_or_remote_and_far_memory_slower() {
        let mut sockets = machine([
            node(0).cpus(0..2),
            node(1).cpus(2..4),
            node(2).kind(MemoryKind::Hbm),
            node(3).kind(MemoryKind::Hbm),
        ]);
        sockets.distances.entry(NodeId(0)).or_default().insert(NodeId(2), 13);
        sockets.distances.entry(NodeId(1)).or_default().insert(NodeId(3), 13);
        assert_eq!(sockets.near().to_string(), "2-3");
        assert_eq!(sockets.local(&[CpuId(3)]).to_string(), "3");
        assert_eq!(sockets.remote(&[CpuId(3)]).to_string(), "2");
        assert_eq!(sockets.far().to_string(), "0-1");
        let ids = |nodes: &[u16]| nodes.iter().copied().map(NodeId).collect::<Vec<_>>();
        let from = |home: &[u16]| {
            sockets.nearest_first(&sockets.memory_nodes(), &ids(home).into_iter().collect())
        };
        assert_eq!(from(&[]), ids(&[2, 3, 0, 1]));
        assert_eq!(from(&[1]), ids(&[3, 2, 1, 0]));
        assert_eq!(sockets.tier_of(NodeId(2)), Some(0));
        assert_eq!(sockets.tier_of(NodeId(9)), None);
    }
}
