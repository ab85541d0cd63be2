//! Machines as the text of sysfs: recorded ones, and ones described node by node.

use std::sync::OnceLock;

use nearfar_topology::{Finding, NodeId, NodeSet, Topology, Tree};
use proptest::prelude::*;

const NODES: &str = "sys/devices/system/node";

macro_rules! recorded {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../fixtures/machines/", $name, ".tree")))),*]
    };
}

/// Name and text of the recorded machines.
pub(crate) const RECORDED: [(&str, &str); 12] = recorded![
    "laptop",
    "two-sockets",
    "hbm-flat",
    "memoryless",
    "cxl-region-two-devices",
    "sparse-ids",
    "one-tier",
    "pmem-kmem",
    "lab-cxl-2tier",
    "lab-hbm-dram-cxl",
    "lab-numa-4node",
    "lab-cxl-device",
];

/// A recorded machine: its name, its text, and the result of reading it.
pub(crate) type Recorded = (&'static str, Tree, Topology);

/// The recorded machines, read; each must read without findings.
pub(crate) fn recorded() -> &'static [Recorded] {
    static ONCE: OnceLock<Vec<Recorded>> = OnceLock::new();
    let read = |(name, text): (&'static str, &str)| {
        let tree = Tree::parse(text);
        let (machine, findings) = Topology::read(&tree);
        assert_eq!(findings, [], "{name}");
        (name, tree, machine)
    };
    ONCE.get_or_init(|| RECORDED.into_iter().map(read).collect())
}

/// A machine under construction. Nodes are at distance 10 from themselves and 20 from others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sysfs {
    pub(crate) tree: Tree,
    ids: Vec<u16>,
}

impl Sysfs {
    /// With a node of these CPUs (a list, or nothing) and this much memory, half of it free.
    pub(crate) fn node(mut self, id: u16, cpus: &str, kib: u64) -> Self {
        let free = kib / 2;
        let meminfo = format!("Node {id} MemTotal: {kib} kB\nNode {id} MemFree: {free} kB\n");
        self.tree.insert(&format!("{NODES}/node{id}/cpulist"), cpus);
        self.tree.insert(&format!("{NODES}/node{id}/meminfo"), &meminfo);
        self.ids.push(id);
        self.ids.sort_unstable();
        let online: NodeSet = self.ids.iter().copied().map(NodeId).collect();
        self.tree.insert(&format!("{NODES}/online"), &online.to_string());
        for from in &self.ids {
            let row = self.ids.iter().map(|to| if from == to { "10" } else { "20" });
            let row = row.collect::<Vec<_>>().join(" ");
            self.tree.insert(&format!("{NODES}/node{from}/distance"), &row);
        }
        self
    }

    /// With this text at a path below the directory of nodes.
    pub(crate) fn file(mut self, path: &str, text: &str) -> Self {
        self.tree.insert(&format!("{NODES}/{path}"), text);
        self
    }

    /// With this text at a path.
    pub(crate) fn at(mut self, path: &str, text: &str) -> Self {
        self.tree.insert(path, text);
        self
    }

    /// With firmware's attributes for a node's best CPUs, in nanoseconds and 10^6 bytes per second.
    pub(crate) fn hmat(self, id: u16, latency: u64, bandwidth: u64) -> Self {
        let path = format!("node{id}/access1/initiators");
        self.file(&format!("{path}/read_latency"), &latency.to_string())
            .file(&format!("{path}/read_bandwidth"), &bandwidth.to_string())
    }

    /// With one of the kernel's tiers.
    pub(crate) fn tier(self, id: u32, nodes: &str) -> Self {
        self.at(&format!("sys/devices/virtual/memory_tiering/memory_tier{id}/nodelist"), nodes)
    }

    /// With a CXL region that has a dax device for the node.
    pub(crate) fn cxl_region(self, number: u32, target: u16) -> Self {
        let dax = format!("sys/bus/dax/devices/dax{number}.0");
        let link =
            format!("-> ../../root0/decoder0.0/region{number}/dax_region{number}/dax{number}.0");
        self.at(&format!("sys/bus/cxl/devices/region{number}/mode"), "ram")
            .at(&dax, &link)
            .at(&format!("{dax}/target_node"), &target.to_string())
    }

    /// With a dax device of a persistent-memory region that targets the node.
    pub(crate) fn nd_region(self, number: u32, target: u16) -> Self {
        let dax = format!("sys/bus/dax/devices/dax{number}.0");
        let link = format!("-> ../../LNXSYSTM:00/ndbus0/region{number}/dax{number}.0");
        self.at(&dax, &link).at(&format!("{dax}/target_node"), &target.to_string())
    }

    /// The machine, and findings.
    pub(crate) fn read(&self) -> (Topology, Vec<Finding>) {
        Topology::read(&self.tree)
    }

    /// The machine; it must read without findings.
    pub(crate) fn machine(&self) -> Topology {
        let (machine, findings) = self.read();
        assert_eq!(findings, []);
        machine
    }
}

/// A tree without the directory of a node; its id stays in the lists.
pub(crate) fn without_directory(tree: &Tree, id: NodeId) -> Tree {
    let below = format!("{NODES}/node{id}/");
    let mut rest = Tree::new();
    tree.iter().filter(|(path, _)| !path.starts_with(&below)).for_each(|(p, t)| rest.insert(p, t));
    rest
}

/// A tree with one node missing from the list of online nodes.
pub(crate) fn offline(tree: &Tree, id: NodeId) -> Tree {
    let path = format!("{NODES}/online");
    let online = NodeSet::parse_list(tree.text(&path).unwrap()).unwrap();
    let rest: NodeSet = online.iter().filter(|node| *node != id).collect();
    let mut changed = tree.clone();
    changed.insert(&path, &rest.to_string());
    changed
}

/// Distinct node ids, unordered.
pub(crate) fn ids(count: core::ops::Range<usize>) -> impl Strategy<Value = Vec<u16>> {
    proptest::collection::btree_set(0u16..=1023, count)
        .prop_map(|ids| ids.into_iter().collect::<Vec<_>>())
        .prop_shuffle()
}

/// Few cases, for laws that read whole machines.
pub(crate) fn few() -> ProptestConfig {
    ProptestConfig::with_cases(48)
}

/// One of the recorded machines.
pub(crate) fn any_recorded() -> impl Strategy<Value = (&'static str, &'static str)> {
    proptest::sample::select(RECORDED.to_vec())
}
