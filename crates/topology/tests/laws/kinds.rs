//! The kind of a node's memory follows from the node's own evidence and the CPU nodes, in the order of the rules.

use nearfar_topology::{Finding, KnownBy, MemoryKind, NodeId, Overrides, Topology};
use proptest::prelude::*;

use crate::sysfs::{Sysfs, few, offline, recorded, without_directory};

const GIB: u64 = 1 << 20;

/// A CPU node of 100 ns and 40 GB/s, and a node without CPUs.
fn pair() -> Sysfs {
    Sysfs::default().node(0, "0-3", 8 * GIB).node(1, "", 8 * GIB).hmat(0, 100, 40_000)
}

fn kind(machine: &Topology, id: u16) -> (MemoryKind, KnownBy) {
    let node = &machine.nodes[&NodeId(id)];
    (node.kind, node.known_by)
}

fn by_hmat(latency: u64, bandwidth: u64) -> MemoryKind {
    kind(&pair().hmat(1, latency, bandwidth).machine(), 1).0
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn attributes_decide_by_their_ratios_alone(latency in 30u64..400, bandwidth in 10u64..200, times in 1u64..50) {
        let scaled = Sysfs::default()
            .node(0, "0-3", 8 * GIB)
            .node(1, "", 8 * GIB)
            .hmat(0, 100 * times, 100 * times)
            .hmat(1, latency * times, bandwidth * times);
        let plain = Sysfs::default()
            .node(0, "0-3", 8 * GIB)
            .node(1, "", 8 * GIB)
            .hmat(0, 100, 100)
            .hmat(1, latency, bandwidth);
        prop_assert_eq!(kind(&scaled.machine(), 1), kind(&plain.machine(), 1));
    }

    #[test]
    fn at_one_and_a_half_times_drams_latency_memory_is_behind_a_link(latency in 150u64..10_000, bandwidth in 1u64..1_000_000) {
        prop_assert_eq!(by_hmat(latency, bandwidth), MemoryKind::Cxl);
    }

    #[test]
    fn below_that_latency_half_again_the_bandwidth_is_hbm(latency in 1u64..150, bandwidth in prop_oneof![Just(60_000u64), 60_000u64..1_000_000]) {
        prop_assert_eq!(by_hmat(latency, bandwidth), MemoryKind::Hbm);
    }

    #[test]
    fn within_a_quarter_of_dram_memory_is_dram(latency in 75u64..=125, bandwidth in 30_000u64..=50_000) {
        prop_assert_eq!(by_hmat(latency, bandwidth), MemoryKind::Dram);
    }

    #[test]
    fn more_latency_never_turns_far_memory_into_another_kind(latency in 1u64..1_000, more in 0u64..1_000, bandwidth in 1u64..100_000) {
        if by_hmat(latency, bandwidth) == MemoryKind::Cxl {
            prop_assert_eq!(by_hmat(latency + more, bandwidth), MemoryKind::Cxl);
        }
    }

    #[test]
    fn more_bandwidth_never_turns_hbm_into_another_kind(latency in 1u64..150, bandwidth in 1u64..500_000, more in 0u64..500_000) {
        if by_hmat(latency, bandwidth) == MemoryKind::Hbm {
            prop_assert_eq!(by_hmat(latency, bandwidth + more), MemoryKind::Hbm);
        }
    }

    #[test]
    fn a_cpu_node_is_dram_below_five_times_the_bandwidth_of_another(latency in 1u64..10_000, bandwidth in 1u64..1_000_000) {
        let machine = pair().node(2, "4-7", GIB).hmat(2, latency, bandwidth).machine();
        let expected = match bandwidth {
            200_000.. => (MemoryKind::Hbm, KnownBy::Hmat),
            _ => (MemoryKind::Dram, KnownBy::Cpus),
        };
        prop_assert_eq!(kind(&machine, 2), expected);
    }

    #[test]
    fn figures_of_an_initiator_without_cpus_are_ignored(latency in 1u64..10_000, bandwidth in 1u64..500_000) {
        let from = |node: &str| {
            let machine = pair()
                .file("node1/access0/initiators/read_latency", &latency.to_string())
                .file("node1/access0/initiators/read_bandwidth", &bandwidth.to_string())
                .file(&format!("node1/access0/initiators/node{node}"), "-> ../../../node")
                .machine();
            kind(&machine, 1)
        };
        prop_assert_eq!(from("1"), kind(&pair().machine(), 1));
        prop_assert_eq!(from("0"), kind(&pair().hmat(1, latency, bandwidth).machine(), 1));
    }

    #[test]
    fn devices_are_stronger_evidence_than_attributes(latency in 1u64..1_000, bandwidth in 1u64..500_000) {
        let node = pair().hmat(1, latency, bandwidth);
        let cxl = node.clone().cxl_region(0, 1).machine();
        prop_assert_eq!(kind(&cxl, 1), (MemoryKind::Cxl, KnownBy::CxlRegion));
        let pmem = node.clone().nd_region(0, 1).machine();
        prop_assert_eq!(kind(&pmem, 1), (MemoryKind::Pmem, KnownBy::NdRegion));
        let both = node.nd_region(0, 1).cxl_region(1, 1).machine();
        prop_assert_eq!(kind(&both, 1).0, MemoryKind::Pmem);
    }

    #[test]
    fn attributes_are_stronger_evidence_than_the_kernels_tiers(latency in 1u64..150, bandwidth in 60_000u64..500_000) {
        let machine = pair().hmat(1, latency, bandwidth).tier(4, "0").tier(22, "1").machine();
        prop_assert_eq!(kind(&machine, 1), (MemoryKind::Hbm, KnownBy::Hmat));
    }

    #[test]
    fn without_attributes_the_kernels_tier_decides_and_only_by_its_side_of_drams(id in 0u32..200) {
        prop_assume!(id != 100);
        let machine = pair().tier(100, "0").tier(id, "1").machine();
        let expected = if id < 100 { MemoryKind::Hbm } else { MemoryKind::Cxl };
        prop_assert_eq!(kind(&machine, 1), (expected, KnownBy::MemoryTier));
    }

    #[test]
    fn a_cxl_region_decides_for_its_target_alone(target in 1u16..5) {
        let nodes = (1..5).fold(Sysfs::default().node(0, "0", GIB), |sysfs, id| sysfs.node(id, "", GIB));
        let machine = nodes.cxl_region(3, target).machine();
        for id in 1..5 {
            let expected = if id == target { MemoryKind::Cxl } else { MemoryKind::Unknown };
            prop_assert_eq!(kind(&machine, id).0, expected);
        }
    }

    #[test]
    fn the_best_cpu_node_is_the_reference(slow in 100u64..1_000, latency in 1u64..400) {
        let machine = pair().node(2, "4-7", GIB).hmat(2, slow, 10_000).hmat(1, latency, 20_000).machine();
        prop_assert_eq!(kind(&machine, 1).0, by_hmat(latency, 20_000));
    }
}

#[test]
fn a_node_without_cpus_that_goes_changes_no_other_nodes_kind() {
    for (name, tree, machine) in recorded() {
        let leave = machine.nodes.keys().filter(|id| machine.nodes[*id].cpus.is_empty());
        for id in leave {
            let (rest, findings) = Topology::read(&offline(tree, *id));
            assert!(!rest.nodes.contains_key(id), "{name} {id}");
            for (other, node) in &rest.nodes {
                let before = &machine.nodes[other];
                assert_eq!(
                    (node.kind, node.known_by),
                    (before.kind, before.known_by),
                    "{name} {id}"
                );
            }
            let left_out = |finding: &Finding| finding.path.ends_with(&format!("node{id}"));
            assert!(findings.iter().any(left_out), "{name} {id}: {findings:?}");
        }
    }
}

#[test]
fn a_missing_node_directory_is_a_finding_and_other_nodes_keep_their_kind() {
    for (name, tree, machine) in recorded() {
        for id in machine.nodes.keys().filter(|id| machine.nodes[*id].cpus.is_empty()) {
            let (rest, findings) = Topology::read(&without_directory(tree, *id));
            assert_eq!(rest.nodes.len(), machine.nodes.len(), "{name} {id}");
            assert!(!rest.memory_nodes().contains(*id), "{name} {id}");
            assert!(findings.iter().any(|f| f.message.contains("has no directory")), "{name} {id}");
            let others = rest.nodes.iter().filter(|(other, _)| *other != id);
            for (other, node) in others {
                assert_eq!(node.kind, machine.nodes[other].kind, "{name} {id} {other}");
            }
        }
    }
}

#[test]
fn a_cpu_node_that_goes_changes_no_kind_that_devices_or_cpus_show() {
    for (name, tree, machine) in recorded() {
        for id in machine.cpu_nodes().iter() {
            let (rest, findings) = Topology::read(&offline(tree, id));
            assert!(!findings.is_empty(), "{name} {id}");
            for (other, node) in &rest.nodes {
                let before = &machine.nodes[other];
                let by_itself = matches!(
                    before.known_by,
                    KnownBy::Cpus | KnownBy::CxlRegion | KnownBy::NdRegion
                );
                assert!(!by_itself || node.kind == before.kind, "{name} {id} {other}");
            }
        }
    }
}

#[test]
fn the_user_decides_for_the_named_node_alone() {
    for (name, tree, machine) in recorded() {
        for id in machine.nodes.keys() {
            for stated in MemoryKind::ALL {
                let (read, findings) = Topology::read_with(tree, &Overrides::from([(*id, stated)]));
                assert_eq!(findings, [], "{name} {id}");
                for (other, node) in &read.nodes {
                    let before = &machine.nodes[other];
                    let expected = match other == id {
                        true => (stated, KnownBy::User),
                        false => (before.kind, before.known_by),
                    };
                    assert_eq!((node.kind, node.known_by), expected, "{name} {id} {other}");
                }
            }
        }
    }
}

#[test]
fn a_statement_on_an_absent_node_is_a_finding_and_changes_nothing() {
    for (name, tree, machine) in recorded() {
        let absent = (0..).map(NodeId).find(|id| !machine.nodes.contains_key(id)).unwrap();
        let says = Overrides::from([(absent, MemoryKind::Cxl)]);
        let (read, findings) = Topology::read_with(tree, &says);
        assert_eq!(&read, machine, "{name}");
        assert_eq!(findings.len(), 1, "{name}: {findings:?}");
        assert!(findings[0].path.ends_with(&format!("node{absent}")), "{name}: {findings:?}");
    }
}
