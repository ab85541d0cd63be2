//! A node that is tiered: its addresses in arcs, what was found in each, where to move from, and what a pass costs.

use std::cmp::Reverse;

use nearfar_kernel::damon::spec::AddrRange;
use nearfar_topology::{Bytes, Nanoseconds, NodeId};

use super::damon::INTERVALS;

/// A page.
pub(super) const PAGE: u64 = 4096;
/// Behind all memory.
pub(super) const BEHIND: u64 = 1 << 60;
/// So many parts are counted apart.
const ARCS: u64 = 16;

/// A node and the kdamond that is for it.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) node: NodeId,
    /// Where its pages go to.
    pub(crate) to: NodeId,
    pub(crate) near: bool,
    /// All its addresses, and how many there are.
    pub(super) ranges: Vec<AddrRange>,
    pub(crate) span: u64,
    pub(super) arcs: Vec<Arc>,
    /// How much the last pass was to move.
    expected: u64,
    /// Moved at the last count.
    pub(super) applied: u64,
    /// Tried by all schemes at the last count.
    tried: u64,
    /// What is moved of what is expected, of [`AS_EXPECTED`]: there may be several passes, and pages that can't be moved.
    outcome: u64,
    /// CPU time of its thread at the last count, and of one pass over all its addresses.
    cpu_ns: u64,
    pass_ns: u64,
    /// Moved since the beginning.
    pub(crate) moved: Bytes,
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
    pub(super) fn new(node: NodeId, to: NodeId, near: bool, ranges: &[AddrRange]) -> Self {
        let span = ranges.iter().map(|range| range.len()).sum();
        let bound = |arc| if arc == ARCS { span } else { scale(span / PAGE, arc, ARCS) * PAGE };
        let arc =
            |at| Arc { start: bound(at), end: bound(at + 1), next: bound(at), ..Arc::default() };
        Self {
            node,
            to,
            near,
            ranges: ranges.to_vec(),
            span,
            arcs: (0..ARCS).map(arc).filter(|arc| arc.start < arc.end).collect(),
            expected: 0,
            applied: 0,
            tried: 0,
            outcome: AS_EXPECTED,
            cpu_ns: 0,
            pass_ns: 0,
            moved: Bytes(0),
        }
    }

    /// Where in memory an arc is.
    pub(super) fn within(&self, arc: &Arc) -> AddrRange {
        AddrRange { start: self.address_from(arc.start), end: self.address(arc.end) }
    }

    /// The addresses that are to be tried to move so much; `None` if there is nothing to move. They begin in the arc that
    /// holds most of it, behind those of the last pass there. `taken` is what this node's memory has of pages.
    pub(super) fn next(&mut self, wanted: u64, taken: u64) -> Option<AddrRange> {
        let left =
            |arc: &Arc| scale(self.expects(arc, taken), arc.end - arc.next, arc.end - arc.start);
        let first = (0..self.arcs.len()).max_by_key(|at| (left(&self.arcs[*at]), Reverse(*at)))?;
        let from = self.arcs[first].next;
        let (mut to, mut expected) = (from, 0);
        for at in first..self.arcs.len() {
            let arc = self.arcs[at];
            let begin = if at == first { from } else { arc.start };
            let rest = arc.end - begin;
            let here = scale(self.expects(&arc, taken), rest, arc.end - arc.start);
            let missing = wanted.saturating_sub(expected);
            let take = if here > missing { scale(rest, missing, here) } else { rest };
            to = begin + take.next_multiple_of(PAGE).min(rest);
            expected += here.min(missing);
            self.arcs[at].next = if to < arc.end { to } else { arc.start };
            if expected >= wanted {
                break;
            }
        }
        self.expected = expected;
        (expected > 0 && from < to)
            .then(|| AddrRange { start: self.address_from(from), end: self.address(to) })
    }

    /// How much a pass over this arc is expected to move.
    fn expects(&self, arc: &Arc, taken: u64) -> u64 {
        let found = if self.near {
            scale(arc.end - arc.start, taken, self.span).saturating_sub(arc.used)
        } else {
            arc.used
        };
        scale(found, self.outcome, AS_EXPECTED)
    }

    /// So much was moved by the last pass, if there was one.
    pub(super) fn learn_outcome(&mut self, moved: u64) {
        let expected = std::mem::take(&mut self.expected);
        if expected > 0 {
            let outcome = scale(moved, self.outcome, expected);
            let outcome = outcome.clamp(AS_EXPECTED / 8, AS_EXPECTED * 8);
            self.outcome = u64::midpoint(self.outcome, outcome);
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

    /// So much CPU time in all, for so many bytes of addresses tried.
    pub(super) fn learn_cost(&mut self, cpu_ns: u64, tried: u64) {
        let (spent, passes) =
            (cpu_ns.saturating_sub(self.cpu_ns), tried.saturating_sub(self.tried));
        if passes >= self.span && spent > 0 {
            let pass = u128::from(spent) * u128::from(self.span) / u128::from(passes.max(1));
            let pass = u64::try_from(pass).unwrap_or(u64::MAX);
            self.pass_ns = if self.pass_ns == 0 { pass } else { u64::midpoint(self.pass_ns, pass) };
        }
        (self.cpu_ns, self.tried) = (cpu_ns, tried);
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
        let mut watched = Watched::new(NodeId(1), NodeId(0), false, &ranges);
        assert_eq!(watched.arcs.iter().map(|arc| arc.end - arc.start).sum::<u64>(), 32 << 20);
        assert_eq!(watched.next(1 << 20, 32 << 20), None, "nothing was found yet");
        // Arcs are of 2 MiB; the third is used, and half of the last one, which was passed twice.
        assert_eq!(watched.arcs[2].count(2 << 20, 2 << 20), [2 << 20, 2 << 20]);
        assert_eq!(watched.arcs[15].count(4 << 20, 2 << 20), [4 << 20, 2 << 20]);
        let mut next = |bytes: u64| {
            let range = watched.next(bytes, 32 << 20).unwrap();
            ((range.start >> 10, range.end >> 10), watched.expected >> 10)
        };
        assert_eq!(next(1 << 20), ((20 << 10, 21 << 10), 1 << 10));
        assert_eq!(next(512 << 10), ((21 << 10, 21 << 10 | 512), 512));
        assert_eq!(next(512 << 10), ((78 << 10, 79 << 10), 512), "half of it is used");
        assert_eq!(next(3 << 20), ((21 << 10 | 512, 80 << 10), 1536), "as much as there is");
    }

    #[test]
    fn how_much_to_try_follows_from_what_was_moved() {
        let ranges = [AddrRange { start: 0, end: 16 << 20 }];
        let mut watched = Watched::new(NodeId(0), NodeId(1), true, &ranges);
        let first = watched.next(2 << 20, 16 << 20).unwrap();
        assert_eq!(first.len(), 2 << 20, "all near memory is unused until it is found used");
        watched.learn_outcome(1 << 20);
        let then = watched.next(3 << 20, 16 << 20).unwrap();
        assert_eq!(then.len(), 4 << 20, "half of what was expected, and half of that is believed");
        watched.learn_outcome(0);
        watched.learn_outcome(5);
        assert!(watched.outcome >= AS_EXPECTED / 8);
    }
}
