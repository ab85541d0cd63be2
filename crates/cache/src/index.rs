//! Where the item of a key is: one table for all tiers.
//!
//! A bucket is a cache line of eight slots; a slot is a word: 16 bits of the key's hash (`tag`), what kind of place it is,
//! and the place. A key has two buckets, and the second follows from the first and the tag, so that an entry can move to its
//! other bucket without its key being read (cuckoo hashing with partial keys: Fan et al., MemC3, NSDI 2013). Readers take no
//! lock. Writers hold the *stripe* of the tag: an entry changes under its own stripe only, and an empty slot is taken by
//! compare-and-swap. An entry that moves is written where it goes before it is cleared where it was, and counted in between:
//! who finds nothing looks whether something has moved. The table does not grow: it is made for as many items as are expected
//! (`Config::items`).
#![expect(
    clippy::cast_possible_truncation,
    reason = "words are as wide as addresses here, and a half is what is wanted"
)]

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::io;

use nearfar_kernel::mempolicy::Policy;

use crate::arena::{Arena, PageSize, WORD};

/// Slots of a bucket.
const SLOTS: usize = 8;
/// Locks; tags are spread over them.
const STRIPES: usize = 1024;
/// Share of slots in use the table is made for, in percent: above some 95 hardly any insertion finds room by one move.
const LOAD: usize = 92;
const TAG_SHIFT: u32 = 48;
const PLACE: u64 = (1 << 46) - 1;

/// A key's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash(pub(crate) u64);

/// Hashes a key.
#[inline]
pub(crate) fn hash(key: &[u8]) -> Hash {
    Hash(rapidhash::v3::rapidhash_v3(key))
}

impl Hash {
    /// The lower half.
    #[inline]
    pub(crate) fn low(self) -> u32 {
        self.0 as u32
    }

    /// 1..=65535: an entry is never 0.
    #[inline]
    fn tag(self) -> u64 {
        let tag = self.0 >> TAG_SHIFT;
        tag + u64::from(tag == 0)
    }
}

/// An entry as it stands in a slot; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u64);

impl Entry {
    #[inline]
    pub(crate) fn new(hash: Hash, place: u64) -> Self {
        debug_assert!(place <= PLACE, "a place has 46 bits");
        Self(hash.tag() << TAG_SHIFT | place)
    }

    /// Kind of place and place.
    #[inline]
    pub(crate) const fn place(self) -> u64 {
        self.0 & PLACE
    }

    #[inline]
    const fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe {
    held: AtomicU32,
    /// Entries of this stripe that have gone to their other bucket.
    moves: AtomicU32,
}

impl Stripe {
    /// Takes it, if nobody has it.
    #[inline]
    fn try_take(&self) -> bool {
        self.held.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    /// Takes it as soon as nobody has it.
    #[inline]
    fn take(&self) {
        let mut spins = 0_u32;
        while !self.try_take() {
            spins += 1;
            if spins.is_multiple_of(64) {
                std::thread::yield_now()
            } else {
                core::hint::spin_loop()
            }
        }
    }

    #[inline]
    fn give_back(&self) {
        self.held.store(0, Release);
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct Index {
    slots: Arena,
    buckets: u64,
    stripes: Box<[Stripe]>,
}

/// The slots of a bucket.
#[inline]
const fn slots_of(bucket: u64) -> Range<usize> {
    let from = bucket as usize * SLOTS;
    from..from + SLOTS
}

/// A stripe, held.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    index: &'a Index,
    hash: Hash,
    stripe: &'a Stripe,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.stripe.give_back();
    }
}

/// Where an entry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At(usize);

impl Index {
    /// A table for this many items.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn new(items: usize, pages: PageSize, policy: &Policy) -> io::Result<Self> {
        let buckets = (items * 100 / LOAD / SLOTS).clamp(2, (u32::MAX - 1) as usize);
        Ok(Self {
            slots: Arena::new(buckets * SLOTS * WORD, pages, policy)?,
            buckets: buckets as u64,
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
        })
    }

    /// Slots there are.
    #[cfg(test)]
    const fn capacity(&self) -> usize {
        self.buckets as usize * SLOTS
    }

    #[inline]
    fn first(&self, hash: Hash) -> u64 {
        ((hash.0 & 0xffff_ffff) * self.buckets) >> 32
    }

    /// The other bucket of an entry; applied twice it gives the first again.
    #[inline]
    fn other(&self, bucket: u64, tag: u64) -> u64 {
        let sum = ((tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) * self.buckets) >> 32;
        if sum >= bucket { sum - bucket } else { sum + self.buckets - bucket }
    }

    /// Both buckets of a key.
    #[inline]
    fn buckets_of(&self, hash: Hash) -> [u64; 2] {
        let first = self.first(hash);
        [first, self.other(first, hash.tag())]
    }

    #[inline]
    fn slot(&self, at: usize) -> &AtomicU64 {
        self.slots.word(at)
    }

    #[inline]
    fn stripe(&self, tag: u64) -> &Stripe {
        &self.stripes[(tag as usize) % STRIPES]
    }

    /// Asks for the lines a key's entry may be in.
    #[inline]
    pub(crate) fn prefetch(&self, hash: Hash) {
        for bucket in self.buckets_of(hash) {
            self.slots.prefetch(slots_of(bucket).start);
        }
    }

    /// The first thing that `take` makes of one of the entries with this hash's tag. It is called without a lock: what an
    /// entry leads to may have gone.
    #[inline]
    pub(crate) fn find<R>(
        &self,
        hash: Hash,
        mut take: impl FnMut(Entry, At) -> Option<R>,
    ) -> Option<R> {
        let tag = hash.tag();
        let stripe = self.stripe(tag);
        let mut moves = stripe.moves.load(Acquire);
        loop {
            for bucket in self.buckets_of(hash) {
                for at in slots_of(bucket) {
                    let entry = Entry(self.slot(at).load(Acquire));
                    if entry.tag() == tag
                        && let Some(found) = take(entry, At(at))
                    {
                        return Some(found);
                    }
                }
            }
            let now = stripe.moves.load(Acquire);
            if now == moves {
                return None;
            }
            moves = now;
        }
    }

    /// Whether this entry stands there still.
    #[inline]
    pub(crate) fn is_there(&self, at: At, entry: Entry) -> bool {
        self.slot(at.0).load(Relaxed) == entry.0
    }

    /// Waits for the stripe of this hash.
    #[inline]
    pub(crate) fn lock(&self, hash: Hash) -> Held<'_> {
        let stripe = self.stripe(hash.tag());
        stripe.take();
        Held { index: self, hash, stripe }
    }

    /// Waits until everybody has given back the stripes that are held now.
    pub(crate) fn wait_for_all(&self) {
        for stripe in &self.stripes {
            stripe.take();
            stripe.give_back();
        }
    }

    /// Sets another place for an entry of which no stripe is held, if it is there still: for hints in the place.
    pub(crate) fn hint(&self, at: At, entry: Entry, place: u64) -> bool {
        let new = entry.tag() << TAG_SHIFT | place;
        self.slot(at.0).compare_exchange(entry.0, new, Relaxed, Relaxed).is_ok()
    }

    /// Takes out the entries whose place `goes` accepts; gives how many. One that moves to its other bucket meanwhile may stay.
    pub(crate) fn sweep(&self, goes: impl Fn(u64) -> bool) -> u64 {
        let mut count = 0;
        for slot in (0..self.buckets as usize * SLOTS).map(|at| self.slot(at)) {
            let entry = Entry(slot.load(Relaxed));
            if entry.0 == 0 || !goes(entry.place()) {
                continue;
            }
            let stripe = self.stripe(entry.tag());
            stripe.take();
            let still = Entry(slot.load(Relaxed));
            if still.tag() == entry.tag() && goes(still.place()) {
                slot.store(0, Release);
                count += 1;
            }
            stripe.give_back();
        }
        count
    }

    /// The stripe of this hash, if nobody holds it.
    #[inline]
    pub(crate) fn try_lock(&self, hash: Hash) -> Option<Held<'_>> {
        let stripe = self.stripe(hash.tag());
        // Not before it is known to be ours: who drops it gives it back.
        stripe.try_take().then(|| Held { index: self, hash, stripe })
    }
}

impl<'a> Held<'a> {
    pub(crate) const fn hash(&self) -> Hash {
        self.hash
    }

    /// The first of the entries with this tag that `is_it` accepts.
    #[inline]
    pub(crate) fn find(&self, mut is_it: impl FnMut(Entry) -> bool) -> Option<(Entry, At)> {
        self.index.find(self.hash, |entry, at| is_it(entry).then_some((entry, at)))
    }

    /// Where this very entry stands.
    #[inline]
    pub(crate) fn find_place(&self, place: u64) -> Option<At> {
        let wanted = Entry::new(self.hash, place);
        self.find(|entry| entry == wanted).map(|(_, at)| at)
    }

    /// Another place for an entry.
    #[inline]
    pub(crate) fn replace(&self, at: At, place: u64) {
        self.index.slot(at.0).store(Entry::new(self.hash, place).0, Release);
    }

    /// Takes an entry away.
    #[inline]
    pub(crate) fn remove(&self, at: At) {
        self.index.slot(at.0).store(0, Release);
    }

    /// Adds an entry. Where both buckets are full, one of theirs goes to its other bucket, if there is room. Else nothing is
    /// added.
    #[inline]
    pub(crate) fn insert(&self, place: u64) -> bool {
        let entry = Entry::new(self.hash, place);
        let buckets = self.index.buckets_of(self.hash);
        buckets.iter().any(|bucket| self.take_empty(*bucket, entry.0).is_some())
            || buckets.iter().any(|bucket| self.make_room(*bucket, entry))
    }

    /// Puts an entry into an empty slot of a bucket.
    fn take_empty(&self, bucket: u64, word: u64) -> Option<At> {
        slots_of(bucket)
            .find(|at| {
                let slot = self.index.slot(*at);
                slot.load(Relaxed) == 0 && slot.compare_exchange(0, word, AcqRel, Relaxed).is_ok()
            })
            .map(At)
    }

    /// Puts an entry in the place of one that can go to its other bucket.
    fn make_room(&self, bucket: u64, entry: Entry) -> bool {
        slots_of(bucket).any(|at| {
            let there = Entry(self.index.slot(at).load(Relaxed));
            let to = self.index.other(bucket, there.tag());
            if there.0 == 0 || to == bucket || !self.has_empty(to) {
                return false;
            }
            let stripe = self.index.stripe(there.tag());
            let own = core::ptr::eq(stripe, self.stripe);
            if !own && !stripe.try_take() {
                return false;
            }
            let still = self.index.slot(at).load(Relaxed) == there.0;
            let moved = still && self.take_empty(to, there.0).is_some();
            if moved {
                stripe.moves.fetch_add(1, AcqRel);
                self.index.slot(at).store(entry.0, Release);
            }
            if !own {
                stripe.give_back();
            }
            moved
        })
    }

    fn has_empty(&self, bucket: u64) -> bool {
        slots_of(bucket).any(|at| self.index.slot(at).load(Relaxed) == 0)
    }

    /// Takes an entry out of this key's buckets that `may_go` accepts, told its place and with its stripe held, to make room.
    pub(crate) fn push_out(&self, mut may_go: impl FnMut(u64) -> bool) -> bool {
        self.index.buckets_of(self.hash).into_iter().any(|bucket| {
            slots_of(bucket).any(|at| {
                let there = Entry(self.index.slot(at).load(Relaxed));
                let stripe = self.index.stripe(there.tag());
                if there.0 == 0 || core::ptr::eq(stripe, self.stripe) || !stripe.try_take() {
                    return false;
                }
                let still = self.index.slot(at).load(Relaxed) == there.0;
                let goes = still && may_go(there.place());
                if goes {
                    self.index.slot(at).store(0, Release);
                }
                stripe.give_back();
                goes
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

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
    fn a_stripe_that_is_held_is_not_to_be_had_however_often_it_is_tried() {
        let index = index(1000);
        let hash = hash(b"key");
        let held = index.lock(hash);
        assert!((0..3).all(|_| index.try_lock(hash).is_none()));
        drop(held);
        assert!(index.try_lock(hash).is_some());
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
    fn readers_find_what_moves_between_its_buckets() {
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
        fn it_is_a_map_while_there_is_room(steps in proptest::collection::vec((0..40_u64, 0..3_u8), 1..300)) {
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
                    let hash = super::hash(&key.to_le_bytes());
                    prop_assert!(index.find(hash, |entry, _| (entry.place() == *place).then_some(())).is_some());
                }
                prop_assert!(map.contains_key(&key) || place_of(&index, hash).is_none_or(|place| map.values().any(|v| *v == place)));
            }
        }
    }
}
