//! Chance: a seed is a stream, draws stay in range, and weights are all that counts.

use nearfar_sim::alias::Alias;
use nearfar_sim::rng::Rng;
use proptest::prelude::*;

fn weights() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(prop_oneof![Just(0.0), 0.0f64..10.0], 1..30)
        .prop_filter("some weight", |weights| weights.iter().sum::<f64>() > 0.1)
}

fn drawn(alias: &Alias, seed: u64, count: usize) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| alias.draw(&mut rng)).collect()
}

proptest! {
    #[test]
    fn every_drawn_number_is_a_valid_index(weights in weights(), seed in any::<u64>()) {
        let alias = Alias::of(&weights).unwrap();
        prop_assert!(drawn(&alias, seed, 500).iter().all(|at| (*at as usize) < weights.len()));
    }

    #[test]
    fn a_weight_of_zero_is_never_drawn(weights in weights(), seed in any::<u64>()) {
        let alias = Alias::of(&weights).unwrap();
        let nothing = drawn(&alias, seed, 2_000).iter().filter(|at| weights[**at as usize] <= 0.0).count();
        prop_assert_eq!(nothing, 0);
    }

    #[test]
    fn scaling_all_weights_changes_no_draw(weights in weights(), power in -4i32..8, seed in any::<u64>()) {
        // Powers of two scale exactly.
        let scaled: Vec<f64> = weights.iter().map(|weight| weight * 2f64.powi(power)).collect();
        let [one, other] = [&weights, &scaled].map(|weights| Alias::of(weights).unwrap());
        prop_assert_eq!(drawn(&one, seed, 100), drawn(&other, seed, 100));
    }

    #[test]
    fn one_weight_is_always_drawn(weight in 0.01f64..10.0, seed in any::<u64>()) {
        prop_assert!(drawn(&Alias::of(&[weight]).unwrap(), seed, 50).iter().all(|at| *at == 0));
    }

    #[test]
    fn the_same_seed_draws_the_same(weights in weights(), seed in any::<u64>()) {
        let alias = Alias::of(&weights).unwrap();
        prop_assert_eq!(drawn(&alias, seed, 100), drawn(&alias, seed, 100));
    }

    #[test]
    fn below_returns_every_number_under_a_small_bound_and_no_other(end in 1u32..20, seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let found: std::collections::BTreeSet<u32> = (0..1_000).map(|_| rng.below(end)).collect();
        prop_assert_eq!(found, (0..end).collect());
    }

    #[test]
    fn a_cloned_generator_continues_with_the_same_numbers(seed in any::<u64>(), before in 0usize..50) {
        let mut rng = Rng::new(seed);
        (0..before).for_each(|_| drop(rng.normal().to_bits().to_string()));
        let mut copy = rng.clone();
        for _ in 0..20 {
            prop_assert_eq!(rng.bits(), copy.bits());
        }
    }

    #[test]
    fn normal_numbers_are_finite_and_uniform_ones_below_one(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        for _ in 0..500 {
            prop_assert!(rng.normal().is_finite());
            prop_assert!((0.0..1.0).contains(&rng.unit()));
        }
    }
}
