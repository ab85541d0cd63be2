//! A node that is tiered: its addresses in arcs, what was found in each, where to move from and to, and what a pass costs.

use std::cmp::Reverse;

use nearfar_kernel::damon::spec::AddrRange;
use nearfar_topology::{BasisPoints, Bytes, Nanoseconds, NodeId};

use super::age::{self, Hand};
use super::damon::INTERVALS;

/// A page.
pub(super) const PAGE: u64 = 4096;
/// Behind all memory.
pub(super) const BEHIND: u64 = 1 << 60;
/// So many parts are counted apart.
const ARCS: u64 = 16;
pub(super) const ARCS_LEN: usize = 16;

/// A node and the kdamond that is for it.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) node: NodeId,
    /// Its tier; 0 is the fastest.
    pub(crate) tier: usize,
    /// Where its pages may go, nearest first.
    pub(crate) ways: Vec<Way>,
    /// All its addresses, and how many there are.
    pub(super) ranges: Vec<AddrRange>,
    pub(crate) span: u64,
    /// All its memory when the ranges were read, as the kernel counts it.
    pub(super) total_kib: u64,
    pub(super) arcs: Vec<Arc>,
    /// What is known of moves down and up.
    outcomes: [Outcome; 2],
    /// Where demotion by age goes on, and how often a sample was looked at.
    hand: Hand,
    samples: u64,
    /// Tried by all schemes at the last count.
    tried: u64,
    /// CPU time of its thread at the last count, and of one pass over all its addresses.
    cpu_ns: u64,
    pass_ns: u64,
}

/// A node of the next tier up or down to which pages may go. Each way has a scheme of its own, so that it has counters of
/// its own, and because kernels differ in whether a running scheme may be given another destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) to: NodeId,
    /// Whether `to` is the faster one.
    pub(crate) up: bool,
    pub(super) distance: u32,
    /// Moved at the last count, as the kernel counts.
    applied: u64,
    /// Moved since the beginning.
    pub(crate) moved: Bytes,
}

impl Way {
    pub(super) const fn new(to: NodeId, up: bool, distance: u32) -> Self {
        Self { to, up, distance, applied: 0, moved: Bytes(0) }
    }

    /// Takes in the counter of its scheme; gives what was moved since.
    pub(super) fn count(&mut self, applied: u64) -> u64 {
        let new = applied.saturating_sub(self.applied);
        self.applied = applied;
        self.moved.0 += new;
        new
    }
}

/// What passes that move do of what they are expected to.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// How much the last pass was to move.
    expected: u64,
    /// What is moved of it, of [`AS_EXPECTED`]: there may be several passes, and pages that can't be moved.
    share: u64,
}

/// A part of a node's addresses, counted over its ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Arc {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Where the next pass that moves begins.
    next: u64,
    /// Tried, and found used, at the last count.
    tried: u64,
    found: u64,
    /// Found used by one pass of the last look.
    used: u64,
    /// What of it can be moved, if that is known.
    movable: Option<u64>,
}

impl Arc {
    /// Takes in the counters of its scheme; gives what was tried and found since.
    pub(super) fn count(&mut self, tried: u64, found: u64) -> [u64; 2] {
        let new = [tried.saturating_sub(self.tried), found.saturating_sub(self.found)];
        if new[0] > 0 {
            self.used = scale(new[1], self.end - self.start, new[0]);
        }
        (self.tried, self.found) = (tried, found);
        new
    }
}

/// An outcome that is as expected.
const AS_EXPECTED: u64 = 1024;

impl Watched {
    /// A node of which nothing is known yet.
    pub(super) fn new(node: NodeId, tier: usize, ways: Vec<Way>, ranges: &[AddrRange]) -> Self {
        let fresh = Outcome { expected: 0, share: AS_EXPECTED };
        let mut watched = Self {
            node,
            tier,
            ways,
            ranges: Vec::new(),
            span: 0,
            total_kib: 0,
            arcs: Vec::new(),
            outcomes: [fresh; 2],
            hand: Hand::NEW,
            samples: 0,
            tried: 0,
            cpu_ns: 0,
            pass_ns: 0,
        };
        watched.move_to(ranges);
        watched
    }

    /// Has its memory be at these addresses; what was found in each part is forgotten.
    pub(super) fn move_to(&mut self, ranges: &[AddrRange]) {
        let span: u64 = ranges.iter().map(|range| range.len()).sum();
        let bound = |arc| if arc == ARCS { span } else { scale(span / PAGE, arc, ARCS) * PAGE };
        self.arcs.resize(ARCS_LEN, Arc::default());
        for (arc, at) in self.arcs.iter_mut().zip(0..) {
            // The kernel's counters go on.
            (arc.start, arc.end, arc.next) = (bound(at), bound(at + 1), bound(at));
            (arc.used, arc.movable) = (0, None);
        }
        if self.span > 0 {
            self.pass_ns = scale(self.pass_ns, span, self.span);
        }
        (self.ranges, self.span) = (ranges.to_vec(), span);
    }

    /// Takes in how much of each arc can be moved.
    pub(super) fn learn_movable(&mut self, shares: &[BasisPoints]) {
        for (arc, share) in self.arcs.iter_mut().zip(shares) {
            arc.movable = Some(scale(arc.end - arc.start, u64::from(share.0), 10_000));
        }
    }

    /// What was found used in it.
    pub(super) fn used(&self) -> u64 {
        self.arcs.iter().map(|arc| arc.used).sum()
    }

    /// Where in memory an arc is.
    pub(super) fn within(&self, arc: &Arc) -> AddrRange {
        AddrRange { start: self.address_from(arc.start), end: self.address(arc.end) }
    }

    /// The addresses that are to be tried to move so much up or down; `None` if there is nothing to move. They begin in the arc that
    /// holds most of it, behind those of the last pass there. `taken` is what this node's memory has of pages.
    pub(super) fn next(&mut self, up: bool, wanted: u64, taken: u64) -> Option<AddrRange> {
        // By all that an arc holds, wherever the last pass ended: else what is behind that would never have its turn.
        let expects = |at: &usize| (self.expects(up, &self.arcs[*at], taken), Reverse(*at));
        let first = (0..self.arcs.len()).max_by_key(expects)?;
        let from = self.arcs[first].next;
        let (mut to, mut expected) = (from, 0);
        for at in first..self.arcs.len() {
            let arc = self.arcs[at];
            let begin = if at == first { from } else { arc.start };
            let rest = arc.end - begin;
            let here = scale(self.expects(up, &arc, taken), rest, arc.end - arc.start);
            let missing = wanted.saturating_sub(expected);
            let take = if here > missing { scale(rest, missing, here) } else { rest };
            to = begin + take.next_multiple_of(PAGE).min(rest);
            expected += here.min(missing);
            self.arcs[at].next = if to < arc.end { to } else { arc.start };
            if expected >= wanted {
                break;
            }
        }
        self.outcomes[usize::from(up)].expected += expected;
        (expected > 0 && from < to)
            .then(|| AddrRange { start: self.address_from(from), end: self.address(to) })
    }

    /// The addresses that are to be tried next to demote so much by age.
    pub(super) fn next_by_age(&mut self, wanted: u64) -> Option<AddrRange> {
        let (from, to) = self.hand.next(wanted, self.span)?;
        Some(AddrRange { start: self.address_from(from), end: self.address(to) })
    }

    /// Of each arc, what belongs to the sample that is at turn.
    pub(super) fn sample(&self) -> Vec<AddrRange> {
        let of = |arc: &Arc| {
            let (start, end) = age::sample(arc.start, arc.end, self.span, self.samples);
            self.within(&Arc { start, end, ..*arc })
        };
        self.arcs.iter().map(of).collect()
    }

    /// The next look has another sample.
    pub(super) fn end_sample(&mut self) {
        self.samples += 1;
    }

    /// How much a pass over this arc is expected to move.
    fn expects(&self, up: bool, arc: &Arc, taken: u64) -> u64 {
        let found = if up {
            arc.used
        } else {
            let like_others = || scale(arc.end - arc.start, taken, self.span);
            arc.movable.unwrap_or_else(like_others).saturating_sub(arc.used)
        };
        scale(found, self.outcomes[usize::from(up)].share, AS_EXPECTED)
    }

    /// So much was moved up or down by the last pass, if there was one.
    pub(super) fn learn_outcome(&mut self, up: bool, moved: u64) {
        if !up {
            self.hand.learn(moved);
        }
        let outcome = &mut self.outcomes[usize::from(up)];
        let expected = std::mem::take(&mut outcome.expected);
        if expected > 0 {
            let share = scale(moved, outcome.share, expected);
            let share = share.clamp(AS_EXPECTED / 8, AS_EXPECTED * 8);
            outcome.share = u64::midpoint(outcome.share, share);
        }
    }

    /// The address of the byte that so many of this node's memory come before.
    fn address_from(&self, mut before: u64) -> u64 {
        for range in &self.ranges {
            if before < range.len() {
                return range.start + before;
            }
            before -= range.len();
        }
        BEHIND
    }

    /// The address that so many bytes of this node's memory are below.
    fn address(&self, mut below: u64) -> u64 {
        for range in &self.ranges {
            if below <= range.len() {
                return range.start + below;
            }
            below -= range.len();
        }
        BEHIND
    }

    /// So much CPU time in all, for so many bytes of addresses tried; gives how much of it is new.
    pub(super) fn learn_cost(&mut self, cpu_ns: u64, tried: u64) -> u64 {
        let (spent, passes) =
            (cpu_ns.saturating_sub(self.cpu_ns), tried.saturating_sub(self.tried));
        if passes >= self.span && spent > 0 {
            let pass = u128::from(spent) * u128::from(self.span) / u128::from(passes.max(1));
            let pass = u64::try_from(pass).unwrap_or(u64::MAX);
            self.pass_ns = if self.pass_ns == 0 { pass } else { u64::midpoint(self.pass_ns, pass) };
        }
        (self.cpu_ns, self.tried) = (cpu_ns, tried);
        spent
    }

    /// The interval at which a scheme finds what was used in such a window; not so short that its thread does nothing else.
    pub(super) fn interval_us(&self, window: Nanoseconds) -> u64 {
        (window.0 / 1000).max(INTERVALS.aggr_us).max(self.pass_ns / 1000 * 2)
    }
}

/// `value * by / of`, saturating.
pub(super) fn scale(value: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(by) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_move_is_where_most_was_found_and_the_next_pass_goes_on_behind_it() {
        let ranges = [
            AddrRange { start: 16 << 20, end: 32 << 20 },
            AddrRange { start: 64 << 20, end: 80 << 20 },
        ];
        let mut watched = Watched::new(NodeId(1), 1, Vec::new(), &ranges);
        assert_eq!(watched.arcs.iter().map(|arc| arc.end - arc.start).sum::<u64>(), 32 << 20);
        assert_eq!(watched.next(true, 1 << 20, 32 << 20), None, "nothing was found yet");
        // Arcs are of 2 MiB; the third is used, and half of the last one, which was passed twice.
        assert_eq!(watched.arcs[2].count(2 << 20, 2 << 20), [2 << 20, 2 << 20]);
        assert_eq!(watched.arcs[15].count(4 << 20, 2 << 20), [4 << 20, 2 << 20]);
        let mut next = |bytes: u64| {
            watched.outcomes[1].expected = 0;
            let range = watched.next(true, bytes, 32 << 20).unwrap();
            ((range.start >> 10, range.end >> 10), watched.outcomes[1].expected >> 10)
        };
        assert_eq!(next(1 << 20), ((20 << 10, 21 << 10), 1 << 10));
        assert_eq!(next(512 << 10), ((21 << 10, 21 << 10 | 512), 512));
        assert_eq!(next(512 << 10), ((21 << 10 | 512, 22 << 10), 512), "to its end");
        assert_eq!(next(2 << 20), ((20 << 10, 22 << 10), 2 << 10), "and again from its beginning");
        assert_eq!(next(4 << 20), ((20 << 10, 80 << 10), 3 << 10), "as much as there is");
    }

    #[test]
    fn what_the_kernel_has_itself_is_not_where_unused_pages_are_sought() {
        let ranges = [AddrRange { start: 0, end: 16 << 20 }];
        let mut watched = Watched::new(NodeId(0), 0, Vec::new(), &ranges);
        for arc in &mut watched.arcs[8..] {
            arc.count(1 << 20, 1 << 19);
        }
        let shares: Vec<BasisPoints> =
            (0..16).map(|arc| BasisPoints(if arc < 8 { 100 } else { 10_000 })).collect();
        watched.learn_movable(&shares);
        let range = watched.next(false, 1 << 20, 10 << 20).unwrap();
        assert_eq!((range.start >> 20, range.end >> 20), (8, 10), "half of it is used");
    }

    #[test]
    fn how_much_to_try_follows_from_what_was_moved() {
        let ranges = [AddrRange { start: 0, end: 16 << 20 }];
        let mut watched = Watched::new(NodeId(0), 0, Vec::new(), &ranges);
        let first = watched.next(false, 2 << 20, 16 << 20).unwrap();
        assert_eq!(first.len(), 2 << 20, "all near memory is unused until it is found used");
        watched.learn_outcome(false, 1 << 20);
        let then = watched.next(false, 3 << 20, 16 << 20).unwrap();
        assert_eq!(then.len(), 4 << 20, "half of what was expected, and half of that is believed");
        watched.learn_outcome(false, 0);
        watched.learn_outcome(false, 5);
        assert!(watched.outcomes[0].share >= AS_EXPECTED / 8);
    }

    #[test]
    fn memory_that_comes_or_goes_is_divided_anew_and_counters_go_on() {
        let range = |start: u64, end: u64| AddrRange { start: start << 20, end: end << 20 };
        let mut watched = Watched::new(NodeId(1), 1, Vec::new(), &[range(0, 16)]);
        watched.arcs[0].count(5 << 20, 5 << 20);
        watched.move_to(&[range(0, 4), range(8, 12)]);
        assert_eq!((watched.span, watched.used()), (8 << 20, 0));
        let ends: Vec<u64> = watched.arcs.iter().map(|arc| watched.within(arc).end >> 10).collect();
        assert_eq!((ends[7], ends[8], ends[15]), (4 << 10, 8704, 12 << 10));
        assert_eq!(watched.arcs[0].count(6 << 20, 5 << 20), [1 << 20, 0]);
    }

    #[test]
    fn what_a_way_has_moved_is_the_growth_of_its_counter() {
        let mut way = Way::new(NodeId(2), true, 20);
        assert_eq!((way.count(4096), way.count(4096), way.count(12_288)), (4096, 0, 8192));
        assert_eq!(way.moved, Bytes(12_288));
    }
}
