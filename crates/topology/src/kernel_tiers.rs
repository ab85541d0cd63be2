//! The kernel's memory tiers: `sys/devices/virtual/memory_tiering/memory_tierN/nodelist`; a smaller N is faster. Source: Linux,
//! Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;

use crate::machine::Topology;
use crate::nodeset::NodeSet;
use crate::reader::Reader;

pub(crate) const TIERING: &str = "sys/devices/virtual/memory_tiering";

/// CPU-less nodes that the kernel has in a tier faster, and slower, than all nodes with CPUs.
pub(crate) fn beside_cpu_nodes(reader: &mut Reader<'_>, machine: &Topology) -> (NodeSet, NodeSet) {
    let groups = read(reader, &machine.memory_nodes());
    let cpus = machine.cpu_nodes();
    let has_cpus = |nodes: &NodeSet| nodes.iter().any(|id| cpus.contains(id));
    let own: Vec<u32> =
        groups.iter().filter(|(_, nodes)| has_cpus(nodes)).filter_map(|(id, _)| *id).collect();
    let (Some(first), Some(last)) = (own.iter().min(), own.iter().max()) else {
        return Default::default();
    };
    let nodes = |wanted: &dyn Fn(u32) -> bool| {
        let wanted = groups.iter().filter(|(id, _)| id.is_some_and(wanted));
        wanted.flat_map(|(_, nodes)| nodes.iter()).collect()
    };
    (nodes(&|id| id < *first), nodes(&|id| id > *last))
}

/// The kernel's tiers, each restricted to nodes with memory; a node counts once.
pub(crate) fn read(reader: &mut Reader<'_>, memory: &NodeSet) -> BTreeMap<Option<u32>, NodeSet> {
    let mut tiers = BTreeMap::new();
    let mut seen = NodeSet::new();
    let tree = reader.tree;
    let names = tree.children(TIERING).filter_map(|name| {
        let id: u32 = name.strip_prefix("memory_tier")?.parse().ok()?;
        Some((id, name))
    });
    let names: BTreeMap<u32, &str> = names.collect();
    for (id, name) in names {
        let listed = reader.nodes(&format!("{TIERING}/{name}/nodelist")).unwrap_or_default();
        let nodes: NodeSet =
            listed.iter().filter(|node| memory.contains(*node) && seen.insert(*node)).collect();
        if !nodes.is_empty() {
            tiers.insert(Some(id), nodes);
        }
    }
    tiers
}
