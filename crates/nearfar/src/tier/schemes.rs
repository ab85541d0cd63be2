//! What a node's kdamond is told: schemes that forget, count and move, and the filters by which they choose pages.
//!
//! What they are for is in [`super::damon`]. Their order: the one that splits, the one that forgets, one for each arc that
//! counts, one for each way that moves.

use nearfar_kernel::damon::spec::{
    AccessPattern, Action, AddrRange, Bounds, Destination, Filter, FilterType, Kdamond, Scheme,
};

use super::damon::{FORGET_EVERY, INTERVALS, REGIONS};
use super::node::{BEHIND, PAGE, Watched};
use super::scope::Group;

/// A scheme for regions of this size sleeps.
pub(super) const NO_SIZE: Bounds = Bounds { min: 0, max: 0 };
/// All addresses.
pub(super) const ALL: AddrRange = AddrRange { start: 0, end: BEHIND };
/// The scheme that has regions end where others are to begin.
pub(super) const SPLIT: usize = 0;
/// The scheme that forgets.
pub(super) const FORGET: usize = 1;
/// The first of those that count.
pub(super) const COUNT: usize = 2;

/// The scheme that moves pages way `way` of a node that has so many arcs.
pub(super) const fn way_of(arcs: usize, way: usize) -> usize {
    COUNT + arcs + way
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
    let ways = watched.ways.iter().map(|way| {
        // What is faster gets the young, what is slower the old.
        let (migrate, young) =
            if way.up { (Action::MigrateHot, false) } else { (Action::MigrateCold, true) };
        let destination = Destination::Node(way.to);
        Scheme { destination, ..scheme(migrate, only(ALL, group, young)) }
    });
    let mut kdamond = Kdamond::physical(&watched.ranges);
    kdamond.context.intervals = INTERVALS;
    kdamond.context.nr_regions = REGIONS;
    let split =
        Scheme { apply_interval_us: INTERVALS.sample_us, ..scheme(Action::Stat, splitting(0)) };
    let first = [split, scheme(Action::LruPrio, forgetting(ALL, group))];
    kdamond.context.schemes = first.into_iter().chain(counts).chain(ways).collect();
    kdamond
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::node::Way;
    use nearfar_topology::NodeId;

    #[test]
    fn a_specification_moves_nothing_until_it_is_woken_and_is_one_the_kernel_takes() {
        let ranges = [AddrRange { start: 0, end: 1 << 30 }];
        let ways = vec![Way::new(NodeId(1), true, 11), Way::new(NodeId(2), false, 22)];
        let watched = Watched::new(NodeId(0), 1, ways, &ranges);
        let kdamond = specification(&watched, None);
        assert_eq!(kdamond.check(), Ok(()));
        let schemes = &kdamond.context.schemes;
        assert!(schemes.iter().all(|scheme| scheme.access_pattern.sz == NO_SIZE));
        assert_eq!((watched.arcs.len(), schemes.len()), (16, 20));
        for (way, (to, young)) in [(1, false), (2, true)].into_iter().enumerate() {
            let scheme = &schemes[way_of(16, way)];
            assert_eq!(scheme.destination, Destination::Node(NodeId(to)));
            assert_eq!(scheme.filters.last(), Some(&reject(FilterType::Young, young)));
        }
    }
}
