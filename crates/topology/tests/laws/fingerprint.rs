//! The fingerprint changes with the determinants of latency and bandwidth, and with nothing else.

use nearfar_topology::{Bytes, CpuId, Finding, MemoryKind, NodeId, NodeSet, Topology, Tree};
use proptest::prelude::*;

use crate::sysfs::recorded;

/// A recorded machine with one of its nodes.
fn machine_and_node() -> impl Strategy<Value = (Topology, NodeId)> {
    (0usize..12, any::<prop::sample::Index>()).prop_map(|(which, at)| {
        let machine = recorded()[which].2.clone();
        let ids: Vec<NodeId> = machine.nodes.keys().copied().collect();
        let id = ids[at.index(ids.len())];
        (machine, id)
    })
}

fn changed(machine: &Topology, change: impl FnOnce(&mut Topology)) -> String {
    let mut copy = machine.clone();
    change(&mut copy);
    copy.fingerprint()
}

proptest! {
    #[test]
    fn free_memory_kinds_distances_tiers_and_the_kernel_do_not_count(
        (machine, id) in machine_and_node(),
        free in any::<u64>(),
        kind in prop::sample::select(MemoryKind::ALL.to_vec()),
    ) {
        let same = changed(&machine, |copy| {
            copy.nodes.get_mut(&id).unwrap().free = Bytes(free);
            copy.nodes.get_mut(&id).unwrap().kind = kind;
            copy.kernel = Some(free.to_string());
            copy.tiers.reverse();
            copy.distances.clear();
            copy.offline = NodeSet::new();
        });
        prop_assert_eq!(same, machine.fingerprint());
    }

    #[test]
    fn devices_do_not_count((machine, _) in machine_and_node()) {
        let same = changed(&machine, |copy| {
            copy.cxl_regions.clear();
            copy.cxl_devices.clear();
            copy.dax.clear();
        });
        prop_assert_eq!(same, machine.fingerprint());
    }

    #[test]
    fn one_cpu_more_counts((machine, id) in machine_and_node()) {
        let other = changed(&machine, |copy| copy.nodes.get_mut(&id).unwrap().cpus.push(CpuId(9_999)));
        prop_assert_ne!(other, machine.fingerprint());
    }

    #[test]
    fn a_node_less_counts((machine, id) in machine_and_node()) {
        prop_assert_ne!(changed(&machine, |copy| drop(copy.nodes.remove(&id))), machine.fingerprint());
    }

    #[test]
    fn a_node_of_another_id_counts((machine, id) in machine_and_node(), to in 0u16..1024) {
        prop_assume!(!machine.nodes.contains_key(&NodeId(to)));
        let other = changed(&machine, |copy| {
            let node = copy.nodes.remove(&id).unwrap();
            copy.nodes.insert(NodeId(to), node);
        });
        prop_assert_ne!(other, machine.fingerprint());
    }

    #[test]
    fn another_product_counts((machine, _) in machine_and_node(), name in "[A-Za-z]{1,12}") {
        prop_assume!(machine.product.as_deref() != Some(name.as_str()));
        prop_assert_ne!(changed(&machine, |copy| copy.product = Some(name)), machine.fingerprint());
    }

    #[test]
    fn sizes_that_round_to_the_same_quarter_are_the_same(gib in 1u64..64, reserved in 0u64..100) {
        // A size of 4, 5, 6 or 7 times a power of two is its own rounding; up to a seventh less rounds up to it.
        let quarters = [4, 5, 6, 7].map(|quarter| (gib.next_power_of_two() << 28) * quarter);
        for installed in quarters {
            let step = (gib.next_power_of_two() << 28) * 99 / 100;
            let seen = installed - step.min(installed / 8) * reserved / 100;
            let with = |size: u64| {
                changed(&recorded()[0].2, |copy| copy.nodes.get_mut(&NodeId(0)).unwrap().size = Bytes(size))
            };
            prop_assert_eq!(with(seen), with(installed), "{} of {}", seen, installed);
        }
    }

    #[test]
    fn twice_the_memory_counts((machine, id) in machine_and_node()) {
        prop_assume!(machine.nodes[&id].size > Bytes(0));
        let other = changed(&machine, |copy| copy.nodes.get_mut(&id).unwrap().size.0 *= 2);
        prop_assert_ne!(other, machine.fingerprint());
    }
}

#[test]
fn recorded_machines_have_different_fingerprints_of_16_digits() {
    let prints: Vec<String> =
        recorded().iter().map(|(.., machine)| machine.fingerprint()).collect();
    let distinct: std::collections::BTreeSet<_> = prints.iter().collect();
    assert_eq!(distinct.len(), prints.len());
    let hex = |print: &String| print.len() == 16 && print.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(prints.iter().all(hex), "{prints:?}");
}

#[test]
fn a_recording_of_an_unrelated_file_changes_neither_machine_nor_findings() {
    for (name, tree, machine) in recorded() {
        let mut more = tree.clone();
        for path in ["proc/loadavg", "sys/class/net/eth0/mtu", "sys/devices/system/nodes", "etc/x"]
        {
            more.insert(path, "0.5 node1 cxl");
        }
        assert_eq!(Topology::read(&more), (machine.clone(), Vec::<Finding>::new()), "{name}");
    }
    assert_eq!(Topology::read(&Tree::new()).0.fingerprint().len(), 16);
}
