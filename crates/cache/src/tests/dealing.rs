//! Slabs move to the sizes where they are worth most: when sizes shift, and when two sizes are read at once.

use super::{Cache, Config, Eviction, KB, Making, cache, get, tiers};

struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u32 % most
    }
}

/// Reads a key, and stores it with this many bytes on a miss; returns whether it was a hit.
fn ask(cache: &Cache, key: u32, length: usize) -> bool {
    let name = key.to_le_bytes();
    let found = get(cache, &name);
    if found.is_none() {
        cache.set(&name, &vec![key as u8; length]).expect("room");
    }
    found.is_some()
}

/// Reads that find something, in percent.
fn percent(reads: u32, mut read: impl FnMut() -> bool) -> u32 {
    (0..reads).filter(|_| read()).count() as u32 * 100 / reads
}

fn one_tier() -> Config {
    tiers(&[4096 * KB], Eviction::S3Fifo, Making::Inline)
}

#[test]
fn memory_follows_when_sizes_shift() {
    let (cache, mut dice) = (cache(&one_tier()), Dice(7));
    percent(60_000, || ask(&cache, dice.below(20_000), 150));
    // Now other keys, of 2 KB each, which would fit.
    percent(60_000, || ask(&cache, 100_000 + dice.below(1_500), 2_000));
    let found = percent(20_000, || ask(&cache, 100_000 + dice.below(1_500), 2_000));
    assert!(found >= 90, "{found} %");
    assert!(cache.counted().tiers[0].dealt > 20);
    // And such that have many slots each.
    percent(3_000, || ask(&cache, 200_000 + dice.below(30), 90_000));
    let found = percent(2_000, || ask(&cache, 200_000 + dice.below(30), 90_000));
    assert!(found >= 90, "{found} %");
}

#[test]
fn two_hot_sizes_share_memory_fairly() {
    let (cache, mut dice) = (cache(&one_tier()), Dice(9));
    let mut both = |reads| {
        let (mut small, mut large) = (0, 0);
        for _ in 0..reads {
            // Three reads from some 1.5 MiB that fit, per read from 8 MiB that do not.
            small += (0..3).filter(|_| ask(&cache, dice.below(8_000), 150)).count();
            large += usize::from(ask(&cache, 100_000 + dice.below(2_000), 4_000));
        }
        (small * 100 / (3 * reads), large * 100 / reads)
    };
    both(60_000);
    let (small, large) = both(20_000);
    assert!(small >= 95, "of the small ones {small} % are found, of the large ones {large} %");
    assert!(large >= 15, "of the large ones {large} % are found, of the small ones {small} %");
}

#[test]
fn a_size_without_rereads_gains_no_slabs() {
    let (cache, mut dice) = (cache(&one_tier()), Dice(3));
    percent(60_000, || ask(&cache, dice.below(10_000), 150));
    let mut passing = 1_000_000;
    let found = percent(60_000, || {
        passing += 1;
        ask(&cache, passing, 3_000);
        ask(&cache, dice.below(10_000), 150)
    });
    assert!(found >= 95, "{found} %");
}
