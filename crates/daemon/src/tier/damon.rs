//! Scans and migration by DAMON: a kdamond for each node over its physical memory, with several schemes.
//!
//! The first scheme only makes regions end where another scheme's addresses begin: of a region that begins before
//! them, Linux 6.12 skips the rest until the scheme's next pass. The second clears accessed bits: a filter that tests
//! whether a page is young also makes it old, and two filters behind it reject every page, so that no action follows.
//! The next ones count young pages, one per segment; they mark these as accessed for reclaim (`lru_prio`), which is
//! true, because actions without effect count pages on newer kernels only. The others migrate, one per migration
//! target: young pages up to the next faster tier, old ones down to the next slower one. A scheme with an empty size
//! range sleeps.
//!
//! Between scans all schemes sleep; on kernels that tune schemes to goals (Linux 7.1) two do background migration
//! (`upkeep`).
//!
//! # Several tiers
//! A node has one kdamond, also if it is between two others: its schemes are those of both boundaries, and boundaries
//! take turns ([`nearfar_control::turns`]). All schemes of boundaries that are not at turn sleep.
//!
//! # Memory hotplug
//! Before each scan the size of each node's memory is read. If it has changed, the ranges are read again: kdamonds
//! follow the remaining memory, and if a node has lost or got all its memory, `DamonMigrator::has_changed` requests a new
//! plan. Nothing moves to a block that is going offline: the kernel stops allocation there first.
//!
//! # Time
//! A command takes a tenth of a second on Linux 6.12, and only one is processed at a time, so a command can't trigger
//! a pass at a given moment. But a scheme is applied repeatedly, at an exact interval counted from the commit. So one
//! command sets two intervals: accessed bits are cleared at one, and pages counted or migrated at the other, longer by
//! the sampling window; the next command comes before either is due again. Longer windows take two commands: bits are
//! cleared at short intervals until the second command, whose interval is the window; for a migrating pass, the
//! counting pass has cleared them.
//!
//! The amount migrated is set by addresses: a filter leaves only those that hold that amount by the last count, and
//! the next pass continues behind them. (Quotas would do that too, but a sleeping scheme loses its position.) DAMON
//! counts regions with holes and free pages; the scanned bytes are the share of them in use.

mod looking;
mod monitor;
mod moving;
mod upkeep;

use std::collections::BTreeMap;

use anyhow::Context as _;
use nearfar_kernel::damon::spec::{AddrRange, Bounds, Intervals, Scheme};
use nearfar_kernel::damon::{DamonError, SchemeStats, Session};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::{ranges, zones};
use nearfar_policy::ports::{Count, KeptBy, TierBoundaries, TierPages};
use nearfar_policy::tiering::segments::TieredNode;
use nearfar_policy::tiering::{BackgroundMigration, Decision, Scan, Scanned, TierUsage, scale};
use nearfar_topology::{BasisPoints, Bytes, Nanoseconds, NodeId};

use super::intervals::{FORGET_EVERY, INTERVALS, ONCE};
use super::passes::{Pass, PassTiming};
use super::plan::Plan;
use super::reading::{self, foreign, meminfo};
use super::schemes::{
    ALL, COUNT, FORGET, NO_SIZE, SPLIT, forgetting, only, splitting, upkeep_of, way_of,
};
use super::scope::Group;
use looking::{LookAt, looked_at};
use monitor::Monitor;
use nearfar_kernel::clock::Stopwatch;

/// Between scans: each sample makes a page of each region look idle, at the pace of scans all of a small node in half
/// a minute, so that the age of pages would be lost. Commands are processed later in exchange.
const RESTING: Intervals =
    Intervals { sample_us: 200_000, aggr_us: 400_000, update_us: INTERVALS.update_us };
/// Pages to migrate are cleared no earlier than this, so that they are not cleared again before the next command.
const FORGET_FIRST: Nanoseconds = Nanoseconds(200_000_000);
/// Typical delay before a kdamond picks up a command.
const HEARD: Nanoseconds = Nanoseconds(50_000_000);
/// Typical time from a count to a promotion by age, which takes pages referenced since then.
const SINCE_COUNT: Nanoseconds = Nanoseconds(700_000_000);
/// A pass begins at most this late: the kernel counts time in samples that each take slightly longer than set, in all
/// by at most one part in `LATE_PART` of the interval.
const LATE: Nanoseconds = Nanoseconds(30_000_000);
const LATE_PART: u64 = 8;
/// Scans after which the ranges are read again in any case: memory may come as other memory goes.
const LOOKS_UNASKED: u32 = 64;

/// The live machine's pages.
pub struct DamonMigrator<'a> {
    pub(crate) fs: &'a dyn Fs,
    pub(crate) session: Session<'a>,
    pub(crate) nodes: Vec<TieredNode>,
    /// By node.
    kdamonds: Vec<Monitor>,
    pub(crate) group: Option<Group>,
    /// The boundary at turn, and the counts of each.
    turn: usize,
    totals: Vec<Count>,
    headroom: BasisPoints,
    /// Window of the last scan, and its last pass: a stopwatch and the delay from its start.
    looked: Nanoseconds,
    counted: (Stopwatch, Nanoseconds),
    /// Whether the kernel does background migration, and its goals for each boundary.
    keeps: bool,
    upkeeps: Vec<BackgroundMigration>,
    /// This program's CPU time when it was last charged.
    own_ns: u64,
    /// Whether CPU time is used between scans now.
    rests: bool,
    has_memory: Option<String>,
    looks_unasked: u32,
    changed: bool,
}

impl std::fmt::Debug for DamonMigrator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DamonMigrator").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl<'a> DamonMigrator<'a> {
    /// Over kdamonds that run as specified by [`super::schemes::specifications`].
    pub fn new(
        fs: &'a dyn Fs,
        session: Session<'a>,
        nodes: Vec<TieredNode>,
        group: Option<Group>,
        plan: &Plan,
    ) -> Self {
        let headroom = plan.boundaries.first().map_or(BasisPoints(0), |one| one.goals.headroom);
        let totals = vec![Count::default(); plan.boundaries.len()];
        let keeps = upkeep::is_kept_by_the_kernel(fs);
        let mut damon = Self {
            fs,
            session,
            kdamonds: nodes.iter().map(|node| Monitor::new(fs, node.node)).collect(),
            nodes,
            group,
            turn: 0,
            totals,
            headroom,
            looked: Nanoseconds(0),
            counted: (Stopwatch::start(), Nanoseconds(0)),
            keeps,
            upkeeps: vec![BackgroundMigration::default(); plan.boundaries.len()],
            own_ns: 0,
            rests: false,
            has_memory: None,
            looks_unasked: 0,
            changed: false,
        };
        damon.has_memory = damon.nodes_with_memory();
        damon
    }

    /// Sets the share of near memory that stays free.
    pub(crate) fn set_headroom(&mut self, headroom: BasisPoints) {
        self.headroom = headroom;
    }

    /// Counts of each boundary.
    pub(crate) fn totals(&self) -> &[Count] {
        &self.totals
    }

    /// CPU time used so far.
    pub(crate) fn cpu(&self) -> Nanoseconds {
        Nanoseconds(self.totals.iter().map(|total| total.cpu.0).sum())
    }

    /// Bytes migrated so far.
    pub(crate) fn moved(&self) -> Bytes {
        let ways = self.nodes.iter().flat_map(|node| &node.targets);
        Bytes(ways.map(|way| way.moved.0).sum())
    }

    /// Whether a node has lost all its memory, or a node without memory got some.
    pub(crate) fn has_changed(&self) -> bool {
        self.changed
    }

    fn nodes_with_memory(&self) -> Option<String> {
        self.fs.read("sys/devices/system/node/has_memory").ok().flatten()
    }

    /// Nodes of the boundary at turn, with whether they are near; near ones first, as their demotions free memory.
    fn at_turn(&self) -> Vec<(usize, bool)> {
        let of = |tier: usize| (0..self.nodes.len()).filter(move |at| self.nodes[*at].tier == tier);
        let near = of(self.turn).map(|index| (index, true));
        near.chain(of(self.turn + 1).map(|index| (index, false))).collect()
    }

    /// Activates the schemes of a node for which `set` returns true; all others get an empty size range.
    fn wake(
        &mut self,
        index: usize,
        set: impl Fn(usize, &mut Scheme) -> bool,
    ) -> Result<(), DamonError> {
        self.wake_at(index, INTERVALS, set)
    }

    /// The same, with other sampling intervals.
    fn wake_at(
        &mut self,
        index: usize,
        intervals: Intervals,
        set: impl Fn(usize, &mut Scheme) -> bool,
    ) -> Result<(), DamonError> {
        self.session.adjust(index, |kdamond| {
            // Newer kernels restart intervals at the commit only if one of the intervals has changed.
            let update_us = kdamond.context.intervals.update_us ^ 1;
            kdamond.context.intervals = Intervals { update_us, ..intervals };
            for (at, scheme) in kdamond.context.schemes.iter_mut().enumerate() {
                let awake = set(at, scheme);
                scheme.access_pattern.sz = if awake { Bounds::ANY_SIZE } else { NO_SIZE };
            }
        })?;
        Ok(())
    }

    /// Runs a pass of a scan on all nodes at turn; `what` selects its effect for each. Returns how long it takes.
    fn look_at(
        &mut self,
        what: impl Fn(&TieredNode, bool) -> LookAt,
        pass: impl Fn(&PassTiming, u64) -> Pass,
    ) -> anyhow::Result<Nanoseconds> {
        let mut longest = 0;
        for (index, near) in self.at_turn() {
            let node = &self.nodes[index];
            let pass = pass(&self.kdamonds[index].timing, node.span());
            longest = pass.act_us.max(longest);
            let (forget_us, within, counted) = match what(node, near) {
                LookAt::Nothing => (None, None, Vec::new()),
                LookAt::Forget(within) => {
                    (pass.forget_us.or(Some(pass.act_us)), within, Vec::new())
                }
                LookAt::Count(Some(within)) => (pass.forget_us, Some(within), vec![within]),
                LookAt::Count(None) => (pass.forget_us, None, node.addresses().collect()),
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

    /// Present memory of each node at turn; of a cgroup, its own and the free memory.
    fn sides_at_turn(&self) -> anyhow::Result<Vec<TierUsage>> {
        let at_turn: Vec<usize> = self.at_turn().into_iter().map(|(index, _)| index).collect();
        self.sides_of(&at_turn)
    }

    fn sides_of(&self, nodes: &[usize]) -> anyhow::Result<Vec<TierUsage>> {
        let group = self.group.as_ref().map(|group| group.taken(self.fs)).transpose();
        let group = group.context("the cgroup that is tiered")?;
        let free = zones::usable_free(self.fs)?;
        let side = |index: &usize| {
            let node = self.nodes[*index].node;
            let free = free.get(&node).copied().unwrap_or_default();
            let side = reading::side(meminfo(self.fs, node), free);
            let Some(group) = &group else { return side };
            let taken = group.get(&node).map_or(0, |taken| taken.0);
            TierUsage { total: Bytes(taken.saturating_add(side.free.0)), free: side.free }
        };
        Ok(nodes.iter().map(side).collect())
    }

    /// An error if the tiered memory has gone.
    pub(crate) fn gone(&self) -> anyhow::Result<()> {
        self.sides_at_turn().map(|_| ())
    }

    /// Adapts kdamonds to the memory that is present.
    fn follow(&mut self) -> anyhow::Result<()> {
        self.looks_unasked += 1;
        let totals: Vec<Bytes> =
            self.nodes.iter().map(|node| meminfo(self.fs, node.node).total).collect();
        let has_memory = self.nodes_with_memory();
        let same = self.kdamonds.iter().zip(&totals).all(|(one, total)| one.total == *total);
        if same && has_memory == self.has_memory && self.looks_unasked < LOOKS_UNASKED {
            return Ok(());
        }
        self.looks_unasked = 0;
        self.changed |= has_memory != self.has_memory;
        let now = ranges::of_nodes(self.fs).context("finding each node's memory again")?;
        for (index, total) in totals.into_iter().enumerate() {
            let node = &mut self.nodes[index];
            self.kdamonds[index].total = total;
            match now.get(&node.node).filter(|ranges| !ranges.is_empty()) {
                None => self.changed = true,
                Some(ranges) if ranges.as_slice() == node.ranges() => {}
                Some(ranges) => {
                    let before = node.span();
                    node.set_ranges(ranges);
                    self.kdamonds[index].timing.resize(before, node.span());
                    let arcs: Vec<AddrRange> = node.addresses().collect();
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

    /// Bytes meant for each node since the last call that were allocated on another one. The kernel counts a page as
    /// migrated even if it was allocated elsewhere, or where it was, for lack of free memory. Programs' allocations
    /// are included, as they can't be distinguished, so that migration is under- rather than overestimated.
    fn elsewhere(&mut self) -> BTreeMap<NodeId, u64> {
        let fs = self.fs;
        let grown = |(node, kdamond): (&TieredNode, &mut Monitor)| {
            let now = foreign(fs, node.node);
            let before = kdamond.foreign.replace(now).unwrap_or(now);
            (node.node, now.0.saturating_sub(before.0))
        };
        self.nodes.iter().zip(&mut self.kdamonds).map(grown).collect()
    }

    /// Adds up the results of a node's schemes. Returns the counts of the scan.
    fn count_node(
        &mut self,
        index: usize,
        near: bool,
        now: TierUsage,
        elsewhere: &mut BTreeMap<NodeId, u64>,
    ) -> anyhow::Result<Scanned> {
        let stats = self.session.stats(index)?;
        let node = &mut self.nodes[index];
        let in_scans = stats.iter().take(way_of(node.targets.len())).skip(FORGET);
        let tried_by_all = in_scans.map(|stats| stats.sz_tried.0).sum();
        let count = |at: usize| stats.get(at).copied().unwrap_or_default();
        let (mut tried, mut used) = (0, 0);
        for (at, segment) in node.segments_mut().iter_mut().enumerate() {
            let SchemeStats { sz_tried, sz_applied, .. } = count(COUNT + at);
            let [new_tried, new_used] = segment.count(sz_tried.0, sz_applied.0);
            (tried, used) = (tried + new_tried, used + new_used);
        }
        let (mut moved, mut commanded, mut applied) = (0, 0, 0);
        let keepers: Vec<_> = (0..node.targets.len()).map(|way| upkeep_of(node, way)).collect();
        for (at, (way, keeper)) in node.targets.iter_mut().zip(keepers).enumerate() {
            let of = |scheme: usize| count(scheme).sz_applied.0;
            let [own, kept] = way.count([of(way_of(at)), keeper.map_or(0, of)]);
            let arrived = way.arrived(own + kept, elsewhere.entry(way.to).or_default());
            applied += own;
            if way.up != near {
                (moved, commanded) = (moved + arrived, commanded + own);
            }
        }
        node.learn_outcome(commanded);
        let (span, kdamond) = (node.span(), &mut self.kdamonds[index]);
        let spent_ns = std::mem::take(&mut kdamond.scan_ns);
        kdamond.timing.learn_cost(spent_ns, tried_by_all, (span, applied > 0));
        let taken = now.total.0.saturating_sub(now.free.0);
        // Of the regions tried, the share in use.
        let counted = scale(tried, taken.min(span), span).max(used);
        Ok(Scanned { at: Bytes(counted), used: Bytes(used), moved: Bytes(moved) })
    }
}

impl TierPages for DamonMigrator<'_> {
    type Error = anyhow::Error;

    fn clear_accessed(&mut self, look: Scan) -> Result<Nanoseconds, anyhow::Error> {
        self.rest(false)?;
        self.looked = look.window;
        if in_one_command(look) {
            let count = looked_at(look, LookAt::Count);
            return self
                .look_at(count, |timing, span| timing.pass(look.window, ONCE, (span, span)));
        }
        self.look_at(looked_at(look, LookAt::Forget), |timing, _| timing.pass_at(FORGET_EVERY))
    }

    fn scan(&mut self, look: Scan) -> Result<Nanoseconds, anyhow::Error> {
        if in_one_command(look) {
            return Ok(Nanoseconds(0));
        }
        self.look_at(looked_at(look, LookAt::Count), |timing, _| timing.pass_at(look.window))
    }

    fn migrate(&mut self, decision: &Decision) -> Result<Nanoseconds, anyhow::Error> {
        self.rest(false)?;
        if !decision.by_age && decision.demote.0 > 0 {
            self.learn_movable();
        }
        self.shift(decision)
    }

    fn idle(&mut self, upkeep: &BackgroundMigration) -> Result<KeptBy, anyhow::Error> {
        self.upkeeps[self.turn] = *upkeep;
        let kept_by = self.keep_up()?;
        self.rest(true)?;
        Ok(kept_by)
    }

    fn sides(&mut self) -> Result<(TierUsage, TierUsage), anyhow::Error> {
        self.follow()?;
        let now = self.at_turn().into_iter().zip(self.sides_at_turn()?);
        Ok(now.fold(Default::default(), add))
    }

    fn count(&mut self) -> Result<Count, anyhow::Error> {
        let sides = self.sides_at_turn()?;
        self.charge()?;
        let at_turn = self.at_turn();
        let both = at_turn.iter().copied().zip(sides.iter().copied()).fold(Default::default(), add);
        let mut elsewhere = self.elsewhere();
        for ((index, near), side) in at_turn.into_iter().zip(sides) {
            let new = self.count_node(index, near, side, &mut elsewhere)?;
            let total = &mut self.totals[self.turn];
            let look = if near { &mut total.near_scan } else { &mut total.far_scan };
            *look = Scanned {
                at: Bytes(look.at.0 + new.at.0),
                used: Bytes(look.used.0 + new.used.0),
                moved: Bytes(look.moved.0 + new.moved.0),
            };
        }
        let total = &mut self.totals[self.turn];
        (total.near, total.far) = both;
        Ok(*total)
    }
}

impl TierBoundaries for DamonMigrator<'_> {
    fn turn_to(&mut self, boundary: usize) -> Result<(), anyhow::Error> {
        if self.turn != boundary {
            // The remaining results of the last scan belong to its boundary.
            self.count()?;
            self.turn = boundary;
        }
        Ok(())
    }
}

/// Whether one command covers a scan.
fn in_one_command(look: Scan) -> bool {
    look.window <= ONCE
}

/// Time by which a pass at this interval has begun.
const fn pass_by(interval_us: u64) -> Nanoseconds {
    let interval_ns = interval_us * 1000;
    Nanoseconds(interval_ns + interval_ns / LATE_PART + LATE.0)
}

/// Adds a node to its side.
fn add(
    (mut near, mut far): (TierUsage, TierUsage),
    ((_, is_near), side): ((usize, bool), TierUsage),
) -> (TierUsage, TierUsage) {
    let of = if is_near { &mut near } else { &mut far };
    (of.total.0, of.free.0) = (of.total.0 + side.total.0, of.free.0 + side.free.0);
    (near, far)
}
