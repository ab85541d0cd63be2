//! The sampling plan: nodes with memory, nearest first, their static properties, and the CPUs that sample each of them.

use std::collections::BTreeSet;

use nearfar_policy::advisor::Known;
use nearfar_topology::{BytesPerSecond, CpuId, Mix, Node, NodeId, NodeSet, Topology};

use nearfar_command::weighing::source::{From, Wanted, figures};

/// The nodes to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) nodes: Vec<Planned>,
}

/// A node to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) known: Known,
    /// The usable CPUs nearest to it; all usable ones, if none of the nearest is.
    pub(crate) cpus: Vec<CpuId>,
    /// Whether it has CPUs of its own.
    pub(crate) has_cpus: bool,
}

impl Plan {
    /// A plan for this machine and a process that may use these CPUs.
    ///
    /// # Errors
    /// A machine without memory.
    pub(crate) fn new(machine: &Topology, allowed: &[CpuId]) -> anyhow::Result<Self> {
        let memory = machine.memory_nodes();
        anyhow::ensure!(!memory.is_empty(), "no node of this machine has memory that is shown");
        let order = machine.nearest_first(&memory, &NodeSet::default());
        let nodes = order.into_iter().filter_map(|id| {
            let node = machine.nodes.get(&id)?;
            let near = nearest(machine, id, node);
            let mut cpus: Vec<_> = near.into_iter().filter(|cpu| allowed.contains(cpu)).collect();
            if cpus.is_empty() {
                cpus = allowed.to_vec();
            }
            let has_cpus = !node.cpus.is_empty();
            Some(Planned { known: known(machine, id, node), cpus, has_cpus })
        });
        Ok(Self { nodes: nodes.collect() })
    }

    pub(crate) fn known(&self) -> Vec<Known> {
        self.nodes.iter().map(|node| node.known).collect()
    }

    /// The sets of CPUs that sample, each with the indices of its nodes.
    pub(crate) fn views(&self) -> Vec<(Vec<CpuId>, Vec<usize>)> {
        let sets: BTreeSet<_> = self.nodes.iter().map(|node| node.cpus.clone()).collect();
        let of = |cpus: &Vec<CpuId>| {
            let all = self.nodes.iter().enumerate();
            all.filter(|(_, node)| node.cpus == *cpus).map(|(at, _)| at).collect()
        };
        sets.into_iter().map(|cpus| (cpus.clone(), of(&cpus))).collect()
    }

    /// All nodes ordered from `from`: nearest first, and by bandwidth.
    pub(crate) fn orders(&self, machine: &Topology, from: NodeId) -> [Vec<NodeId>; 2] {
        let ids = self.nodes.iter().map(|node| node.known.node).collect();
        let near = machine.nearest_first(&ids, &[from].into_iter().collect());
        let bandwidth = |id: &NodeId| {
            let found = self.nodes.iter().find(|node| node.known.node == *id);
            found.and_then(|node| node.known.read.max(node.known.write)).map_or(0, |most| most.0)
        };
        let mut fast = near.clone();
        fast.sort_by_key(|node| std::cmp::Reverse(bandwidth(node)));
        [near, fast]
    }
}

/// The CPUs of the node nearest to this one.
fn nearest(machine: &Topology, id: NodeId, node: &Node) -> Vec<CpuId> {
    if !node.cpus.is_empty() {
        return node.cpus.clone();
    }
    let cpus_of =
        |id: NodeId| machine.nodes.get(&id).map(|node| node.cpus.clone()).unwrap_or_default();
    let told: Vec<_> = node.access().into_iter().flat_map(|access| access.nodes.iter()).collect();
    let first = told.into_iter().map(cpus_of).find(|cpus| !cpus.is_empty());
    let by_distance = || {
        let homes = machine.cpu_nodes();
        let distance = |home: &NodeId| machine.distance(*home, id);
        homes.iter().min_by_key(|home| (distance(home).unwrap_or(u32::MAX), *home)).map(cpus_of)
    };
    first.or_else(by_distance).unwrap_or_default()
}

fn known(machine: &Topology, id: NodeId, node: &Node) -> Known {
    let nodes: NodeSet = [id].into_iter().collect();
    let at = |from: Option<&From>, mix: Mix| -> Option<BytesPerSecond> {
        let wanted = Wanted { machine, nodes: &nodes, cpu_nodes: None, mix };
        figures(from, wanted).ok()?.nodes.get(&id).copied()
    };
    let best = |mix: Mix| at(None, mix).or_else(|| at(Some(&From::Hmat), mix));
    let idle = node.access().and_then(|access| access.attributes.read_latency);
    let write = Mix::new(0, 1).and_then(best);
    Known { node: id, idle, read: best(Mix::READS), write }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::MemoryKind;
    use nearfar_topology::testkit::{machine, node};

    fn cpus(range: std::ops::Range<u32>) -> Vec<CpuId> {
        range.map(CpuId).collect()
    }

    fn two_sockets() -> Topology {
        machine([
            node(0).cpus(0..4).access(100, 60_000, 30_000),
            node(1).cpus(4..8).access(100, 60_000, 30_000),
            node(2).kind(MemoryKind::Cxl).access(250, 27_000, 26_000),
        ])
    }

    #[test]
    fn each_node_is_sampled_from_its_own_usable_cpus() {
        let plan = Plan::new(&two_sockets(), &cpus(2..8)).unwrap();
        let seen: Vec<_> =
            plan.nodes.iter().map(|node| (node.known.node.0, node.cpus.clone())).collect();
        assert_eq!(seen[0], (0, cpus(2..4)));
        assert_eq!(seen[1], (1, cpus(4..8)));
        assert!(!plan.nodes[2].cpus.is_empty() && !plan.nodes[2].has_cpus);
        assert_eq!(plan.views().iter().map(|(_, nodes)| nodes.len()).sum::<usize>(), 3);
        // If these are not usable, any usable CPUs sample.
        let plan = Plan::new(&two_sockets(), &cpus(6..7)).unwrap();
        assert_eq!(plan.views(), [(cpus(6..7), vec![0, 1, 2])]);
    }

    #[test]
    fn firmware_latency_and_bandwidth_are_used() {
        let plan = Plan::new(&two_sockets(), &cpus(0..8)).unwrap();
        let far = plan.nodes[2].known;
        let gb = |bandwidth: Option<BytesPerSecond>| bandwidth.unwrap().0 / 1_000_000_000;
        assert_eq!((far.node, far.idle.unwrap().0), (NodeId(2), 250));
        assert_eq!((gb(far.read), gb(far.write)), (27, 26));
        let plain = Plan::new(&machine([node(0).cpus(0..1)]), &cpus(0..1)).unwrap();
        assert_eq!(
            plain.nodes[0].known,
            Known { node: NodeId(0), idle: None, read: None, write: None }
        );
    }

    #[test]
    fn orders_are_by_nearness_and_by_bandwidth() {
        let mut machine = machine([
            node(0).cpus(0..4).access(100, 60_000, 30_000),
            node(1).cpus(4..8).access(100, 90_000, 30_000),
        ]);
        for (pair, distance) in [((0, 0), 10), ((0, 1), 21), ((1, 0), 21), ((1, 1), 10)] {
            machine.distances.entry(NodeId(pair.0)).or_default().insert(NodeId(pair.1), distance);
        }
        let plan = Plan::new(&machine, &cpus(0..8)).unwrap();
        let [zero, one] = [NodeId(0), NodeId(1)];
        assert_eq!(plan.orders(&machine, zero), [vec![zero, one], vec![one, zero]]);
        assert_eq!(plan.orders(&machine, one), [vec![one, zero], vec![one, zero]]);
    }

    #[test]
    fn a_machine_without_memory_is_refused() {
        assert!(Plan::new(&Topology::default(), &[]).is_err());
    }
}
