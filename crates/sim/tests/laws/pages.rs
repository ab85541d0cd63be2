//! Pages: every region's heat is shared out whole, and moving pages about loses none.

use nearfar_sim::pages::{PIECES, Pages};
use proptest::prelude::*;

use crate::machines::{alike, any_workload, close, two_tiers, with_antagonist};

/// Room for any drawn workload on each node.
const ROOMY: u64 = 1 << 16;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_region_has_its_number_of_pages_and_a_total_heat_of_one(workload in any_workload(3), seed in any::<u64>()) {
        let pages = Pages::of(&workload, seed);
        let count: u32 = workload.regions.iter().map(|region| region.pages).sum();
        prop_assert_eq!(pages.count(), count as usize);
        for (at, region) in (0u16..).zip(&workload.regions) {
            let of = || pages.region.iter().zip(&pages.heat).filter(|(of, _)| **of == at);
            prop_assert_eq!(of().count(), region.pages as usize);
            prop_assert!(close(of().map(|(_, heat)| heat).sum(), 1.0, 1e-9), "region {at}");
        }
    }

    #[test]
    fn a_region_has_the_configured_number_of_hot_pages(workload in any_workload(2), seed in any::<u64>()) {
        let pages = Pages::of(&workload, seed);
        for (at, region) in (0u16..).zip(&workload.regions) {
            let mut heats: Vec<f64> = pages.region.iter().zip(&pages.heat).filter(|(of, _)| **of == at).map(|(_, heat)| *heat).collect();
            heats.sort_by(f64::total_cmp);
            heats.dedup_by(|a, b| close(*a, *b, 1e-12));
            prop_assert!(heats.len() <= 2, "hot and cold: {heats:?}");
            prop_assert!(heats.iter().all(|heat| *heat >= 0.0));
            prop_assert!(region.hot_pages > 0 || heats.len() == 1);
        }
    }

    #[test]
    fn a_seed_decides_heat_and_nothing_else(workload in any_workload(2), seed in any::<u64>(), other in any::<u64>()) {
        let [one, again, another] = [seed, seed, other].map(|seed| Pages::of(&workload, seed));
        prop_assert_eq!(&one, &again);
        prop_assert_eq!((one.region, one.node, one.huge), (another.region, another.node, another.huge));
    }

    #[test]
    fn the_shares_of_every_demand_add_up_to_one(workload in any_workload(3), seed in any::<u64>(), weights in prop::collection::vec(1u32..5, 3)) {
        let machine = alike(3, ROOMY);
        let mut pages = Pages::of(&workload, seed);
        pages.interleave(&weights, &machine);
        for demand in pages.demands(&workload, &machine) {
            prop_assert!(close(demand.shares.iter().sum(), 1.0, 1e-9));
            prop_assert!(demand.shares.iter().all(|share| *share >= 0.0));
            prop_assert!((0.0..=1.0 + 1e-9).contains(&demand.reads));
        }
    }

    #[test]
    fn an_antagonist_accesses_its_own_node_only(workload in any_workload(3), node in 0usize..3, lines in 0.0f64..100.0) {
        let machine = alike(3, ROOMY);
        let workload = with_antagonist(workload, node).contended(lines);
        let demands = Pages::of(&workload, 1).demands(&workload, &machine);
        prop_assert_eq!(demands.len(), workload.workers.len() + 1);
        let last = demands.last().unwrap();
        prop_assert!(close(last.shares[node], 1.0, 1e-12) && close(last.lines, lines, 1e-12));
    }

    #[test]
    fn rotating_moves_heat_and_no_page(workload in any_workload(2), seed in any::<u64>(), a in 0usize..5_000, b in 0usize..5_000) {
        let machine = alike(2, ROOMY);
        let mut pages = Pages::of(&workload, seed);
        pages.first_touch(&workload, &machine);
        let (mut twice, mut once, mut round) = (pages.clone(), pages.clone(), pages.clone());
        twice.rotate(a);
        twice.rotate(b);
        once.rotate(a + b);
        prop_assert_eq!(&twice, &once);
        prop_assert_eq!(&once.node, &pages.node);
        round.rotate(pages.count());
        prop_assert_eq!(round, pages);
    }

    #[test]
    fn a_page_lies_within_its_huge_page_and_huge_pages_do_not_overlap(workload in any_workload(2), at in any::<prop::sample::Index>()) {
        let pages = Pages::of(&workload, 1);
        let page = at.index(pages.count());
        let whole = pages.whole(page);
        prop_assert!(whole.contains(&page));
        prop_assert_eq!(whole.len(), if pages.is_huge(page) { PIECES } else { 1 });
        prop_assert!(whole.clone().all(|piece| pages.whole(piece) == whole));
    }

    #[test]
    fn replicas_take_memory_and_serve_the_local_cpus(workload in any_workload(3), on in 1u64..8) {
        let machine = alike(3, ROOMY);
        let mut pages = Pages::of(&workload, 1);
        pages.interleave(&[1, 0, 0], &machine);
        let before: u64 = pages.bytes(3).iter().sum();
        pages.copies.fill(on & !1);
        let copies = u64::from((on & !1).count_ones());
        prop_assert_eq!(pages.bytes(3).iter().sum::<u64>(), before * (1 + copies));
        for demand in pages.demands(&workload, &machine) {
            let has = (on | 1) >> demand.row & 1 == 1;
            let wanted = if has { 1.0 } else { 0.0 };
            prop_assert!(close(demand.shares[demand.row], wanted, 1e-9) || !has, "{demand:?}");
        }
    }

    #[test]
    fn all_pages_of_a_workload_without_huge_pages_are_small(workload in any_workload(2)) {
        let mut workload = workload;
        (workload.huge, workload.walk_ns) = (false, 3.0);
        let small = Pages::of(&workload, 1).small(&workload);
        prop_assert!(small.iter().all(|share| close(*share, 1.0, 1e-9)), "{small:?}");
        workload.walk_ns = 0.0;
        prop_assert!(Pages::of(&workload, 1).small(&workload).iter().all(|share| *share <= 0.0));
    }

    #[test]
    fn splitting_huge_pages_never_makes_translation_cheaper(workload in any_workload(2), which in any::<prop::sample::Index>()) {
        let mut workload = workload;
        (workload.huge, workload.walk_ns) = (true, 5.0);
        let machine = alike(2, ROOMY);
        let mut pages = Pages::of(&workload, 1);
        prop_assume!(!pages.huge.is_empty());
        let before = pages.demands(&workload, &machine);
        let which = which.index(pages.huge.len());
        pages.huge[which] = false;
        for (before, after) in before.iter().zip(pages.demands(&workload, &machine)) {
            prop_assert!(after.think_ns >= before.think_ns - 1e-9);
        }
    }

    #[test]
    fn a_larger_requested_near_share_gives_a_larger_near_share(workload in any_workload(1), low in 0.0f64..=1.0, more in 0.0f64..=1.0, room in 1u64..3_000) {
        let mut workload = workload;
        workload.huge = false;
        let machine = two_tiers(room, ROOMY);
        let near = |share: f64| {
            let mut pages = Pages::of(&workload, 1);
            pages.hottest_near(&workload, &machine, share);
            let found = pages.demands(&workload, &machine)[0].shares[0];
            assert!(found <= share + 1e-9 && pages.bytes(2)[0] <= room * 4_096);
            found
        };
        // A page is not divided: at most one of the hottest is missing.
        let hottest = Pages::of(&workload, 1).heat.into_iter().fold(0.0, f64::max);
        prop_assert!(near((low + more).min(1.0)) >= near(low) - hottest);
    }
}
