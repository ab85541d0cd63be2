//! Items larger than any slot: they behave as ordinary items, stay whole in all cases, and are removed completely.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{Arc, cache, get, prop_assert_eq, proptest, tiers};
use super::{Cache, Config, Edit, Eviction, HashMap, KB, Making, Meta, Movers, Refused, Store};
use crate::arena::WORD;
use crate::contents::Contents;
use crate::item::{Header, Shape, Stage};
use proptest::prelude::*;

/// Bytes that identify key and version, and every 500 of them their offset in the value.
fn large(key: u32, version: u32, length: usize) -> Vec<u8> {
    let seed = (u64::from(key) << 32 | u64::from(version)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let block: Vec<u8> = (1..64_u32).flat_map(|n| seed.rotate_left(n).to_le_bytes()).collect();
    let mut value = [key.to_le_bytes(), version.to_le_bytes()].concat();
    while value.len() < length {
        value.extend_from_slice(&block);
        value.extend_from_slice(&value.len().to_le_bytes());
    }
    value.truncate(length.max(8));
    value
}

/// The version of such a value, if it is a whole one of this key.
fn version_of(key: u32, found: &[u8]) -> Option<u32> {
    let version = u32::from_le_bytes(found.get(4..8)?.try_into().ok()?);
    (found == large(key, version, found.len())).then_some(version)
}

/// Checks that no slot is in use except those of counted items.
fn assert_no_rest(cache: &Cache) {
    for space in cache.contents().spaces() {
        for class in space.classes() {
            let state = class.lock();
            assert_eq!((state.used, state.chunks), (0, 0), "slots of {} words", class.words());
        }
    }
}

/// The number of items found, which must equal the count.
fn assert_counted(cache: &Cache) -> u64 {
    let mut seen = 0;
    cache.each(&mut |key, _, length| {
        assert_eq!(get(cache, key).map(|found| found.len()), Some(length), "nothing leads to it");
        seen += 1;
        true
    });
    assert_eq!(seen, cache.counted().tiers.iter().map(|tier| tier.items).sum::<u64>());
    seen
}

#[test]
fn values_of_all_lengths_up_to_sixteen_mebibytes_come_back_as_stored() {
    let config = Config { slab: None, ..tiers(&[65 << 20], Eviction::S3Fifo, Making::Inline) };
    let cache = cache(&config);
    let most = (16 << 20) - 1;
    let single = cache.contents().sizes().largest() * WORD - 32;
    for length in [8, single - 4, single - 3, single, 100_000, 1 << 20, most - 1, most] {
        let value = large(1, 2, length);
        cache.set(b"key", &value).expect("room");
        assert!(get(&cache, b"key") == Some(value), "{length} bytes");
        assert_eq!(assert_counted(&cache), 1);
    }
    let refused = cache.set(b"key", &vec![0; most + 1]);
    assert!(matches!(refused, Err(Refused::TooLarge { .. })), "{refused:?}");
    assert!(get(&cache, b"key").is_none());
    assert_no_rest(&cache);
}

#[test]
fn the_item_size_limit_is_enforced_and_may_not_exceed_a_quarter_of_a_tier() {
    let with = |item_max| Config {
        item_max: Some(item_max),
        ..tiers(&[1024 * KB, 512 * KB], Eviction::S3Fifo, Making::Inline)
    };
    let cache = cache(&with(50_000));
    cache.set(b"key", &[1; 49_997]).expect("fifty thousand with its key");
    let refused = cache.set(b"key", &[1; 49_998]);
    assert_eq!(refused, Err(Refused::TooLarge { bytes: 50_001, limit: 50_000 }));
    assert_eq!(cache.largest(), 50_000);
    let error = Cache::new(&with(200_000)).expect_err("refused").to_string();
    assert!(
        error.starts_with("items of 200000 bytes are more than a quarter of tier 1"),
        "{error}"
    );
}

#[test]
fn edits_see_the_whole_large_value_and_change_metadata_in_place() {
    let cache = cache(&tiers(&[2048 * KB], Eviction::S3Fifo, Making::Inline));
    let value = large(3, 1, 200_000);
    let meta = Meta { flags: 5, cas: 1, ..Meta::default() };
    Store::set(&cache, b"key", &value, &meta).expect("room");
    let append = &mut |old: Option<&dyn super::super::store::Old>, buffer: &mut Vec<u8>| {
        let old = old.expect("it is there");
        assert_eq!((old.len(), old.meta().flags), (200_000, 5));
        old.read(buffer);
        buffer.extend_from_slice(b"more");
        Edit::Put(Meta { cas: 2, ..old.meta() })
    };
    cache.edit(b"key", &mut Vec::new(), append).expect("room");
    let stale = Meta { flags: 6, cas: 3, stale: true, ..Meta::default() };
    let stored = cache.counted().tiers[0].counts.stored;
    cache.edit(b"key", &mut Vec::new(), &mut |_, _| Edit::Set(stale)).expect("in place");
    assert_eq!(cache.counted().tiers[0].counts.stored, stored);
    let mut out = Vec::new();
    let found = Store::get(&cache, b"key", &mut out, &mut |meta, length, out| {
        out.extend_from_slice(format!("{} {length} ", meta.flags).as_bytes());
    });
    assert_eq!(found.map(|meta| (meta.cas, meta.stale)), Some((3, true)));
    assert!(out == [b"6 200004 ", &value[..], b"more"].concat());
    assert!(cache.delete(b"key"));
    assert_no_rest(&cache);
}

#[test]
fn expired_flushed_and_evicted_items_release_all_their_chunks() {
    let cache = cache(&tiers(&[2048 * KB], Eviction::S3Fifo, Making::Inline));
    let store = |key: &[u8], expires| {
        let meta = Meta { expires, ..Meta::default() };
        Store::set(&cache, key, &large(1, 1, 100_000), &meta).expect("room");
    };
    store(b"soon", 5);
    store(b"late", 0);
    cache.set_now(5);
    assert!(get(&cache, b"soon").is_none());
    assert_eq!(cache.expire(), 1);
    assert_eq!(assert_counted(&cache), 1);
    cache.flush(0);
    assert_no_rest(&cache);
    (0..100_u32).for_each(|key| store(&key.to_le_bytes(), 0));
    assert!(assert_counted(&cache) > 8 && cache.counted().tiers[0].counts.evicted > 50);
    let mut class = (0, 0);
    cache.classes(&mut |_, found| class = (found.items, found.item_bytes));
    assert!(class.1 >= class.0 * 100_000 && class.1 < class.0 * 101_000, "{class:?}");
    cache.flush(0);
    assert_no_rest(&cache);
}

#[test]
fn slabs_with_chunks_can_be_taken_by_other_sizes_and_the_other_way_round() {
    let cache = cache(&tiers(&[1024 * KB], Eviction::S3Fifo, Making::Inline));
    for round in 0..3_u32 {
        (0..12_u32).for_each(|key| {
            let value = large(key, round, 50_000 + key as usize * 15_000);
            cache.set(&key.to_le_bytes(), &value).expect("small ones leave");
            assert_eq!(
                get(&cache, &key.to_le_bytes()).and_then(|v| version_of(key, &v)),
                Some(round)
            );
        });
        assert_counted(&cache);
        for key in 100..9_000_u32 {
            cache
                .set(&key.to_le_bytes(), &large(key, round, 90 + key as usize % 300))
                .expect("room");
        }
        assert!(assert_counted(&cache) > 1_000);
    }
    for key in 0..9_000_u32 {
        cache.delete(&key.to_le_bytes());
    }
    assert_no_rest(&cache);
}

#[test]
fn large_items_are_demoted_and_promoted_when_read() {
    let cache = cache(&tiers(&[1024 * KB, 4096 * KB], Eviction::S3Fifo, Making::Inline));
    for key in 0..24_u32 {
        cache.set(&key.to_le_bytes(), &large(key, 9, 120_000)).expect("room");
    }
    let found = |key: u32| get(&cache, &key.to_le_bytes()).and_then(|v| version_of(key, &v));
    let there = (0..24).filter(|key| found(*key) == Some(9)).count();
    assert!(there >= 23, "{there} of 24 in two tiers that hold them");
    assert!(cache.counted().tiers[0].counts.demoted >= 15);
    for _ in 0..30 {
        (0..4).for_each(|key| assert_eq!(found(key), Some(9)));
        cache.step();
    }
    assert!(cache.counted().tiers[0].counts.promoted > 0);
    assert_counted(&cache);
    cache.flush(0);
    assert_no_rest(&cache);
}

#[test]
fn a_forged_chain_is_harmless() {
    let cache = cache(&tiers(&[256 * KB], Eviction::S3Fifo, Making::Inline));
    let space = cache.contents().space(0);
    let last = space.slab_count() * space.slab_words() - 1;
    let shape = Shape { key: 3, value: 100_000, extra: false, copy: true, chained: true };
    let forged = Header::new(Header::ZERO, shape).at(Stage::Live);
    for said in [0, u64::MAX, 7 << 32 | 2048, 60_000 << 32 | 2_000_000, 2 << 32 | 2_097_152] {
        let item = space.item(last);
        item.publish(forged);
        space.arena.word(last + forged.before_slots()).store(said, Relaxed);
        (1..8).for_each(|n| {
            space.arena.word(last + forged.before_slots() + n).store(!0 >> n, Relaxed)
        });
        let mut out = Vec::new();
        item.read_value(forged, &mut out);
        item.copy_value(forged, &mut vec![0; 100_000]);
        assert!(out.len() <= 100_000);
        cache.request_promotion(Contents::place(0, last));
        assert_eq!(cache.step(), 0);
    }
}

#[test]
fn readers_see_one_value_whole_while_it_is_replaced_and_edited() {
    let cache = cache(&tiers(&[512 * KB, 512 * KB], Eviction::S3Fifo, Making::Inline));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut newest = 0;
                while !done.load(Relaxed) {
                    if let Some(found) = get(&cache, b"key") {
                        let version = version_of(1, &found).expect("a torn value");
                        assert!(version >= newest, "older than one that was seen");
                        newest = version;
                    }
                }
            });
        }
        for version in 1..600_u32 {
            let length = 20_000 + (version as usize * 7_919) % 100_000;
            let meta = Meta { flags: version, ..Meta::default() };
            Store::set(&cache, b"key", &large(1, version, length), &meta).expect("room");
            let set = Meta { cas: 1, ..meta };
            cache.edit(b"key", &mut Vec::new(), &mut |_, _| Edit::Set(set)).expect("in place");
            cache.set(b"other", &large(2, version, 110_000 - length / 2)).expect("room");
            cache.step();
        }
        done.store(true, Relaxed);
    });
    // It may have been evicted, as there is room for only a few of that length in each tier.
    let last = get(&cache, b"key").map(|found| version_of(1, &found));
    assert!(last.is_none_or(|version| version == Some(599)), "{last:?} is not the last");
    assert_eq!(cache.delete(b"key"), last.is_some());
}

/// Threads that store, append, delete and read values of up to two mebibytes, while movers move.
fn soak(config: &Config, movers: usize, steps: u32) {
    const KEYS: u32 = 300;
    const THREADS: u32 = 2;
    let cache = Arc::new(cache(config));
    let movers = Movers::start(&cache, movers).expect("threads");
    let work = |thread: u32| {
        let cache = Arc::clone(&cache);
        move || {
            let mut dice = 0x9e37_79b9_7f4a_7c15_u64 + u64::from(thread);
            let mut mine: HashMap<u32, Option<u32>> = HashMap::new();
            for step in 1..=steps {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                let key = (dice >> 40) as u32 % KEYS;
                let own = key % THREADS == thread;
                let name = key.to_le_bytes();
                match dice % 16 {
                    0..5 if own => {
                        // Half of them small, a sixteenth up to two mebibytes.
                        let most =
                            [3_000, 3_000, 3_000, 60_000, 60_000, 200_000, 200_000, 2_097_100];
                        let most = most[(dice >> 20) as usize % 8];
                        let value = large(key, step, (dice >> 8) as usize % most);
                        let meta = dice.is_multiple_of(3).then(Meta::default);
                        let stored = cache.put(&name, &value, meta.as_ref());
                        mine.insert(key, stored.is_ok().then_some(step));
                    }
                    5 if own => {
                        cache.delete(&name);
                        mine.insert(key, None);
                    }
                    _ => {
                        let Some(found) = get(&cache, &name) else { continue };
                        let version = version_of(key, &found);
                        assert!(version.is_some(), "a torn value, or another key's");
                        let last = mine.get(&key).copied().flatten();
                        assert!(!own || last == version, "not what was acknowledged");
                    }
                }
            }
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|thread| std::thread::spawn(work(thread))).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a thread checks what it reads"));
    drop(movers);
    assert!(assert_counted(&cache) > 20 && cache.counted().hits > 0);
    cache.flush(0);
    assert_no_rest(&cache);
}

#[test]
fn large_values_are_neither_torn_nor_stale_while_movers_move() {
    let config = |making| Config {
        slab: Some(128 << 10),
        ..tiers(&[8192 * KB, 16384 * KB], Eviction::S3Fifo, making)
    };
    soak(&config(Making::Background), 2, 2_000);
    soak(&config(Making::Inline), 0, 1_000);
}

#[test]
fn other_policies_keep_large_values_whole_too() {
    for eviction in [Eviction::Sieve, Eviction::Lru, Eviction::WTinyLfu] {
        let config = tiers(&[8192 * KB, 8192 * KB], eviction, Making::Background);
        soak(&Config { slab: Some(256 << 10), ..config }, 1, 500);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn below_capacity_it_behaves_like_a_map_of_large_values(
        steps in proptest::collection::vec((0..6_u8, 0..5_u8, 0..150_000_usize), 1..60),
    ) {
        let cache = cache(&tiers(&[2048 * KB, 2048 * KB], Eviction::S3Fifo, Making::Inline));
        let mut map = HashMap::new();
        for (n, (key, what, length)) in steps.into_iter().enumerate() {
            let name = [key; 3];
            match what {
                0 => prop_assert_eq!(cache.delete(&name), map.remove(&key).is_some()),
                1 => prop_assert_eq!(get(&cache, &name), map.get(&key).cloned()),
                2 => {
                    let meta = Meta { flags: 4, ..Meta::default() };
                    let set = &mut |old: Option<&dyn super::super::store::Old>, _: &mut Vec<u8>| {
                        if old.is_some() { Edit::Set(meta) } else { Edit::Keep }
                    };
                    prop_assert!(cache.edit(&name, &mut Vec::new(), set).is_ok());
                }
                _ => {
                    let value = large(key.into(), n as u32, length);
                    let meta = (what == 3).then_some(Meta { flags: 9, ..Meta::default() });
                    prop_assert!(cache.put(&name, &value, meta.as_ref()).is_ok());
                    map.insert(key, value);
                }
            }
        }
        prop_assert_eq!(assert_counted(&cache), map.len() as u64);
        for (key, value) in &map {
            prop_assert_eq!(get(&cache, &[*key; 3]), Some(value.clone()));
        }
        cache.flush(0);
        assert_no_rest(&cache);
    }
}
