//! Colloid's bounds search: towards the faster tier, never past the ends, and to a rest at equal latencies.

use nearfar_policy::traffic::colloid::{Colloid, Config, Wish};
use nearfar_topology::{BasisPoints, Nanoseconds};
use proptest::prelude::*;

/// A search that takes each reading as it is.
fn at_once() -> Colloid {
    Colloid::new(Config { reading: BasisPoints(10_000), ..Config::default() })
}

fn step(one: &mut Colloid, near: u64, far: u64, share: u32) -> Wish {
    one.step(Nanoseconds(near), Nanoseconds(far), BasisPoints(share))
}

fn after(share: u32, wish: Wish) -> u32 {
    match wish {
        Wish::Stay => share,
        Wish::Near(by) => share + by.0,
        Wish::Far(by) => share - by.0,
    }
}

proptest! {
    #[test]
    fn shifts_go_to_the_tier_with_the_lower_present_latency(readings in prop::collection::vec((1u64..5_000, 1u64..5_000, 0u32..=10_000), 1..40)) {
        let mut one = at_once();
        for (near, far, share) in readings {
            match step(&mut one, near, far, share) {
                Wish::Near(_) => prop_assert!(near < far),
                Wish::Far(_) => prop_assert!(far < near),
                Wish::Stay => prop_assert!(near.abs_diff(far) * 20 <= near.max(far)),
            }
        }
    }

    #[test]
    fn equal_latencies_never_cause_a_shift(latency in 100u64..5_000, off in 0u64..=5, share in 0u32..=10_000) {
        let mut one = Colloid::new(Config::default());
        for _ in 0..30 {
            prop_assert_eq!(step(&mut one, latency, latency - latency * off / 100, share), Wish::Stay);
        }
    }

    #[test]
    fn scaling_both_latencies_changes_no_decision(readings in prop::collection::vec((1u64..5_000, 1u64..5_000, 0u32..=10_000), 1..30), by in 1u64..1_000) {
        let (mut one, mut scaled) = (at_once(), at_once());
        for (near, far, share) in readings {
            prop_assert_eq!(step(&mut one, near, far, share), step(&mut scaled, near * by, far * by, share));
        }
    }

    #[test]
    fn swapping_the_tiers_mirrors_the_first_decision(near in 1u64..5_000, far in 1u64..5_000, share in 0u32..=10_000) {
        let wish = step(&mut at_once(), near, far, share);
        let mirrored = step(&mut at_once(), far, near, 10_000 - share);
        match (wish, mirrored) {
            (Wish::Near(a), Wish::Far(b)) | (Wish::Far(a), Wish::Near(b)) => prop_assert!(a.0.abs_diff(b.0) <= 1),
            (a, b) => prop_assert_eq!((a, b), (Wish::Stay, Wish::Stay)),
        }
    }

    #[test]
    fn the_share_converges_to_the_crossing_of_the_latencies(crossing in 500u32..9_500, start in 0u32..=10_000, slope in 1u64..20) {
        let mut one = at_once();
        let mut share = start;
        // Latencies meet where the share is `crossing`.
        let near = |share: u32| 1_000 + u64::from(share) * slope;
        let far = near(crossing);
        for _ in 0..60 {
            let wish = step(&mut one, near(share), far, share);
            share = after(share, wish);
        }
        let (near, far) = (near(share), far);
        prop_assert!(near.abs_diff(far) * 20 <= near.max(far) || share.abs_diff(crossing) <= 200, "{share} for {crossing}");
    }

    #[test]
    fn a_faster_near_tier_ends_with_all_near(start in 0u32..=10_000) {
        let (mut one, mut share) = (at_once(), start);
        for _ in 0..60 {
            let wish = step(&mut one, 100, 300, share);
            share = after(share, wish);
        }
        prop_assert!(share >= 9_899, "{share}");
    }

    #[test]
    fn a_slower_near_tier_ends_with_all_far(start in 0u32..=10_000) {
        let (mut one, mut share) = (at_once(), start);
        for _ in 0..60 {
            let wish = step(&mut one, 300, 100, share);
            share = after(share, wish);
        }
        prop_assert!(share <= 101, "{share}");
    }

    #[test]
    fn latencies_recorded_without_a_decision_update_the_averages(share in 0u32..=10_000, readings in 1usize..60) {
        let mut one = Colloid::new(Config::default());
        (0..readings).for_each(|_| one.feel(Nanoseconds(300), Nanoseconds(100)));
        // One reading the other way does not outweigh the earlier ones.
        prop_assert!(matches!(step(&mut one, 100, 300, share), Wish::Far(_)));
    }
}
