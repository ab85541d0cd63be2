//! Items larger than any slot of memory: on disk they are ordinary objects.

use super::*;
use crate::mover::Movers;
use crate::store::Edit;

/// A mebibyte of memory, with slots of at most 16 KiB, over this many regions of half a mebibyte.
fn large(path: &Path, regions: u64, making: Making) -> Config {
    let small = config(path, 0, making);
    let mut below = small.disk.expect("it has a disk");
    below.config.region_bytes = 512 << 10;
    below.config.bytes += regions * (512 << 10);
    Config { disk: Some(below), ..tiers(&[1024 * KB], Eviction::S3Fifo, making) }
}

fn length(number: u64) -> usize {
    15_000 + (number as usize * 37_003) % 230_000
}

#[test]
fn large_values_are_demoted_promoted_and_survive_a_reopen() {
    let folder = folder();
    let config = large(&file(&folder), 40, Making::Inline);
    let cache = open(&config);
    (0..30).for_each(|number| put(&cache, number, 5, length(number)));
    push_down(&cache);
    for _ in 0..3 {
        (0..30).for_each(|number| assert_eq!(get(&cache, number), Some(5), "{number}"));
    }
    let up = cache.counted().disk.expect("it has a disk");
    assert!(up.promoted > 0 && up.own.large_second_reads > 20, "{up:?}");
    push_down(&cache);
    let down = cache.counted().disk.expect("it has a disk");
    assert!(down.unwritten > 20, "what has not changed is not written again: {down:?}");
    // Items on disk and in memory are changed, and demoted again.
    for number in 0..30 {
        let done = cache.edit(&key(number), &mut Vec::new(), &mut |old, value| {
            old.expect("it is there").read(value);
            assert_eq!(version_of(number, value), Some(5));
            value.clear();
            value.extend_from_slice(&super::value(number, 6, length(number) + 1));
            Edit::Put(meta(6, 0))
        });
        assert_eq!(done, Ok(()));
    }
    push_down(&cache);
    (0..30).for_each(|number| assert_eq!(get(&cache, number), Some(6), "{number}"));
    cache.close().expect("nothing fails here");
    drop(cache);
    let cache = open(&config);
    (0..30).for_each(|number| assert_eq!(get(&cache, number), Some(6), "{number}"));
    check_count(&cache);
}

#[test]
fn a_value_larger_than_a_region_is_evicted() {
    let folder = folder();
    let config = Config {
        tiers: tiers(&[1024 * KB], Eviction::S3Fifo, Making::Inline).tiers,
        ..config(&file(&folder), 60, Making::Inline)
    };
    let cache = open(&config);
    put(&cache, 1, 5, 100_000);
    put(&cache, 2, 5, 20_000);
    assert_eq!(get(&cache, 1), Some(5));
    push_down(&cache);
    assert_eq!((get(&cache, 1), get(&cache, 2)), (None, Some(5)));
    check_count(&cache);
}

#[test]
fn large_values_stay_untorn_during_demotion_and_promotion() {
    let folder = folder();
    let cache = Arc::new(open(&large(&file(&folder), 24, Making::Background)));
    let movers = Movers::start(&cache, 1).expect("threads");
    let work = |thread: u64| {
        let cache = Arc::clone(&cache);
        move || {
            let (mut dice, mut found) = (11 + thread, 0);
            for version in 1..700 {
                dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let number = (dice >> 40) % 60;
                match dice >> 33 & 3 {
                    0 if number % 2 == thread => {
                        let value = super::value(number, version, length(number + version));
                        // Other threads may have taken all room for a moment.
                        let _ = cache.put(&key(number), &value, Some(&meta(version, 0)));
                    }
                    1 if number % 20 == thread => found += u64::from(cache.delete(&key(number))),
                    _ => found += u64::from(get(&cache, number).is_some()),
                }
            }
            found
        }
    };
    let threads: Vec<_> = (0..2).map(|thread| std::thread::spawn(work(thread))).collect();
    let found = threads.into_iter().map(|thread| thread.join().expect("it checks what it reads"));
    assert!(found.sum::<u64>() > 50);
    drop(movers);
    push_down(&cache);
    (0..60).for_each(|number| assert!(get(&cache, number).is_none_or(|version| version < 700)));
    check_count(&cache);
}
