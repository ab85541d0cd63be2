//! What a node's kdamond is told: schemes that forget, count and move, and the filters by which they choose pages.
//!
//! What they are for is in [`super::damon`]. Their order: the one that splits, the one that forgets, one for each arc that
//! counts, one for each way that moves; one for the nearest way up and one for the nearest way down, which see to upkeep
//! between looks where the kernel tunes schemes to goals, and sleep for good elsewhere.
//!
//! Upkeep is the kernel's own work: each time its interval is over, DAMON measures the goal (how much of near memory is
//! free, or in use), and while it is not reached goes on through the addresses from where it was, at the rate that the
//! quota allows. Demotion so is a CLOCK hand: what was used since it came by last stays.

use nearfar_kernel::damon::spec::{
    AccessPattern, Action, AddrRange, Bounds, Destination, Filter, FilterType, Goal, GoalTuner,
    Kdamond, Metric, Quotas, Scheme,
};
use nearfar_kernel::meminfo::Meminfo;
use nearfar_policy::tiering::Upkeep;
use nearfar_topology::{Bytes, NodeId};

use super::damon::{FORGET_EVERY, INTERVALS, REGIONS};
use super::node::{BEHIND, PAGE, Watched, scale};
use super::scope::Group;
use super::way::Way;

/// A scheme for regions of this size sleeps.
pub(super) const NO_SIZE: Bounds = Bounds { min: 0, max: 0 };
/// All addresses.
pub(super) const ALL: AddrRange = AddrRange { start: 0, end: BEHIND };
/// The scheme that has regions end where others are to begin.
pub(super) const SPLIT: usize = 0;
/// The scheme that forgets.
pub(super) const FORGET: usize = 1;
/// The first of those that count.
pub(crate) const COUNT: usize = 2;

/// The scheme that moves pages way `way` of a node that has so many arcs.
pub(super) const fn way_of(arcs: usize, way: usize) -> usize {
    COUNT + arcs + way
}

/// Upkeep is measured and done so often.
const UPKEEP_US: u64 = 1_000_000;

/// The scheme that sees to upkeep by way `way`, if it is one of those that do.
pub(super) fn upkeep_of(watched: &Watched, way: usize) -> Option<usize> {
    let at = watched.keepers().position(|keeper| keeper == way)?;
    Some(way_of(watched.arcs.len(), watched.ways.len()) + at)
}

/// What is to hold of near node `near`, of which so much is free to programs, by a scheme that moves up or down: a goal in
/// the kernel's terms and the quota that approaches it; `None` if there is nothing to do.
pub(super) fn upkeep(
    upkeep: &Upkeep,
    up: bool,
    near: NodeId,
    has: &Meminfo,
    free: Bytes,
) -> Option<Quotas> {
    let total = has.total.0;
    // What the kernel counts as free and does not give to programs.
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

/// Leaves out what is, or is not, so.
fn reject(what: FilterType, matching: bool) -> Filter {
    Filter { what, matching, allow: false }
}

/// Leaves out other addresses, others' pages, and pages that are young, or those that are not.
pub(super) fn only(within: AddrRange, group: Option<&Group>, young: bool) -> Vec<Filter> {
    // There is no memory for programs in the first page.
    let below = AddrRange { start: 0, end: within.start.max(PAGE) };
    let above = AddrRange { start: within.end.min(BEHIND), end: BEHIND + PAGE };
    let outside = [below, above].map(|range| reject(FilterType::Addr(range), true));
    // Others' pages first: to ask whether a page is young is to make it old.
    let others = group.map(|group| reject(FilterType::Memcg(group.path.clone()), false));
    outside.into_iter().chain(others).chain([reject(FilterType::Young, young)]).collect()
}

/// Has nothing done to pages but that they are forgotten to have been used: no page is neither anonymous nor not.
pub(super) fn forgetting(within: AddrRange, group: Option<&Group>) -> Vec<Filter> {
    let anything = [true, false].map(|matching| reject(FilterType::Anon, matching));
    only(within, group, true).into_iter().chain(anything).collect()
}

/// Leaves out what is below an address, so that a region that it is within is split there.
pub(super) fn splitting(at: u64) -> Vec<Filter> {
    vec![reject(FilterType::Addr(AddrRange { start: 0, end: at.max(PAGE) }), true)]
}

/// What to tell DAMON of one node.
pub(super) fn specification(watched: &Watched, group: Option<&Group>) -> Kdamond {
    let scheme = |action, filters| Scheme {
        apply_interval_us: FORGET_EVERY.0 / 1000,
        access_pattern: AccessPattern { sz: NO_SIZE, ..AccessPattern::default() },
        filters,
        ..Scheme::new(action)
    };
    let counts = watched
        .arcs
        .iter()
        .map(|arc| scheme(Action::LruPrio, only(watched.within(arc), group, false)));
    let way = |way: &Way| {
        // What is faster gets the young, what is slower the old.
        let (migrate, young) =
            if way.up { (Action::MigrateHot, false) } else { (Action::MigrateCold, true) };
        let destination = Destination::Node(way.to);
        Scheme { destination, ..scheme(migrate, only(ALL, group, young)) }
    };
    let ways = watched.ways.iter().map(way);
    let keepers = watched
        .keepers()
        .map(|keeper| Scheme { apply_interval_us: UPKEEP_US, ..way(&watched.ways[keeper]) });
    let mut kdamond = Kdamond::physical(&watched.regions());
    kdamond.context.intervals = INTERVALS;
    kdamond.context.nr_regions = REGIONS;
    let split =
        Scheme { apply_interval_us: INTERVALS.sample_us, ..scheme(Action::Stat, splitting(0)) };
    let first = [split, scheme(Action::LruPrio, forgetting(ALL, group))];
    kdamond.context.schemes = first.into_iter().chain(counts).chain(ways).chain(keepers).collect();
    kdamond
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::{BasisPoints, BytesPerSecond};

    #[test]
    fn a_specification_moves_nothing_until_it_is_woken_and_is_one_the_kernel_takes() {
        let ranges = [AddrRange { start: 0, end: 1 << 30 }];
        let ways = vec![Way::new(NodeId(1), true, 11), Way::new(NodeId(2), false, 22)];
        let watched = Watched::new(NodeId(0), 1, ways, &ranges);
        let kdamond = specification(&watched, None);
        assert_eq!(kdamond.check(), Ok(()));
        let schemes = &kdamond.context.schemes;
        assert!(schemes.iter().all(|scheme| scheme.access_pattern.sz == NO_SIZE));
        assert_eq!((watched.arcs.len(), schemes.len()), (16, 22));
        assert_eq!([upkeep_of(&watched, 0), upkeep_of(&watched, 1)], [Some(20), Some(21)]);
        for (way, (to, young)) in [(1, false), (2, true)].into_iter().enumerate() {
            let scheme = &schemes[way_of(16, way)];
            assert_eq!(scheme.destination, Destination::Node(NodeId(to)));
            assert_eq!(scheme.filters.last(), Some(&reject(FilterType::Young, young)));
        }
    }

    #[test]
    fn goals_are_in_the_kernels_terms_what_it_keeps_for_itself_included() {
        let mib = |mib: u64| mib << 20;
        let has = Meminfo { total: Bytes(1000 << 20), free: Bytes(30 << 20), ..Meminfo::default() };
        let asked = Upkeep {
            free_least: Bytes(mib(10)),
            free_most: Some(Bytes(mib(40))),
            rate: BytesPerSecond(mib(20)),
            cpu: BasisPoints(125),
        };
        let goal = |asked: &Upkeep, up: bool| {
            let quotas = upkeep(asked, up, NodeId(3), &has, Bytes(mib(10)))?;
            assert_eq!((quotas.bytes, quotas.ms, quotas.reset_interval_ms), (mib(20), 12, 1000));
            Some((quotas.goals[0].metric.clone(), quotas.goals[0].target_value))
        };
        assert_eq!(goal(&asked, false), Some((Metric::NodeMemFreeBp(NodeId(3)), 300)));
        assert_eq!(goal(&asked, true), Some((Metric::NodeMemUsedBp(NodeId(3)), 9400)));
        assert_eq!(goal(&Upkeep { free_most: None, ..asked }, true), None);
        let still = Upkeep { rate: BytesPerSecond(0), ..asked };
        let none = upkeep(&still, false, NodeId(3), &has, Bytes(0));
        assert_eq!(none, None, "no quota would be no limit");
    }
}
