//! Tiers: every node with memory in one, fastest first, by the strongest evidence there is.

use nearfar_topology::{KnownBy, MemoryKind, NodeId, NodeSet, Overrides, Topology};
use proptest::prelude::*;

use crate::sysfs::{Sysfs, few, recorded};

const GIB: u64 = 1 << 20;

/// Speed order of kinds within one kernel tier.
fn speed(kind: MemoryKind) -> u8 {
    match kind {
        MemoryKind::Hbm => 0,
        MemoryKind::Dram | MemoryKind::Unknown => 1,
        MemoryKind::Cxl => 2,
        MemoryKind::Pmem | MemoryKind::Gpu => 3,
    }
}

fn latency(machine: &Topology, id: NodeId) -> u64 {
    machine.nodes[&id].access().unwrap().attributes.read_latency.unwrap().0
}

/// A CPU node of 100 ns, and nodes without CPUs of these latencies, all with a little less bandwidth than DRAM.
fn by_latency(latencies: &[u64]) -> Sysfs {
    let cpu = Sysfs::default().node(0, "0-3", 8 * GIB).hmat(0, 100, 40_000);
    (1..).zip(latencies).fold(cpu, |sysfs, (id, ns)| sysfs.node(id, "", GIB).hmat(id, *ns, 38_000))
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn tiers_are_in_the_order_of_latency(latencies in prop::collection::vec(80u64..1_000, 1..6)) {
        let machine = by_latency(&latencies).machine();
        for pair in machine.tiers.windows(2) {
            let slowest = pair[0].nodes.iter().map(|id| latency(&machine, id)).max();
            let fastest = pair[1].nodes.iter().map(|id| latency(&machine, id)).min();
            prop_assert!(slowest <= fastest, "{:?}", machine.tiers);
        }
    }

    #[test]
    fn a_node_with_more_latency_is_never_in_a_faster_tier(latencies in prop::collection::vec(80u64..1_000, 1..5), at in 0usize..5, more in 1u64..1_000) {
        let at = at % latencies.len();
        let id = NodeId(u16::try_from(at).unwrap() + 1);
        let before = by_latency(&latencies).machine().tier_of(id);
        let mut slower = latencies;
        slower[at] += more;
        prop_assert!(by_latency(&slower).machine().tier_of(id) >= before);
    }

    #[test]
    fn an_added_node_keeps_the_order_of_the_others(latencies in prop::collection::vec(80u64..1_000, 2..6)) {
        let [all, fewer] = [by_latency(&latencies), by_latency(&latencies[1..])].map(|sysfs| sysfs.machine());
        let ids = || (1..).map(NodeId).take(latencies.len() - 1);
        for (a, b) in ids().zip(ids().skip(1)) {
            // The first node is missing in `fewer`: each id there is one less.
            let later = |id: NodeId| NodeId(id.0 + 1);
            let before = fewer.tier_of(a).cmp(&fewer.tier_of(b));
            prop_assert_eq!(all.tier_of(later(a)).cmp(&all.tier_of(later(b))), before);
        }
    }

    #[test]
    fn two_kernel_tiers_are_in_the_order_of_their_numbers(fast in 0u32..1_000, slow in 0u32..1_000) {
        prop_assume!(fast != slow);
        let machine = Sysfs::default().node(0, "0", GIB).node(1, "", GIB).tier(fast, "0").tier(slow, "1").machine();
        let ids: Vec<_> = machine.tiers.iter().map(|tier| tier.kernel_id).collect();
        prop_assert_eq!(ids, [Some(fast.min(slow)), Some(fast.max(slow))]);
        prop_assert!(machine.tiers.iter().all(|tier| tier.known_by == KnownBy::MemoryTier));
    }

    #[test]
    fn nearest_first_is_a_permutation_by_tier_and_distance(
        latencies in prop::collection::vec(80u64..400, 1..5),
        distances in prop::collection::vec(11u32..60, 6),
    ) {
        let mut machine = by_latency(&latencies).machine();
        let home = NodeId(0);
        for (to, distance) in (1..).map(NodeId).zip(distances).take(latencies.len()) {
            machine.distances.entry(home).or_default().insert(to, distance);
        }
        let homes: NodeSet = [home].into_iter().collect();
        let order = machine.nearest_first(&machine.memory_nodes(), &homes);
        prop_assert_eq!(order.iter().copied().collect::<NodeSet>(), machine.memory_nodes());
        prop_assert_eq!(order.len(), machine.memory_nodes().len());
        let keys: Vec<_> = order.iter().map(|id| (machine.tier_of(*id), machine.distance(home, *id))).collect();
        prop_assert!(keys.is_sorted(), "{keys:?}");
    }
}

#[test]
fn a_tier_has_at_least_one_node_and_a_node_exactly_one_tier() {
    for (name, _, machine) in recorded() {
        for id in machine.memory_nodes().iter() {
            let ranks = machine.tiers.iter().filter(|tier| tier.nodes.contains(id)).count();
            assert_eq!(ranks, 1, "{name} {id}");
            let rank = u16::try_from(machine.tier_of(id).unwrap()).unwrap();
            assert!(machine.tier(rank).contains(id), "{name} {id}");
        }
        assert!(machine.tiers.iter().all(|tier| !tier.nodes.is_empty()), "{name}");
        assert!(machine.tier(u16::MAX).is_empty(), "{name}");
    }
}

#[test]
fn within_one_kernel_tier_kinds_are_in_the_order_of_their_speed() {
    for (name, _, machine) in recorded() {
        let speeds = |nodes: &NodeSet| nodes.iter().map(|id| speed(machine.nodes[&id].kind)).max();
        for pair in machine.tiers.windows(2) {
            if pair[0].kernel_id == pair[1].kernel_id {
                assert!(speeds(&pair[0].nodes) <= speeds(&pair[1].nodes), "{name}: {pair:?}");
            } else {
                assert!(pair[0].kernel_id < pair[1].kernel_id, "{name}: {pair:?}");
            }
        }
    }
}

#[test]
fn a_statement_of_slower_memory_never_makes_a_node_faster() {
    let slow_last = [MemoryKind::Hbm, MemoryKind::Dram, MemoryKind::Cxl, MemoryKind::Pmem];
    for (name, tree, machine) in recorded() {
        for id in machine.memory_nodes().iter().filter(|id| machine.nodes[id].cpus.is_empty()) {
            let place = |kind| {
                let (read, _) = Topology::read_with(tree, &Overrides::from([(id, kind)]));
                // Tiers in front of the node's; those behind do not count.
                read.tiers
                    .iter()
                    .take(read.tier_of(id).unwrap())
                    .map(|tier| tier.nodes.len())
                    .sum::<usize>()
            };
            let places = slow_last.map(place);
            assert!(places.is_sorted(), "{name} {id}: {places:?}");
        }
    }
}

#[test]
fn memory_known_by_its_device_is_never_near_beside_dram() {
    for (name, _, machine) in recorded() {
        for (id, node) in &machine.nodes {
            if matches!(node.known_by, KnownBy::CxlRegion | KnownBy::NdRegion) {
                assert!(machine.far().contains(*id), "{name} {id}");
            }
        }
    }
}

#[test]
fn without_the_kernels_tiers_every_node_is_still_ranked() {
    for (name, tree, machine) in recorded() {
        let mut bare = nearfar_topology::Tree::new();
        let others = tree.iter().filter(|(path, _)| !path.contains("memory_tiering"));
        others.for_each(|(path, text)| bare.insert(path, text));
        let (read, findings) = Topology::read(&bare);
        assert_eq!(findings, [], "{name}");
        assert!(read.tiers.iter().all(|tier| tier.kernel_id.is_none()), "{name}");
        let ranked: NodeSet = read.tiers.iter().flat_map(|tier| tier.nodes.iter()).collect();
        assert_eq!(ranked, machine.memory_nodes(), "{name}");
    }
}
