//! Address selection: which addresses of a node the next migrating pass covers.
//!
//! # Problem
//! A pass over physical memory migrates the pages of its range that it finds referenced (or idle). Kernels do not list
//! referenced pages; they count them. So the range must be chosen by counts, long enough to yield the bytes that were decided
//! and no longer, as each covered page costs CPU time and loses its accessed bit.
//!
//! # Approach
//! The memory of a node is divided into [`SEGMENTS`] *segments* of equal size, counted over its address ranges without holes.
//! Each scan counts the referenced bytes of each segment. A pass covers the fewest neighbouring segments that hold enough, or
//! a part of one behind the end of the pass before ([`TieredNode::next`]). The *yield*, bytes migrated over bytes expected,
//! corrects the next expectation for each direction. Demotion by age follows a CLOCK hand instead
//! ([`TieredNode::next_by_age`]).
//!
//! # Limits
//! References within a segment are taken to be spread evenly. Counts are of the last scan; the yield corrects them on average
//! only.

use alloc::vec::Vec;
use core::cmp::Reverse;

use nearfar_topology::{AddrRange, BasisPoints, NodeId};

use super::clock_hand::{ClockHand, PAGE};
use super::scale;
use super::targets::MigrationTarget;

/// Exclusive upper bound of physical addresses.
pub const ADDRESS_END: u64 = 1 << 60;
/// Segments of a node.
pub const SEGMENTS: usize = 16;

/// Direction and criterion of a migrating pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Demotes idle pages.
    Down,
    /// Promotes pages referenced within a window before the pass.
    Up,
    /// Promotes pages referenced since they were counted.
    UpByAge,
}

/// Yield of the passes of one direction.
#[derive(Clone, Copy, Debug)]
struct Yield {
    /// Bytes that passes since the last outcome are expected to migrate.
    expected: u64,
    /// Observed over expected migration, in parts of [`AS_EXPECTED`]: above it where a range is passed more than once, below
    /// it where pages can't be migrated.
    share: u64,
}

/// A yield equal to the expectation.
const AS_EXPECTED: u64 = 1024;

/// A part of a node's memory; offsets count over the node's ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// First offset.
    start: u64,
    /// First offset after it.
    end: u64,
    /// Offset at which the next migrating pass begins.
    next: u64,
    /// Counters at the last count: bytes scanned, bytes referenced.
    tried: u64,
    found: u64,
    /// Bytes found referenced by one pass of the last scan.
    used: u64,
    /// Bytes that can be migrated; `None` where unknown.
    movable: Option<u64>,
}

impl Segment {
    /// Takes in the segment's counters (bytes scanned and bytes found referenced, growing); returns the growth of both.
    pub fn count(&mut self, tried: u64, found: u64) -> [u64; 2] {
        let new = [tried.saturating_sub(self.tried), found.saturating_sub(self.found)];
        if new[0] > 0 {
            self.used = scale(new[1], self.end - self.start, new[0]);
        }
        (self.tried, self.found) = (tried, found);
        new
    }
}

/// A node that is tiered: its memory in segments, and the targets of its pages.
#[derive(Clone, Debug)]
pub struct TieredNode {
    /// The node.
    pub node: NodeId,
    /// Its tier; 0 is the fastest.
    pub tier: usize,
    /// Nodes that its pages may migrate to, nearest first.
    pub targets: Vec<MigrationTarget>,
    ranges: Vec<AddrRange>,
    span: u64,
    segments: Vec<Segment>,
    yields: [Yield; 3],
    hand: ClockHand,
    covered: Option<AddrRange>,
}

impl TieredNode {
    /// A node of which nothing was scanned yet; `ranges` are its addresses, ascending.
    #[must_use]
    pub fn new(
        node: NodeId,
        tier: usize,
        targets: Vec<MigrationTarget>,
        ranges: &[AddrRange],
    ) -> Self {
        let mut tiered = Self {
            node,
            tier,
            targets,
            ranges: Vec::new(),
            span: 0,
            segments: Vec::new(),
            yields: [Yield { expected: 0, share: AS_EXPECTED }; 3],
            hand: ClockHand::NEW,
            covered: None,
        };
        tiered.set_ranges(ranges);
        tiered
    }

    /// Replaces the address ranges, as after memory hotplug, and discards the counts of all segments.
    pub fn set_ranges(&mut self, ranges: &[AddrRange]) {
        let span: u64 = ranges.iter().map(|range| range.len()).sum();
        let segments = SEGMENTS as u64;
        let bound =
            |at| if at == segments { span } else { scale(span / PAGE, at, segments) * PAGE };
        self.segments.resize(SEGMENTS, Segment::default());
        for (segment, at) in self.segments.iter_mut().zip(0..) {
            // The machine's counters go on.
            (segment.start, segment.end, segment.next) = (bound(at), bound(at + 1), bound(at));
            (segment.used, segment.movable) = (0, None);
        }
        self.covered = None;
        (self.ranges, self.span) = (ranges.to_vec(), span);
    }

    /// Its address ranges.
    #[must_use]
    pub fn ranges(&self) -> &[AddrRange] {
        &self.ranges
    }

    /// Bytes of all its ranges.
    #[must_use]
    pub const fn span(&self) -> u64 {
        self.span
    }

    /// Its segments, for their counters.
    pub fn segments_mut(&mut self) -> &mut [Segment] {
        &mut self.segments
    }

    /// The addresses from the beginning to the end of each segment, with holes.
    pub fn addresses(&self) -> impl Iterator<Item = AddrRange> {
        self.segments.iter().map(|segment| AddrRange {
            start: self.first_address(segment.start),
            end: self.end_address(segment.end),
        })
    }

    /// Its ranges, cut where segments begin.
    #[must_use]
    pub fn regions(&self) -> Vec<AddrRange> {
        let mut regions = Vec::new();
        let mut before = 0;
        for range in &self.ranges {
            let (first, last) = (before, before + range.len());
            let at = |offset: u64| range.start + (offset - first);
            for segment in &self.segments {
                let (start, end) = (segment.start.max(first), segment.end.min(last));
                if start < end {
                    regions.push(AddrRange { start: at(start), end: at(end) });
                }
            }
            before = last;
        }
        regions
    }

    /// Indexes of the targets of background migration: the nearest faster one, then the nearest slower one.
    pub fn nearest(&self) -> impl Iterator<Item = usize> {
        let first = |up| self.targets.iter().position(|target| target.up == up);
        [first(true), first(false)].into_iter().flatten()
    }

    /// Takes in the share of each segment that can be migrated.
    pub fn learn_movable(&mut self, shares: &[BasisPoints]) {
        for (segment, share) in self.segments.iter_mut().zip(shares) {
            segment.movable = Some(scale(segment.end - segment.start, u64::from(share.0), 10_000));
        }
    }

    /// Bytes that the last scan found referenced.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.segments.iter().map(|segment| segment.used).sum()
    }

    /// The range that the last demotion by age covered: its pages have just lost their accessed bits.
    #[must_use]
    pub const fn covered(&self) -> Option<AddrRange> {
        self.covered
    }

    /// The addresses to cover to migrate `wanted` bytes; `None` if no segment is expected to yield any. `taken` is the bytes
    /// in use on this node, `(part, whole)` the share of the counted references that is expected again.
    pub fn next(
        &mut self,
        direction: Direction,
        wanted: u64,
        taken: u64,
        (part, whole): (u64, u64),
    ) -> Option<AddrRange> {
        let expects = |one: &Segment| scale(self.expects(direction, one, taken), part, whole);
        let expects: Vec<u64> = self.segments.iter().map(expects).collect();
        let first = shortest_run(&expects, wanted)?;
        let begins = self.segments[first];
        let from = if expects[first] >= wanted { begins.next } else { begins.start };
        let (mut to, mut expected) = (from, 0);
        let run = self.segments.iter_mut().zip(expects).enumerate().skip(first);
        for (at, (segment, expects)) in run {
            let begin = if at == first { from } else { segment.start };
            let rest = segment.end - begin;
            let here = scale(expects, rest, segment.end - segment.start);
            let missing = wanted.saturating_sub(expected);
            let take = if here > missing { scale(rest, missing, here) } else { rest };
            to = begin + take.next_multiple_of(PAGE).min(rest);
            expected += here.min(missing);
            segment.next = if to < segment.end { to } else { segment.start };
            if expected >= wanted || at == first && begin > segment.start {
                break;
            }
        }
        self.yields[direction as usize].expected += expected;
        (expected > 0 && from < to)
            .then(|| AddrRange { start: self.first_address(from), end: self.end_address(to) })
    }

    /// The addresses to cover to demote `wanted` bytes by age; `None` if the node has no memory.
    pub fn next_by_age(&mut self, wanted: u64) -> Option<AddrRange> {
        let (from, to) = self.hand.next(wanted, self.span)?;
        self.covered =
            Some(AddrRange { start: self.first_address(from), end: self.end_address(to) });
        self.covered
    }

    /// Bytes that a pass over a segment is expected to migrate.
    fn expects(&self, direction: Direction, segment: &Segment, taken: u64) -> u64 {
        let found = if direction == Direction::Down {
            let like_others = || scale(segment.end - segment.start, taken, self.span);
            segment.movable.unwrap_or_else(like_others).saturating_sub(segment.used)
        } else {
            segment.used
        };
        scale(found, self.yields[direction as usize].share, AS_EXPECTED)
    }

    /// Corrects yields by the bytes that passes have migrated since the last call, whether or not they arrived.
    pub fn learn_outcome(&mut self, moved: u64) {
        self.hand.learn(moved);
        for one in &mut self.yields {
            let expected = core::mem::take(&mut one.expected);
            if expected > 0 {
                let share = scale(moved, one.share, expected);
                let share = share.clamp(AS_EXPECTED / 8, AS_EXPECTED * 8);
                one.share = u64::midpoint(one.share, share);
            }
        }
    }

    /// The address of the byte at an offset.
    fn first_address(&self, mut before: u64) -> u64 {
        for range in &self.ranges {
            if before < range.len() {
                return range.start + before;
            }
            before -= range.len();
        }
        ADDRESS_END
    }

    /// The end of the addresses of all bytes below an offset.
    fn end_address(&self, mut below: u64) -> u64 {
        for range in &self.ranges {
            if below <= range.len() {
                return range.start + below;
            }
            below -= range.len();
        }
        ADDRESS_END
    }
}

/// Index of the first of the fewest neighbours that together have `wanted`; of equally many, those that have most. If all
/// together have less, the first that has any.
fn shortest_run(has: &[u64], wanted: u64) -> Option<usize> {
    let length = |first: usize| {
        let sums = has[first..].iter().scan(0u64, |sum, one| {
            *sum = sum.saturating_add(*one);
            Some(*sum)
        });
        sums.take_while(|sum| *sum < wanted).count()
    };
    let runs = (0..has.len()).filter(|first| has[*first] > 0);
    let best = |first: &usize| {
        let length = length(*first);
        (length + first >= has.len(), length, Reverse(has[*first]))
    };
    runs.min_by_key(|first| match best(first) {
        (true, ..) => (true, *first, Reverse(0)),
        within => within,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_pass_takes_the_densest_segments_and_the_next_continues_behind_it() {
        let ranges = [
            AddrRange { start: 16 << 20, end: 32 << 20 },
            AddrRange { start: 64 << 20, end: 80 << 20 },
        ];
        let mut node = TieredNode::new(NodeId(1), 1, Vec::new(), &ranges);
        assert_eq!(
            node.segments.iter().map(|segment| segment.end - segment.start).sum::<u64>(),
            32 << 20
        );
        assert_eq!(
            node.next(Direction::Up, 1 << 20, 32 << 20, (1, 1)),
            None,
            "nothing was found yet"
        );
        // Segments are of 2 MiB; the third is used, and half of the last one, which was passed twice.
        assert_eq!(node.segments[2].count(2 << 20, 2 << 20), [2 << 20, 2 << 20]);
        assert_eq!(node.segments[15].count(4 << 20, 2 << 20), [4 << 20, 2 << 20]);
        let mut next = |bytes: u64| {
            node.yields[1].expected = 0;
            let range = node.next(Direction::Up, bytes, 32 << 20, (1, 1)).unwrap();
            ((range.start >> 10, range.end >> 10), node.yields[1].expected >> 10)
        };
        assert_eq!(next(1 << 20), ((20 << 10, 21 << 10), 1 << 10));
        assert_eq!(next(512 << 10), ((21 << 10, 21 << 10 | 512), 512));
        assert_eq!(next(512 << 10), ((21 << 10 | 512, 22 << 10), 512), "to its end");
        assert_eq!(next(2 << 20), ((20 << 10, 22 << 10), 2 << 10), "and again from its beginning");
        assert_eq!(next(4 << 20), ((20 << 10, 80 << 10), 3 << 10), "as much as there is");
    }

    #[test]
    fn regions_end_at_segment_boundaries_and_at_memory_holes() {
        let range = |start: u64, end: u64| AddrRange { start: start << 20, end: end << 20 };
        let node = TieredNode::new(NodeId(1), 1, Vec::new(), &[range(16, 19), range(64, 93)]);
        let regions = node.regions();
        assert_eq!(regions[..3], [range(16, 18), range(18, 19), range(64, 65)]);
        assert_eq!((regions.len(), regions[16]), (17, range(91, 93)));
        assert_eq!(regions.iter().map(|region| region.len()).sum::<u64>(), node.span);
    }

    #[test]
    fn the_shortest_run_of_segments_that_holds_the_demand_is_chosen() {
        let has = [1, 0, 3, 4, 0, 8, 1];
        let runs = [(1, 5), (8, 5), (9, 5), (10, 3), (17, 0), (18, 0)];
        for (wanted, first) in runs {
            assert_eq!(shortest_run(&has, wanted), Some(first), "{wanted}");
        }
        assert_eq!(shortest_run(&[0, 0], 1), None);
        assert_eq!(shortest_run(&[0, 2], 9), Some(1), "what there is");
    }

    #[test]
    fn demotion_skips_segments_with_few_movable_pages() {
        let ranges = [AddrRange { start: 0, end: 16 << 20 }];
        let mut node = TieredNode::new(NodeId(0), 0, Vec::new(), &ranges);
        for segment in &mut node.segments[8..] {
            segment.count(1 << 20, 1 << 19);
        }
        let shares: Vec<BasisPoints> =
            (0..16).map(|segment| BasisPoints(if segment < 8 { 100 } else { 10_000 })).collect();
        node.learn_movable(&shares);
        let range = node.next(Direction::Down, 1 << 20, 10 << 20, (1, 1)).unwrap();
        assert_eq!((range.start >> 20, range.end >> 20), (8, 10), "half of it is used");
    }

    #[test]
    fn the_size_of_a_pass_adapts_to_the_bytes_migrated() {
        let ranges = [AddrRange { start: 0, end: 16 << 20 }];
        let mut node = TieredNode::new(NodeId(0), 0, Vec::new(), &ranges);
        let first = node.next(Direction::Down, 2 << 20, 16 << 20, (1, 1)).unwrap();
        assert_eq!(first.len(), 2 << 20, "all near memory is unused until it is found used");
        node.learn_outcome(1 << 20);
        let then = node.next(Direction::Down, 3 << 20, 16 << 20, (1, 1)).unwrap();
        assert_eq!(then.len(), 4 << 20, "half of what was expected, and half of that is believed");
        node.learn_outcome(0);
        node.learn_outcome(5);
        assert!(node.yields[0].share >= AS_EXPECTED / 8);
    }

    #[test]
    fn background_migration_promotes_to_the_nearest_faster_node_and_demotes_to_the_nearest_slower()
    {
        let node = |targets: &[(u16, bool, u32)]| {
            let target =
                |(to, up, far): &(u16, bool, u32)| MigrationTarget::new(NodeId(*to), *up, *far);
            let targets = targets.iter().map(target).collect();
            TieredNode::new(NodeId(9), 1, targets, &[]).nearest().collect::<Vec<_>>()
        };
        let middle = [(4, false, 14), (0, true, 17), (5, false, 20), (1, true, 28)];
        assert_eq!(node(&middle), [1, 0]);
        assert_eq!([node(&middle[..1]), node(&middle[3..]), node(&[])], [vec![0], vec![0], vec![]]);
    }

    #[test]
    fn hotplug_rebuilds_the_segments_and_keeps_cumulative_counters() {
        let range = |start: u64, end: u64| AddrRange { start: start << 20, end: end << 20 };
        let mut node = TieredNode::new(NodeId(1), 1, Vec::new(), &[range(0, 16)]);
        node.segments[0].count(5 << 20, 5 << 20);
        node.set_ranges(&[range(0, 4), range(8, 12)]);
        assert_eq!((node.span, node.used()), (8 << 20, 0));
        let ends: Vec<u64> = node.addresses().map(|range| range.end >> 10).collect();
        assert_eq!((ends[7], ends[8], ends[15]), (4 << 10, 8704, 12 << 10));
        assert_eq!(node.segments[0].count(6 << 20, 5 << 20), [1 << 20, 0]);
    }
}
