//! The check that memory bound to nodes fits there, before anything starts.
//!
//! Backends may share nodes. They fit if for every set of nodes, the backends that can use no other node need no more than
//! these nodes have; only unions of the backends' own sets need the test (Hall's theorem). Without this check QEMU starts, and
//! the kernel kills it later, when the guest touches the page that no longer fits.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_topology::{Bytes, NodeId, NodeSet};

use crate::error::VmError;

/// Different node sets up to which every union is tested; with more, only the sets themselves and all together.
const SETS_MAX: usize = 10;

/// Memory that is to be bound.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) id: String,
    pub(crate) size: Bytes,
    pub(crate) nodes: NodeSet,
}

/// The room of nodes without pools of huge pages, for messages.
pub(crate) const FREE: &str = "free or in reclaimable file cache";

/// Refuses demands that the `room` of their nodes, in words `sort`, can't hold together.
pub(crate) fn check(
    demands: &[Demand],
    room: &BTreeMap<NodeId, Bytes>,
    sort: &str,
) -> Result<(), VmError> {
    let sum = |sizes: &mut dyn Iterator<Item = Bytes>| {
        Bytes(sizes.fold(0_u64, |sum, size| sum.saturating_add(size.0)))
    };
    for nodes in unions(demands) {
        let within = |demand: &&Demand| demand.nodes.iter().all(|node| nodes.contains(node));
        let bound: Vec<_> = demands.iter().filter(within).collect();
        let of = |node: NodeId| room.get(&node).copied().unwrap_or_default();
        let need = sum(&mut bound.iter().map(|demand| demand.size));
        let has = sum(&mut nodes.iter().map(of));
        if need <= has {
            continue;
        }
        let backends: Vec<_> = bound.iter().map(|demand| demand.id.as_str()).collect();
        let by_node: Vec<_> =
            nodes.iter().map(|node| format!("node {node}: {}", of(node))).collect();
        let others = room.iter().filter(|(node, room)| !nodes.contains(**node) && **room >= need);
        let others: Vec<_> = others.map(|(node, _)| node.to_string()).collect();
        let elsewhere = match others.len() {
            0 => String::new(),
            1 => format!(", node {} would hold it", others[0]),
            _ => format!(", each of nodes {} would hold it", others.join(", ")),
        };
        return Err(VmError::NoRoom {
            backends: backends.join(", "),
            need,
            nodes: match nodes.len() {
                1 => format!("node {nodes}, which has"),
                _ => format!("nodes {nodes}, which have"),
            },
            room: has,
            sort: sort.to_owned(),
            by_node: format!("({}){elsewhere}", by_node.join(", ")),
        });
    }
    Ok(())
}

/// Unions of the demands' node sets, small ones first, so that an error names as few nodes as possible.
fn unions(demands: &[Demand]) -> Vec<NodeSet> {
    let sets: BTreeSet<_> = demands.iter().map(|demand| demand.nodes.clone()).collect();
    let mut all = sets.clone();
    if sets.len() <= SETS_MAX {
        for set in &sets {
            let with: Vec<_> = all.iter().map(|one| union(one, set)).collect();
            all.extend(with);
        }
    } else {
        all.insert(sets.iter().fold(NodeSet::new(), |sum, set| union(&sum, set)));
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(NodeSet::len);
    all
}

fn union(a: &NodeSet, b: &NodeSet) -> NodeSet {
    a.iter().chain(b.iter()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand(id: &str, gib: u64, list: &str) -> Demand {
        let nodes = NodeSet::parse_list(list).unwrap();
        Demand { id: id.into(), size: Bytes(gib << 30), nodes }
    }

    fn room(gib: &[u64]) -> BTreeMap<NodeId, Bytes> {
        let node = |(id, gib): (u16, &u64)| (NodeId(id), Bytes(gib << 30));
        (0..).zip(gib).map(node).collect()
    }

    #[test]
    fn two_backends_on_one_node_count_together() {
        let error =
            check(&[demand("a", 2, "1"), demand("b", 3, "1")], &room(&[16, 4]), FREE).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("a, b: 5 GiB are to be bound to node 1, which has 4 GiB free"),
            "{text}"
        );
        assert!(text.contains("(node 1: 4 GiB), node 0 would hold it; use less"), "{text}");
        let both = [demand("a", 2, "1"), demand("b", 2, "1")];
        assert_eq!(check(&both, &room(&[16, 4]), FREE), Ok(()));
    }

    #[test]
    fn a_wide_backend_uses_memory_that_narrow_ones_leave() {
        let narrow = demand("a", 4, "1");
        let both = [narrow.clone(), demand("b", 5, "1-2")];
        assert_eq!(check(&both, &room(&[0, 4, 5]), FREE), Ok(()));
        let error = check(&[narrow, demand("b", 6, "1-2")], &room(&[0, 4, 5]), FREE).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("a, b: 10 GiB") && text.contains("nodes 1-2, which have 9 GiB"),
            "{text}"
        );
        assert!(text.contains("(node 1: 4 GiB, node 2: 5 GiB)"), "{text}");
    }

    #[test]
    fn chains_of_overlapping_sets_are_found() {
        let demands = [demand("a", 3, "0-1"), demand("b", 3, "1-2"), demand("c", 3, "0,2")];
        assert_eq!(check(&demands, &room(&[3, 3, 3]), FREE), Ok(()));
        assert!(check(&demands, &room(&[3, 3, 2]), FREE).is_err());
    }

    proptest! {
        #[test]
        fn memory_fits_exactly_if_some_division_of_it_fits(
            sizes in proptest::collection::vec((1_u8..4, 1_u16..8), 1..4),
            mut free in proptest::collection::vec(0_u64..5, 3),
        ) {
            let demands: Vec<_> = sizes.iter().map(|(size, mask)| {
                let nodes = (0..3).filter(|node| mask >> node & 1 == 1).map(NodeId).collect();
                Demand { id: "a".into(), size: Bytes((*size).into()), nodes }
            }).collect();
            let room: BTreeMap<_, _> =
                (0..).zip(&free).map(|(id, free)| (NodeId(id), Bytes(*free))).collect();
            // Tries every placement of every unit.
            fn fits(units: &[NodeSet], free: &mut [u64]) -> bool {
                let Some((first, rest)) = units.split_first() else { return true };
                first.iter().any(|node| {
                    let at = usize::from(node.0);
                    if free[at] == 0 {
                        return false;
                    }
                    free[at] -= 1;
                    let found = fits(rest, free);
                    free[at] += 1;
                    found
                })
            }
            let units = demands.iter().zip(&sizes);
            let units = units.flat_map(|(demand, (size, _))| vec![demand.nodes.clone(); usize::from(*size)]);
            let units: Vec<_> = units.collect();
            prop_assert_eq!(check(&demands, &room, FREE).is_ok(), fits(&units, &mut free));
        }
    }
}
