//! From a decision to migrations: bytes by node and target, then address ranges.
//!
//! [`Boundary::demotions`] and [`Boundary::promotions`] divide the decided bytes over the nodes of both tiers: near
//! nodes with too little free memory give first, far ones in proportion to their referenced pages; targets take up to
//! their free memory less a reserve. [`ranges`] then chooses the addresses of each node's passes. Both are pure:
//! machines carry them out with their own means of migration, and report the outcome to [`TieredNode::learn_outcome`].

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use nearfar_topology::{AddrRange, BasisPoints, Nanoseconds, NodeId};

use super::clock_hand::PAGE;
use super::segments::{Direction, TieredNode};
use super::{Decision, TierUsage, scale, targets};

/// This part of a far node stays free when pages are demoted to it.
pub const RESERVE: u64 = 256;

/// Bytes of one node to one of its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Index of the node.
    pub node: usize,
    /// Index among its targets.
    pub target: usize,
    /// Bytes.
    pub bytes: u64,
}

/// The nodes of two neighbouring tiers, by index with their memory.
#[derive(Clone, Copy, Debug)]
pub struct Boundary<'a> {
    /// Of the faster tier.
    pub near: &'a [(usize, TierUsage)],
    /// Of the slower tier.
    pub far: &'a [(usize, TierUsage)],
    /// Share of near memory that stays free for new pages; promotion may use half of it.
    pub headroom: BasisPoints,
}

impl Boundary<'_> {
    /// Migrations that demote `bytes`, or less where far memory is full.
    #[must_use]
    pub fn demotions(&self, nodes: &[TieredNode], bytes: u64) -> Vec<Migration> {
        let sides: Vec<TierUsage> = self.near.iter().map(|(_, side)| *side).collect();
        let mut free = self.far.iter().map(|(index, side)| {
            (nodes[*index].node, side.free.0.saturating_sub(side.total.0 / RESERVE))
        });
        let mut free: BTreeMap<NodeId, u64> = free.by_ref().collect();
        let given = targets::demotions(&sides, bytes);
        migrations(nodes, self.near, &given, (false, &mut free))
    }

    /// Migrations that promote `bytes`, or less where near memory is full, once `demoted` has been carried out.
    #[must_use]
    pub fn promotions(
        &self,
        nodes: &[TieredNode],
        bytes: u64,
        demoted: &[Migration],
    ) -> Vec<Migration> {
        let half = u64::from(self.headroom.0) / 2;
        let free = |(index, side): &(usize, TierUsage)| {
            let made = demoted.iter().filter(|one| one.node == *index).map(|one| one.bytes);
            let free = made.fold(side.free.0, u64::saturating_add);
            (nodes[*index].node, free.saturating_sub(scale(side.total.0, half, 10_000)))
        };
        let mut free: BTreeMap<NodeId, u64> = self.near.iter().map(free).collect();
        let used: Vec<u64> = self.far.iter().map(|(index, _)| nodes[*index].used()).collect();
        let given = targets::share(bytes, &used);
        migrations(nodes, self.far, &given, (true, &mut free))
    }
}

/// Splits each node's bytes over its targets of one direction.
fn migrations(
    nodes: &[TieredNode],
    from: &[(usize, TierUsage)],
    given: &[u64],
    (up, free): (bool, &mut BTreeMap<NodeId, u64>),
) -> Vec<Migration> {
    let mut all = Vec::new();
    for ((node, _), bytes) in from.iter().zip(given) {
        let those = nodes[*node].targets.iter().enumerate().filter(|(_, target)| target.up == up);
        let (at, those): (Vec<usize>, Vec<_>) = those.map(|(at, target)| (at, *target)).unzip();
        let mut left: Vec<u64> =
            those.iter().map(|target| free.get(&target.to).copied().unwrap_or(0)).collect();
        let gets = targets::split(*bytes, &those, &mut left);
        free.extend(those.iter().zip(&left).map(|(target, left)| (target.to, *left)));
        let one = |(target, bytes)| Migration { node: *node, target, bytes };
        all.extend(at.into_iter().zip(gets).map(one));
    }
    all
}

/// The scan that counted referenced pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastScan {
    /// Its sampling window.
    pub window: Nanoseconds,
    /// Time from its end to a promotion by age.
    pub until_promotion: Nanoseconds,
}

/// The addresses to cover for each target of a node that migrations of less than a page leave out; near nodes demote.
#[must_use]
pub fn ranges(
    node: &mut TieredNode,
    (near, side): (bool, TierUsage),
    migrations: impl Iterator<Item = Migration>,
    decision: &Decision,
    last: LastScan,
) -> BTreeMap<usize, AddrRange> {
    // A shorter window finds fewer pages than were counted, but not in proportion: pages in frequent use are found in both.
    let window = last.window.0.max(1);
    let (up, found) = if decision.by_age {
        (Direction::UpByAge, last.until_promotion.0.min(window))
    } else {
        (Direction::Up, u64::midpoint(decision.promote_window.0.min(window), window))
    };
    let mut ranges = BTreeMap::new();
    for Migration { target, bytes, .. } in migrations {
        let within = match (near, decision.by_age) {
            _ if bytes < PAGE => None,
            (true, true) => node.next_by_age(bytes),
            (true, false) => node.next(Direction::Down, bytes, side.taken(), (1, 1)),
            (false, _) => node.next(up, bytes, side.taken(), (found, window)),
        };
        ranges.extend(within.map(|within| (target, within)));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::super::targets::MigrationTarget;
    use super::*;
    use alloc::vec;
    use nearfar_topology::Bytes;

    const MIB: u64 = 1 << 20;

    fn side(total: u64, free: u64) -> TierUsage {
        TierUsage { total: Bytes(total * MIB), free: Bytes(free * MIB) }
    }

    /// Two sockets (nodes 0 and 1), each with far memory of its own (2 and 3).
    fn sockets() -> Vec<TieredNode> {
        let node = |id: u16, tier: usize, to: [(u16, u32); 2]| {
            let target = |(to, distance)| MigrationTarget::new(NodeId(to), tier == 1, distance);
            let start = u64::from(id) << 40;
            let range = AddrRange { start, end: start + 64 * MIB };
            TieredNode::new(NodeId(id), tier, to.map(target).to_vec(), &[range])
        };
        vec![
            node(0, 0, [(2, 17), (3, 28)]),
            node(1, 0, [(3, 17), (2, 28)]),
            node(2, 1, [(0, 17), (1, 28)]),
            node(3, 1, [(1, 17), (0, 28)]),
        ]
    }

    fn mib(migrations: &[Migration]) -> Vec<(usize, usize, u64)> {
        let some = migrations.iter().filter(|one| one.bytes > 0);
        some.map(|one| (one.node, one.target, one.bytes / MIB)).collect()
    }

    #[test]
    fn scenario_1_each_socket_demotes_to_its_own_far_memory() {
        let (near, far) =
            ([(0, side(64, 0)), (1, side(64, 0))], [(2, side(64, 60)), (3, side(64, 60))]);
        let boundary = Boundary { near: &near, far: &far, headroom: BasisPoints(0) };
        assert_eq!(mib(&boundary.demotions(&sockets(), 16 * MIB)), [(0, 0, 8), (1, 0, 8)]);
    }

    #[test]
    fn scenario_2_a_socket_demotes_to_the_other_far_node_if_its_own_is_full() {
        let (near, far) =
            ([(0, side(64, 0)), (1, side(64, 64))], [(2, side(64, 0)), (3, side(64, 60))]);
        let boundary = Boundary { near: &near, far: &far, headroom: BasisPoints(0) };
        assert_eq!(mib(&boundary.demotions(&sockets(), 16 * MIB)), [(0, 1, 16)]);
    }

    #[test]
    fn scenario_3_promotion_uses_freed_memory_and_half_of_the_headroom() {
        let mut nodes = sockets();
        nodes[2].segments_mut()[0].count(4 * MIB, 4 * MIB);
        let (near, far) =
            ([(0, side(100, 0)), (1, side(100, 0))], [(2, side(64, 0)), (3, side(64, 0))]);
        let boundary = Boundary { near: &near, far: &far, headroom: BasisPoints(200) };
        let demoted = [Migration { node: 0, target: 0, bytes: 4 * MIB }];
        let promoted = boundary.promotions(&nodes, 9 * MIB, &demoted);
        assert_eq!(mib(&promoted), [(2, 0, 3)], "4 MiB freed, 1 MiB is half of 2 % of 100 MiB");
    }

    #[test]
    fn scenario_4_nothing_is_promoted_without_referenced_far_pages() {
        let (near, far) = ([(0, side(64, 64))], [(2, side(64, 0))]);
        let boundary = Boundary { near: &near, far: &far, headroom: BasisPoints(0) };
        assert_eq!(mib(&boundary.promotions(&sockets(), MIB, &[])), []);
    }

    fn decision(by_age: bool) -> Decision {
        let window = Nanoseconds(1_000_000_000);
        Decision {
            promote: Bytes(0),
            promote_window: window,
            demote: Bytes(0),
            by_age,
            idle: window,
            period: window,
            reason: super::super::Reason::Exchange,
        }
    }

    /// MiB from the beginning of the node's memory that migrations of these MiB cover.
    fn covered(node: &mut TieredNode, near: bool, by_age: bool, mib: u64) -> Option<(u64, u64)> {
        let last = LastScan {
            window: Nanoseconds(2_000_000_000),
            until_promotion: Nanoseconds(500_000_000),
        };
        let one = Migration { node: 0, target: 1, bytes: mib * MIB };
        let found = ranges(node, (near, side(64, 0)), [one].into_iter(), &decision(by_age), last);
        let start = node.ranges()[0].start;
        found.get(&1).map(|range| ((range.start - start) / MIB, (range.end - start) / MIB))
    }

    #[test]
    fn scenario_5_counts_of_a_longer_window_are_scaled_to_the_present_one() {
        // Segments are of 4 MiB; all of the second one and half of the others was referenced in 2 s.
        let counted = || {
            let mut node = sockets().remove(2);
            for (at, segment) in node.segments_mut().iter_mut().enumerate() {
                segment.count(4 * MIB, if at == 1 { 4 * MIB } else { 2 * MIB });
            }
            node
        };
        // In 1 s three quarters of them: 3 MiB are the whole second segment.
        assert_eq!(covered(&mut counted(), false, false, 3), Some((4, 8)));
        // In half a second a quarter: 1 MiB.
        assert_eq!(covered(&mut counted(), false, true, 1), Some((4, 8)));
        let mut node = counted();
        let ends = [(); 3].map(|()| covered(&mut node, true, false, 2));
        assert_eq!(ends, [Some((0, 4)), Some((0, 4)), Some((0, 4))], "idle pages, from the start");
    }

    #[test]
    fn scenario_6_demotion_by_age_resumes_at_the_clock_hand() {
        let mut node = sockets().remove(0);
        let ends = [8, 16, 1].map(|mib| covered(&mut node, true, true, mib));
        assert_eq!(ends, [Some((0, 8)), Some((8, 24)), Some((24, 25))]);
        assert_eq!(node.covered().map(|range| range.len()), Some(MIB));
    }
}
