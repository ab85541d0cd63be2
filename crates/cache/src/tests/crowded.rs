//! Many threads on a tiny cache: each item is stored, as long as another can be evicted for it.

use std::sync::Barrier;

use super::{Eviction, KB, Making, cache, tiers};
use crate::store::{Edit, Meta, Store};

const THREADS: u32 = 16;

/// Has threads call `step` with a key and a number, all beginning at once; no call may fail.
fn crowd(rounds: u32, step: &(impl Fn(&[u8], u32) + Sync)) {
    let barrier = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                for round in 0..rounds {
                    let number = round * THREADS + thread;
                    step(&number.to_le_bytes(), number);
                }
            });
        }
    });
}

#[test]
fn stores_succeed_under_any_number_of_threads() {
    for eviction in [Eviction::S3Fifo, Eviction::WTinyLfu, Eviction::Lru, Eviction::Sieve] {
        for sizes in [&[256 * KB][..], &[256 * KB, 256 * KB]] {
            let cache = cache(&tiers(sizes, eviction, Making::Inline));
            // Few items fill a class, and sizes change, so that slabs must change their class.
            let length = |number: u32| [40, 900, 9_000, 15_000][number as usize / 400 % 4];
            crowd(1_000, &|key, number| {
                let value = vec![1; length(number)];
                assert_eq!(cache.set(key, &value), Ok(()), "{eviction:?}, {} bytes", value.len());
            });
        }
    }
}

#[test]
fn edits_are_stored_under_any_number_of_threads() {
    for sizes in [&[256 * KB][..], &[256 * KB, 256 * KB]] {
        let cache = cache(&tiers(sizes, Eviction::WTinyLfu, Making::Inline));
        crowd(600, &|key, number| {
            let mut value = vec![1; 33 + number as usize % 900];
            let done = cache.edit(key, &mut value, &mut |_, _| Edit::Put(Meta::default()));
            assert_eq!(done, Ok(()));
        });
    }
}

#[test]
fn chains_are_stored_under_any_number_of_threads() {
    for sizes in [&[1024 * KB][..], &[1024 * KB, 1024 * KB]] {
        let cache = cache(&tiers(sizes, Eviction::S3Fifo, Making::Inline));
        let largest = cache.largest() - 8;
        crowd(60, &|key, number| {
            // Beside items of one slot.
            let length = if number % 4 == 0 { 3_000 } else { largest - number as usize };
            assert_eq!(cache.set(key, &vec![1; length]), Ok(()), "{length} of {largest} bytes");
        });
    }
}
