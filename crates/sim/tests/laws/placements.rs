//! Placements: every policy places every page, on nodes that exist and have room.

use nearfar_sim::pages::Pages;
use nearfar_sim::policy::{POLICIES, Policy};
use proptest::prelude::*;

use crate::machines::{
    CURVE, alike, any_workload, builder, close, node, region, shares, two_tiers, workload,
};

const ROOMY: u64 = 1 << 16;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_policy_places_every_page_on_a_node_with_free_memory(drawn in any_workload(2), seed in any::<u64>()) {
        let mut drawn = drawn;
        drawn.huge = false;
        let count: u64 = drawn.regions.iter().map(|region| u64::from(region.pages)).sum();
        // Each of two nodes has two thirds of the memory required: neither holds all.
        let machine = alike(2, count * 2 / 3 + 1);
        for (name, policy, _) in POLICIES {
            let mut pages = Pages::of(&drawn, seed);
            policy.place(&mut pages, &drawn, &machine);
            let bytes = pages.bytes(2);
            prop_assert_eq!(bytes.iter().sum::<u64>(), count * 4_096, "{}", name);
            let fits = bytes.iter().zip(&machine.nodes).all(|(bytes, node)| *bytes <= node.size.0);
            prop_assert!(fits, "{name}: {bytes:?}");
        }
    }

    #[test]
    fn every_placement_is_determined_by_its_seed(drawn in any_workload(2), seed in any::<u64>()) {
        let machine = alike(2, ROOMY);
        for (name, policy, _) in POLICIES {
            let place = || {
                let mut pages = Pages::of(&drawn, seed);
                policy.place(&mut pages, &drawn, &machine);
                pages
            };
            prop_assert_eq!(place(), place(), "{}", name);
        }
    }

    #[test]
    fn huge_pages_stay_whole_under_every_policy(drawn in any_workload(2), seed in any::<u64>()) {
        let mut drawn = drawn;
        drawn.huge = true;
        let machine = alike(2, ROOMY);
        for (name, policy, _) in POLICIES {
            let mut pages = Pages::of(&drawn, seed);
            policy.place(&mut pages, &drawn, &machine);
            let apart = (0..pages.count()).find(|page| pages.whole(*page).any(|piece| pages.node[piece] != pages.node[*page]));
            prop_assert_eq!(apart, None, "{}", name);
        }
    }

    #[test]
    fn interleaving_gives_each_node_pages_by_its_weight(pages_count in 1u32..3_000, weights in prop::collection::vec(0u32..6, 3)) {
        let sum: u32 = weights.iter().sum();
        prop_assume!(sum > 0);
        let machine = alike(3, ROOMY);
        let drawn = workload(vec![region(pages_count, 0, 3)], 3);
        let mut pages = Pages::of(&drawn, 1);
        pages.interleave(&weights, &machine);
        for (node, weight) in weights.iter().enumerate() {
            let here = pages.node.iter().filter(|on| usize::from(**on) == node).count();
            let rounds = pages_count / sum;
            let (least, most) = (rounds * weight, (rounds + 1) * weight);
            prop_assert!((least as usize..=most as usize).contains(&here), "{here} on {node} by {weights:?}");
        }
    }

    #[test]
    fn first_touch_puts_a_region_beside_the_cpus_that_touch_it(row in 0usize..3, count in 1u32..2_000, seed in any::<u64>()) {
        let machine = alike(3, ROOMY);
        let drawn = workload(vec![region(count, row, 3)], 3);
        let mut pages = Pages::of(&drawn, seed);
        pages.first_touch(&drawn, &machine);
        prop_assert!(pages.node.iter().all(|node| usize::from(*node) == row));
    }

    #[test]
    fn first_touch_spills_only_the_pages_that_do_not_fit(room in 1u64..2_000, count in 1u32..2_000) {
        let machine = builder(vec![node(room, 20.0, CURVE), node(ROOMY, 20.0, CURVE)]).build().unwrap();
        let drawn = workload(vec![region(count, 0, 2)], 2);
        let mut pages = Pages::of(&drawn, 1);
        pages.first_touch(&drawn, &machine);
        let near = u64::from(count).min(room);
        prop_assert_eq!(pages.bytes(2), [near * 4_096, (u64::from(count) - near) * 4_096]);
        prop_assert!(pages.node.is_sorted(), "the last touched spill");
    }

    #[test]
    fn the_hottest_pages_are_near(hot in 1u32..200, cold in 200u32..1_000, room in 1u64..400) {
        let mut one = region(hot + cold, 0, 1);
        (one.hot_pages, one.hot_share) = (hot, 0.9);
        let drawn = workload(vec![one], 1);
        let machine = two_tiers(room, ROOMY);
        let mut pages = Pages::of(&drawn, 3);
        pages.hottest_near(&drawn, &machine, 1.0);
        let on = |near: bool| pages.heat.iter().zip(&pages.node).filter(move |(_, node)| (**node == 0) == near).map(|(heat, _)| *heat);
        let (coldest_near, hottest_far) = (on(true).fold(f64::INFINITY, f64::min), on(false).fold(0.0, f64::max));
        prop_assert!(coldest_near >= hottest_far - 1e-12, "{coldest_near} {hottest_far}");
        prop_assert_eq!(on(true).count() as u64, room.min(u64::from(hot + cold)));
    }

    #[test]
    fn first_touch_shares_determine_the_placement_of_heat(touched in prop::collection::vec(0.05f64..1.0, 3), count in 500u32..3_000) {
        let touched = shares(&touched);
        let mut one = region(count, 0, 3);
        one.touched_by.clone_from(&touched);
        let (drawn, machine) = (workload(vec![one], 3), alike(3, ROOMY));
        let mut pages = Pages::of(&drawn, 1);
        pages.first_touch(&drawn, &machine);
        for (share, wanted) in pages.demands(&drawn, &machine)[0].shares.iter().zip(&touched) {
            // A page is not divided.
            prop_assert!((share - wanted).abs() <= 2.0 / f64::from(count), "{share} {wanted}");
        }
    }
}

/// Sums of the same numbers differ by their order: with 249 cold pages and a hot one, the last page stayed far.
#[test]
fn all_pages_are_near_where_all_fit() {
    for pages_count in 200u32..400 {
        let mut one = region(pages_count, 0, 1);
        (one.hot_pages, one.hot_share) = (1, 0.9);
        let drawn = workload(vec![one], 1);
        let machine = two_tiers(u64::from(pages_count), ROOMY);
        let mut pages = Pages::of(&drawn, 3);
        pages.hottest_near(&drawn, &machine, 1.0);
        assert!(pages.node.iter().all(|node| *node == 0), "{pages_count}");
    }
}

#[test]
fn policy_names_are_case_sensitive_and_an_error_lists_all() {
    for (name, policy, about) in POLICIES {
        assert_eq!(name.parse::<Policy>(), Ok(policy));
        assert_eq!(policy.name(), name);
        assert!(!about.is_empty());
        let error = name.to_uppercase().parse::<Policy>().unwrap_err().to_string();
        assert!(POLICIES.iter().all(|(name, ..)| error.contains(name)), "{error}");
    }
}

#[test]
fn a_placement_that_fits_nowhere_still_places_every_page() {
    let machine = alike(2, 10);
    let drawn = workload(vec![region(100, 0, 2)], 2);
    let mut pages = Pages::of(&drawn, 1);
    pages.first_touch(&drawn, &machine);
    assert_eq!(pages.bytes(2).iter().sum::<u64>(), 100 * 4_096);
    assert!(close(pages.demands(&drawn, &machine)[0].shares.iter().sum(), 1.0, 1e-9));
}

/// Room is taken page by page, and huge pages are gathered afterwards where their first piece is. So a node may have more than
/// its size by less than a huge page. A placement that respects sizes would let the whole huge page spill.
#[test]
fn a_huge_page_at_the_end_of_a_node_currently_overfills_it() {
    let machine = builder(vec![node(700, 20.0, CURVE), node(ROOMY, 20.0, CURVE)]).build().unwrap();
    let mut drawn = workload(vec![region(2_000, 0, 2)], 2);
    drawn.huge = true;
    let mut pages = Pages::of(&drawn, 1);
    pages.first_touch(&drawn, &machine);
    assert_eq!(pages.bytes(2), [1_024 * 4_096, (2_000 - 1_024) * 4_096]);
}
