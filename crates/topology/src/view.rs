//! Near and far memory as the CPUs of one node see them.
//!
//! *Near* is the machine's fastest tier. Of it, the memory of the CPUs' own node is *local*, and so is a node without CPUs
//! (HBM) if they are on one of its best initiators (HMAT), or, where firmware names none, if no other CPUs are closer. CPUs
//! that have neither, as those of a node without memory, have the near nodes at the least distance. All else is *far* for
//! them, other sockets' near memory (*remote*) included. Memory of GPUs is neither.

use alloc::vec::Vec;

use crate::machine::Topology;
use crate::nodeset::NodeSet;
use crate::units::{CpuId, NodeId};

/// The memory of a machine as the CPUs of a node see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The node with the CPUs.
    pub cpu_node: NodeId,
    /// Local near nodes.
    pub near: NodeSet,
    /// Near nodes that are not local.
    pub remote: NodeSet,
}

impl Topology {
    /// The views of all nodes with CPUs.
    #[must_use]
    pub fn views(&self) -> Vec<View> {
        let near = self.near();
        let attached = self.attached(&near);
        let view = |cpu_node: NodeId| {
            let local = self.local_to(&attached, &NodeSet::from_iter([cpu_node]));
            View { cpu_node, remote: near.without(&local), near: local }
        };
        self.cpu_nodes().iter().map(view).collect()
    }

    /// All nodes for any program that are not near in a view, cheapest first.
    #[must_use]
    pub fn others(&self, view: &View) -> Vec<NodeId> {
        let others = self.memory_nodes().without(&view.near);
        self.nearest_first(&others, &NodeSet::from_iter([view.cpu_node]))
    }

    /// The nodes with CPUs to which a node is attached: itself if it has some, else its best initiators by firmware, or,
    /// where that names none, the closest ones.
    #[must_use]
    pub fn attached_to(&self, id: NodeId, cpu_nodes: &NodeSet) -> NodeSet {
        if cpu_nodes.contains(id) {
            return NodeSet::from_iter([id]);
        }
        let best = self.nodes.get(&id).and_then(|node| node.access1.as_ref());
        let best = best.into_iter().flat_map(|best| best.nodes.iter());
        let named: NodeSet = best.filter(|from| cpu_nodes.contains(*from)).collect();
        if !named.is_empty() {
            return named;
        }
        let distance = |from: NodeId| self.distance(from, id);
        let Some(least) = cpu_nodes.iter().filter_map(distance).min() else {
            return NodeSet::new();
        };
        cpu_nodes.iter().filter(|from| distance(*from) == Some(least)).collect()
    }

    /// The local near nodes of `cpus`. All near nodes if `cpus` is empty (any CPU), or distances are unknown.
    #[must_use]
    pub fn local(&self, cpus: &[CpuId]) -> NodeSet {
        let cpu_nodes = self.cpu_nodes();
        let homes =
            cpu_nodes.iter().filter(|id| self.nodes[id].cpus.iter().any(|cpu| cpus.contains(cpu)));
        self.local_to(&self.attached(&self.near()), &homes.collect())
    }

    /// The near nodes that are not [`Topology::local`]: those of other sockets.
    #[must_use]
    pub fn remote(&self, cpus: &[CpuId]) -> NodeSet {
        let local = self.local(cpus);
        self.near().without(&local)
    }

    /// Each of the nodes with those that it is attached to.
    fn attached(&self, nodes: &NodeSet) -> Vec<(NodeId, NodeSet)> {
        let cpu_nodes = self.cpu_nodes();
        nodes.iter().map(|id| (id, self.attached_to(id, &cpu_nodes))).collect()
    }

    /// Those of the near nodes that are local to CPUs of the nodes `homes`.
    fn local_to(&self, near: &[(NodeId, NodeSet)], homes: &NodeSet) -> NodeSet {
        let all = || near.iter().map(|(id, _)| *id);
        if homes.is_empty() {
            return all().collect();
        }
        let is_own = |to: &NodeSet| homes.iter().any(|home| to.contains(home));
        let own: NodeSet = near.iter().filter(|(_, to)| is_own(to)).map(|(id, _)| *id).collect();
        if !own.is_empty() {
            return own;
        }
        let distance = |to: NodeId| homes.iter().filter_map(|from| self.distance(from, to)).min();
        let Some(least) = all().filter_map(distance).min() else { return all().collect() };
        all().filter(|id| distance(*id) == Some(least)).collect()
    }
}
