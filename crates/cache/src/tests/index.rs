//! The index by itself: a map from hashes to places.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use nearfar_kernel::mempolicy::Policy;
use proptest::prelude::*;

use crate::arena::PageSize;
use crate::index::{Hash, Hasher, Index, hash};

fn index(items: usize) -> Index {
    Index::new(items, PageSize::Base, &Policy::Default).expect("memory for a small table")
}

fn place_of(index: &Index, hash: Hash) -> Option<u64> {
    index.find(hash, |entry, _| Some(entry.place()))
}

#[test]
fn the_other_bucket_of_the_other_is_the_first() {
    let index = index(1000);
    for n in 0..10_000_u64 {
        let hash = hash(&n.to_le_bytes());
        let (first, tag) = (index.first(hash), hash.tag());
        let other = index.other(first, tag);
        assert!(other < index.buckets);
        assert_eq!(index.other(other, tag), first);
    }
}

#[test]
fn try_lock_fails_while_the_stripe_is_held() {
    let index = index(1000);
    let hash = hash(b"key");
    let held = index.lock(hash);
    assert!((0..3).all(|_| index.try_lock(hash).is_none()));
    drop(held);
    assert!(index.try_lock(hash).is_some());
}

#[test]
fn keys_that_collide_by_one_seed_are_apart_by_another() {
    let index = index(10_000);
    let by = |seed: u64, key: u64| {
        let hash = Hasher::seeded(seed).hash(&key.to_le_bytes());
        (index.first(hash), index.other(index.first(hash), hash.tag()))
    };
    for seed in 0..5 {
        // Keys as an attacker who knew the seed would choose them: all in one bucket.
        let chosen =
            (0..).filter(|key| by(seed, *key).0 == 7).take(if cfg!(miri) { 4 } else { 100 });
        let chosen: Vec<u64> = chosen.collect();
        let apart =
            |other| -> BTreeSet<u64> { chosen.iter().map(|key| by(other, *key).0).collect() };
        assert_eq!(apart(seed).len(), 1);
        let (random, keys) = (RandomState::new().build_hasher().finish(), chosen.len());
        assert!(apart(random).len() > keys * 3 / 4, "by {random}");
        assert!(apart(seed + 1).len() > keys * 3 / 4);
    }
    let words = [Hasher::random(), Hasher::random()].map(|hasher| hasher.hash(b"key"));
    assert_ne!(words[0], words[1], "another one each time");
}

#[test]
fn nearly_all_slots_can_be_used() {
    let index = index(10_000);
    let fits = (0..10_000_u64).filter(|n| {
        let hash = hash(&n.to_le_bytes());
        index.lock(hash).insert(*n)
    });
    assert!(fits.count() > 9_900);
}

#[test]
fn readers_find_an_entry_that_moves_between_its_buckets() {
    let index = index(if cfg!(miri) { 100 } else { 2_000 });
    let stays = hash(b"stays");
    assert!(index.lock(stays).insert(77));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let rounds = if cfg!(miri) { 200 } else { 200_000 };
            (0..rounds).all(|_| {
                index.find(stays, |entry, _| (entry.place() == 77).then_some(())).is_some()
            })
        });
        for round in 0..if cfg!(miri) { 2 } else { 40_u64 } {
            let keys = (0..index.capacity() as u64)
                .map(|n| (n, hash(&(n + round * 1_000_000).to_le_bytes())));
            let placed: Vec<_> =
                keys.filter(|(n, hash)| index.lock(*hash).insert(1000 + n)).collect();
            for (n, hash) in placed {
                let held = index.lock(hash);
                let at = held.find_place(1000 + n).expect("what was inserted is there");
                held.remove(at);
            }
        }
        assert!(reader.join().expect("the reader ends"));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]
    #[test]
    fn below_capacity_it_behaves_like_a_map(steps in proptest::collection::vec((0..40_u64, 0..3_u8), 1..300)) {
        let index = index(100);
        let mut map = BTreeMap::new();
        for (n, (key, what)) in steps.into_iter().enumerate() {
            let hash = hash(&key.to_le_bytes());
            let held = index.lock(hash);
            let old = map.get(&key).map(|place| held.find_place(*place).expect("what is in the map is in the table"));
            match (what, old) {
                (0, Some(at)) => { held.remove(at); map.remove(&key); }
                (0, None) => {}
                (_, Some(at)) => { held.replace(at, n as u64); map.insert(key, n as u64); }
                (_, None) => { prop_assert!(held.insert(n as u64)); map.insert(key, n as u64); }
            }
            drop(held);
            for (key, place) in &map {
                let hash = crate::index::hash(&key.to_le_bytes());
                prop_assert!(index.find(hash, |entry, _| (entry.place() == *place).then_some(())).is_some());
            }
            prop_assert!(map.contains_key(&key) || place_of(&index, hash).is_none_or(|place| map.values().any(|v| *v == place)));
        }
    }
}
