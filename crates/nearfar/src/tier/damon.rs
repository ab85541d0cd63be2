//! Looks and moves by DAMON: a kdamond for each node over its physical memory, with three schemes.
//!
//! The first forgets: a filter that asks whether a page is young also makes it old, and two filters behind it leave out
//! every page there is, so that nothing is done. The second moves young pages to near memory, or old ones to far memory.
//! The third counts young pages; it marks them as accessed for reclaim, which they are (`lru_prio`), for actions that do
//! nothing count pages on new kernels only. A scheme sleeps while it is for regions of no size.
//!
//! # Time
//! A command takes a tenth of a second on Linux 6.12, and only one is heard at a time; so a pass can't be had when one
//! wants it. But a scheme is applied again and again, at an interval that the kernel keeps to, counted from the commit. So
//! forgetting goes on at short intervals until the look is committed, whose interval is the window: each of its passes
//! finds what was used in the window before it. There may be several, as commands take their time; each is a look.
//!
//! How much is moved is a matter of where: a filter leaves only so many addresses, and the next pass goes on behind them.
//! (Quotas would do that too, but a scheme that sleeps forgets where it was.) DAMON counts regions, holes and free pages
//! included; what is looked at is the part of it that is taken.

use std::collections::BTreeMap;

use anyhow::Context as _;
use nearfar_control::tiering::{Count, Pages};
use nearfar_kernel::cgroup::{CgroupError, Hierarchy, NodeMemory};
use nearfar_kernel::damon::spec::{
    AccessPattern, Action, AddrRange, Bounds, Destination, Filter, FilterType, Intervals, Kdamond,
    Scheme,
};
use nearfar_kernel::damon::{DamonError, Session};
use nearfar_kernel::fs::Fs;
use nearfar_policy::tiering::{Decision, Looked, Side};
use nearfar_topology::{Bytes, Nanoseconds, NodeId};

use crate::exit::{EndsWith as _, Exit};

/// DAMON's own sampling is not what pages are judged by, so it is for few regions; but intervals of schemes are whole
/// samples, and 6.12 hears commands at the end of an aggregation.
const INTERVALS: Intervals =
    Intervals { sample_us: 10_000, aggr_us: 20_000, update_us: 60_000_000 };
const REGIONS: Bounds = Bounds { min: 10, max: 20 };
/// From one pass that forgets to the next: as long as the window, within these bounds. The last one may be so long before
/// the look is heard of; but each takes time.
const FORGET_US: Bounds = Bounds { min: 50_000, max: 150_000 };
/// A pass has begun this long after its time.
const LATE: Nanoseconds = Nanoseconds(30_000_000);
/// Behind all memory.
const BEHIND: u64 = 1 << 60;
/// A tick is a hundredth of a second on every Linux there is (USER_HZ).
const TICK_NS: u64 = 10_000_000;
const NO_SIZE: Bounds = Bounds { min: 0, max: 0 };
const FORGET: usize = 0;
const MOVE: usize = 1;
const COUNT: usize = 2;

/// A node and the kdamond that is for it.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) node: NodeId,
    /// Where its pages go to.
    pub(crate) to: NodeId,
    pub(crate) near: bool,
    /// All its addresses, and how many there are.
    ranges: Vec<AddrRange>,
    pub(crate) span: u64,
    /// Where the next pass that moves begins, counted over the ranges, and over how much the last one went.
    cursor: u64,
    went: u64,
    /// Moved at the last count; tried and found used by the counting scheme.
    applied: u64,
    counted: [u64; 2],
    /// Tried by all schemes at the last count.
    tried: u64,
    /// Of [`DENSE`] bytes of addresses, so many are moved, by what was found; whether that was learned from moves.
    density: u64,
    learned: bool,
    /// CPU time of its thread at the last count, and of one pass over all its addresses.
    cpu_ns: u64,
    pass_ns: u64,
    /// Moved since the beginning.
    pub(crate) moved: Bytes,
}

/// A density of one.
const DENSE: u128 = 1 << 20;

impl Watched {
    /// The addresses of the next pass over so many bytes, none of which were in the last one.
    fn next(&mut self, bytes: u64) -> AddrRange {
        let start = self.cursor;
        let end = start.saturating_add(bytes).min(self.span);
        self.cursor = if end == self.span { 0 } else { end };
        self.went = end - start;
        AddrRange { start: self.address(start), end: self.address(end) }
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

    /// So much was moved of so many addresses.
    fn learn_density(&mut self, moved: u64, of: u64) {
        let found = density(moved, of);
        self.density = if self.learned { u64::midpoint(self.density, found) } else { found }.max(1);
        self.learned = true;
    }

    /// So much CPU time in all, for so many bytes of addresses tried.
    fn learn_cost(&mut self, cpu_ns: u64, tried: u64) {
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
    fn interval_us(&self, window: Nanoseconds) -> u64 {
        (window.0 / 1000).max(INTERVALS.aggr_us).max(self.pass_ns / 1000 * 2)
    }

    /// Before anything was moved: as what was counted, as if it were spread evenly.
    fn expect_density(&mut self, found: u64, span: u64) {
        if !self.learned {
            self.density = density(found, span).max(1);
        }
    }
}

fn density(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * DENSE / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

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

/// What the moving scheme leaves out: other addresses, and pages that are young, if near, or old, if far.
fn moving(near: bool, within: AddrRange, group: Option<&Group>) -> Vec<Filter> {
    // There is no memory for programs in the first page.
    let below = AddrRange { start: 0, end: within.start.max(4096) };
    let above = AddrRange { start: within.end.min(BEHIND), end: BEHIND + 4096 };
    let outside = [below, above].map(|range| reject(FilterType::Addr(range), true));
    let others = group.map(|group| reject(FilterType::Memcg(group.path.clone()), false));
    outside.into_iter().chain(others).chain([reject(FilterType::Young, near)]).collect()
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
    // Others' pages first: to ask whether a page is young is to make it old.
    let ours = |filters: Vec<Filter>| -> Vec<Filter> {
        let others = group.map(|group| reject(FilterType::Memcg(group.path.clone()), false));
        others.into_iter().chain(filters).collect()
    };
    let young = |matching| reject(FilterType::Young, matching);
    let forget = vec![young(true), reject(FilterType::Anon, true), reject(FilterType::Anon, false)];
    // Near memory keeps the young, far memory the old.
    let mut kdamond = Kdamond::physical(ranges);
    kdamond.context.intervals = INTERVALS;
    kdamond.context.nr_regions = REGIONS;
    let migrate = if near { Action::MigrateCold } else { Action::MigrateHot };
    kdamond.context.schemes = vec![
        scheme(Action::LruPrio, ours(forget)),
        Scheme {
            destination: Destination::Node(to),
            ..scheme(migrate, moving(near, AddrRange { start: 0, end: BEHIND }, group))
        },
        scheme(Action::LruPrio, ours(vec![young(false)])),
    ];
    let span = ranges.iter().map(|range| range.len()).sum();
    (
        Watched {
            node,
            to,
            near,
            ranges: ranges.to_vec(),
            span,
            cursor: 0,
            went: 0,
            applied: 0,
            counted: [0; 2],
            tried: 0,
            density: 1,
            learned: false,
            cpu_ns: 0,
            pass_ns: 0,
            moved: Bytes(0),
        },
        kdamond,
    )
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
    /// Has one scheme of a node be for all memory, and the others for none.
    fn wake(
        &mut self,
        index: usize,
        awake: Option<usize>,
        set: impl FnOnce(&mut Scheme),
    ) -> Result<(), DamonError> {
        self.session.adjust(index, |kdamond| {
            for (at, scheme) in kdamond.context.schemes.iter_mut().enumerate() {
                let sz = if Some(at) == awake { Bounds::ANY_SIZE } else { NO_SIZE };
                scheme.access_pattern.sz = sz;
            }
            if let Some(scheme) = awake {
                set(&mut kdamond.context.schemes[scheme]);
            }
        })?;
        Ok(())
    }

    /// So much of node `index`'s addresses is to be tried for its share of what is to move; `None` for nothing.
    ///
    /// Pages that are used, or not, are spread anyhow; so what was moved of what was tried before tells how much to try.
    fn to_try(&self, index: usize, sides: &[Side], decision: &Decision) -> Option<u64> {
        let node = &self.nodes[index];
        let wanted = if node.near { decision.demote } else { decision.promote };
        let side = || (0..self.nodes.len()).filter(|other| self.nodes[*other].near == node.near);
        let taken = |index: usize| sides[index].total.0.saturating_sub(sides[index].free.0);
        let all: u64 = side().map(taken).sum();
        let part = u128::from(wanted.0) * u128::from(taken(index)) / u128::from(all.max(1));
        let tried = part * DENSE / u128::from(node.density.max(1));
        u64::try_from(tried).ok().filter(|tried| *tried > 0).map(|tried| tried.min(node.span))
    }

    /// Each node's memory now; of a cgroup's, what it has and what is free.
    fn sides(&self) -> Result<Vec<Side>, anyhow::Error> {
        let group = self.group.as_ref().map(|group| group.taken(self.fs)).transpose();
        let group = group.context("the cgroup that is tiered")?;
        let side = |watched: &Watched| {
            let side = side(self.fs, watched.node);
            let Some(group) = &group else { return side };
            let taken = group.get(&watched.node).map_or(0, |taken| taken.0);
            Side { total: Bytes(taken.saturating_add(side.free.0)), free: side.free }
        };
        Ok(self.nodes.iter().map(side).collect())
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
        let mut longest = 0;
        for index in self.near_first() {
            let window = Nanoseconds(window.0.clamp(FORGET_US.min * 1000, FORGET_US.max * 1000));
            let interval_us = self.nodes[index].interval_us(window);
            longest = interval_us.max(longest);
            self.wake(index, Some(FORGET), |scheme| scheme.apply_interval_us = interval_us)?;
        }
        Ok(Nanoseconds(longest * 1000 + LATE.0))
    }

    fn look(&mut self, window: Nanoseconds) -> Result<Nanoseconds, anyhow::Error> {
        let mut longest = 0;
        for index in self.near_first() {
            let interval_us = self.nodes[index].interval_us(window);
            longest = interval_us.max(longest);
            self.wake(index, Some(COUNT), |scheme| scheme.apply_interval_us = interval_us)?;
        }
        Ok(Nanoseconds(longest * 1000 + LATE.0))
    }

    fn shift(&mut self, decision: &Decision) -> Result<Nanoseconds, anyhow::Error> {
        let (sides, group) = (self.sides()?, self.group.clone());
        let mut longest = 0;
        for index in self.near_first() {
            let interval_us = self.nodes[index].interval_us(decision.window);
            longest = interval_us.max(longest);
            let within =
                self.to_try(index, &sides, decision).map(|bytes| self.nodes[index].next(bytes));
            let near = self.nodes[index].near;
            self.wake(index, within.map(|_| MOVE), |scheme| {
                scheme.apply_interval_us = interval_us;
                scheme.filters = moving(
                    near,
                    within.unwrap_or(AddrRange { start: 0, end: BEHIND }),
                    group.as_ref(),
                );
            })?;
        }
        Ok(Nanoseconds(longest * 1000 + LATE.0))
    }

    fn rest(&mut self) -> Result<(), anyhow::Error> {
        (0..self.nodes.len()).try_for_each(|index| self.wake(index, None, |_| ()))?;
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
            let (Some(moves), Some(counts)) = (stats.get(MOVE), stats.get(COUNT)) else { continue };
            let taken = now.total.0.saturating_sub(now.free.0);
            // Of the regions tried, the part that is taken.
            let part = |tried: u64| {
                let part = u128::from(tried) * u128::from(taken.min(node.span));
                u64::try_from(part / u128::from(node.span.max(1))).unwrap_or(u64::MAX)
            };
            let moved = moves.sz_applied.0.saturating_sub(node.applied);
            let used = counts.sz_applied.0.saturating_sub(node.counted[1]);
            let counted = part(counts.sz_tried.0.saturating_sub(node.counted[0])).max(used);
            let look = if node.near { &mut self.total.near_look } else { &mut self.total.far_look };
            *look = Looked {
                at: Bytes(look.at.0 + counted),
                used: Bytes(look.used.0 + used),
                moved: Bytes(look.moved.0 + moved),
            };
            node.counted = [counts.sz_tried.0, counts.sz_applied.0];
            node.applied = moves.sz_applied.0;
            let went = std::mem::take(&mut node.went);
            if went > 0 {
                node.learn_density(moved, went);
            } else if counted > 0 {
                let share = if node.near { counted - used } else { used };
                node.expect_density(share, node.span.saturating_mul(counted) / taken.max(1));
            }
            node.moved.0 += moved;
        }
        (self.total.near, self.total.far) = (near, far);
        self.total.cpu = Nanoseconds(ticks.saturating_mul(TICK_NS));
        Ok(self.total)
    }
}

/// A node's memory that programs have or may get, now; nothing where the node has gone. What the kernel itself uses can't
/// be moved.
fn side(fs: &dyn Fs, node: NodeId) -> Side {
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
    let free = bytes("MemFree:");
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
            "Node 1 MemTotal:  100 kB\nNode 1 MemFree: 40 kB\nNode 1 Active: 20 kB\nNode 1 Inactive: 30 kB\n",
        );
        tree.insert("proc/7/stat", "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14");
        let fs = TreeFs(tree);
        assert_eq!(side(&fs, NodeId(1)), Side { total: Bytes(90 << 10), free: Bytes(40 << 10) });
        assert_eq!(side(&fs, NodeId(2)), Side::default());
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
        }
    }

    #[test]
    fn passes_go_on_where_the_last_one_ended_and_begin_anew_at_the_end() {
        let ranges = [
            AddrRange { start: 1 << 20, end: 3 << 20 },
            AddrRange { start: 8 << 20, end: 9 << 20 },
        ];
        let (mut watched, _) = specification(NodeId(0), NodeId(1), true, &ranges, None);
        let mib = |range: AddrRange| (range.start >> 20, range.end >> 20);
        let passes = [1, 1, 5, 3].map(|bytes| (mib(watched.next(bytes << 20)), watched.went >> 20));
        assert_eq!(passes, [((1, 2), 1), ((2, 3), 1), ((3, 9), 1), ((1, 9), 3)]);
    }

    #[test]
    fn how_much_to_try_follows_from_what_was_moved() {
        let ranges = [AddrRange { start: 0, end: 1 << 30 }];
        let (mut watched, _) = specification(NodeId(0), NodeId(1), false, &ranges, None);
        watched.expect_density(1 << 20, 1 << 30);
        assert_eq!(watched.density, 1 << 10, "a MiB in a GiB, of DENSE");
        watched.learn_density(1 << 22, 1 << 30);
        assert_eq!(watched.density, 1 << 12, "what was learned counts, not what was expected");
        watched.expect_density(1 << 29, 1 << 30);
        watched.learn_density(0, 1 << 30);
        assert_eq!(watched.density, 1 << 11);
        watched.learn_density(0, 0);
    }
}
