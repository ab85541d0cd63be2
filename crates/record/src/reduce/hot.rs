//! The hot set: the smallest part of memory that gets most of the accesses, and its location.
//!
//! DAMON counts for a region the samples that found an access to a page picked from it, so the region's bytes times
//! this count represent its accesses. Regions are taken from the hottest down until [`SHARE_PERMILLE`] of the sum is
//! reached; of the last region only the part that is needed. With physical addresses and known address ranges of the
//! nodes, the node of each byte of it is known too.

use std::collections::BTreeMap;

use nearfar_topology::NodeId;

use super::{narrow, percentile};
use crate::model::{Access, Operations, Range, Record, Resident};

/// The share of accesses in the hot set.
pub const SHARE_PERMILLE: u64 = 900;

/// The hot set at one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotSet {
    /// Nanoseconds since the record began.
    pub at_ns: u64,
    /// Its size.
    pub bytes: u64,
    /// Its location; empty if unknown.
    pub nodes: Vec<Resident>,
}

/// The hot set of each snapshot, and their median size.
#[must_use]
pub fn hot(record: &Record) -> (Vec<HotSet>, u64) {
    let known = record.header.operations == Operations::Physical;
    let nodes: Vec<(NodeId, Range)> = record
        .header
        .nodes
        .iter()
        .filter(|_| known)
        .flat_map(|node| node.ranges.iter().map(|range| (node.id, *range)))
        .collect();
    let sets: Vec<HotSet> = record.accesses.iter().map(|access| of(access, &nodes)).collect();
    let mut sizes: Vec<u64> = sets.iter().map(|set| set.bytes).collect();
    sizes.sort_unstable();
    let median = percentile(&sizes, 50);
    (sets, median)
}

fn of(access: &Access, nodes: &[(NodeId, Range)]) -> HotSet {
    let mut regions: Vec<_> =
        access.targets.iter().flat_map(|of| &of.regions).filter(|of| of.accesses > 0).collect();
    regions.sort_by_key(|region| std::cmp::Reverse(region.accesses));
    let heat = |bytes: u64, accesses: u32| u128::from(bytes) * u128::from(accesses);
    let total: u128 = regions.iter().map(|of| heat(of.range.bytes(), of.accesses)).sum();
    let mut left = (total / 1000).saturating_mul(u128::from(SHARE_PERMILLE));
    let mut bytes = 0u64;
    let mut on: BTreeMap<NodeId, u64> = BTreeMap::new();
    for region in regions {
        if left == 0 {
            break;
        }
        let whole = region.range.bytes();
        let needed = narrow(left.div_ceil(u128::from(region.accesses)));
        let taken = whole.min(needed);
        left = left.saturating_sub(heat(taken, region.accesses));
        bytes = bytes.saturating_add(taken);
        for (node, range) in nodes {
            let there = u128::from(range.shared(region.range)) * u128::from(taken);
            let there = narrow(there / u128::from(whole.max(1)));
            if there > 0 {
                *on.entry(*node).or_default() += there;
            }
        }
    }
    let nodes = on.into_iter().map(|(node, bytes)| Resident { node, bytes }).collect();
    HotSet { at_ns: access.at_ns, bytes, nodes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{self, arbitrary};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_hot_set_moves_from_far_to_near_memory() {
        let (sets, median) = hot(&testkit::moving_hot_set());
        // 256 MiB at 18 samples and 128 MiB at 2: nine tenths of it are 243 MiB of the first.
        assert_eq!(median / MIB, 243);
        let near = |at: usize| {
            let near = sets[at].nodes.iter().find(|of| of.node == NodeId(0));
            near.map_or(0, |of| of.bytes * 100 / sets[at].bytes)
        };
        assert_eq!([0, 5, 29, 30, 59].map(near), [0, 52, 100, 0, 100]);
    }

    #[test]
    fn without_physical_addresses_the_hot_set_has_no_nodes() {
        let mut record = testkit::short();
        record.header.operations = Operations::Virtual;
        assert!(hot(&record).0.iter().all(|set| set.nodes.is_empty() && set.bytes > 0));
    }

    proptest! {
        #[test]
        fn the_hot_set_is_never_larger_than_the_accessed_memory(record in arbitrary::record()) {
            let accessed = super::super::wss::wss(&record, 0);
            for (set, (_, accessed)) in hot(&record).0.iter().zip(accessed.iter().flat_map(|of| &of.series)) {
                prop_assert!(set.bytes <= *accessed);
            }
        }
    }
}
