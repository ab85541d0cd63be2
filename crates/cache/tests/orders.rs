//! Every interleaving of a reader, a storing, a moving and an evicting thread at one bucket: a read returns one whole
//! item of the requested key.
//!
//! Index, items and chains are the library's own files, over loom's atomics, with an index of few slots. Arenas, slots
//! and the cache's use of them are modelled here, with the same steps as in the library (`arena.rs`, `space.rs`,
//! `contents.rs`, `placement/`). Threads are preempted at most [`PREEMPTIONS`] times.

#![expect(clippy::unwrap_used, reason = "a model that can't go on should stop")]

#[path = "../src/chain.rs"]
#[expect(dead_code, reason = "what only other parts of the library need")]
mod chain;
#[path = "../src/index.rs"]
#[expect(dead_code, reason = "what only other parts of the library need")]
mod index;
#[path = "../src/item.rs"]
#[expect(dead_code, reason = "what only other parts of the library need")]
mod item;
#[path = "orders/model.rs"]
mod model;

/// The items of the library's modules with these names.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
    pub(crate) const SLOTS: usize = 2;
    pub(crate) const STRIPES: usize = 2;
    pub(crate) fn wait(_: u32) {
        loom::thread::yield_now();
    }
}
mod store {
    pub(crate) use nearfar_cache::store::Meta;
}
mod sizes {
    pub(crate) const CHUNK: usize = 3;
    #[derive(Clone, Copy)]
    pub(crate) struct Cut {
        pub(crate) class: usize,
        pub(crate) pieces: usize,
    }
}
mod order {
    //! Loom detects deadlocks by itself.
    #[derive(Debug)]
    pub(crate) struct Taken;
    impl Drop for Taken {
        fn drop(&mut self) {}
    }
    pub(crate) struct Rank;
    impl Rank {
        pub(crate) const STRIPE: Self = Self;
        #[expect(clippy::unused_self, reason = "as the library's")]
        pub(crate) const fn wait(self) -> Taken {
            Taken
        }
        #[expect(clippy::unused_self, reason = "as the library's")]
        pub(crate) const fn tried(self) -> Taken {
            Taken
        }
    }
}
use model::{arena, copy, space};

use loom::sync::Arc;
use loom::thread;

use model::{Cache, Key, keys, value};

const PREEMPTIONS: usize = 2;

/// Explores all interleavings.
fn every_order(act: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.max_branches = 20_000;
    model.check(act);
}

/// Acts on a cache while another thread reads a key; returns the value read. The reader is the thread that loom runs
/// last: its loads then return all permitted values, old or new.
fn read_during(cache: Cache, key: Key, act: impl FnOnce(&Cache)) -> (Arc<Cache>, Option<Vec<u8>>) {
    let cache = Arc::new(cache);
    let other = Arc::clone(&cache);
    let reader = thread::spawn(move || other.get(&key));
    act(&cache);
    let found = reader.join().unwrap();
    (cache, found)
}

#[test]
fn a_reader_meets_stores_of_the_key_that_use_the_slot_again() {
    let [a, _] = keys();
    every_order(move || {
        let cache = Cache::new(2);
        cache.set(&a, 1);
        let (cache, found) = read_during(cache, a, move |cache| {
            cache.set(&a, 2);
            cache.set(&a, 3);
        });
        let found = found.expect("there is an item at any time");
        assert!((1..=3).any(|n| found == value(&a, n)), "{found:?}");
        assert_eq!(cache.get(&a), Some(value(&a, 3)));
        assert_eq!(cache.free(), [1, 2]);
    });
}

#[test]
fn a_reader_meets_a_move_and_a_store_of_another_key_in_the_slot_left() {
    let [a, b] = keys();
    every_order(move || {
        let cache = Cache::new(1);
        cache.set(&a, 1);
        let (cache, found) = read_during(cache, a, move |cache| {
            assert!(cache.demote(&a));
            cache.set(&b, 2);
        });
        assert_eq!(found, Some(value(&a, 1)), "the one or the other, whole");
        assert_eq!((cache.get(&a), cache.get(&b)), (Some(value(&a, 1)), Some(value(&b, 2))));
    });
}

#[test]
fn a_reader_meets_an_eviction_and_a_store_of_another_key_with_the_same_tag() {
    let [a, b] = keys();
    every_order(move || {
        let cache = Cache::new(1);
        cache.set(&a, 1);
        let (cache, found) = read_during(cache, a, move |cache| {
            assert!(cache.evict(&a));
            cache.set(&b, 2);
        });
        assert!(found.is_none_or(|found| found == value(&a, 1)));
        assert_eq!((cache.get(&a), cache.get(&b)), (None, Some(value(&b, 2))));
    });
}

#[test]
fn a_store_meets_a_move_of_the_same_key() {
    let [a, _] = keys();
    every_order(move || {
        let cache = Arc::new(Cache::new(2));
        cache.set(&a, 1);
        let other = Arc::clone(&cache);
        let thread = thread::spawn(move || other.set(&a, 2));
        cache.demote(&a);
        thread.join().unwrap();
        assert_eq!(cache.get(&a), Some(value(&a, 2)));
        assert_eq!(cache.free().iter().sum::<usize>(), 3, "all other slots are free");
    });
}

#[test]
fn stores_that_reuse_the_slot_meet_a_move_of_its_old_item() {
    let [a, _] = keys();
    every_order(move || {
        let cache = Arc::new(Cache::new(3));
        cache.set(&a, 1);
        let other = Arc::clone(&cache);
        let thread = thread::spawn(move || {
            other.set(&a, 2);
            other.set(&a, 3);
        });
        cache.demote(&a);
        thread.join().unwrap();
        assert_eq!(cache.get(&a), Some(value(&a, 3)), "what was copied before is dropped");
    });
}

#[test]
fn a_store_meets_an_eviction_of_the_same_key() {
    let [a, _] = keys();
    every_order(move || {
        let cache = Arc::new(Cache::new(2));
        cache.set(&a, 1);
        let other = Arc::clone(&cache);
        let thread = thread::spawn(move || other.set(&a, 2));
        cache.evict(&a);
        thread.join().unwrap();
        let found = cache.get(&a);
        assert!(found.is_none_or(|found| found == value(&a, 2)), "what was replaced is gone");
    });
}

#[test]
fn a_reader_meets_a_version_that_begins_again() {
    let [a, _] = keys();
    every_order(move || {
        let cache = Cache::new(1);
        cache.set_last_version(&a, 1);
        let (_, found) = read_during(cache, a, move |cache| {
            assert!(cache.evict(&a));
            cache.set_last_version(&a, 2);
        });
        assert!(found.is_none_or(|found| found == value(&a, 1) || found == value(&a, 2)));
    });
}

#[test]
fn a_reader_meets_stores_of_a_chain_that_reuse_its_chunks() {
    let [a, _] = keys();
    every_order(move || {
        let cache = Cache::new(4);
        cache.set_chain(&a, 1);
        let (_, found) = read_during(cache, a, move |cache| {
            cache.set_chain(&a, 2);
            cache.set_chain(&a, 3);
        });
        let found = found.expect("there is an item at any time");
        assert!((1..=3).any(|n| found == model::long(&a, n)), "{found:?}");
    });
}

#[test]
fn a_reader_meets_its_entry_going_to_the_other_bucket() {
    every_order(|| {
        let cache = Cache::new(4);
        let [moves, first, second, third, last] = cache.crowd();
        // It is in its second bucket, as the first was full, and has to go back when that is.
        [first, second, moves, third].iter().for_each(|key| cache.set(key, 1));
        assert!(cache.evict(&first));
        let (cache, found) = read_during(cache, moves, move |cache| cache.set(&last, 1));
        assert_eq!(found, Some(value(&moves, 1)));
        assert!([moves, second, third, last].iter().all(|key| cache.get(key).is_some()));
    });
}
