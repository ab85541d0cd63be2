//! Looks and moves by DAMON: a kdamond for each node over its physical memory, with schemes.
//!
//! The first has regions end where another scheme's addresses begin, and does nothing else: of a region that begins before
//! them, Linux 6.12 leaves out the rest until the scheme's next pass. The second forgets: a filter that asks whether a page is
//! young also makes it old, and two filters behind it leave out every page there is, so that nothing is done. The next ones
//! count young pages, each in a part of the addresses (an arc); they mark them as accessed for reclaim, which they are
//! (`lru_prio`), for actions that do nothing count pages on new kernels only. The others move, one for each node where pages
//! may go (a way): young pages up to the next faster tier, old ones down to the next slower one. A scheme sleeps while it is
//! for regions of no size.
//!
//! Between looks, all sleep; on kernels that tune schemes to goals (Linux 7.1) two keep near memory up ([`upkeep`]).
//!
//! # Several tiers
//! A node has one kdamond, also where it is between two others: its schemes are those of both boundaries, and boundaries
//! take turns ([`nearfar_control::turns`]). Of a boundary that is not at turn all schemes sleep.
//!
//! # Memory that comes and goes
//! Before each look it is asked how much memory each node has. If that has changed, the ranges are read again: kdamonds
//! follow what is still there, and where a node has lost or got all its memory, [`Damon::has_changed`] says that it is to be
//! planned anew. Nothing moves to a block that is going offline: the kernel allocates no page there from the beginning on.
//!
//! # Time
//! A command takes a tenth of a second on Linux 6.12, and only one is heard at a time; so a pass can't be had when one
//! wants it. But a scheme is applied again and again, at an interval that the kernel keeps to, counted from the commit. So
//! one command has pages forgotten at one interval, and counted or moved at another, which is a window longer; the next
//! command comes before either is there again. Windows too long for that take two commands: forgetting goes on at short
//! intervals until the second, whose interval is the window; and what is moved then was forgotten when it was counted.
//!
//! How much is moved is a matter of where: a filter leaves only so many addresses as hold that much by the last count, and
//! the next pass goes on behind them.
//! (Quotas would do that too, but a scheme that sleeps forgets where it was.) DAMON counts regions, holes and free pages
//! included; what is looked at is the part of it that is taken.

mod looking;
mod moving;
mod upkeep;

use std::collections::BTreeMap;

use anyhow::Context as _;
use nearfar_control::tiering::{Count, KeptBy, Pages};
use nearfar_control::turns::Boundaries;
use nearfar_kernel::damon::spec::{AddrRange, Bounds, Intervals, Kdamond, Scheme};
use nearfar_kernel::damon::{DamonError, SchemeStats, Session};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::{ranges, zones};
use nearfar_policy::tiering::{Decision, Look, Looked, Side, Upkeep};
use nearfar_topology::{BasisPoints, Bytes, Nanoseconds, NodeId};

use super::node::{ARCS_LEN, Pass, Watched, scale};
use super::plan::Plan;
use super::reading::{self, foreign, meminfo, process_cpu_ns, thread_cpu_ns};
use super::schemes::{
    ALL, COUNT, FORGET, NO_SIZE, SPLIT, forgetting, only, specification, splitting, upkeep_of,
    way_of,
};
use super::scope::Group;
use crate::clock::Stopwatch;
use looking::{LookAt, looked_at};

/// DAMON's own sampling is not what pages are judged by, so it is for few regions; but intervals of schemes are whole
/// samples, and 6.12 hears commands at the end of an aggregation.
pub(super) const INTERVALS: Intervals =
    Intervals { sample_us: 10_000, aggr_us: 20_000, update_us: 60_000_000 };
/// Between looks: each sample makes a page of each region look unused, which at the pace of looks would be all of a small node
/// in half a minute, and nobody would know any more how old they are. A command is heard later then.
const RESTING: Intervals =
    Intervals { sample_us: 200_000, aggr_us: 400_000, update_us: INTERVALS.update_us };
/// As many as arcs at least, so that none grows larger than an arc; and none is split for less than half as many as at most.
pub(super) const REGIONS: Bounds = Bounds { min: ARCS_LEN as u64, max: 20 };
/// From one pass that forgets to the next, where the window is too long to be told in the same command. The last one may
/// be so long before the look is heard of; but each takes time.
pub(super) const FORGET_EVERY: Nanoseconds = Nanoseconds(150_000_000);
/// What is to be moved is forgotten not sooner than this, so that it is not forgotten again before the next command.
const FORGET_FIRST: Nanoseconds = Nanoseconds(200_000_000);
/// A command is heard so much later, about.
const HEARD: Nanoseconds = Nanoseconds(50_000_000);
/// By age, what is promoted was used since it was counted; so long, about.
const SINCE_COUNT: Nanoseconds = Nanoseconds(700_000_000);
/// A pass at this interval is over, and what it has found is read, before there is another.
pub(super) const ONCE: Nanoseconds = Nanoseconds(400_000_000);
/// A pass has begun this long after its time: the kernel counts time in samples, each of which takes a little longer than it
/// should, by this part of an interval at most.
const LATE: Nanoseconds = Nanoseconds(30_000_000);
const LATE_PART: u64 = 8;
/// The ranges are read again at least once in so many looks: memory may come as other memory goes.
const LOOKS_UNASKED: u32 = 64;
/// This part of a node stays free when pages are demoted to it.
const RESERVE: u64 = 256;

/// The nodes of a plan, each with its kdamond, fastest tier first. Those without memory now are left out.
pub(crate) fn specifications(
    fs: &dyn Fs,
    plan: &Plan,
    group: Option<&Group>,
) -> anyhow::Result<(Vec<Watched>, Vec<Kdamond>)> {
    let ranges = ranges::of_nodes(fs).context("finding each node's memory")?;
    let mut all = Vec::new();
    for (tier, nodes) in plan.tiers.iter().enumerate() {
        let before = all.len();
        for node in nodes.iter() {
            if let Some(ranges) = ranges.get(&node).filter(|ranges| !ranges.is_empty()) {
                let mut watched = Watched::new(node, tier, plan.ways(node, tier), ranges);
                watched.total = meminfo(fs, node).total;
                let kdamond = specification(&watched, group);
                all.push((watched, kdamond));
            }
        }
        anyhow::ensure!(before < all.len(), "no physical memory of nodes {nodes} is online");
    }
    Ok(all.into_iter().unzip())
}

/// The live machine's pages.
pub(crate) struct Damon<'a> {
    pub(crate) fs: &'a dyn Fs,
    pub(crate) session: Session<'a>,
    pub(crate) nodes: Vec<Watched>,
    pub(crate) group: Option<Group>,
    /// The boundary that is looked at, and what has been counted of each.
    turn: usize,
    totals: Vec<Count>,
    headroom: BasisPoints,
    /// The window of the last look, and how long after what its last pass was to be.
    looked: Nanoseconds,
    counted: (Stopwatch, Nanoseconds),
    /// Whether the kernel sees to upkeep, and what it is to be for each boundary.
    keeps: bool,
    upkeeps: Vec<Upkeep>,
    /// This program's CPU time at the last count.
    own_ns: u64,
    has_memory: Option<String>,
    looks_unasked: u32,
    changed: bool,
}

impl<'a> Damon<'a> {
    /// With kdamonds that run as [`specifications`] has them.
    pub(crate) fn new(
        fs: &'a dyn Fs,
        session: Session<'a>,
        nodes: Vec<Watched>,
        group: Option<Group>,
        plan: &Plan,
    ) -> Self {
        let headroom = plan.boundaries.first().map_or(BasisPoints(0), |one| one.goals.headroom);
        let totals = vec![Count::default(); plan.boundaries.len()];
        let keeps = upkeep::is_kept_by_the_kernel(fs);
        let mut damon = Self {
            fs,
            session,
            nodes,
            group,
            turn: 0,
            totals,
            headroom,
            looked: Nanoseconds(0),
            counted: (Stopwatch::start(), Nanoseconds(0)),
            keeps,
            upkeeps: vec![Upkeep::default(); plan.boundaries.len()],
            own_ns: 0,
            has_memory: None,
            looks_unasked: 0,
            changed: false,
        };
        damon.has_memory = damon.nodes_with_memory();
        damon
    }

    /// So much of near memory is to stay free from now on.
    pub(crate) fn set_headroom(&mut self, headroom: BasisPoints) {
        self.headroom = headroom;
    }

    /// What has been counted of each boundary.
    pub(crate) fn totals(&self) -> &[Count] {
        &self.totals
    }

    /// CPU time that it has taken in all.
    pub(crate) fn cpu(&self) -> Nanoseconds {
        Nanoseconds(self.totals.iter().map(|total| total.cpu.0).sum())
    }

    /// Moved in all.
    pub(crate) fn moved(&self) -> Bytes {
        let ways = self.nodes.iter().flat_map(|node| &node.ways);
        Bytes(ways.map(|way| way.moved.0).sum())
    }

    /// Whether nodes have lost all their memory, or others have got some.
    pub(crate) fn has_changed(&self) -> bool {
        self.changed
    }

    fn nodes_with_memory(&self) -> Option<String> {
        self.fs.read("sys/devices/system/node/has_memory").ok().flatten()
    }

    /// The nodes of the boundary at turn, near ones first: what leaves them makes room. With whether they are near.
    fn at_turn(&self) -> Vec<(usize, bool)> {
        let of = |tier: usize| (0..self.nodes.len()).filter(move |at| self.nodes[*at].tier == tier);
        let near = of(self.turn).map(|index| (index, true));
        near.chain(of(self.turn + 1).map(|index| (index, false))).collect()
    }

    /// Has those schemes of a node be for all memory that `set` says so of, and the others for none.
    fn wake(
        &mut self,
        index: usize,
        set: impl Fn(usize, &mut Scheme) -> bool,
    ) -> Result<(), DamonError> {
        self.wake_at(index, INTERVALS, set)
    }

    /// The same, and from now on pages are sampled so often.
    fn wake_at(
        &mut self,
        index: usize,
        intervals: Intervals,
        set: impl Fn(usize, &mut Scheme) -> bool,
    ) -> Result<(), DamonError> {
        self.session.adjust(index, |kdamond| {
            // Newer kernels count intervals from the commit only if something of the intervals has changed.
            let update_us = kdamond.context.intervals.update_us ^ 1;
            kdamond.context.intervals = Intervals { update_us, ..intervals };
            for (at, scheme) in kdamond.context.schemes.iter_mut().enumerate() {
                let awake = set(at, scheme);
                scheme.access_pattern.sz = if awake { Bounds::ANY_SIZE } else { NO_SIZE };
            }
        })?;
        Ok(())
    }

    /// Has all nodes at turn looked at, each as `what` says for near ones and far ones; gives how long to wait for it.
    fn look_at(
        &mut self,
        what: impl Fn(&Watched, bool) -> LookAt,
        pass: impl Fn(&Watched) -> Pass,
    ) -> anyhow::Result<Nanoseconds> {
        let mut longest = 0;
        for (index, near) in self.at_turn() {
            let node = &self.nodes[index];
            let pass = pass(node);
            longest = pass.act_us.max(longest);
            let (forget_us, within, counted) = match what(node, near) {
                LookAt::Nothing => (None, None, Vec::new()),
                LookAt::Forget(within) => {
                    (pass.forget_us.or(Some(pass.act_us)), within, Vec::new())
                }
                LookAt::Count(Some(within)) => (pass.forget_us, Some(within), vec![within]),
                LookAt::Count(None) => {
                    let arcs = node.arcs.iter().map(|arc| node.within(arc));
                    (pass.forget_us, None, arcs.collect())
                }
            };
            let group = self.group.clone();
            self.wake(index, |at, scheme| {
                if let (SPLIT, Some(within)) = (at, within) {
                    scheme.filters = splitting(within.start);
                    return true;
                }
                if at == FORGET {
                    scheme.filters = forgetting(within.unwrap_or(ALL), group.as_ref());
                    scheme.apply_interval_us = forget_us.unwrap_or(pass.act_us);
                    return forget_us.is_some();
                }
                let within = at.checked_sub(COUNT).and_then(|arc| counted.get(arc));
                let Some(within) = within else { return false };
                scheme.filters = only(*within, group.as_ref(), false);
                scheme.apply_interval_us = pass.act_us;
                true
            })?;
        }
        self.counted = (Stopwatch::start(), Nanoseconds(longest * 1000));
        Ok(pass_by(longest))
    }

    /// The memory now of each node at turn; of a cgroup's, what it has and what is free.
    fn sides_at_turn(&self) -> anyhow::Result<Vec<Side>> {
        let at_turn: Vec<usize> = self.at_turn().into_iter().map(|(index, _)| index).collect();
        self.sides_of(&at_turn)
    }

    fn sides_of(&self, nodes: &[usize]) -> anyhow::Result<Vec<Side>> {
        let group = self.group.as_ref().map(|group| group.taken(self.fs)).transpose();
        let group = group.context("the cgroup that is tiered")?;
        let free = zones::usable_free(self.fs)?;
        let side = |index: &usize| {
            let node = self.nodes[*index].node;
            let free = free.get(&node).copied().unwrap_or_default();
            let side = reading::side(meminfo(self.fs, node), free);
            let Some(group) = &group else { return side };
            let taken = group.get(&node).map_or(0, |taken| taken.0);
            Side { total: Bytes(taken.saturating_add(side.free.0)), free: side.free }
        };
        Ok(nodes.iter().map(side).collect())
    }

    /// An error if what is tiered has gone.
    pub(crate) fn gone(&self) -> anyhow::Result<()> {
        self.sides_at_turn().map(|_| ())
    }

    /// Has kdamonds watch the memory that there is now.
    fn follow(&mut self) -> anyhow::Result<()> {
        self.looks_unasked += 1;
        let totals: Vec<Bytes> =
            self.nodes.iter().map(|node| meminfo(self.fs, node.node).total).collect();
        let has_memory = self.nodes_with_memory();
        let same = self.nodes.iter().zip(&totals).all(|(node, total)| node.total == *total);
        if same && has_memory == self.has_memory && self.looks_unasked < LOOKS_UNASKED {
            return Ok(());
        }
        self.looks_unasked = 0;
        self.changed |= has_memory != self.has_memory;
        let now = ranges::of_nodes(self.fs).context("finding each node's memory again")?;
        for (index, total) in totals.into_iter().enumerate() {
            let node = &mut self.nodes[index];
            node.total = total;
            match now.get(&node.node).filter(|ranges| !ranges.is_empty()) {
                None => self.changed = true,
                Some(ranges) if *ranges == node.ranges => {}
                Some(ranges) => {
                    node.move_to(ranges);
                    let arcs: Vec<AddrRange> =
                        node.arcs.iter().map(|arc| node.within(arc)).collect();
                    let (regions, group) = (node.regions(), self.group.clone());
                    self.session.adjust(index, |kdamond| {
                        kdamond.context.targets[0].regions.clone_from(&regions);
                        let counts = kdamond.context.schemes.iter_mut().skip(COUNT);
                        for (scheme, arc) in counts.zip(arcs) {
                            scheme.filters = only(arc, group.as_ref(), false);
                        }
                    })?;
                }
            }
        }
        Ok(())
    }

    /// What was meant for each node since the last time and had to go elsewhere. The kernel counts a page as migrated that
    /// it has allocated on another node, even where it was, for want of room; so is what programs allocate, which can't be told
    /// apart, so that rather too little is counted as moved.
    fn elsewhere(&mut self) -> BTreeMap<NodeId, u64> {
        let fs = self.fs;
        let grown = |node: &mut Watched| {
            let now = foreign(fs, node.node);
            let before = node.foreign.replace(now).unwrap_or(now);
            (node.node, now.0.saturating_sub(before.0))
        };
        self.nodes.iter_mut().map(grown).collect()
    }

    /// Takes in what a node's schemes have done; gives what was looked at, and the new CPU time.
    fn count_node(
        &mut self,
        index: usize,
        near: bool,
        now: Side,
        elsewhere: &mut BTreeMap<NodeId, u64>,
    ) -> anyhow::Result<(Looked, u64)> {
        let stats = self.session.stats(index)?;
        let thread = self.session.thread(index)?;
        let cpu_ns = thread.map_or(0, |thread| thread_cpu_ns(self.fs, &thread.to_string()));
        let node = &mut self.nodes[index];
        let tried_by_all = stats.iter().skip(FORGET).map(|stats| stats.sz_tried.0).sum();
        let arcs = node.arcs.len();
        let count = |at: usize| stats.get(at).copied().unwrap_or_default();
        let (mut tried, mut used) = (0, 0);
        for (at, arc) in node.arcs.iter_mut().enumerate() {
            let SchemeStats { sz_tried, sz_applied, .. } = count(COUNT + at);
            let [new_tried, new_used] = arc.count(sz_tried.0, sz_applied.0);
            (tried, used) = (tried + new_tried, used + new_used);
        }
        let (mut moved, mut commanded, mut applied) = (0, 0, 0);
        let keepers: Vec<_> = (0..node.ways.len()).map(|way| upkeep_of(node, way)).collect();
        for (at, (way, keeper)) in node.ways.iter_mut().zip(keepers).enumerate() {
            let of = |scheme: usize| count(scheme).sz_applied.0;
            let [own, kept] = way.count([of(way_of(arcs, at)), keeper.map_or(0, of)]);
            let arrived = way.arrived(own + kept, elsewhere.entry(way.to).or_default());
            applied += own + kept;
            if way.up != near {
                (moved, commanded) = (moved + arrived, commanded + own);
            }
        }
        node.learn_outcome(commanded);
        let spent = node.learn_cost(cpu_ns, tried_by_all, applied > 0);
        let taken = now.total.0.saturating_sub(now.free.0);
        // Of the regions tried, the part that is taken.
        let counted = scale(tried, taken.min(node.span), node.span).max(used);
        Ok((Looked { at: Bytes(counted), used: Bytes(used), moved: Bytes(moved) }, spent))
    }
}

impl Pages for Damon<'_> {
    type Error = anyhow::Error;

    fn forget(&mut self, look: Look) -> Result<Nanoseconds, anyhow::Error> {
        self.looked = look.window;
        if in_one_command(look) {
            let count = looked_at(look, LookAt::Count);
            return self.look_at(count, |node| node.pass(look.window, ONCE, node.span));
        }
        self.look_at(looked_at(look, LookAt::Forget), |node| node.pass_at(FORGET_EVERY))
    }

    fn look(&mut self, look: Look) -> Result<Nanoseconds, anyhow::Error> {
        if in_one_command(look) {
            return Ok(Nanoseconds(0));
        }
        self.look_at(looked_at(look, LookAt::Count), |node| node.pass_at(look.window))
    }

    fn exchange(&mut self, decision: &Decision) -> Result<Nanoseconds, anyhow::Error> {
        if !decision.by_age && decision.demote.0 > 0 {
            self.learn_movable();
        }
        self.shift(decision)
    }

    fn rest(&mut self, upkeep: &Upkeep) -> Result<KeptBy, anyhow::Error> {
        self.upkeeps[self.turn] = *upkeep;
        self.keep_up()
    }

    fn sides(&mut self) -> Result<(Side, Side), anyhow::Error> {
        self.follow()?;
        let now = self.at_turn().into_iter().zip(self.sides_at_turn()?);
        Ok(now.fold(Default::default(), add))
    }

    fn count(&mut self) -> Result<Count, anyhow::Error> {
        let sides = self.sides_at_turn()?;
        let own_ns = process_cpu_ns(self.fs, "self");
        let mut cpu_ns = own_ns.saturating_sub(self.own_ns);
        self.own_ns = own_ns;
        let at_turn = self.at_turn();
        let both = at_turn.iter().copied().zip(sides.iter().copied()).fold(Default::default(), add);
        let mut elsewhere = self.elsewhere();
        for ((index, near), side) in at_turn.into_iter().zip(sides) {
            let (new, spent) = self.count_node(index, near, side, &mut elsewhere)?;
            cpu_ns += spent;
            let total = &mut self.totals[self.turn];
            let look = if near { &mut total.near_look } else { &mut total.far_look };
            *look = Looked {
                at: Bytes(look.at.0 + new.at.0),
                used: Bytes(look.used.0 + new.used.0),
                moved: Bytes(look.moved.0 + new.moved.0),
            };
        }
        let total = &mut self.totals[self.turn];
        (total.near, total.far) = both;
        total.cpu.0 += cpu_ns;
        Ok(*total)
    }
}

impl Boundaries for Damon<'_> {
    fn turn_to(&mut self, boundary: usize) -> Result<(), anyhow::Error> {
        if self.turn != boundary {
            // What the last look has still done is of that boundary.
            self.count()?;
            self.turn = boundary;
        }
        Ok(())
    }
}

/// Whether a look is told in one command.
fn in_one_command(look: Look) -> bool {
    look.window <= ONCE
}

/// By when a pass at such an interval has begun.
const fn pass_by(interval_us: u64) -> Nanoseconds {
    let interval_ns = interval_us * 1000;
    Nanoseconds(interval_ns + interval_ns / LATE_PART + LATE.0)
}

/// One node more of a near or a far side.
fn add(
    (mut near, mut far): (Side, Side),
    ((_, is_near), side): ((usize, bool), Side),
) -> (Side, Side) {
    let of = if is_near { &mut near } else { &mut far };
    (of.total.0, of.free.0) = (of.total.0 + side.total.0, of.free.0 + side.free.0);
    (near, far)
}
