//! A node that is tiered: its addresses in arcs, what was found in each, where to move from and to, and what a pass costs.

use std::cmp::Reverse;

use nearfar_kernel::damon::spec::AddrRange;
use nearfar_topology::{BasisPoints, Bytes, Nanoseconds, NodeId};

use super::age::Hand;
use super::damon::{INTERVALS, ONCE};
use super::way::Way;

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
    pub(super) total: Bytes,
    pub(super) arcs: Vec<Arc>,
    /// What is known of each kind of moves.
    outcomes: [Outcome; 3],
    /// Where demotion by age goes on, and where it has been last: how long pages there had been unused is forgotten.
    hand: Hand,
    pub(super) behind: Option<AddrRange>,
    /// Tried by all schemes at the last count.
    tried: u64,
    /// What was meant for it and had to go elsewhere, by the last count.
    pub(super) foreign: Option<Bytes>,
    /// CPU time of its thread at the last count, and of one pass over all its addresses.
    cpu_ns: u64,
    pass_ns: u64,
}

/// What is moved: unused pages down, or used ones up; by age, used since they were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Down,
    Up,
    UpByAge,
}

/// What passes that move do of what they are expected to.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// How much the last pass was to move.
    expected: u64,
    /// What is moved of it, of [`AS_EXPECTED`]: there may be several passes, and pages that can't be moved.
    share: u64,
}

/// When, after a command, schemes of a node are applied. Each is again after as long, if the next command is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    /// The one that forgets, if it is.
    pub(super) forget_us: Option<u64>,
    /// The others.
    pub(super) act_us: u64,
}

impl Pass {
    /// The same as late as that, if it would be sooner: with the window before it if that can be told, else, and by age, with
    /// all the time until then.
    pub(super) fn put_off(self, then_us: u64, window: Nanoseconds, by_age: bool) -> Self {
        let window_us = self.forget_us.map_or(window.0 / 1000, |forget_us| self.act_us - forget_us);
        if then_us <= self.act_us {
            return self;
        }
        let forget_us = then_us.saturating_sub(window_us);
        let told = !by_age && forget_us >= window_us + APART_US;
        Self { forget_us: told.then_some(forget_us), act_us: then_us }
    }
}

/// From the end of a window until it is forgotten again, and from one pass until another that needs it to be over.
const APART_US: u64 = 100_000;
/// A page is moved in so long, about.
const MOVE_NS: u64 = 5_000;

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
            total: Bytes(0),
            arcs: Vec::new(),
            outcomes: [fresh; 3],
            hand: Hand::NEW,
            behind: None,
            tried: 0,
            foreign: None,
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
        self.behind = None;
        if self.span > 0 {
            self.pass_ns = scale(self.pass_ns, span, self.span);
        }
        (self.ranges, self.span) = (ranges.to_vec(), span);
    }

    /// The ways, one up and one down, by which upkeep goes: the nearest.
    pub(super) fn keepers(&self) -> impl Iterator<Item = usize> {
        let first = |up| self.ways.iter().position(|way| way.up == up);
        [first(true), first(false)].into_iter().flatten()
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

    /// Its addresses, cut where arcs begin. Linux 6.12 leaves out of a pass what a region holds behind the beginning of a
    /// scheme's addresses; a region for each arc has none to leave out, and each command restores them.
    pub(super) fn regions(&self) -> Vec<AddrRange> {
        let mut regions = Vec::new();
        let mut before = 0;
        for range in &self.ranges {
            let (first, last) = (before, before + range.len());
            let at = |offset: u64| range.start + (offset - first);
            for arc in &self.arcs {
                let (start, end) = (arc.start.max(first), arc.end.min(last));
                if start < end {
                    regions.push(AddrRange { start: at(start), end: at(end) });
                }
            }
            before = last;
        }
        regions
    }

    /// Where in memory an arc is.
    pub(super) fn within(&self, arc: &Arc) -> AddrRange {
        AddrRange { start: self.address_from(arc.start), end: self.address(arc.end) }
    }

    /// The addresses that are to be tried to move so much up or down; `None` if there is nothing to move: the fewest
    /// neighbouring arcs that hold as much, or behind those of the last pass where one does. `taken` is what this node's
    /// memory has of pages, `(part, whole)` how much of what was found is expected to be found again.
    pub(super) fn next(
        &mut self,
        kind: Kind,
        wanted: u64,
        taken: u64,
        (part, whole): (u64, u64),
    ) -> Option<AddrRange> {
        let expects = |arc: &Arc| scale(self.expects(kind, arc, taken), part, whole);
        let expects: Vec<u64> = self.arcs.iter().map(expects).collect();
        let first = shortest_run(&expects, wanted)?;
        let arc = self.arcs[first];
        let from = if expects[first] >= wanted { arc.next } else { arc.start };
        let (mut to, mut expected) = (from, 0);
        for (at, (arc, expects)) in self.arcs.iter_mut().zip(expects).enumerate().skip(first) {
            let begin = if at == first { from } else { arc.start };
            let rest = arc.end - begin;
            let here = scale(expects, rest, arc.end - arc.start);
            let missing = wanted.saturating_sub(expected);
            let take = if here > missing { scale(rest, missing, here) } else { rest };
            to = begin + take.next_multiple_of(PAGE).min(rest);
            expected += here.min(missing);
            arc.next = if to < arc.end { to } else { arc.start };
            if expected >= wanted || at == first && begin > arc.start {
                break;
            }
        }
        self.outcomes[kind as usize].expected += expected;
        (expected > 0 && from < to)
            .then(|| AddrRange { start: self.address_from(from), end: self.address(to) })
    }

    /// The addresses that are to be tried next to demote so much by age.
    pub(super) fn next_by_age(&mut self, wanted: u64) -> Option<AddrRange> {
        let (from, to) = self.hand.next(wanted, self.span)?;
        self.behind = Some(AddrRange { start: self.address_from(from), end: self.address(to) });
        self.behind
    }

    /// How much a pass over this arc is expected to move.
    fn expects(&self, kind: Kind, arc: &Arc, taken: u64) -> u64 {
        let found = if kind == Kind::Down {
            let like_others = || scale(arc.end - arc.start, taken, self.span);
            arc.movable.unwrap_or_else(like_others).saturating_sub(arc.used)
        } else {
            arc.used
        };
        scale(found, self.outcomes[kind as usize].share, AS_EXPECTED)
    }

    /// So much was moved by the last pass, if there was one, whether it arrived or not.
    pub(super) fn learn_outcome(&mut self, moved: u64) {
        self.hand.learn(moved);
        for outcome in &mut self.outcomes {
            let expected = std::mem::take(&mut outcome.expected);
            if expected > 0 {
                let share = scale(moved, outcome.share, expected);
                let share = share.clamp(AS_EXPECTED / 8, AS_EXPECTED * 8);
                outcome.share = u64::midpoint(outcome.share, share);
            }
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

    /// So much CPU time in all, for so many bytes of addresses tried; gives how much of it is new. Passes that `moved` pages
    /// say nothing of what a look takes.
    pub(super) fn learn_cost(&mut self, cpu_ns: u64, tried: u64, moved: bool) -> u64 {
        let (spent, passes) =
            (cpu_ns.saturating_sub(self.cpu_ns), tried.saturating_sub(self.tried));
        if passes >= self.span && spent > 0 && !moved {
            let pass = u128::from(spent) * u128::from(self.span) / u128::from(passes.max(1));
            let pass = u64::try_from(pass).unwrap_or(u64::MAX);
            self.pass_ns = if self.pass_ns == 0 { pass } else { u64::midpoint(self.pass_ns, pass) };
        }
        (self.cpu_ns, self.tried) = (cpu_ns, tried);
        spent
    }

    /// When schemes are applied that are to find what was used, or not, in such a window, where so many bytes of addresses
    /// are forgotten not before `first`. Windows longer than [`ONCE`] begin with the pass before.
    pub(super) fn pass(&self, window: Nanoseconds, first: Nanoseconds, bytes: u64) -> Pass {
        if window > ONCE {
            return self.pass_at(window);
        }
        let (window_us, pass_us) = (window.0 / 1000, self.pass_ns / 1000);
        // Not forgotten again between the two, nor before the next command, which waits for a pass that is late.
        let forget_us = (first.0 / 1000).max(window_us / 3 * 4 + APART_US).max(self.apart_us());
        // A page is visited so much later as the pass before took.
        let took_us = scale(pass_us, bytes, self.span);
        let act_us = forget_us + window_us.saturating_sub(took_us).max(INTERVALS.sample_us);
        Pass { forget_us: Some(forget_us), act_us }
    }

    /// How long a pass over so many bytes of addresses takes that moves so many, about.
    pub(super) fn takes_us(&self, tried: u64, moved: u64) -> u64 {
        let passes_us = scale(self.pass_ns / 1000, tried, self.span);
        passes_us.saturating_add(scale(moved / PAGE, MOVE_NS, 1000)).saturating_add(APART_US)
    }

    /// As soon as that, where nothing is forgotten.
    pub(super) fn pass_at(&self, time: Nanoseconds) -> Pass {
        Pass { forget_us: None, act_us: (time.0 / 1000).max(self.apart_us()) }
    }

    /// Passes are not closer than that: a thread is to do something else, too.
    fn apart_us(&self) -> u64 {
        INTERVALS.aggr_us.max(self.pass_ns / 1000 * 2)
    }
}

/// Where the fewest neighbours begin that together have so much, or the first that has any if all have less.
fn shortest_run(has: &[u64], wanted: u64) -> Option<usize> {
    let length = |first: usize| {
        let sums = has[first..].iter().scan(0u64, |sum, one| {
            *sum = sum.saturating_add(*one);
            Some(*sum)
        });
        sums.take_while(|sum| *sum < wanted).count()
    };
    let runs = (0..has.len()).filter(|first| has[*first] > 0);
    // Of equally many, those that have most.
    let best = |first: &usize| {
        let length = length(*first);
        (length + first >= has.len(), length, Reverse(has[*first]))
    };
    runs.min_by_key(|first| match best(first) {
        (true, ..) => (true, *first, Reverse(0)),
        within => within,
    })
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
        assert_eq!(
            watched.next(Kind::Up, 1 << 20, 32 << 20, (1, 1)),
            None,
            "nothing was found yet"
        );
        // Arcs are of 2 MiB; the third is used, and half of the last one, which was passed twice.
        assert_eq!(watched.arcs[2].count(2 << 20, 2 << 20), [2 << 20, 2 << 20]);
        assert_eq!(watched.arcs[15].count(4 << 20, 2 << 20), [4 << 20, 2 << 20]);
        let mut next = |bytes: u64| {
            watched.outcomes[1].expected = 0;
            let range = watched.next(Kind::Up, bytes, 32 << 20, (1, 1)).unwrap();
            ((range.start >> 10, range.end >> 10), watched.outcomes[1].expected >> 10)
        };
        assert_eq!(next(1 << 20), ((20 << 10, 21 << 10), 1 << 10));
        assert_eq!(next(512 << 10), ((21 << 10, 21 << 10 | 512), 512));
        assert_eq!(next(512 << 10), ((21 << 10 | 512, 22 << 10), 512), "to its end");
        assert_eq!(next(2 << 20), ((20 << 10, 22 << 10), 2 << 10), "and again from its beginning");
        assert_eq!(next(4 << 20), ((20 << 10, 80 << 10), 3 << 10), "as much as there is");
    }

    #[test]
    fn regions_are_cut_where_arcs_begin_and_where_memory_has_holes() {
        let range = |start: u64, end: u64| AddrRange { start: start << 20, end: end << 20 };
        let watched = Watched::new(NodeId(1), 1, Vec::new(), &[range(16, 19), range(64, 93)]);
        let regions = watched.regions();
        assert_eq!(regions[..3], [range(16, 18), range(18, 19), range(64, 65)]);
        assert_eq!((regions.len(), regions[16]), (17, range(91, 93)));
        assert_eq!(regions.iter().map(|region| region.len()).sum::<u64>(), watched.span);
    }

    #[test]
    fn as_few_neighbours_as_have_enough_are_tried() {
        let has = [1, 0, 3, 4, 0, 8, 1];
        let runs = [(1, 5), (8, 5), (9, 5), (10, 3), (17, 0), (18, 0)];
        for (wanted, first) in runs {
            assert_eq!(shortest_run(&has, wanted), Some(first), "{wanted}");
        }
        assert_eq!(shortest_run(&[0, 0], 1), None);
        assert_eq!(shortest_run(&[0, 2], 9), Some(1), "what there is");
    }

    #[test]
    fn a_page_is_forgotten_so_long_before_it_is_looked_at_as_the_window_and_once_between_commands()
    {
        let mut watched =
            Watched::new(NodeId(0), 0, Vec::new(), &[AddrRange { start: 0, end: 1 << 30 }]);
        let ms = |ms: u64| Nanoseconds(ms * 1_000_000);
        let times = |pass: Pass| (pass.forget_us.map(|us| us / 1000), pass.act_us / 1000);
        assert_eq!(times(watched.pass(ms(50), ONCE, 1 << 30)), (Some(400), 450));
        assert_eq!(times(watched.pass(ms(350), ONCE, 1 << 30)), (Some(566), 916));
        assert_eq!(times(watched.pass(ms(2000), ONCE, 1 << 30)), (None, 2000));
        watched.pass_ns = 30_000_000;
        assert_eq!(times(watched.pass(ms(50), ONCE, 1 << 30)), (Some(400), 420));
        assert_eq!(times(watched.pass(ms(50), ONCE, 1 << 29)), (Some(400), 435), "half of it");
        watched.pass_ns = 1_000_000_000;
        assert_eq!(times(watched.pass(ms(50), ONCE, 1 << 30)), (Some(2000), 2010));
        for window in (10..=400).step_by(10) {
            for (pass_ms, first) in [(1000, 200), (0, 0), (0, 400)] {
                watched.pass_ns = pass_ms * 1_000_000;
                let pass = watched.pass(ms(window), ms(first), 1 << 30);
                let next_us = pass.forget_us.unwrap() * 2;
                assert!(next_us > pass.act_us + pass.act_us / 8, "{window} ms: {pass:?}");
            }
        }
    }

    #[test]
    fn a_pass_that_is_put_off_keeps_its_window_if_that_can_be_told_in_one_command() {
        let ms = |ms: u64| ms * 1000;
        let pass = Pass { forget_us: Some(ms(200)), act_us: ms(250) };
        let window = Nanoseconds(50_000_000);
        let later = Pass { forget_us: Some(ms(450)), act_us: ms(500) };
        assert_eq!(pass.put_off(ms(500), window, false), later);
        assert_eq!(later.put_off(ms(400), window, false), later);
        let long = Pass { forget_us: None, act_us: ms(600) };
        let (window, with) =
            (Nanoseconds(600_000_000), |forget_us| Pass { forget_us, act_us: ms(2000) });
        assert_eq!(long.put_off(ms(2000), window, false), with(Some(ms(1400))));
        assert_eq!(long.put_off(ms(2000), window, true), with(None));
        assert_eq!(long.put_off(ms(2000), Nanoseconds(1_000_000_000), false), with(None));
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
        let range = watched.next(Kind::Down, 1 << 20, 10 << 20, (1, 1)).unwrap();
        assert_eq!((range.start >> 20, range.end >> 20), (8, 10), "half of it is used");
    }

    #[test]
    fn how_much_to_try_follows_from_what_was_moved() {
        let ranges = [AddrRange { start: 0, end: 16 << 20 }];
        let mut watched = Watched::new(NodeId(0), 0, Vec::new(), &ranges);
        let first = watched.next(Kind::Down, 2 << 20, 16 << 20, (1, 1)).unwrap();
        assert_eq!(first.len(), 2 << 20, "all near memory is unused until it is found used");
        watched.learn_outcome(1 << 20);
        let then = watched.next(Kind::Down, 3 << 20, 16 << 20, (1, 1)).unwrap();
        assert_eq!(then.len(), 4 << 20, "half of what was expected, and half of that is believed");
        watched.learn_outcome(0);
        watched.learn_outcome(5);
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
}
