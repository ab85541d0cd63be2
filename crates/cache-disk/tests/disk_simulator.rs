//! The disk tier on a simulated device: the first seeds of `examples/disk_simulator`, which can run more.
//!
//! `SEED=n cargo test -p nearfar-cache-disk --test disk_simulator -- --nocapture` runs one and prints each operation.

#[path = "../examples/disk_simulator/simulator/mod.rs"]
mod simulator;

use simulator::{Tally, run};

const SEEDS: u64 = 2000;

#[test]
fn device_faults_never_yield_stale_torn_or_foreign_values() {
    if let Some(seed) = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        println!("{}", run(seed, true).unwrap_or_else(|wrong| panic!("{wrong}")));
        return;
    }
    let mut tally = Tally::default();
    for seed in 1..=SEEDS {
        match run(seed, false) {
            Ok(one) => tally.add(&one),
            Err(wrong) => panic!("{wrong}"),
        }
    }
    println!("{tally}");
    // It is no use if little happens.
    assert!(tally.hits > 20 * SEEDS && tally.kept > SEEDS / 2 && tally.reopened > SEEDS / 2);
    assert!(tally.cuts > SEEDS / 2 && tally.lost > 10 && tally.astray > 10 && tally.rots > 10);
}

#[test]
fn a_seed_reproduces_the_same_run() {
    for seed in 1..50 {
        assert_eq!(run(seed, false), run(seed, false));
    }
}
