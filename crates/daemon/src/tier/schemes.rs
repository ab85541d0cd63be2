//! DAMON's configuration for a node: schemes that clear accessed bits, count and migrate, and filters that select
//! pages.
//!
//! [`super::damon`] explains their use. Their order: the one that splits, the one that clears, one per segment that
//! counts, one per target that migrates; then one for the nearest target up and one for the nearest target down, which
//! do background migration where the kernel tunes schemes to goals, and sleep for good elsewhere.
//!
//! Background migration is the kernel's work: each time its interval is over, DAMON measures the goal (the share of
//! near memory that is free, or in use); until it is reached, DAMON continues through the addresses from its last
//! position, at the rate that the quota allows. Demotion thus is a CLOCK hand: pages referenced since its last visit
//! stay.

use anyhow::Context as _;
use nearfar_kernel::damon::spec::{
    AccessPattern, Action, AddrRange, Bounds, Destination, Filter, FilterType, Goal, GoalTuner,
    Kdamond, Metric, Quotas, Scheme,
};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::meminfo::Meminfo;
use nearfar_kernel::ranges;
use nearfar_policy::tiering::clock_hand::PAGE;
use nearfar_policy::tiering::segments::{ADDRESS_END, SEGMENTS, TieredNode};
use nearfar_policy::tiering::targets::MigrationTarget;
use nearfar_policy::tiering::{BackgroundMigration, scale};
use nearfar_topology::{Bytes, NodeId};

use super::intervals::{FORGET_EVERY, INTERVALS, REGIONS};
use super::plan::Plan;
use super::scope::Group;

/// A scheme for regions of this size sleeps.
pub(super) const NO_SIZE: Bounds = Bounds { min: 0, max: 0 };
/// All addresses.
pub(super) const ALL: AddrRange = AddrRange { start: 0, end: ADDRESS_END };
/// The scheme that makes regions end where others begin.
pub(super) const SPLIT: usize = 0;
/// The scheme that clears accessed bits.
pub(super) const FORGET: usize = 1;
/// The first scheme that counts.
pub const COUNT: usize = 2;

/// The scheme that migrates to target `way` of a node.
pub(super) const fn way_of(way: usize) -> usize {
    COUNT + SEGMENTS + way
}

/// Interval of background migration.
const UPKEEP_US: u64 = 1_000_000;

/// The scheme of background migration to target `way`, if there is one.
pub(super) fn upkeep_of(watched: &TieredNode, way: usize) -> Option<usize> {
    let at = watched.nearest().position(|keeper| keeper == way)?;
    Some(way_of(watched.targets.len()) + at)
}

/// Goal and quota, in the kernel's terms, of background migration up or down for near node `near`, of which `free`
/// bytes are free for programs; `None` if there is nothing to do.
pub(super) fn upkeep(
    upkeep: &BackgroundMigration,
    up: bool,
    near: NodeId,
    has: &Meminfo,
    free: Bytes,
) -> Option<Quotas> {
    let total = has.total.0;
    // Free by the kernel's count, but not available to programs.
    let kept = has.free.0.saturating_sub(free.0);
    let share = |bytes: u64| scale(bytes.saturating_add(kept).min(total), 10_000, total);
    let (metric, target_value) = match upkeep.free_most {
        _ if !up => (Metric::NodeMemFreeBp(near), share(upkeep.free_least.0)),
        Some(most) => (Metric::NodeMemUsedBp(near), 10_000 - share(most.0)),
        None => return None,
    };
    let ms = UPKEEP_US / 1000;
    let bytes = scale(upkeep.rate.0, ms, 1000);
    (target_value > 0 && bytes >= PAGE).then(|| Quotas {
        bytes,
        ms: scale(ms, u64::from(upkeep.cpu.0), 10_000).max(1),
        reset_interval_ms: ms,
        goals: vec![Goal { metric, target_value, current_value: 0 }],
        goal_tuner: GoalTuner::Temporal,
        ..Quotas::default()
    })
}

/// Rejects pages that match, or those that don't.
fn reject(what: FilterType, matching: bool) -> Filter {
    Filter { what, matching, allow: false }
}

/// Rejects other addresses, pages of other cgroups, and young pages or old ones.
pub(super) fn only(within: AddrRange, group: Option<&Group>, young: bool) -> Vec<Filter> {
    // There is no memory for programs in the first page.
    let below = AddrRange { start: 0, end: within.start.max(PAGE) };
    let above = AddrRange { start: within.end.min(ADDRESS_END), end: ADDRESS_END + PAGE };
    let outside = [below, above].map(|range| reject(FilterType::Addr(range), true));
    // Other cgroups' pages first: the test whether a page is young makes it old.
    let others = group.map(|group| reject(FilterType::Memcg(group.path.clone()), false));
    outside.into_iter().chain(others).chain([reject(FilterType::Young, young)]).collect()
}

/// Only clears accessed bits: rejects every page, anonymous or not.
pub(super) fn forgetting(within: AddrRange, group: Option<&Group>) -> Vec<Filter> {
    let anything = [true, false].map(|matching| reject(FilterType::Anon, matching));
    only(within, group, true).into_iter().chain(anything).collect()
}

/// Rejects addresses below `at`, so that a region across it is split there.
pub(super) fn splitting(at: u64) -> Vec<Filter> {
    vec![reject(FilterType::Addr(AddrRange { start: 0, end: at.max(PAGE) }), true)]
}

/// DAMON's configuration for one node.
pub(super) fn specification(watched: &TieredNode, group: Option<&Group>) -> Kdamond {
    let scheme = |action, filters| Scheme {
        apply_interval_us: FORGET_EVERY.0 / 1000,
        access_pattern: AccessPattern { sz: NO_SIZE, ..AccessPattern::default() },
        filters,
        ..Scheme::new(action)
    };
    let counts =
        watched.addresses().map(|within| scheme(Action::LruPrio, only(within, group, false)));
    let way = |way: &MigrationTarget| {
        // Young pages are promoted, old ones demoted.
        let (migrate, young) =
            if way.up { (Action::MigrateHot, false) } else { (Action::MigrateCold, true) };
        let destination = Destination::Node(way.to);
        Scheme { destination, ..scheme(migrate, only(ALL, group, young)) }
    };
    let ways = watched.targets.iter().map(way);
    let keepers = watched
        .nearest()
        .map(|keeper| Scheme { apply_interval_us: UPKEEP_US, ..way(&watched.targets[keeper]) });
    let mut kdamond = Kdamond::physical(&watched.regions());
    kdamond.context.intervals = INTERVALS;
    kdamond.context.nr_regions = REGIONS;
    let split =
        Scheme { apply_interval_us: INTERVALS.sample_us, ..scheme(Action::Stat, splitting(0)) };
    let first = [split, scheme(Action::LruPrio, forgetting(ALL, group))];
    kdamond.context.schemes = first.into_iter().chain(counts).chain(ways).chain(keepers).collect();
    kdamond
}

/// The nodes of a plan, each with its kdamond, fastest tier first. Nodes without memory now are left out.
///
/// # Errors
/// A tier has no memory online.
pub fn specifications(
    fs: &dyn Fs,
    plan: &Plan,
    group: Option<&Group>,
) -> anyhow::Result<(Vec<TieredNode>, Vec<Kdamond>)> {
    let ranges = ranges::of_nodes(fs).context("finding each node's memory")?;
    let mut all = Vec::new();
    for (tier, nodes) in plan.tiers.iter().enumerate() {
        let before = all.len();
        for node in nodes.iter() {
            if let Some(ranges) = ranges.get(&node).filter(|ranges| !ranges.is_empty()) {
                let tiered = TieredNode::new(node, tier, plan.ways(node, tier), ranges);
                let kdamond = specification(&tiered, group);
                all.push((tiered, kdamond));
            }
        }
        anyhow::ensure!(before < all.len(), "no physical memory of nodes {nodes} is online");
    }
    Ok(all.into_iter().unzip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::{BasisPoints, BytesPerSecond};

    #[test]
    fn a_new_specification_is_valid_and_migrates_nothing_at_first() {
        let ranges = [AddrRange { start: 0, end: 1 << 30 }];
        let ways = vec![
            MigrationTarget::new(NodeId(1), true, 11),
            MigrationTarget::new(NodeId(2), false, 22),
        ];
        let watched = TieredNode::new(NodeId(0), 1, ways, &ranges);
        let kdamond = specification(&watched, None);
        assert_eq!(kdamond.check(), Ok(()));
        let schemes = &kdamond.context.schemes;
        assert!(schemes.iter().all(|scheme| scheme.access_pattern.sz == NO_SIZE));
        assert_eq!(schemes.len(), 22);
        assert_eq!([upkeep_of(&watched, 0), upkeep_of(&watched, 1)], [Some(20), Some(21)]);
        for (way, (to, young)) in [(1, false), (2, true)].into_iter().enumerate() {
            let scheme = &schemes[way_of(way)];
            assert_eq!(scheme.destination, Destination::Node(NodeId(to)));
            assert_eq!(scheme.filters.last(), Some(&reject(FilterType::Young, young)));
        }
    }

    #[test]
    fn quota_goals_include_the_kernels_reserved_memory() {
        let mib = |mib: u64| mib << 20;
        let has = Meminfo { total: Bytes(1000 << 20), free: Bytes(30 << 20), ..Meminfo::default() };
        let asked = BackgroundMigration {
            free_least: Bytes(mib(10)),
            free_most: Some(Bytes(mib(40))),
            rate: BytesPerSecond(mib(20)),
            cpu: BasisPoints(125),
        };
        let goal = |asked: &BackgroundMigration, up: bool| {
            let quotas = upkeep(asked, up, NodeId(3), &has, Bytes(mib(10)))?;
            assert_eq!((quotas.bytes, quotas.ms, quotas.reset_interval_ms), (mib(20), 12, 1000));
            Some((quotas.goals[0].metric.clone(), quotas.goals[0].target_value))
        };
        assert_eq!(goal(&asked, false), Some((Metric::NodeMemFreeBp(NodeId(3)), 300)));
        assert_eq!(goal(&asked, true), Some((Metric::NodeMemUsedBp(NodeId(3)), 9400)));
        assert_eq!(goal(&BackgroundMigration { free_most: None, ..asked }, true), None);
        let still = BackgroundMigration { rate: BytesPerSecond(0), ..asked };
        let none = upkeep(&still, false, NodeId(3), &has, Bytes(0));
        assert_eq!(none, None, "no quota would be no limit");
    }
}
