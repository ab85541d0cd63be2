//! Background expiry removes expired items, a few at a time, and no others.

use core::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::expire::SLOTS_PER_SECOND;

fn key(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

/// Stores an item that is no more from a second on, 0 for ever.
fn put(cache: &Cache, number: u32, len: usize, expires: u32) {
    let meta = Meta { expires, flags: number, ..Meta::default() };
    cache.put(&key(number), &vec![b'v'; len], Some(&meta)).expect("there is room");
}

fn items(cache: &Cache) -> u64 {
    cache.counted().tiers.iter().map(|tier| tier.items).sum()
}

/// Reaps all there is to reap in this second.
fn reap(cache: &Cache) -> usize {
    (0..1000).map(|_| cache.expire_some()).sum()
}

#[test]
fn the_reaper_removes_only_expired_items() {
    let cache = cache(&tiers(&[4096 * KB], Eviction::S3Fifo, Making::Inline));
    for number in 0..900 {
        put(&cache, number, 10 + number as usize % 700, [0, 5, 9][number as usize % 3]);
    }
    cache.set(b"plain", b"for ever").expect("there is room");
    assert!(get(&cache, &key(1)).is_some());
    cache.set_now(4);
    assert_eq!(reap(&cache), 0);
    cache.set_now(5);
    assert_eq!((reap(&cache), reap(&cache)), (300, 0));
    assert_eq!(items(&cache), 601);
    cache.set_now(9);
    assert_eq!(reap(&cache), 300);
    assert!((0..900).all(|number| get(&cache, &key(number)).is_some() == (number % 3 == 0)));
    assert!(get(&cache, b"plain").is_some());
    let counts = cache.counted().tiers[0].counts;
    assert_eq!(
        (counts.expired, counts.reaped, counts.unfetched, counts.evicted),
        (600, 600, 599, 0)
    );
    let mut figures = Vec::new();
    cache.stats(&mut |name, value| figures.push((name.to_owned(), value)));
    let figure =
        |wanted: &str| figures.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
    assert_eq!(figure("crawler_reclaimed"), Some(600));
    assert_eq!(figure("expired_unfetched"), Some(599));
    assert_eq!(figure("reclaimed"), Some(0));
    assert!(figure("crawler_items_checked") > Some(1800));
}

#[test]
fn slots_of_expired_items_are_reused() {
    let cache = cache(&tiers(&[512 * KB], Eviction::S3Fifo, Making::Inline));
    for round in 0..10 {
        let from = round * 1000;
        (from..from + 900).for_each(|number| put(&cache, number, 200, 10 * round + 5));
        cache.set_now(10 * round + 5);
        assert_eq!(reap(&cache), 900);
    }
    assert_eq!(cache.counted().tiers[0].counts.evicted, 0);
    assert_eq!(items(&cache), 0);
}

#[test]
fn evicting_an_expired_item_counts_as_expiry() {
    let cache = cache(&tiers(&[256 * KB], Eviction::Lru, Making::Inline));
    (0..200).for_each(|number| put(&cache, number, 1000, 5));
    let before = cache.counted().tiers[0].counts;
    cache.set_now(5);
    (1000..1100).for_each(|number| put(&cache, number, 1000, 0));
    let after = cache.counted().tiers[0].counts;
    assert_eq!((before.expired, after.reaped, after.evicted), (0, 0, before.evicted));
    assert!(after.expired > 20 && after.unfetched == after.expired, "{after:?}");
}

#[test]
fn evictions_count_unread_and_expiring_items() {
    let cache = cache(&tiers(&[256 * KB], Eviction::Lru, Making::Inline));
    let evicted = || {
        let counts = cache.counted().tiers[0].counts;
        (counts.evicted, counts.evicted_unfetched, counts.evicted_expiring)
    };
    (0..100).for_each(|number| put(&cache, number, 1000, number % 2 * 50));
    assert_eq!(evicted(), (0, 0, 0));
    (0..100).for_each(|number| assert!(get(&cache, &key(number)).is_some()));
    (1000..3000).for_each(|number| put(&cache, number, 1000, 0));
    let gone: Vec<u32> = (0..100).filter(|number| get(&cache, &key(*number)).is_none()).collect();
    let of_them =
        |is_counted: fn(&u32) -> bool| gone.iter().filter(|one| is_counted(one)).count() as u64;
    let (read, expiring) = (of_them(|_| true), of_them(|number| number % 2 == 1));
    let all = evicted().0;
    assert!(all > 1000 && read > 10, "{all} evicted, {read} of them read before");
    assert_eq!(evicted(), (all, all - read, expiring));
}

#[test]
fn the_reaper_visits_a_bounded_number_of_slots_per_second() {
    let small = tiers(&[32 * 1024 * KB], Eviction::S3Fifo, Making::Inline);
    let cache = cache(&Config { items: Some(400_000), ..small });
    let count = u32::try_from(SLOTS_PER_SECOND + 10_000).expect("it is small");
    (0..count).for_each(|number| put(&cache, number, 4, 2));
    cache.set_now(2);
    let first = reap(&cache);
    assert!(first > 0 && first <= SLOTS_PER_SECOND, "{first}");
    cache.set_now(3);
    assert_eq!(first + reap(&cache), count as usize);
    assert_eq!(items(&cache), 0);
}

#[test]
fn all_tiers_and_values_of_many_slots_are_walked() {
    let config = Config {
        slab: Some(64 << 10),
        item_max: Some(60 << 10),
        ..tiers(&[1024 * KB, 2048 * KB], Eviction::S3Fifo, Making::Inline)
    };
    let cache = cache(&config);
    for number in 0..60 {
        put(&cache, number, 50_000, 5 * (number % 2));
    }
    let before = cache.counted();
    assert!(before.tiers.iter().all(|tier| tier.items > 5), "{before:?}");
    let there = |number: &u32| get(&cache, &key(*number)).is_some();
    let stay = (0..60).filter(|number| number % 2 == 0).filter(there).count();
    cache.set_now(5);
    let gone = reap(&cache);
    assert!(gone > 5);
    assert_eq!(
        items(&cache),
        before.tiers.iter().map(|tier| tier.items).sum::<u64>() - gone as u64
    );
    assert_eq!(items(&cache), stay as u64);
    assert_eq!((0..60).filter(there).count(), stay);
    let used: usize =
        cache.counted().tiers.iter().flat_map(|tier| &tier.classes).map(|class| class.used).sum();
    assert!(used >= stay * 4 && used <= stay * 8, "{used} slots of {stay} items");
}

#[test]
fn an_item_extended_during_reaping_is_never_lost() {
    let cache = cache(&tiers(&[512 * KB, 1024 * KB], Eviction::S3Fifo, Making::Inline));
    let (keys, done) = (300, core::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reaping = scope.spawn(|| {
            let (mut gone, mut second) = (0, 1);
            while !done.load(Relaxed) {
                second += 1;
                cache.set_now(second);
                gone += reap(&cache);
            }
            gone
        });
        for round in 0..40 {
            for number in 0..keys {
                // Over at once, and then not.
                put(&cache, number, 100 + (number + round) as usize % 300, 1);
                let mut meta = |_: Option<&dyn crate::store::Old>, value: &mut Vec<u8>| {
                    value.extend_from_slice(b"lasts");
                    Edit::Put(Meta { flags: round, ..Meta::default() })
                };
                cache.edit(&key(number), &mut Vec::new(), &mut meta).expect("there is room");
                assert_eq!(get(&cache, &key(number)).as_deref(), Some(&b"lasts"[..]));
            }
        }
        done.store(true, Relaxed);
        reaping.join().expect("it reaps");
    });
    assert!((0..keys).all(|number| get(&cache, &key(number)).as_deref() == Some(b"lasts")));
    assert_eq!(items(&cache), u64::from(keys));
}

#[test]
fn movers_reap_and_a_dedicated_thread_reaps_without_movers() {
    for movers in [1, 0] {
        let making = if movers > 0 { Making::Background } else { Making::Inline };
        let cache = Arc::new(cache(&tiers(&[512 * KB], Eviction::S3Fifo, making)));
        (0..100).for_each(|number| put(&cache, number, 100, 5));
        let mut threads = crate::mover::Movers::start(&cache, movers).expect("a thread");
        threads.expire_too().expect("a thread");
        cache.set_now(5);
        while items(&cache) > 0 {
            std::thread::yield_now();
        }
        assert_eq!(threads.end(), Ok(()));
    }
}
