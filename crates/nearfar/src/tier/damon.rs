//! Looks and moves by DAMON: a kdamond for each node over its physical memory, with schemes.
//!
//! The first forgets: a filter that asks whether a page is young also makes it old, and two filters behind it leave out
//! every page there is, so that nothing is done. The second moves young pages to near memory, or old ones to far memory.
//! The others count young pages, each in a part of the addresses (an arc); they mark them as accessed for reclaim, which they
//! are (`lru_prio`), for actions that do nothing count pages on new kernels only. A scheme sleeps while it is for regions of no size.
//!
//! # Time
//! A command takes a tenth of a second on Linux 6.12, and only one is heard at a time; so a pass can't be had when one
//! wants it. But a scheme is applied again and again, at an interval that the kernel keeps to, counted from the commit. So
//! forgetting goes on at short intervals until the look is committed, whose interval is the window: each of its passes
//! finds what was used in the window before it. There may be several, as commands take their time; each is a look.
//!
//! How much is moved is a matter of where: a filter leaves only so many addresses as hold that much by the last count, and
//! the next pass goes on behind them.
//! (Quotas would do that too, but a scheme that sleeps forgets where it was.) DAMON counts regions, holes and free pages
//! included; what is looked at is the part of it that is taken.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Context as _;
use nearfar_control::tiering::{Count, Pages};
use nearfar_kernel::cgroup::{CgroupError, Hierarchy, NodeMemory};
use nearfar_kernel::damon::spec::{
    AccessPattern, Action, AddrRange, Bounds, Destination, Filter, FilterType, Intervals, Kdamond,
    Scheme,
};
use nearfar_kernel::damon::{DamonError, Session};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::zones;
use nearfar_policy::tiering::{Decision, Looked, Side};
use nearfar_topology::{Bytes, Nanoseconds, NodeId};

use super::node::{BEHIND, PAGE, Watched, scale};
use crate::exit::{EndsWith as _, Exit};

/// DAMON's own sampling is not what pages are judged by, so it is for few regions; but intervals of schemes are whole
/// samples, and 6.12 hears commands at the end of an aggregation.
pub(super) const INTERVALS: Intervals =
    Intervals { sample_us: 10_000, aggr_us: 20_000, update_us: 60_000_000 };
const REGIONS: Bounds = Bounds { min: 10, max: 20 };
/// From one pass that forgets to the next: as long as the window, within these bounds. The last one may be so long before
/// the look is heard of; but each takes time.
const FORGET_US: Bounds = Bounds { min: 50_000, max: 150_000 };
/// A pass has begun this long after its time.
const LATE: Nanoseconds = Nanoseconds(30_000_000);
/// A tick is a hundredth of a second on every Linux there is (USER_HZ).
const TICK_NS: u64 = 10_000_000;
const NO_SIZE: Bounds = Bounds { min: 0, max: 0 };
const FORGET: usize = 0;
const MOVE: usize = 1;
/// The first of the schemes that count.
const COUNT: usize = 2;

/// A memory cgroup, whose memory alone is looked at and moved.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    hierarchy: Hierarchy,
    pub(crate) path: String,
}

impl Group {
    /// By the name that the user gives it.
    pub(crate) fn find(fs: &dyn Fs, name: &str) -> anyhow::Result<Self> {
        let hierarchy = Hierarchy::find(fs).context("--cgroup")?;
        let path = hierarchy.named(fs, name).context("--cgroup").ends_with(Exit::Usage)?;
        Ok(Self { hierarchy, path })
    }

    /// Its pages on each node.
    fn taken(&self, fs: &dyn Fs) -> Result<BTreeMap<NodeId, Bytes>, CgroupError> {
        let nodes = self.hierarchy.numa_stat(fs, &self.path)?;
        let all = |memory: NodeMemory| Bytes(memory.anon.0.saturating_add(memory.file.0));
        Ok(nodes.into_iter().map(|(node, memory)| (node, all(memory))).collect())
    }
}

/// Leaves out what is, or is not, so.
fn reject(what: FilterType, matching: bool) -> Filter {
    Filter { what, matching, allow: false }
}

/// Leaves out other addresses, others' pages, and pages that are young, or those that are not.
fn only(within: AddrRange, group: Option<&Group>, young: bool) -> Vec<Filter> {
    // There is no memory for programs in the first page.
    let below = AddrRange { start: 0, end: within.start.max(PAGE) };
    let above = AddrRange { start: within.end.min(BEHIND), end: BEHIND + PAGE };
    let outside = [below, above].map(|range| reject(FilterType::Addr(range), true));
    // Others' pages first: to ask whether a page is young is to make it old.
    let others = group.map(|group| reject(FilterType::Memcg(group.path.clone()), false));
    outside.into_iter().chain(others).chain([reject(FilterType::Young, young)]).collect()
}

/// What to tell DAMON of one node.
pub(crate) fn specification(
    node: NodeId,
    to: NodeId,
    near: bool,
    ranges: &[AddrRange],
    group: Option<&Group>,
) -> (Watched, Kdamond) {
    let scheme = |action, filters| Scheme {
        apply_interval_us: FORGET_US.max,
        access_pattern: AccessPattern { sz: NO_SIZE, ..AccessPattern::default() },
        filters,
        ..Scheme::new(action)
    };
    let watched = Watched::new(node, to, near, ranges);
    let all = AddrRange { start: 0, end: BEHIND };
    let anything = [true, false].map(|matching| reject(FilterType::Anon, matching));
    let forget = only(all, group, true).into_iter().chain(anything).collect();
    let migrate = if near { Action::MigrateCold } else { Action::MigrateHot };
    let destination = Destination::Node(to);
    // Near memory keeps the young, far memory the old.
    let moves = Scheme { destination, ..scheme(migrate, only(all, group, near)) };
    let counts = watched
        .arcs
        .iter()
        .map(|arc| scheme(Action::LruPrio, only(watched.within(arc), group, false)));
    let mut kdamond = Kdamond::physical(ranges);
    kdamond.context.intervals = INTERVALS;
    kdamond.context.nr_regions = REGIONS;
    kdamond.context.schemes =
        [scheme(Action::LruPrio, forget), moves].into_iter().chain(counts).collect();
    (watched, kdamond)
}

/// The live machine's pages.
pub(crate) struct Damon<'a> {
    pub(crate) fs: &'a dyn Fs,
    pub(crate) session: Session<'a>,
    pub(crate) nodes: Vec<Watched>,
    pub(crate) group: Option<Group>,
    pub(crate) total: Count,
}

impl Damon<'_> {
    /// Has some schemes of a node be for all memory, and the others for none.
    fn wake(
        &mut self,
        index: usize,
        awake: Range<usize>,
        set: impl Fn(&mut Scheme),
    ) -> Result<(), DamonError> {
        self.session.adjust(index, |kdamond| {
            for (at, scheme) in kdamond.context.schemes.iter_mut().enumerate() {
                scheme.access_pattern.sz = NO_SIZE;
                if awake.contains(&at) {
                    scheme.access_pattern.sz = Bounds::ANY_SIZE;
                    set(scheme);
                }
            }
        })?;
        Ok(())
    }

    /// Where node `index`'s share of what is to move is, by the last count.
    fn next(&mut self, index: usize, sides: &[Side], decision: &Decision) -> Option<AddrRange> {
        let near = self.nodes[index].near;
        let wanted = if near { decision.demote } else { decision.promote };
        let taken = |index: usize| sides[index].total.0.saturating_sub(sides[index].free.0);
        let side = (0..self.nodes.len()).filter(|other| self.nodes[*other].near == near);
        let all: u64 = side.map(taken).sum();
        let share = scale(wanted.0, taken(index), all);
        if share < PAGE { None } else { self.nodes[index].next(share, taken(index)) }
    }

    /// Has these schemes of all nodes be for all memory, at the interval of such a window; gives how long to wait for them.
    fn wake_all(
        &mut self,
        awake: Range<usize>,
        window: Nanoseconds,
    ) -> anyhow::Result<Nanoseconds> {
        let mut longest = 0;
        for index in self.near_first() {
            let interval_us = self.nodes[index].interval_us(window);
            longest = interval_us.max(longest);
            self.wake(index, awake.clone(), |scheme| scheme.apply_interval_us = interval_us)?;
        }
        Ok(Nanoseconds(longest * 1000 + LATE.0))
    }

    /// Each node's memory now; of a cgroup's, what it has and what is free.
    fn sides(&self) -> Result<Vec<Side>, anyhow::Error> {
        let group = self.group.as_ref().map(|group| group.taken(self.fs)).transpose();
        let group = group.context("the cgroup that is tiered")?;
        let free = zones::usable_free(self.fs)?;
        let side = |watched: &Watched| {
            let free = free.get(&watched.node).copied().unwrap_or_default();
            let side = side(self.fs, watched.node, free);
            let Some(group) = &group else { return side };
            let taken = group.get(&watched.node).map_or(0, |taken| taken.0);
            Side { total: Bytes(taken.saturating_add(side.free.0)), free: side.free }
        };
        Ok(self.nodes.iter().map(side).collect())
    }

    /// An error if what is tiered has gone.
    pub(crate) fn gone(&self) -> anyhow::Result<()> {
        self.sides().map(|_| ())
    }

    /// Near nodes first: what leaves them makes room.
    fn near_first(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|index| !self.nodes[*index].near);
        order
    }
}

impl Pages for Damon<'_> {
    type Error = anyhow::Error;

    fn forget(&mut self, window: Nanoseconds) -> Result<Nanoseconds, anyhow::Error> {
        let window = Nanoseconds(window.0.clamp(FORGET_US.min * 1000, FORGET_US.max * 1000));
        self.wake_all(FORGET..MOVE, window)
    }

    fn look(&mut self, window: Nanoseconds) -> Result<Nanoseconds, anyhow::Error> {
        self.wake_all(COUNT..usize::MAX, window)
    }

    fn shift(&mut self, decision: &Decision) -> Result<Nanoseconds, anyhow::Error> {
        let (sides, group) = (self.sides()?, self.group.clone());
        let mut longest = 0;
        for index in self.near_first() {
            let interval_us = self.nodes[index].interval_us(decision.window);
            longest = interval_us.max(longest);
            let Some(within) = self.next(index, &sides, decision) else {
                self.wake(index, 0..0, |_| ())?;
                continue;
            };
            let filters = only(within, group.as_ref(), self.nodes[index].near);
            self.wake(index, MOVE..COUNT, |scheme| {
                scheme.apply_interval_us = interval_us;
                scheme.filters.clone_from(&filters);
            })?;
        }
        Ok(Nanoseconds(longest * 1000 + LATE.0))
    }

    fn rest(&mut self) -> Result<(), anyhow::Error> {
        (0..self.nodes.len()).try_for_each(|index| self.wake(index, 0..0, |_| ()))?;
        Ok(())
    }

    fn count(&mut self) -> Result<Count, anyhow::Error> {
        let (mut near, mut far) = (Side::default(), Side::default());
        let mut ticks = cpu_ticks(self.fs, "self");
        for (index, now) in self.sides()?.into_iter().enumerate() {
            let stats = self.session.stats(index)?;
            let thread = self.session.thread(index)?;
            let spent = thread.map_or(0, |thread| cpu_ticks(self.fs, &thread.to_string()));
            ticks += spent;
            let node = &mut self.nodes[index];
            node.learn_cost(spent * TICK_NS, stats.iter().map(|stats| stats.sz_tried.0).sum());
            let of = if node.near { &mut near } else { &mut far };
            of.total.0 += now.total.0;
            of.free.0 += now.free.0;
            let Some((moves, counts)) = stats.get(MOVE).zip(stats.get(COUNT..)) else { continue };
            let news = node.arcs.iter_mut().zip(counts);
            let news = news.map(|(arc, stats)| arc.count(stats.sz_tried.0, stats.sz_applied.0));
            let [tried, used] = news.fold([0, 0], |sum, new| [sum[0] + new[0], sum[1] + new[1]]);
            let taken = now.total.0.saturating_sub(now.free.0);
            let moved = moves.sz_applied.0.saturating_sub(node.applied);
            // Of the regions tried, the part that is taken.
            let counted = scale(tried, taken.min(node.span), node.span).max(used);
            let look = if node.near { &mut self.total.near_look } else { &mut self.total.far_look };
            *look = Looked {
                at: Bytes(look.at.0 + counted),
                used: Bytes(look.used.0 + used),
                moved: Bytes(look.moved.0 + moved),
            };
            node.applied = moves.sz_applied.0;
            node.learn_outcome(moved);
            node.moved.0 += moved;
        }
        (self.total.near, self.total.far) = (near, far);
        self.total.cpu = Nanoseconds(ticks.saturating_mul(TICK_NS));
        Ok(self.total)
    }
}

/// A node's memory that programs have or may get, now; nothing where the node has gone. What the kernel itself uses can't
/// be moved; `free` is what pages can be moved to.
fn side(fs: &dyn Fs, node: NodeId, free: Bytes) -> Side {
    let text = fs
        .read(&format!("sys/devices/system/node/node{node}/meminfo"))
        .ok()
        .flatten()
        .unwrap_or_default();
    let kib = |name: &str| -> Option<u64> {
        text.lines()
            .find_map(|line| line.split_once(name)?.1.split_whitespace().next()?.parse().ok())
    };
    let bytes = |name| Bytes(kib(name).unwrap_or(0).saturating_mul(1024));
    let taken = bytes("Active:").0.saturating_add(bytes("Inactive:").0);
    Side { total: Bytes(free.0.saturating_add(taken)), free }
}

/// User and system time of a process, in ticks.
fn cpu_ticks(fs: &dyn Fs, pid: &str) -> u64 {
    let text = fs.read(&format!("proc/{pid}/stat")).ok().flatten().unwrap_or_default();
    let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields);
    fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::Tree;

    #[test]
    fn memory_and_time_are_read_and_what_is_gone_counts_nothing() {
        let mut tree = Tree::new();
        tree.insert(
            "sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal:  100 kB\nNode 1 MemFree: 45 kB\nNode 1 Active: 20 kB\nNode 1 Inactive: 30 kB\n",
        );
        tree.insert("proc/7/stat", "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14");
        let fs = TreeFs(tree);
        let free = Bytes(40 << 10);
        assert_eq!(side(&fs, NodeId(1), free), Side { total: Bytes(90 << 10), free });
        assert_eq!(side(&fs, NodeId(2), Bytes(0)), Side::default());
        assert_eq!((cpu_ticks(&fs, "7"), cpu_ticks(&fs, "8")), (42, 0));
    }

    #[test]
    fn a_specification_moves_nothing_until_it_is_woken_and_is_one_the_kernel_takes() {
        let ranges = [AddrRange { start: 0, end: 1 << 30 }];
        for near in [true, false] {
            let (watched, kdamond) = specification(NodeId(0), NodeId(1), near, &ranges, None);
            assert_eq!(kdamond.check(), Ok(()));
            assert_eq!(watched.span, 1 << 30);
            assert!(
                kdamond.context.schemes.iter().all(|scheme| scheme.access_pattern.sz == NO_SIZE)
            );
            let young = reject(FilterType::Young, near);
            assert_eq!(kdamond.context.schemes[MOVE].filters.last(), Some(&young));
            assert_eq!(watched.arcs.len(), 16);
        }
    }
}
