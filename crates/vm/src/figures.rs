//! Latency and bandwidth of the host's nodes as plain numbers, from firmware or from a measurement that the caller has, and
//! their form in a guest's HMAT.
//!
//! QEMU stores latencies in whole nanoseconds below 65,535, and bandwidths in MiB/s as 16-bit multiples of a power of two that
//! all of them share; values are rounded to that. A guest's Linux shows these MiB/s under the name of the host's MB/s, so the
//! host's number is passed on as it is.

use std::collections::BTreeMap;

use nearfar_topology::{BytesPerSecond, Nanoseconds, NodeId, NodeSet, Topology};

use crate::policy::Policy;

/// The figures of one memory node, seen from one CPU node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Latency of a read on an idle machine.
    pub latency: Nanoseconds,
    /// Read bandwidth.
    pub bandwidth: BytesPerSecond,
}

/// The figures of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// By CPU node and memory node.
    pub pairs: BTreeMap<(NodeId, NodeId), Figure>,
    /// Their origin, for messages: `firmware`, `the saved probe`.
    pub source: String,
}

impl Figures {
    /// Firmware's figures (HMAT, CDAT): of each node as its best CPUs see it; `None` if no node has any.
    #[must_use]
    pub fn of_firmware(machine: &Topology) -> Option<Self> {
        let mut pairs = BTreeMap::new();
        for (id, node) in &machine.nodes {
            let accesses = [&node.access1, &node.access0].into_iter().flatten();
            let known = accesses.filter_map(|access| {
                let attributes = access.attributes;
                let (latency, bandwidth) = (attributes.read_latency?, attributes.read_bandwidth?);
                // The kernel names no initiator of a CXL region's node.
                let from = match access.nodes.is_empty() {
                    true => closest(machine, *id),
                    // Accelerators are initiators, too.
                    false => access.nodes.without(&access.nodes.without(&machine.cpu_nodes())),
                };
                Some((from, Figure { latency, bandwidth }))
            });
            for (from, figure) in known {
                for cpu_node in from.iter() {
                    pairs.entry((cpu_node, *id)).or_insert(figure);
                }
            }
        }
        (!pairs.is_empty()).then(|| Self { pairs, source: "firmware".into() })
    }

    /// The figure of `memory` as seen from `cpu_node`, or else from the CPUs with the lowest latency.
    #[must_use]
    pub fn of(&self, cpu_node: Option<NodeId>, memory: NodeId) -> Option<Figure> {
        let exact = cpu_node.and_then(|cpu_node| self.pairs.get(&(cpu_node, memory)));
        let all = || self.pairs.iter().filter(|((_, to), _)| *to == memory);
        let best = || all().map(|(_, figure)| figure).min_by_key(|figure| figure.latency);
        exact.or_else(best).copied()
    }

    /// Whether all of `nodes` have figures.
    #[must_use]
    pub fn cover(&self, nodes: impl IntoIterator<Item = NodeId>) -> bool {
        nodes.into_iter().all(|node| self.of(None, node).is_some())
    }
}

/// The nodes with CPUs that are closest to a node.
fn closest(machine: &Topology, node: NodeId) -> NodeSet {
    let cpu_nodes = machine.cpu_nodes();
    let distance = |cpu_node: &NodeId| machine.distance(*cpu_node, node).unwrap_or(u32::MAX);
    let least = cpu_nodes.iter().map(|cpu_node| distance(&cpu_node)).min();
    cpu_nodes.iter().filter(|cpu_node| Some(distance(cpu_node)) == least).collect()
}

/// Entries of the HMAT are below this.
const ENTRY_END: u64 = 65_535;

/// A guest's view of host memory: the host's nodes and the policy over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) nodes: NodeSet,
    pub(crate) policy: Policy,
}

impl Memory {
    /// The memory of a guest's node without a policy: near memory.
    pub(crate) fn near(machine: &Topology) -> Self {
        Self { nodes: machine.near().iter().take(1).collect(), policy: Policy::Bind }
    }

    /// The node that stands for it in distances: the nearest one, which is filled first.
    pub(crate) fn seat(&self, machine: &Topology) -> NodeId {
        let nearest = machine.nearest_first(&self.nodes, &machine.cpu_nodes());
        nearest.first().copied().unwrap_or_default()
    }

    /// Its distance to `other`, which is another node of the guest: above 10, the distance of a node to itself.
    pub(crate) fn distance(&self, other: &Self, machine: &Topology) -> u32 {
        let (a, b) = (self.seat(machine), other.seat(machine));
        let known =
            [(a, b), (b, a)].into_iter().filter_map(|(from, to)| machine.distance(from, to));
        known.max().unwrap_or(20).clamp(11, 254)
    }

    /// Its figure as seen by the CPUs of `home`: interleaved nodes add up their bandwidth (page by page, the slowest
    /// bounds it; by weights, all are used), other policies fill the nearest node first.
    pub(crate) fn figure(
        &self,
        home: &Self,
        figures: &Figures,
        machine: &Topology,
    ) -> Option<Figure> {
        let home = machine.cpu_nodes().iter().find(|node| home.nodes.contains(*node));
        let of = |node| figures.of(home, node);
        let all: Vec<_> = self.nodes.iter().map(of).collect::<Option<_>>()?;
        let count = u64::try_from(all.len()).ok().filter(|count| *count > 0)?;
        let sum =
            |value: fn(&Figure) -> u64| all.iter().map(value).fold(0_u64, u64::saturating_add);
        let slowest = all.iter().map(|figure| figure.bandwidth.0).min()?;
        let bandwidth = match self.policy {
            Policy::Interleave => slowest.saturating_mul(count),
            Policy::WeightedInterleave => sum(|figure| figure.bandwidth.0),
            Policy::Bind | Policy::Preferred => return of(self.seat(machine)),
        };
        let latency = Nanoseconds(sum(|figure| figure.latency.0) / count);
        Some(Figure { latency, bandwidth: BytesPerSecond(bandwidth) })
    }
}

/// A latency in the nanoseconds that a guest's HMAT can hold.
pub(crate) fn entry(latency: Nanoseconds) -> u64 {
    latency.0.clamp(1, ENTRY_END - 1)
}

/// Bandwidths in 10^6 bytes per second, rounded so that each is a multiple below 65,535 of one power of two.
pub(crate) fn compressible(bandwidths: &[BytesPerSecond]) -> Vec<u64> {
    let all = bandwidths.iter().map(|bandwidth| (bandwidth.0 / 1_000_000).max(1));
    let all: Vec<u64> = all.collect();
    let max = all.iter().copied().max().unwrap_or(1);
    let mut shift = 0;
    let rounded = |value: u64, shift: u32| ((value + ((1 << shift) >> 1)) >> shift).max(1);
    while rounded(max, shift) >= ENTRY_END {
        shift += 1;
    }
    all.into_iter().map(|value| rounded(value, shift) << shift).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::testkit::{dram_and_cxl, machine, node};
    use proptest::prelude::*;

    #[test]
    fn firmwares_figures_are_those_of_the_best_cpus() {
        let figures = Figures::of_firmware(&dram_and_cxl()).unwrap();
        let far = figures.of(Some(NodeId(0)), NodeId(1)).unwrap();
        assert_eq!((far.latency.0, far.bandwidth.0), (250, 13_000_000_000));
        assert_eq!(figures.of(Some(NodeId(7)), NodeId(1)), Some(far), "else from the best CPUs");
        assert!(figures.cover([NodeId(0), NodeId(1)]) && !figures.cover([NodeId(2)]));
    }

    #[test]
    fn figures_without_an_initiator_are_those_of_the_closest_cpus() {
        let mut machine = machine([
            node(0).cpus(0..4).access(100, 60_000, 30_000),
            node(1).cpus(4..8).access(100, 60_000, 30_000),
            node(2).access(260, 48_000, 48_000),
        ]);
        for (from, distance) in [(0, 20), (1, 28)] {
            machine.distances.entry(NodeId(from)).or_default().insert(NodeId(2), distance);
        }
        let far = machine.nodes.get_mut(&NodeId(2)).unwrap();
        for access in [&mut far.access0, &mut far.access1].into_iter().flatten() {
            access.nodes = NodeSet::new();
        }
        let figures = Figures::of_firmware(&machine).unwrap();
        assert_eq!(figures.pairs[&(NodeId(0), NodeId(2))].latency.0, 260);
        assert!(!figures.pairs.contains_key(&(NodeId(1), NodeId(2))));
        assert!(figures.cover([NodeId(2)]));
    }

    #[test]
    fn a_machine_without_hmat_has_no_figures() {
        assert_eq!(Figures::of_firmware(&machine([node(0).cpus(0..4), node(1)])), None);
    }

    proptest! {
        #[test]
        fn bandwidths_share_a_base_that_qemu_accepts(
            mbps in proptest::collection::vec(1_u64..1 << 40, 1..6)
        ) {
            let given: Vec<_> = mbps.iter().map(|mbps| BytesPerSecond(mbps * 1_000_000)).collect();
            let values = compressible(&given);
            // As in QEMU: the base is the lowest bit of all of them.
            let bits = values.iter().fold(0, |bits, value| bits | value);
            let base = 1_u64 << bits.trailing_zeros();
            for (value, given) in values.iter().zip(&mbps) {
                prop_assert!(value / base < ENTRY_END, "{values:?}");
                let off = value.abs_diff(*given);
                prop_assert!(off * 65_000 <= *mbps.iter().max().unwrap(), "{given} became {value}");
            }
        }
    }

    #[test]
    fn usual_bandwidths_are_exact() {
        let given = [54_860, 27_033].map(|mbps| BytesPerSecond(mbps * 1_000_000));
        assert_eq!(compressible(&given), [54_860, 27_033]);
        let given = [204_801, 51_201].map(|mbps| BytesPerSecond(mbps * 1_000_000));
        assert_eq!(compressible(&given), [204_800, 51_200]);
    }
}
