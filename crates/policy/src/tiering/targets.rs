//! Migration targets: which nodes give pages, and which nodes of the neighbouring tier take them.
//!
//! Pages take the shortest path: to the nearest nodes of the other tier with free memory, in proportion to that where
//! several are equally near; only the remainder goes farther. A socket so demotes to its own far memory first, and to
//! its neighbours' as that fills. Pages for which no target has free memory stay in place.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{Bytes, NodeId};

use super::{TierUsage, scale};

/// A node of the next faster or slower tier to which the pages of a node may migrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationTarget {
    /// The node.
    pub to: NodeId,
    /// Whether it is the faster one.
    pub up: bool,
    /// Distance to it; smaller is nearer (SLIT).
    pub distance: u32,
    /// Bytes migrated at the last count, by commanded passes and by background migration.
    counted: [u64; 2],
    /// Bytes that arrived since the beginning.
    pub moved: Bytes,
}

impl MigrationTarget {
    /// A target to which nothing was migrated yet.
    #[must_use]
    pub const fn new(to: NodeId, up: bool, distance: u32) -> Self {
        Self { to, up, distance, counted: [0; 2], moved: Bytes(0) }
    }

    /// Takes in two counters that only grow: bytes migrated by commanded passes and by background migration. Returns the
    /// growth of each.
    pub fn count(&mut self, counters: [u64; 2]) -> [u64; 2] {
        let before = core::mem::replace(&mut self.counted, counters);
        [0, 1].map(|by| counters[by].saturating_sub(before[by]))
    }

    /// Takes in `moved` migrated bytes, of which up to `fallback` were allocated on another node for want of free memory;
    /// subtracts them from `fallback` and returns the bytes that arrived.
    pub fn arrived(&mut self, moved: u64, fallback: &mut u64) -> u64 {
        let lost = moved.min(*fallback);
        *fallback -= lost;
        self.moved.0 += moved - lost;
        moved - lost
    }
}

/// Bytes that each near node gives when `demote` bytes leave near memory: those nodes give that have less free memory
/// than their share of the free memory after demotion.
#[must_use]
pub fn demotions(sides: &[TierUsage], demote: u64) -> Vec<u64> {
    let total: u64 = sides.iter().map(|side| side.total.0).sum();
    let free: u64 = sides.iter().map(|side| side.free.0).sum::<u64>().saturating_add(demote);
    let lacks = |side: &TierUsage| scale(free, side.total.0, total).saturating_sub(side.free.0);
    let weights: Vec<u64> = sides.iter().map(|side| lacks(side).min(side.taken())).collect();
    share(demote, &weights)
}

/// `bytes` in proportion to `weights`; zeros where all weights are zero.
#[must_use]
pub fn share(bytes: u64, weights: &[u64]) -> Vec<u64> {
    let all: u64 = weights.iter().fold(0, |sum, weight| sum.saturating_add(*weight));
    weights.iter().map(|weight| if all == 0 { 0 } else { scale(bytes, *weight, all) }).collect()
}

/// Splits `bytes` over targets sorted nearest first; `free` holds the bytes that each can take, and is reduced
/// accordingly.
#[must_use]
pub fn split(mut bytes: u64, targets: &[MigrationTarget], free: &mut [u64]) -> Vec<u64> {
    let mut gets = vec![0; targets.len()];
    let mut at = 0;
    while at < targets.len() {
        let nearest = targets[at].distance;
        let equal = targets[at..].iter().take_while(|target| target.distance == nearest).count();
        let near = at..at + equal;
        let room: u64 = free[near.clone()].iter().fold(0, |sum, room| sum.saturating_add(*room));
        let parts = share(bytes.min(room), &free[near.clone()]);
        for (index, part) in near.zip(parts) {
            gets[index] = part;
            free[index] = free[index].saturating_sub(part);
            bytes = bytes.saturating_sub(part);
        }
        at += equal;
    }
    gets
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::{Bytes, NodeId};
    use proptest::prelude::*;

    fn side(total: u64, free: u64) -> TierUsage {
        TierUsage { total: Bytes(total), free: Bytes(free) }
    }

    fn to(distances: &[u32]) -> Vec<MigrationTarget> {
        distances
            .iter()
            .zip(0..)
            .map(|(far, node)| MigrationTarget::new(NodeId(node), false, *far))
            .collect()
    }

    #[test]
    fn a_socket_demotes_to_its_own_far_node_first_and_to_others_as_that_fills() {
        let distances = to(&[20, 30, 30]);
        assert_eq!(split(50, &distances, &mut [100, 100, 100]), [50, 0, 0]);
        assert_eq!(split(50, &distances, &mut [20, 100, 200]), [20, 10, 20]);
        assert_eq!(split(50, &distances, &mut [0, 10, 10]), [0, 10, 10], "the rest stays");
    }

    #[test]
    fn the_fuller_near_node_demotes_more() {
        assert_eq!(demotions(&[side(100, 0), side(100, 20)], 10), [10, 0]);
        assert_eq!(demotions(&[side(100, 0), side(100, 0)], 10), [5, 5]);
        assert_eq!(demotions(&[side(100, 0), side(300, 0)], 40), [10, 30]);
        assert_eq!(
            demotions(&[side(0, 0), side(100, 0)], 40),
            [0, 40],
            "one that is gone gives none"
        );
    }

    #[test]
    fn migrated_bytes_are_counter_growth_less_allocations_that_fell_back() {
        let mut target = MigrationTarget::new(NodeId(2), true, 20);
        assert_eq!([target.count([4096, 0]), target.count([12_288, 5])], [[4096, 0], [8192, 5]]);
        let mut elsewhere = 10_000;
        assert_eq!((target.arrived(4096, &mut elsewhere), elsewhere), (0, 5904));
        assert_eq!((target.arrived(8192, &mut elsewhere), elsewhere), (2288, 0));
        assert_eq!(target.moved, Bytes(2288));
    }

    proptest! {
        #[test]
        fn no_target_exceeds_its_free_memory_and_the_sum_stays_within_the_demand(
            bytes in 0u64..1 << 42,
            nodes in prop::collection::vec((10u32..14, 0u64..1 << 40), 0..9),
        ) {
            let mut nodes = nodes;
            nodes.sort_unstable();
            let distances: Vec<u32> = nodes.iter().map(|node| node.0).collect();
            let rooms: Vec<u64> = nodes.iter().map(|node| node.1).collect();
            let gets = split(bytes, &to(&distances), &mut rooms.clone());
            prop_assert!(gets.iter().zip(&rooms).all(|(part, room)| part <= room));
            let (sum, room) = (gets.iter().sum::<u64>(), rooms.iter().sum::<u64>());
            prop_assert!(sum <= bytes && sum + 9 >= bytes.min(room), "{sum} of {bytes}, {room}");
        }

        #[test]
        fn demotions_add_up_to_the_bytes_requested(
            sides in prop::collection::vec((0u64..1 << 40, 0u64..100), 1..6), part in 0u64..100,
        ) {
            let sides: Vec<TierUsage> = sides.iter().map(|(all, free)| side(*all, all * free / 100)).collect();
            let taken: u64 = sides.iter().map(|side| side.total.0 - side.free.0).sum();
            let demote = taken * part / 100;
            let gives = demotions(&sides, demote);
            prop_assert!(gives.iter().sum::<u64>() <= demote);
            prop_assert!(gives.iter().sum::<u64>() + 6 >= demote, "{gives:?} of {demote}, {sides:?}");
        }
    }
}
