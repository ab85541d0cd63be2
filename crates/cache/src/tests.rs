//! The cache as a whole: against a map, and with threads and movers that change it while every value is checked.
#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers are small, or a part of them is what is wanted"
)]

mod chains;
mod copying;
mod crowded;
mod dealing;
mod index;
mod items;
#[cfg(debug_assertions)]
mod locks;
mod reaping;

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use crate::contents::Contents;
use crate::copy::Copying;
use crate::evict::Eviction;
use crate::mover::Movers;
use crate::store::{Edit, Meta, Refused, Store};
pub(crate) use crate::testkit::{KB, tiers};
use crate::{Cache, Config, Making};

fn cache(config: &Config) -> Cache {
    Cache::new(config).expect("memory for a small cache")
}

fn get(cache: &Cache, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    cache.get(key, &mut out).then_some(out)
}

/// A value that identifies its key and version, so that any piece of another one is detected.
pub(crate) fn value(key: u32, version: u32, out: &mut Vec<u8>) {
    out.clear();
    let length = 8 + (key.wrapping_mul(2_654_435_761).wrapping_add(version * 97) >> 21) as usize;
    let word = u64::from(key) << 32 | u64::from(version);
    out.extend(
        (0..length).map(|at| word.rotate_left(at as u32 * 8).to_le_bytes()[0] ^ (at / 8) as u8),
    );
}

/// The version of a value, if it is a whole one of this key.
pub(crate) fn version_of(key: u32, found: &[u8], scratch: &mut Vec<u8>) -> Option<u32> {
    let low: [u8; 4] = core::array::from_fn(|at| found.get((8 - at) % 8).copied().unwrap_or(0));
    let version = u32::from_le_bytes(low);
    value(key, version, scratch);
    (found == &scratch[..]).then_some(version)
}

#[test]
fn impossible_configurations_are_rejected_with_the_remedy() {
    let with = |change: &dyn Fn(&mut Config)| {
        let mut config = Config::of_bytes(64 << 20);
        change(&mut config);
        Cache::new(&config).expect_err("refused").to_string()
    };
    assert_eq!(with(&|config| config.tiers.clear()), "a cache has 1 to 4 tiers of memory, not 0");
    assert!(
        with(&|config| config.slab = Some(100_000))
            .starts_with("a slab of 100000 bytes: it must be")
    );
    assert!(
        with(&|config| config.tiers[0].bytes = 5_000)
            .contains("tier 0 has 5000 bytes, less than 256 KiB: give it more")
    );
    assert!(with(&|config| config.tiers[0].bytes = 9 << 40).contains("more than the 8 TiB"));
}

#[test]
fn keys_and_values_that_are_too_large_are_refused_and_leave_nothing() {
    let cache = cache(&tiers(&[512 * KB], Eviction::S3Fifo, Making::Inline));
    cache.set(b"key", b"small").expect("it fits");
    let large = vec![1; cache.largest()];
    assert!(matches!(cache.set(b"key", &large), Err(Refused::TooLarge { .. })));
    assert_eq!(get(&cache, b"key"), None);
    cache.set(b"key", &large[..large.len() - 3]).expect("the largest fits");
    assert_eq!(get(&cache, b"key").map(|found| found.len()), Some(large.len() - 3));
    assert!(matches!(cache.set(&[1; 251], b""), Err(Refused::TooLarge { .. })));
    assert!(matches!(cache.set(b"", b"x"), Err(Refused::TooLarge { .. })));
}

#[test]
fn a_rejected_edit_leaves_the_old_item() {
    let cache = cache(&tiers(&[512 * KB], Eviction::S3Fifo, Making::Inline));
    cache.set(b"key", b"small").expect("it fits");
    let mut large = vec![1; cache.largest()];
    let done = cache.edit(b"key", &mut large, &mut |_, _| Edit::Put(Meta::default()));
    assert!(matches!(done, Err(Refused::TooLarge { .. })), "{done:?}");
    assert_eq!(get(&cache, b"key").as_deref(), Some(&b"small"[..]));
    let done = cache.edit(b"key", &mut large, &mut |old, _| {
        assert!(old.is_some());
        Edit::Remove
    });
    assert_eq!((done, get(&cache, b"key")), (Ok(()), None));
}

#[test]
fn expired_items_are_missed_and_their_slots_reclaimed() {
    let cache = cache(&tiers(&[512 * KB], Eviction::S3Fifo, Making::Inline));
    for n in 0..100_u32 {
        let meta = Meta { expires: 5, flags: n, ..Meta::default() };
        cache.put(&n.to_le_bytes(), b"soon", Some(&meta)).expect("room");
    }
    cache.set(b"stays", b"long").expect("room");
    cache.set_now(4);
    assert_eq!(get(&cache, &7_u32.to_le_bytes()).as_deref(), Some(&b"soon"[..]));
    cache.set_now(5);
    assert_eq!(get(&cache, &7_u32.to_le_bytes()), None);
    assert_eq!(cache.expire(), 100);
    assert_eq!(cache.counted().tiers[0].items, 1);
    assert_eq!(get(&cache, b"stays").as_deref(), Some(&b"long"[..]));
}

#[test]
fn a_delayed_flush_removes_items_present_at_its_time() {
    let cache = cache(&tiers(&[512 * KB], Eviction::S3Fifo, Making::Inline));
    cache.set(b"a", b"1").expect("room");
    cache.flush(10);
    cache.set_now(9);
    assert!(get(&cache, b"a").is_some());
    cache.set_now(10);
    assert!(get(&cache, b"a").is_none());
    cache.set(b"a", b"2").expect("room");
    cache.set_now(11);
    assert_eq!(get(&cache, b"a").as_deref(), Some(&b"2"[..]));
    cache.flush(0);
    assert!(get(&cache, b"a").is_none());
}

#[test]
fn an_edit_sees_the_current_item_and_replaces_it_atomically() {
    let cache = cache(&tiers(&[512 * KB], Eviction::S3Fifo, Making::Inline));
    let mut buffer = b"first".to_vec();
    let meta = Meta { flags: 7, cas: 1, ..Meta::default() };
    cache
        .edit(b"key", &mut buffer, &mut |old, _| {
            assert!(old.is_none());
            Edit::Put(meta)
        })
        .expect("room");
    let mut buffer = Vec::new();
    cache
        .edit(b"key", &mut buffer, &mut |old, buffer| {
            let old = old.expect("it is there");
            assert_eq!((old.meta().flags, old.meta().cas, old.len()), (7, 1, 5));
            old.read(buffer);
            buffer.extend_from_slice(b" and second");
            Edit::Put(Meta { cas: 2, ..old.meta() })
        })
        .expect("room");
    cache
        .edit(b"key", &mut Vec::new(), &mut |old, _| {
            Edit::Set(Meta { stale: true, ..old.expect("there").meta() })
        })
        .expect("in place");
    let mut out = Vec::new();
    let meta = Store::get(&cache, b"key", &mut out, &mut |meta, length, out| {
        out.extend_from_slice(format!("{} {length} ", meta.flags).as_bytes());
    });
    assert_eq!(out, b"7 16 first and second");
    assert!(meta.is_some_and(|meta| meta.stale && meta.cas == 2));
    cache.edit(b"key", &mut Vec::new(), &mut |_, _| Edit::Remove).expect("gone");
    assert!(get(&cache, b"key").is_none());
    // An item stored without metadata is rewritten where metadata is set.
    cache.set(b"plain", b"value").expect("room");
    cache
        .edit(b"plain", &mut Vec::new(), &mut |_, _| {
            Edit::Set(Meta { flags: 3, ..Meta::default() })
        })
        .expect("room");
    let meta = Store::get(&cache, b"plain", &mut out, &mut |_, _, _| ());
    assert_eq!(meta.map(|meta| meta.flags), Some(3));
    assert_eq!(cache.counted().tiers[0].items, 1);
}

#[test]
fn a_new_size_class_can_take_slabs_from_a_full_cache() {
    let cache = cache(&tiers(&[512 * KB], Eviction::S3Fifo, Making::Inline));
    for n in 0..20_000_u32 {
        cache.set(&n.to_le_bytes(), b"small").expect("room");
    }
    for n in 0..50_u32 {
        cache.set(&n.to_be_bytes(), &[9; 9_000]).expect("a slab of others is taken");
    }
    assert_eq!(get(&cache, &49_u32.to_be_bytes()).map(|found| found.len()), Some(9_000));
    assert!(cache.counted().tiers[0].used <= 512 * KB);
}

#[test]
fn a_smaller_cache_gives_slabs_back_and_goes_on() {
    let cache = cache(&tiers(&[1024 * KB], Eviction::S3Fifo, Making::Inline));
    (0..20_000_u32).for_each(|n| cache.set(&n.to_le_bytes(), &[1; 100]).expect("room"));
    assert!(!Store::resize(&cache, 0));
    assert!(!Store::resize(&cache, 2048 * KB));
    assert!(Store::resize(&cache, 512 * KB));
    for _ in 0..20 {
        cache.step();
    }
    assert!(cache.counted().tiers[0].used <= 512 * KB);
    cache.set(b"more", b"value").expect("room");
    assert!(Store::resize(&cache, 1024 * KB));
    (0..20_000_u32).for_each(|n| cache.set(&n.to_le_bytes(), &[1; 100]).expect("room"));
    assert!(cache.counted().tiers[0].used > 700 * KB);
}

#[test]
fn items_are_demoted_to_the_second_tier_and_promoted_when_read() {
    let config = tiers(&[256 * KB, 1024 * KB], Eviction::S3Fifo, Making::Inline);
    let cache = cache(&config);
    for n in 0..6_000_u32 {
        cache.set(&n.to_le_bytes(), &[n as u8; 100]).expect("room");
    }
    let found = (0..6_000_u32)
        .filter(|n| get(&cache, &n.to_le_bytes()) == Some(vec![*n as u8; 100]))
        .count();
    assert!(found > 5_900, "{found} of 6000 in two tiers that hold them");
    let counted = cache.counted();
    assert!(counted.tiers[0].counts.demoted > 3_000 && counted.tiers[1].items > 3_000);
    let mut promoted = 0;
    for _ in 0..50 {
        (0..20_u32).for_each(|n| assert!(get(&cache, &n.to_le_bytes()).is_some()));
        cache.step();
        promoted = cache.counted().tiers[0].counts.promoted;
    }
    assert!(promoted > 0);
}

#[test]
fn reads_of_more_threads_than_there_are_cells_are_all_counted() {
    let cache = cache(&tiers(&[512 * KB], Eviction::S3Fifo, Making::Inline));
    cache.set(b"key", b"value").expect("room");
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| (0..2_000).for_each(|_| assert!(get(&cache, b"key").is_some())));
        }
    });
    assert_eq!(cache.counted().hits, 200_000);
}

#[test]
fn a_forged_item_header_at_the_end_of_memory_is_harmless() {
    let cache = cache(&tiers(&[256 * KB], Eviction::S3Fifo, Making::Inline));
    let space = cache.contents().space(0);
    // A stale place of a reader, in the last word of the last slab; the word is a header of the longest possible item.
    let last = space.slab_count() * space.slab_words() - 1;
    let shape =
        crate::item::Shape { key: 255, value: 0xff_ffff, extra: true, copy: true, chained: false };
    let forged =
        crate::item::Header::new(crate::item::Header::ZERO, shape).at(crate::item::Stage::Live);
    space.item(last).publish(forged);
    let mut out = Vec::new();
    space.item(last).read_key(forged, &mut out);
    space.item(last).read_value(forged, &mut out);
    assert_eq!(out.len(), 255 + 0xff_ffff);
    cache.request_promotion(Contents::place(0, last));
    assert_eq!(cache.step(), 0);
    assert!(!cache.delete(&[0; 250]));
}

/// A slot's version wraps around after this many stores of a key that keeps its slots; a read takes that long if its
/// thread is delayed.
#[test]
fn a_read_delayed_across_a_version_wraparound_returns_an_untorn_item() {
    let cache = cache(&Config::of_bytes(8 << 20));
    let put = |n: u32| {
        let meta = Meta { flags: n, cas: n.into(), ..Meta::default() };
        cache.put(b"key", &[n.to_le_bytes(), n.to_le_bytes()].concat(), Some(&meta)).unwrap();
    };
    for more in [32_767_u32, 32_768, 65_535, 65_536, 65_537, 131_072] {
        let (mut calls, mut out, mut last) = (0, Vec::new(), 1);
        put(last);
        let meta = Store::get(&cache, b"key", &mut out, &mut |_, _, _| {
            calls += 1;
            if calls == 1 {
                (last + 1..=last + more).for_each(put);
                last += more;
            }
        });
        let value = u32::from_le_bytes(out[..4].try_into().unwrap());
        let meta = meta.unwrap();
        assert_eq!((value, meta.flags, meta.cas), (last, last, last.into()), "{more} stores");
        assert_eq!(calls, 2, "it is read again");
    }
}

/// Threads set, delete and read, while movers work: no value is torn, another key's, or older than the last
/// acknowledged one.
fn soak(config: &Config, movers: usize, steps: u32) {
    const KEYS: u32 = 4_000;
    const THREADS: u32 = 3;
    let cache = Arc::new(cache(config));
    let movers = Movers::start(&cache, movers).expect("threads");
    let work = |thread: u32| {
        let cache = Arc::clone(&cache);
        move || {
            let mut dice = 0x9e37_79b9_7f4a_7c15_u64 + u64::from(thread);
            let mut mine: HashMap<u32, Option<u32>> = HashMap::new();
            let (mut out, mut scratch) = (Vec::new(), Vec::new());
            for step in 1..=steps {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                let key = u32::try_from(dice >> 40).expect("24 bits") % KEYS;
                let name = format!("key-{key}");
                let own = key % THREADS == thread;
                match dice % 10 {
                    0..3 if own => {
                        value(key, step, &mut scratch);
                        let meta = Meta { cas: u64::from(step), ..Meta::default() };
                        let meta = dice.is_multiple_of(3).then_some(&meta);
                        let stored = cache.put(name.as_bytes(), &scratch, meta);
                        mine.insert(key, stored.is_ok().then_some(step));
                    }
                    3 if own => {
                        cache.delete(name.as_bytes());
                        mine.insert(key, None);
                    }
                    _ => {
                        out.clear();
                        if cache.get(name.as_bytes(), &mut out) {
                            let version = version_of(key, &out, &mut scratch);
                            assert!(version.is_some(), "a torn value, or another key's");
                            assert!(
                                !own || mine.get(&key).copied().flatten() == version,
                                "not what was acknowledged"
                            );
                        }
                    }
                }
            }
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|thread| std::thread::spawn(work(thread))).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a thread checks what it reads"));
    drop(movers);
    let counted = cache.counted();
    assert!(counted.hits > 0);
    let (used, items): (u64, u64) = (
        counted.tiers.iter().map(|tier| tier.used).sum(),
        counted.tiers.iter().map(|t| t.items).sum(),
    );
    let mut seen = 0;
    cache.each(&mut |key, _, _| {
        assert!(get(&cache, key).is_some(), "an item that nothing leads to");
        seen += 1;
        true
    });
    assert_eq!(seen, items, "slots in use are items; {used} bytes");
}

#[test]
fn nothing_is_torn_or_stale_in_one_tier() {
    for (_, eviction) in Eviction::ALL {
        soak(&tiers(&[512 * KB], eviction, Making::Inline), 0, 60_000);
    }
}

#[test]
fn nothing_is_torn_or_stale_while_movers_move() {
    for (_, eviction) in Eviction::ALL {
        soak(&tiers(&[256 * KB, 512 * KB, 512 * KB], eviction, Making::Background), 2, 60_000);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn below_capacity_it_behaves_like_a_map(steps in proptest::collection::vec((0..30_u8, 0..4_u8, 0..900_usize), 1..200)) {
        let cache = cache(&tiers(&[4096 * KB, 4096 * KB], Eviction::S3Fifo, Making::Inline));
        let mut map = HashMap::new();
        for (n, (key, what, length)) in steps.into_iter().enumerate() {
            let name = [key; 3];
            match what {
                0 => prop_assert_eq!(cache.delete(&name), map.remove(&key).is_some()),
                1 => prop_assert_eq!(get(&cache, &name), map.get(&key).cloned()),
                _ => {
                    let value = vec![n as u8; length];
                    let meta = (what == 3).then_some(Meta { flags: 9, ..Meta::default() });
                    prop_assert!(cache.put(&name, &value, meta.as_ref()).is_ok());
                    map.insert(key, value);
                }
            }
        }
        let mut count = 0;
        cache.each(&mut |_, _, _| { count += 1; true });
        prop_assert_eq!(count, map.len());
        for (key, value) in &map {
            prop_assert_eq!(get(&cache, &[*key; 3]), Some(value.clone()));
        }
    }
}

/// With as few slabs as sizes, the replaced item may prevent a slab from being reassigned.
#[test]
fn an_edit_can_allocate_while_its_old_item_occupies_a_slot() {
    let cache = cache(&tiers(&[4 * 64 * KB], Eviction::S3Fifo, Making::Inline));
    let put = |key: &[u8], size: usize| {
        let mut value = vec![b'v'; size];
        let done = cache.edit(key, &mut value, &mut |_, _| Edit::Put(Meta::default()));
        assert_eq!(done, Ok(()), "{size} bytes");
        assert_eq!(get(&cache, key).map(|found| found.len()), Some(size));
    };
    for (key, size) in [(b"a", 100), (b"b", 1000), (b"c", 3000), (b"d", 10_000)] {
        put(key, size);
    }
    put(b"d", 300);
}

#[test]
fn size_classes_report_their_slots_and_items() {
    let cache = cache(&tiers(&[8 * 64 * KB], Eviction::S3Fifo, Making::Inline));
    for number in 0..10 {
        Store::set(&cache, format!("key{number}").as_bytes(), b"BBBBBBBBBB", &Meta::default())
            .expect("there is room");
    }
    let mut found = Vec::new();
    cache.classes(&mut |number, class| found.push((number, *class)));
    let [(_, class)] = found[..] else { panic!("{found:?}") };
    assert_eq!((class.slabs, class.used, class.stored), (1, 10, 10));
    assert_eq!(class.slots_per_slab, 64 * KB / class.slot_bytes);
    // For each item a header, metadata, and fourteen bytes in whole words.
    assert_eq!(class.item_bytes, 10 * (8 + 24 + 16));
}
