//! Residency: bytes per node over time, and migrations between nodes.

use std::collections::BTreeMap;

use nearfar_topology::NodeId;

use super::narrow;
use crate::model::{Pair, Record};

/// Residency over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Over {
    /// The nodes, by id.
    pub nodes: Vec<NodeId>,
    /// Time, and bytes on each of the nodes.
    pub series: Vec<(u64, Vec<u64>)>,
    /// Total migrations by node pair.
    pub moved: Vec<Pair>,
}

/// The residency of a record; empty lists if it has none.
#[must_use]
pub fn residency(record: &Record) -> Over {
    let residents = record.residency.iter().flat_map(|of| &of.nodes);
    let mut nodes: Vec<NodeId> = residents.map(|of| of.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let series = record
        .residency
        .iter()
        .map(|of| {
            let mut bytes = vec![0u64; nodes.len()];
            for resident in &of.nodes {
                if let Ok(at) = nodes.binary_search(&resident.node) {
                    bytes[at] = bytes[at].saturating_add(resident.bytes);
                }
            }
            (of.at_ns, bytes)
        })
        .collect();
    let mut sums: BTreeMap<(NodeId, NodeId), (u128, u128)> = BTreeMap::new();
    for pair in record.moved.iter().flat_map(|of| &of.pairs) {
        let sum = sums.entry((pair.from, pair.to)).or_default();
        *sum = (sum.0 + u128::from(pair.bytes), sum.1 + u128::from(pair.failed_bytes));
    }
    let moved = sums
        .into_iter()
        .map(|((from, to), (bytes, failed))| Pair {
            from,
            to,
            bytes: narrow(bytes),
            failed_bytes: narrow(failed),
        })
        .collect();
    Over { nodes, series, moved }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit;

    const MIB: u64 = 1 << 20;

    #[test]
    fn bytes_are_listed_by_node_and_migrations_are_summed() {
        let over = residency(&testkit::moving_hot_set());
        assert_eq!(over.nodes, [NodeId(0), NodeId(1)]);
        assert_eq!(over.series[0].1, [256 * MIB, 3328 * MIB]);
        assert_eq!(over.series[29].1, [512 * MIB, 3072 * MIB]);
        let all = Pair { from: NodeId(1), to: NodeId(0), bytes: 512 * MIB, failed_bytes: 20 * MIB };
        assert_eq!(over.moved, [all]);
    }

    #[test]
    fn a_node_that_appears_later_held_zero_bytes_before() {
        let mut record = testkit::short();
        record.residency[0].nodes.truncate(1);
        assert_eq!(residency(&record).series[0].1, [256 * MIB, 0]);
        record.residency.clear();
        record.moved.clear();
        assert_eq!(residency(&record), Over::default());
    }
}
