//! Node sets: a printed set parses to the same set, words divide a machine's nodes, errors name the cause.

use std::collections::BTreeSet;

use nearfar_topology::{CpuId, MemoryKind, NodeExpr, NodeId, NodeSet, NodeSetError, Topology};
use proptest::prelude::*;

use crate::sysfs::{ids, recorded};

fn set(ids: impl IntoIterator<Item = u16>) -> NodeSet {
    ids.into_iter().map(NodeId).collect()
}

fn union(a: &NodeSet, b: &NodeSet) -> NodeSet {
    a.iter().chain(b.iter()).collect()
}

fn overlap(a: &NodeSet, b: &NodeSet) -> bool {
    a.iter().any(|node| b.contains(node))
}

fn resolve(machine: &Topology, text: &str, cpus: &[CpuId]) -> Result<NodeSet, NodeSetError> {
    text.parse::<NodeExpr>().unwrap().resolve(machine, cpus)
}

/// The nodes that a word names; none if it is refused because it names none.
fn named(machine: &Topology, word: &str, cpus: &[CpuId]) -> NodeSet {
    match resolve(machine, word, cpus) {
        Ok(nodes) => nodes,
        Err(NodeSetError::NoSuchNodes { .. }) => NodeSet::new(),
        Err(other) => panic!("{word}: {other}"),
    }
}

/// Some of a machine's CPUs.
fn cpus_of(machine: &Topology, node: NodeId) -> Vec<CpuId> {
    machine.nodes[&node].cpus.clone()
}

proptest! {
    #[test]
    fn a_list_means_the_same_in_any_order_and_with_repeats(ids in ids(0..12), extra in any::<bool>()) {
        let mut parts: Vec<String> = ids.iter().map(ToString::to_string).collect();
        if let (true, Some(first)) = (extra, parts.first().cloned()) {
            parts.push(first);
        }
        prop_assert_eq!(NodeSet::parse_list(&parts.join(",")), Some(set(ids)));
    }

    #[test]
    fn the_printed_form_is_the_shortest_in_terms(ids in proptest::collection::btree_set(0u16..40, 1..30)) {
        let text = set(ids.iter().copied()).to_string();
        let gaps = ids.iter().filter(|id| !ids.contains(&(**id + 1))).count();
        prop_assert_eq!(text.split(',').count(), gaps, "{}", text);
    }

    #[test]
    fn a_run_prints_as_one_range(first in 0u16..1000, more in 1u16..23) {
        prop_assert_eq!(set(first..=first + more).to_string(), format!("{first}-{}", first + more));
    }

    #[test]
    fn iteration_is_in_order_and_membership_agrees(ids in ids(0..20)) {
        let nodes = set(ids.iter().copied());
        let listed: Vec<u16> = nodes.iter().map(|node| node.0).collect();
        let sorted: Vec<u16> = ids.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        prop_assert_eq!(&listed, &sorted);
        prop_assert_eq!(nodes.len(), listed.len());
        prop_assert_eq!(nodes.is_empty(), listed.is_empty());
        prop_assert!((0..=1023).all(|id| nodes.contains(NodeId(id)) == ids.contains(&id)));
    }

    #[test]
    fn inserting_reports_whether_the_node_was_new(ids in proptest::collection::vec(0u16..20, 0..30)) {
        let (mut nodes, mut seen) = (NodeSet::new(), BTreeSet::new());
        for id in ids {
            prop_assert_eq!(nodes.insert(NodeId(id)), seen.insert(id));
        }
    }

    #[test]
    fn a_list_with_a_backward_range_or_a_large_number_is_refused(first in 1u32..1024, less in 1u32..1024, over in 1024u32..) {
        let last = first.saturating_sub(less);
        prop_assert_eq!(NodeSet::parse_list(&format!("{first}-{last}")), None);
        prop_assert_eq!(NodeSet::parse_list(&over.to_string()), None);
        prop_assert_eq!(NodeSet::parse_list(&format!("0-{over}")), None);
    }

    #[test]
    fn a_printed_set_is_an_expression_of_the_same_nodes(which in 0usize..12, keep in proptest::collection::vec(any::<bool>(), 8)) {
        let (_, _, machine) = &recorded()[which];
        let kept: NodeSet =
            machine.memory_nodes().iter().zip(keep).filter(|(_, keep)| *keep).map(|(id, _)| id).collect();
        if !kept.is_empty() {
            let expression: NodeExpr = kept.to_string().parse().unwrap();
            prop_assert!(expression.is_by_number());
            prop_assert_eq!(expression.resolve(machine, &[]), Ok(kept));
        }
    }

    #[test]
    fn an_absent_number_is_named_alone_beside_present_ones(which in 0usize..12, absent in ids(1..4)) {
        let (_, _, machine) = &recorded()[which];
        let present = machine.memory_nodes();
        let absent: NodeSet = set(absent).iter().filter(|id| !present.contains(*id)).collect();
        if !absent.is_empty() {
            let error = resolve(machine, &format!("all,{absent},{present}"), &[]).unwrap_err();
            let NodeSetError::Absent { absent: named, .. } = &error else { panic!("{error}") };
            prop_assert_eq!(named, &absent);
            let text = error.to_string();
            prop_assert!(present.iter().all(|id| text.contains(&format!("node {id} ("))), "{text}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_distinguished_from_words(number in 1024u32..) {
        let error = number.to_string().parse::<NodeExpr>().unwrap_err();
        prop_assert_eq!(error, NodeSetError::TooLarge { term: number.to_string() });
    }
}

#[test]
fn near_and_far_divide_the_nodes_with_memory() {
    for (name, _, machine) in recorded() {
        let (near, far) = (named(machine, "near", &[]), named(machine, "far", &[]));
        assert!(!near.is_empty() && !overlap(&near, &far), "{name}");
        assert_eq!(union(&near, &far), named(machine, "all", &[]), "{name}");
    }
}

#[test]
fn local_and_remote_divide_near_memory_for_every_cpu_node() {
    for (name, _, machine) in recorded() {
        for node in machine.cpu_nodes().iter() {
            let cpus = cpus_of(machine, node);
            let [local, remote] = ["local", "remote"].map(|word| named(machine, word, &cpus));
            assert!(!local.is_empty() && !overlap(&local, &remote), "{name} {node}");
            assert_eq!(union(&local, &remote), machine.near(), "{name} {node}");
        }
    }
}

#[test]
fn near_memory_beside_cpus_is_local_to_these_and_to_no_others() {
    for (name, _, machine) in recorded() {
        let beside = |node: &NodeId| machine.cpu_nodes().contains(*node);
        for home in machine.near().iter().filter(beside) {
            for node in machine.near().iter().filter(beside) {
                let local = machine.local(&cpus_of(machine, home));
                assert_eq!(local.contains(node), node == home, "{name} {node} from {home}");
            }
        }
    }
}

#[test]
fn for_any_cpu_all_near_memory_is_local() {
    for (name, _, machine) in recorded() {
        assert_eq!(machine.local(&[]), machine.near(), "{name}");
        assert!(machine.remote(&[]).is_empty(), "{name}");
        let everywhere: Vec<CpuId> =
            machine.cpu_nodes().iter().flat_map(|node| cpus_of(machine, node)).collect();
        assert_eq!(machine.local(&everywhere), machine.near(), "{name}");
    }
}

#[test]
fn memory_is_local_to_two_cpu_nodes_if_it_is_to_either() {
    for (name, _, machine) in recorded() {
        let nodes: Vec<NodeId> = machine.cpu_nodes().iter().collect();
        for pair in nodes.windows(2) {
            let [a, b] = [cpus_of(machine, pair[0]), cpus_of(machine, pair[1])];
            let both = machine.local(&[a.clone(), b.clone()].concat());
            assert_eq!(both, union(&machine.local(&a), &machine.local(&b)), "{name} {pair:?}");
        }
    }
}

#[test]
fn kinds_divide_the_nodes_with_memory() {
    for (name, _, machine) in recorded() {
        let of_kinds = MemoryKind::ALL.map(|kind| machine.of_kind(kind));
        let all: Vec<NodeId> = of_kinds.iter().flat_map(NodeSet::iter).collect();
        assert_eq!(all.len(), machine.memory_nodes().len(), "{name}");
        assert_eq!(all.into_iter().collect::<NodeSet>(), machine.memory_nodes(), "{name}");
    }
}

#[test]
fn a_word_for_each_rank_names_that_tier_and_the_next_rank_is_refused() {
    for (name, _, machine) in recorded() {
        let ranks = u16::try_from(machine.tiers.len()).unwrap();
        for rank in 0..ranks {
            assert_eq!(named(machine, &format!("tier:{rank}"), &[]), machine.tier(rank), "{name}");
        }
        assert!(resolve(machine, &format!("tier:{ranks}"), &[]).is_err(), "{name}");
    }
}

#[test]
fn terms_joined_by_commas_name_their_union_in_any_order() {
    for (name, _, machine) in recorded() {
        let words = ["all", "near", "dram", "tier:0"];
        for a in words {
            for b in words {
                let both = resolve(machine, &format!("{a}, {b}"), &[]);
                let expected = union(&named(machine, a, &[]), &named(machine, b, &[]));
                assert_eq!(both, Ok(expected), "{name} {a} {b}");
                assert_eq!(both, resolve(machine, &format!("{b},{a}"), &[]), "{name} {a} {b}");
            }
        }
    }
}

#[test]
fn a_node_without_memory_is_absent_even_if_it_has_cpus() {
    let (_, _, machine) = recorded().iter().find(|(name, ..)| *name == "memoryless").unwrap();
    let idle = machine.nodes.keys().copied().filter(|id| !machine.memory_nodes().contains(*id));
    for id in idle {
        let error = resolve(machine, &id.to_string(), &[]).unwrap_err();
        assert!(matches!(error, NodeSetError::Absent { .. }), "{error}");
        assert!(error.to_string().contains(&format!("node {id} (no memory)")), "{error}");
    }
}

#[test]
fn only_numbers_and_all_count_as_given_by_number() {
    for (text, by_number) in [
        ("0", true),
        ("0-3,7", true),
        ("all", true),
        ("0,near", false),
        ("cxl", false),
        ("tier:0", false),
    ] {
        assert_eq!(text.parse::<NodeExpr>().unwrap().is_by_number(), by_number, "{text}");
    }
}
