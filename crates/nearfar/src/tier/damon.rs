//! Looks and moves by DAMON: a kdamond for each node over its physical memory, with two schemes.
//!
//! The first forgets: a filter that asks whether a page is young also makes it old, and two filters behind it leave out
//! every page there is, so that nothing moves. The second moves young pages to near memory, or old ones to far memory. A
//! scheme sleeps while it is for regions of no size. A commit sets the time of the next application anew (one apply
//! interval later), and waits for the kdamond to have done what it was at: so a pass has ended when the next commit
//! returns.
//!
//! DAMON counts regions, holes and free pages included; what is looked at is the part of it that is taken. Quotas are
//! scaled the other way.

use nearfar_control::tiering::{Count, Pages};
use nearfar_kernel::damon::spec::{
    AccessPattern, Action, AddrRange, Bounds, Destination, Filter, FilterType, Intervals, Kdamond,
    Scheme,
};
use nearfar_kernel::damon::{DamonError, Session};
use nearfar_kernel::fs::Fs;
use nearfar_policy::tiering::{Looked, Side};
use nearfar_topology::{Bytes, Nanoseconds, NodeId};

/// DAMON's own sampling is not what pages are judged by, so few regions do. Requests are heard at the end of an
/// aggregation (6.12), so these are short.
const INTERVALS: Intervals =
    Intervals { sample_us: 10_000, aggr_us: 20_000, update_us: 60_000_000 };
const REGIONS: Bounds = Bounds { min: 10, max: 20 };
/// From a commit to the pass it asks for.
const APPLY_US: u64 = 20_000;
/// After this a pass has begun.
const BEGINS: Nanoseconds = Nanoseconds(30_000_000);
/// Quotas are for one pass, and passes are at least a second apart.
const QUOTA_MS: u64 = 500;
const NO_SIZE: Bounds = Bounds { min: 0, max: 0 };
const FORGET: usize = 0;
const MOVE: usize = 1;

/// A node and the kdamond that is for it.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) node: NodeId,
    /// Where its pages go to.
    pub(crate) to: NodeId,
    pub(crate) near: bool,
    /// All its addresses.
    pub(crate) span: u64,
    /// Tried by the moving scheme at the last count.
    tried: u64,
    applied: u64,
    /// Moved since the beginning.
    pub(crate) moved: Bytes,
}

/// What to tell DAMON of one node.
pub(crate) fn specification(
    node: NodeId,
    to: NodeId,
    near: bool,
    ranges: &[AddrRange],
) -> (Watched, Kdamond) {
    let filter = |what, matching| Filter { what, matching, allow: false };
    let action = if near { Action::MigrateCold } else { Action::MigrateHot };
    let scheme = |filters| Scheme {
        destination: Destination::Node(to),
        apply_interval_us: APPLY_US,
        access_pattern: AccessPattern { sz: NO_SIZE, ..AccessPattern::default() },
        filters,
        ..Scheme::new(action)
    };
    let young = |matching| filter(FilterType::Young, matching);
    let forget = vec![young(true), filter(FilterType::Anon, true), filter(FilterType::Anon, false)];
    // Near memory keeps the young, far memory the old.
    let mut kdamond = Kdamond::physical(ranges);
    kdamond.context.intervals = INTERVALS;
    kdamond.context.nr_regions = REGIONS;
    kdamond.context.schemes = vec![scheme(forget), scheme(vec![young(near)])];
    kdamond.context.schemes[MOVE].quotas.reset_interval_ms = QUOTA_MS;
    let span = ranges.iter().map(|range| range.len()).sum();
    (Watched { node, to, near, span, tried: 0, applied: 0, moved: Bytes(0) }, kdamond)
}

/// The live machine's pages.
pub(crate) struct Damon<'a> {
    pub(crate) fs: &'a dyn Fs,
    pub(crate) session: Session<'a>,
    pub(crate) nodes: Vec<Watched>,
    pub(crate) total: Count,
}

impl Damon<'_> {
    /// Has the schemes of some nodes be for all memory, for none of the others.
    fn awake(
        &mut self,
        scheme: usize,
        which: impl Fn(&Watched) -> bool,
        from: Option<Bytes>,
    ) -> Result<(), DamonError> {
        let side: Vec<(usize, u64, u64)> = (0..self.nodes.len())
            .filter(|index| which(&self.nodes[*index]))
            .map(|index| (index, self.taken(index), self.nodes[index].span))
            .collect();
        let all: u64 = side.iter().map(|(_, taken, _)| taken).sum();
        for (index, taken, span) in side {
            // Each node its share of the pages, as the part of its addresses that holds so many.
            let quota = from.map(|from| {
                let part = u128::from(from.0) * u128::from(taken) / u128::from(all.max(1));
                let bytes = part * u128::from(span) / u128::from(taken.max(1));
                u64::try_from(bytes).unwrap_or(u64::MAX).clamp(1, span.max(1))
            });
            self.session.adjust(index, |kdamond| {
                for (at, of) in kdamond.context.schemes.iter_mut().enumerate() {
                    of.access_pattern.sz = if at == scheme { Bounds::ANY_SIZE } else { NO_SIZE };
                }
                if let Some(quota) = quota {
                    kdamond.context.schemes[scheme].quotas.bytes = quota;
                }
            })?;
        }
        Ok(())
    }

    fn asleep(&mut self, which: impl Fn(&Watched) -> bool) -> Result<(), DamonError> {
        for index in 0..self.nodes.len() {
            if which(&self.nodes[index]) {
                self.session.adjust(index, |kdamond| {
                    for scheme in &mut kdamond.context.schemes {
                        scheme.access_pattern.sz = NO_SIZE;
                    }
                })?;
            }
        }
        Ok(())
    }

    fn taken(&self, index: usize) -> u64 {
        let side = side(self.fs, self.nodes[index].node);
        side.total.0.saturating_sub(side.free.0)
    }
}

impl Pages for Damon<'_> {
    type Error = DamonError;

    fn forget(&mut self) -> Result<Nanoseconds, DamonError> {
        self.awake(FORGET, |_| true, None)?;
        Ok(BEGINS)
    }

    fn demote(&mut self, from: Bytes) -> Result<Nanoseconds, DamonError> {
        self.awake(MOVE, |node| node.near, Some(from))?;
        Ok(BEGINS)
    }

    fn promote(&mut self, from: Bytes) -> Result<Nanoseconds, DamonError> {
        self.asleep(|node| node.near)?;
        self.awake(MOVE, |node| !node.near, Some(from))?;
        Ok(BEGINS)
    }

    fn rest(&mut self) -> Result<(), DamonError> {
        self.asleep(|_| true)
    }

    fn count(&mut self) -> Result<Count, DamonError> {
        let (mut near, mut far) = (Side::default(), Side::default());
        let mut ticks = cpu_ticks(self.fs, "self");
        for index in 0..self.nodes.len() {
            let stats = self.session.stats(index)?;
            let now = side(self.fs, self.nodes[index].node);
            if let Some(thread) = self.session.thread(index)? {
                ticks += cpu_ticks(self.fs, &thread.to_string());
            }
            let node = &mut self.nodes[index];
            let of = if node.near { &mut near } else { &mut far };
            of.total.0 += now.total.0;
            of.free.0 += now.free.0;
            let Some(stats) = stats.get(MOVE) else { continue };
            let taken = now.total.0.saturating_sub(now.free.0);
            let tried = stats.sz_tried.0.saturating_sub(node.tried);
            let moved = stats.sz_applied.0.saturating_sub(node.applied);
            let looked =
                u128::from(tried) * u128::from(taken.min(node.span)) / u128::from(node.span.max(1));
            let looked = u64::try_from(looked).unwrap_or(u64::MAX).max(moved);
            let counted =
                if node.near { &mut self.total.demotion } else { &mut self.total.promotion };
            *counted = Looked {
                at: Bytes(counted.at.0 + looked),
                passed: Bytes(counted.passed.0 + moved),
                moved: Bytes(counted.moved.0 + moved),
            };
            (node.tried, node.applied) = (stats.sz_tried.0, stats.sz_applied.0);
            node.moved.0 += moved;
        }
        // A tick is a hundredth of a second on every Linux there is (USER_HZ).
        (self.total.near, self.total.far) = (near, far);
        self.total.cpu = Nanoseconds(ticks.saturating_mul(10_000_000));
        Ok(self.total)
    }
}

/// A node's memory now; nothing where it has gone.
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
    Side { total: bytes("MemTotal:"), free: bytes("MemFree:") }
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
            "Node 1 MemTotal:  100 kB\nNode 1 MemFree: 40 kB\n",
        );
        tree.insert("proc/7/stat", "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14");
        let fs = TreeFs(tree);
        assert_eq!(side(&fs, NodeId(1)), Side { total: Bytes(100 << 10), free: Bytes(40 << 10) });
        assert_eq!(side(&fs, NodeId(2)), Side::default());
        assert_eq!((cpu_ticks(&fs, "7"), cpu_ticks(&fs, "8")), (42, 0));
    }

    #[test]
    fn a_specification_moves_nothing_until_it_is_woken_and_is_one_the_kernel_takes() {
        let ranges = [AddrRange { start: 0, end: 1 << 30 }];
        for near in [true, false] {
            let (watched, kdamond) = specification(NodeId(0), NodeId(1), near, &ranges);
            assert_eq!(kdamond.check(), Ok(()));
            assert_eq!(watched.span, 1 << 30);
            assert!(
                kdamond.context.schemes.iter().all(|scheme| scheme.access_pattern.sz == NO_SIZE)
            );
            assert_eq!(kdamond.context.schemes[MOVE].filters[0].matching, near);
        }
    }
}
