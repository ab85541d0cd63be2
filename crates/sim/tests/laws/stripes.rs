//! Stripes: regions that take turns in memory are the same pages in another order.

use nearfar_sim::pages::Pages;
use nearfar_sim::workload::Workload;
use proptest::prelude::*;

use crate::machines::{alike, any_workload, close};

fn striped(workload: &Workload, stripe: u32, seed: u64) -> Pages {
    Pages::of(&Workload { stripe, ..workload.clone() }, seed)
}

/// Heats of a region's pages in order of address.
fn heats(pages: &Pages, region: u16) -> Vec<f64> {
    pages
        .region
        .iter()
        .zip(&pages.heat)
        .filter(|(of, _)| **of == region)
        .map(|(_, heat)| *heat)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn striping_keeps_the_order_of_each_regions_pages(workload in any_workload(2), stripe in 1u32..700, seed in any::<u64>()) {
        let (plain, turns) = (striped(&workload, 0, seed), striped(&workload, stripe, seed));
        for (region, _) in (0u16..).zip(&workload.regions) {
            prop_assert_eq!(heats(&plain, region), heats(&turns, region));
        }
        prop_assert_eq!(plain.count(), turns.count());
    }

    #[test]
    fn a_stripe_has_the_configured_length_unless_its_region_ends(workload in any_workload(2), stripe in 1u32..700) {
        let pages = striped(&workload, stripe, 1);
        let runs: Vec<&[u16]> = pages.region.chunk_by(|a, b| a == b).collect();
        let mut left: Vec<usize> = workload.regions.iter().map(|region| region.pages as usize).collect();
        for run in runs {
            let region = usize::from(run[0]);
            // The last region left has no one to take turns with.
            let others = left.iter().enumerate().any(|(at, left)| at != region && *left > 0);
            prop_assert!(!others || run.len() == left[region].min(stripe as usize) || run.len() % stripe as usize == 0);
            left[region] -= run.len();
        }
        prop_assert!(left.iter().all(|left| *left == 0));
    }

    #[test]
    fn stripes_longer_than_every_region_change_nothing(workload in any_workload(2), seed in any::<u64>()) {
        prop_assert_eq!(striped(&workload, 1_500, seed), striped(&workload, 0, seed));
    }

    #[test]
    fn first_touch_of_small_pages_does_not_depend_on_stripes(workload in any_workload(2), stripe in 1u32..700, seed in any::<u64>()) {
        let machine = alike(2, 1 << 16);
        let small = Workload { huge: false, walk_ns: 0.0, ..workload };
        let shares = |stripe| {
            let mut pages = striped(&small, stripe, seed);
            pages.first_touch(&small, &machine);
            pages.demands(&small, &machine)
        };
        for (one, other) in shares(0).iter().zip(shares(stripe)) {
            prop_assert!(one.shares.iter().zip(&other.shares).all(|(one, other)| (one - other).abs() < 1e-9));
        }
    }

    #[test]
    fn interleaving_places_pages_evenly_for_any_stripe_length(workload in any_workload(2), stripe in 0u32..700) {
        let small = Workload { huge: false, ..workload };
        let mut pages = striped(&small, stripe, 1);
        pages.interleave(&[1, 1], &alike(2, 1 << 16));
        let bytes = pages.bytes(2);
        prop_assert!(bytes[0] - bytes[1] <= 4_096, "{bytes:?}");
    }

    #[test]
    fn on_one_node_small_and_huge_pages_differ_in_think_time_only(workload in any_workload(1), walk_ns in 0.1f64..20.0) {
        let machine = alike(1, 1 << 16);
        let demand = |huge| {
            let workload = Workload { huge, walk_ns, ..workload.clone() };
            Pages::of(&workload, 1).demands(&workload, &machine).remove(0)
        };
        let (small, huge) = (demand(false), demand(true));
        prop_assert!(close(small.think_ns, workload.workers[0].think_ns + walk_ns, 1e-9));
        prop_assert!(huge.think_ns <= small.think_ns + 1e-9);
        prop_assert_eq!((small.shares, small.lines.to_bits()), (huge.shares, huge.lines.to_bits()));
    }
}
