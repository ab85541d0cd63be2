//! Batches of movers: items changed meanwhile and items not copied stay in place, and both are counted.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock, Weak};

use super::{Arc, Cache, Copying, Edit, Eviction, KB, Making, Meta, Store, get, tiers};
use crate::copy::{Copier, Cpu, Job, Outcome};
use crate::store::Old;

type Then = Box<dyn FnOnce(&Cache) + Send>;

/// The CPU, with another action in the middle of a batch.
#[derive(Default)]
struct Meddling {
    cache: OnceLock<Weak<Cache>>,
    then: Mutex<Option<Then>>,
    /// Index of the job in the next batch that is left unfinished.
    unfinished: Mutex<Option<usize>>,
    at_once: usize,
    /// Largest number of jobs in one call.
    most: AtomicUsize,
}

impl core::fmt::Debug for Meddling {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Meddling")
    }
}

impl Copier for Meddling {
    fn copy(&self, jobs: &[Job<'_>], outcomes: &mut Vec<Outcome>) {
        self.most.fetch_max(jobs.len(), Relaxed);
        let (before, after) = jobs.split_at(jobs.len() / 2);
        Cpu.copy(before, outcomes);
        let then = self.then.lock().unwrap().take();
        if let (Some(then), Some(cache)) = (then, self.cache.get().and_then(Weak::upgrade)) {
            then(&cache);
        }
        Cpu.copy(after, outcomes);
        outcomes.resize(jobs.len(), Outcome::Done);
        if let Some(at) = self.unfinished.lock().unwrap().take() {
            outcomes[at] = Outcome::Unfinished;
        }
    }

    fn at_once(&self) -> usize {
        self.at_once
    }
}

const VALUE: usize = 2_000;
const META: Meta =
    Meta { expires: 0, flags: 7, cas: 1, accessed: 0, fetched: false, stale: false, won: false };

fn name(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(VALUE / 4)
}

/// A cache of two tiers with 64 items in the first, and the class of these items.
fn filled(at_once: usize) -> (Arc<Cache>, Arc<Meddling>, usize) {
    let config = tiers(&[512 * KB, 2048 * KB], Eviction::Lru, Making::Inline);
    let copier = Arc::new(Meddling { at_once, ..Meddling::default() });
    let cache = Cache::with_copier(&config, Arc::clone(&copier) as Arc<dyn Copier>).unwrap();
    let cache = Arc::new(cache);
    copier.cache.set(Arc::downgrade(&cache)).unwrap();
    (0..64).for_each(|n| cache.put(&name(n), &value(n), Some(&META)).unwrap());
    let class = (0..cache.contents().sizes().count())
        .find(|class| cache.contents().space(0).class(*class).lock().used > 0);
    (cache, copier, class.unwrap())
}

/// Number of items in both tiers, and of slots in use.
fn items(cache: &Cache, class: usize) -> ([u64; 2], [usize; 2]) {
    let stats = cache.counted();
    let used = |tier: usize| cache.contents().space(tier).class(class).lock().used;
    ([stats.tiers[0].items, stats.tiers[1].items], [used(0), used(1)])
}

fn demote(cache: &Cache, class: usize) -> usize {
    cache.placement().demote(0, class, &mut Vec::new())
}

#[test]
fn an_item_changed_during_its_batch_copy_is_demoted_later() {
    let (cache, copier, class) = filled(16);
    let replaced = || vec![b'r'; VALUE];
    *copier.then.lock().unwrap() = Some(Box::new(move |cache: &Cache| {
        // The least recently used items, which are in the batch. Another size would take a slab, which ends the epoch.
        cache.set(&name(0), &replaced()).unwrap();
        assert!(cache.delete(&name(1)));
        let marked = &mut |_: Option<&dyn crate::store::Old>, _: &mut Vec<u8>| {
            Edit::Set(Meta { flags: 8, ..META })
        };
        cache.edit(&name(2), &mut Vec::new(), marked).unwrap();
    }));
    assert_eq!(demote(&cache, class), 1, "of a batch of four");
    assert_eq!(copier.most.load(Relaxed), 4);
    let counts = cache.counted().tiers[0].counts;
    assert_eq!((counts.demoted, counts.contended), (1, 3));
    assert_eq!(items(&cache, class), ([62, 1], [62, 1]), "no slot is lost");
    assert_eq!(get(&cache, &name(0)), Some(replaced()));
    assert_eq!(get(&cache, &name(1)), None);
    let flags =
        |n| Store::get(&*cache, &name(n), &mut Vec::new(), &mut |_, _, _| ()).unwrap().flags;
    assert_eq!((flags(2), flags(3)), (8, 7));
    while demote(&cache, class) > 0 {}
    assert_eq!(items(&cache, class), ([0, 63], [0, 63]));
    assert_eq!(flags(2), 8);
    for n in 2..64 {
        assert_eq!(get(&cache, &name(n)), Some(value(n)));
    }
}

#[test]
fn an_unfinished_copy_stays_in_its_tier_and_its_target_slot_is_lost() {
    let (cache, copier, class) = filled(16);
    *copier.unfinished.lock().unwrap() = Some(2);
    assert_eq!(demote(&cache, class), 3);
    // Its slot counts as an item, like those being written.
    assert_eq!(items(&cache, class), ([61, 4], [61, 4]));
    while demote(&cache, class) > 0 {}
    assert_eq!(items(&cache, class), ([0, 65], [0, 65]));
    for n in 0..64 {
        assert_eq!(get(&cache, &name(n)), Some(value(n)));
        assert!(cache.delete(&name(n)));
    }
    // Nor is its slab reassigned to another size.
    (0..2_000).for_each(|n| cache.set(&name(n), &[1; 300]).unwrap());
    assert_eq!(items(&cache, class).1, [0, 1]);
}

#[test]
fn a_batch_is_no_larger_than_its_copier_takes() {
    for at_once in [1, 3] {
        let (cache, copier, class) = filled(at_once);
        assert_eq!(demote(&cache, class), 4);
        assert_eq!(copier.most.load(Relaxed), at_once);
    }
}

#[test]
fn requested_promotions_are_batched() {
    let (cache, copier, class) = filled(16);
    while demote(&cache, class) > 0 {}
    for _ in 0..2 {
        (0..10).for_each(|n| assert_eq!(get(&cache, &name(n)), Some(value(n))));
    }
    copier.most.store(0, Relaxed);
    *copier.then.lock().unwrap() = Some(Box::new(|cache: &Cache| {
        assert!(cache.delete(&name(4)));
    }));
    cache.step();
    assert_eq!(copier.most.load(Relaxed), 10);
    assert_eq!(cache.counted().tiers[0].counts.promoted, 9);
    assert_eq!(items(&cache, class), ([9, 54], [9, 54]));
    for n in (0..64).filter(|n| *n != 4) {
        assert_eq!(get(&cache, &name(n)), Some(value(n)));
    }
}

#[test]
fn without_dsa_the_dsa_setting_fails_and_auto_falls_back_to_the_cpu() {
    let with = |copying| super::Config {
        copying,
        ..tiers(&[512 * KB, 512 * KB], Eviction::Lru, Making::Inline)
    };
    match Cache::new(&with(Copying::Dsa)) {
        Err(crate::Error::Copying(error)) => {
            assert!(error.to_string().starts_with("copying by DSA: "), "{error}");
        }
        found => assert!(found.is_ok() && crate::copy::Dsa::open().is_ok(), "{found:?}"),
    }
    Cache::new(&with(Copying::Auto)).unwrap();
}

#[test]
fn a_flush_leaves_nothing_while_slabs_change_their_class() {
    let cache = super::cache(&tiers(&[512 * KB, 2048 * KB], Eviction::Lru, Making::Inline));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Each slab that changes its class ends the epoch of its arena.
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                cache.contents().space(0).arena.next_epoch();
            }
        });
        for _ in 0..50 {
            (0..64).for_each(|n| cache.put(&name(n), &value(n), Some(&META)).unwrap());
            cache.flush(0);
            let left = (0..64).filter(|n| get(&cache, &name(*n)).is_some()).count();
            if left > 0 {
                is_over.store(true, Relaxed);
            }
            assert_eq!(left, 0);
        }
        is_over.store(true, Relaxed);
    });
}

#[test]
fn an_edit_carries_no_item_past_a_flush() {
    let cache = super::cache(&tiers(&[512 * KB, 2048 * KB], Eviction::Lru, Making::Inline));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let count = |key: &[u8]| {
        let mut more = |old: Option<&dyn Old>, into: &mut Vec<u8>| {
            let Some(old) = old else { return Edit::Keep };
            old.read(into);
            into.push(b'+');
            Edit::Put(META)
        };
        cache.edit(key, &mut Vec::new(), &mut more).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                (0..4).for_each(|n| count(&name(n)));
            }
        });
        let left: usize = (0..200)
            .map(|_| {
                (0..512).for_each(|n| cache.put(&name(n), &value(n), Some(&META)).unwrap());
                cache.flush(0);
                (0..512).filter(|n| get(&cache, &name(*n)).is_some()).count()
            })
            .sum();
        is_over.store(true, Relaxed);
        assert_eq!(left, 0);
    });
}
