//! The fleet: hosts are drawn by their number and the seed, and a day off changes nothing.

use nearfar_sim::Policy;
use nearfar_sim::fleet::{Fleet, Options, QUANTILES, STRATA, day};

/// A day of a fleet on which nothing moves.
fn off(hosts: u32, seed: u64) -> Fleet {
    day(&Options { hosts, policy: Policy::FirstTouch, rate_gbps: 4.0, seed }).unwrap()
}

#[test]
fn each_host_is_sampled_once_in_each_stratum() {
    for hosts in [0, 1, 4] {
        assert_eq!(off(hosts, 1).sampled_hours, u64::from(hosts * STRATA));
    }
}

#[test]
fn without_migration_no_host_is_better_or_worse_for_any_seed() {
    for seed in [0, 7, u64::MAX] {
        let fleet = off(3, seed);
        assert_eq!((fleet.worse, fleet.better), (0.0, 0.0), "{fleet:?}");
        assert!(fleet.percentiles.iter().all(|speedup| (speedup - 1.0).abs() < 1e-6), "{fleet:?}");
        assert!(fleet.moved_bytes.mean <= 0.0 && fleet.moved_bytes.error <= 0.0, "{fleet:?}");
    }
}

#[test]
fn percentiles_rise_from_the_minimum_to_the_maximum() {
    assert!(QUANTILES.is_sorted());
    assert_eq!((QUANTILES.first(), QUANTILES.last()), (Some(&0.0), Some(&1.0)));
    assert!(off(5, 3).percentiles.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12));
}

#[test]
fn an_empty_fleet_gives_zero_estimates() {
    let fleet = off(0, 1);
    assert_eq!((fleet.worse, fleet.better), (0.0, 0.0));
    assert!(fleet.speedup.error <= 0.0 && fleet.moved_bytes.mean <= 0.0, "{fleet:?}");
}

#[test]
fn a_smaller_fleet_of_the_same_seed_is_a_prefix_of_a_larger_one() {
    let balanced =
        |hosts| day(&Options { hosts, policy: Policy::Balanced, rate_gbps: 8.0, seed: 9 }).unwrap();
    let (one, two) = (balanced(1), balanced(2));
    assert!(
        one.percentiles.iter().all(|speedup| speedup.to_bits() == one.percentiles[0].to_bits())
    );
    let own = one.percentiles[0].to_bits();
    assert!(two.percentiles.iter().any(|speedup| speedup.to_bits() == own), "{one:?} {two:?}");
}

#[test]
fn without_a_rate_a_controller_moves_nothing_on_any_host() {
    let fleet =
        day(&Options { hosts: 2, policy: Policy::Balanced, rate_gbps: 0.0, seed: 5 }).unwrap();
    assert!(fleet.moved_bytes.mean <= 0.0, "{fleet:?}");
    assert_eq!((fleet.worse, fleet.better), (0.0, 0.0), "{fleet:?}");
}
