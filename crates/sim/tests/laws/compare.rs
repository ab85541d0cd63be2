//! Comparing: first touch is the measure, the oracle loses to no placement, seeds decide.

use nearfar_sim::compare::{compare, steady};
use nearfar_sim::pages::Pages;
use nearfar_sim::published::colloid;
use nearfar_sim::{Policy, workload};
use proptest::prelude::*;

use crate::machines::{alike, close, region, workload as drawn};

const STATIC: [Policy; 3] = [Policy::FirstTouch, Policy::Interleave, Policy::Oracle];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn no_static_placement_beats_the_oracle_on_two_tiers(far in 0usize..4, load in 0.0f64..3.0, seed in any::<u64>()) {
        let machine = colloid::machine(colloid::FAR_NS[far]).unwrap();
        let workload = workload::find("hot-set", &machine).unwrap().contended(colloid::CONTENDING_LINES * load);
        let found = compare(&machine, &workload, &STATIC, seed).unwrap();
        // It tries near shares in hundredths.
        prop_assert!(found.iter().all(|of| of.speedup <= found[2].speedup * 1.005), "{found:?}");
        prop_assert!(found.iter().all(|of| of.moved_bytes == 0));
        prop_assert!(close(found[0].speedup, 1.0, 1e-9));
    }

    #[test]
    fn no_interleaving_beats_the_oracle_on_equal_nodes(nodes in 2usize..4, row in 0usize..2, seed in any::<u64>()) {
        let machine = alike(nodes, 1 << 16);
        let workload = drawn(vec![region(1_000, row, nodes)], nodes);
        let found = compare(&machine, &workload, &STATIC, seed).unwrap();
        prop_assert!(found[1].speedup <= found[2].speedup * (1.0 + 1e-9), "{found:?}");
    }

    #[test]
    fn a_comparison_is_the_same_for_a_seed(seed in any::<u64>()) {
        let machine = alike(2, 1 << 16);
        let workload = workload::find("pca", &machine).unwrap();
        let run = || compare(&machine, &workload, &STATIC[..2], seed).unwrap();
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn the_order_of_policies_does_not_matter(seed in any::<u64>()) {
        let machine = alike(2, 1 << 16);
        let workload = workload::find("private", &machine).unwrap();
        let mut backward = compare(&machine, &workload, &[STATIC[1], STATIC[0]], seed).unwrap();
        backward.reverse();
        prop_assert_eq!(compare(&machine, &workload, &STATIC[..2], seed).unwrap(), backward);
    }

    #[test]
    fn the_steady_state_reflects_the_placement_of_pages(pages_near in 0u32..=100) {
        let machine = crate::machines::two_tiers(1 << 10, 1 << 10);
        let workload = drawn(vec![region(100, 0, 1)], 1);
        let mut pages = Pages::of(&workload, 1);
        (pages_near..100).for_each(|page| pages.put(page as usize, 1));
        let found = steady(&machine, &workload, &pages);
        prop_assert!(close(found.local_access_ratio, f64::from(pages_near) / 100.0, 1e-9));
        prop_assert!(found.gbps > 0.0 && found.latency_ns >= 80.0);
    }
}
