//! The index from keys to items: one hash table for all tiers.
//!
//! A bucket is a cache line of eight slots; a slot is one word: 16 bits of the key's hash (`tag`), the type of the
//! place, and the place. A key has two buckets, and the second follows from the first and the tag, so that an entry can
//! move to its other bucket without reading its key (cuckoo hashing with partial keys: Fan et al., MemC3, NSDI 2013).
//! Readers take no lock. Writers hold the *stripe* of the tag: an entry changes only under its own stripe, and an empty
//! slot is taken by compare-and-swap. An entry that moves is written to its new slot before the old one is cleared, and
//! a counter is incremented in between: a reader that finds no entry checks that counter. The table does not grow: it
//! is sized for the expected number of items (`Config::items`).
#![expect(
    clippy::cast_possible_truncation,
    reason = "words are as wide as addresses here, and a half is what is wanted"
)]

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;

use nearfar_kernel::mempolicy::Policy;
use rapidhash::v3::{DEFAULT_RAPID_SECRETS, RapidSecrets, rapidhash_v3_seeded};

use crate::arena::{Arena, PageSize, WORD};
use crate::order::{Rank, Taken};
use crate::sync::{AtomicU32, AtomicU64, SLOTS, STRIPES, wait};

/// Target share of used slots, in percent: above some 95 hardly any insertion succeeds with a single move.
const LOAD: usize = 92;
const TAG_SHIFT: u32 = 48;
const PLACE: u64 = (1 << 46) - 1;

/// A key's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash(pub(crate) u64);

/// Hashes keys with a secret seed, so that an attacker can't choose keys that share buckets and evict others there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hasher(RapidSecrets);

impl Hasher {
    /// The same seed in all processes: for tests.
    pub(crate) const FIXED: Self = Self(DEFAULT_RAPID_SECRETS);

    pub(crate) const fn seeded(seed: u64) -> Self {
        Self(RapidSecrets::seed(seed))
    }

    /// A random seed.
    pub(crate) fn random() -> Self {
        Self::seeded(RandomState::new().build_hasher().finish())
    }

    /// Hashes a key.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> Hash {
        Hash(rapidhash_v3_seeded(key, &self.0))
    }
}

/// Hashes a key by the fixed seed.
#[cfg(test)]
pub(crate) fn hash(key: &[u8]) -> Hash {
    Hasher::FIXED.hash(key)
}

impl Hash {
    /// The lower half.
    #[inline]
    pub(crate) fn low(self) -> u32 {
        self.0 as u32
    }

    /// 1..=65535, so that an entry is never 0.
    #[inline]
    pub(crate) fn tag(self) -> u64 {
        let tag = self.0 >> TAG_SHIFT;
        tag + u64::from(tag == 0)
    }
}

/// An entry as stored in a slot; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u64);

impl Entry {
    #[inline]
    pub(crate) fn new(hash: Hash, place: u64) -> Self {
        debug_assert!(place <= PLACE, "a place has 46 bits");
        Self(hash.tag() << TAG_SHIFT | place)
    }

    /// Type of place and place.
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
    /// Number of entries of this stripe that moved to their other bucket.
    moves: AtomicU64,
}

impl Stripe {
    /// Takes the stripe if it is free.
    #[inline]
    fn try_take(&self) -> bool {
        self.held.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    /// Waits until the stripe is free and takes it.
    #[inline]
    fn take(&self) -> Taken {
        let taken = Rank::STRIPE.wait();
        let mut spins = 0_u32;
        while !self.try_take() {
            spins += 1;
            wait(spins);
        }
        taken
    }

    #[inline]
    fn give_back(&self) {
        self.held.store(0, Release);
    }
}

/// The hash table.
#[derive(Debug)]
pub(crate) struct Index {
    slots: Arena,
    pub(crate) buckets: u64,
    stripes: Box<[Stripe]>,
}

/// The slots of a bucket.
#[inline]
const fn slots_of(bucket: u64) -> Range<usize> {
    let from = bucket as usize * SLOTS;
    from..from + SLOTS
}

/// A held stripe.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    index: &'a Index,
    hash: Hash,
    stripe: &'a Stripe,
    _taken: Taken,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.stripe.give_back();
    }
}

/// The slot of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At(usize);

impl Index {
    /// A table for this many items.
    ///
    /// # Errors
    /// Unavailable memory.
    pub(crate) fn new(items: usize, pages: PageSize, policy: &Policy) -> io::Result<Self> {
        let buckets = (items * 100 / LOAD / SLOTS).clamp(2, (u32::MAX - 1) as usize);
        Ok(Self {
            slots: Arena::new(buckets * SLOTS * WORD, pages, policy)?,
            buckets: buckets as u64,
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
        })
    }

    /// Number of slots.
    #[cfg(test)]
    pub(crate) const fn capacity(&self) -> usize {
        self.buckets as usize * SLOTS
    }

    #[inline]
    pub(crate) fn first(&self, hash: Hash) -> u64 {
        ((hash.0 & 0xffff_ffff) * self.buckets) >> 32
    }

    /// The other bucket of an entry; applied twice, it returns the first.
    #[inline]
    pub(crate) fn other(&self, bucket: u64, tag: u64) -> u64 {
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

    /// Prefetches the cache lines of a key's buckets.
    #[inline]
    pub(crate) fn prefetch(&self, hash: Hash) {
        for bucket in self.buckets_of(hash) {
            self.slots.prefetch(slots_of(bucket).start);
        }
    }

    /// The first result of `take` over the entries with this hash's tag. It is called without a lock: the item of an
    /// entry may be gone.
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

    /// Whether this entry is still in that slot.
    #[inline]
    pub(crate) fn is_there(&self, at: At, entry: Entry) -> bool {
        self.slot(at.0).load(Relaxed) == entry.0
    }

    /// Waits for the stripe of this hash and takes it.
    #[inline]
    pub(crate) fn lock(&self, hash: Hash) -> Held<'_> {
        let stripe = self.stripe(hash.tag());
        let taken = stripe.take();
        Held { index: self, hash, stripe, _taken: taken }
    }

    /// Waits until all stripes that are held now have been released.
    pub(crate) fn wait_for_all(&self) {
        for stripe in &self.stripes {
            let taken = stripe.take();
            stripe.give_back();
            drop(taken);
        }
    }

    /// Replaces the place of an entry whose stripe is not held, if it is unchanged: for hints in the place.
    pub(crate) fn hint(&self, at: At, entry: Entry, place: u64) -> bool {
        let new = entry.tag() << TAG_SHIFT | place;
        self.slot(at.0).compare_exchange(entry.0, new, Relaxed, Relaxed).is_ok()
    }

    /// Removes the entries whose place `goes` accepts; returns their number. One that concurrently moves to its other
    /// bucket may stay.
    pub(crate) fn sweep(&self, goes: impl Fn(u64) -> bool) -> u64 {
        let mut count = 0;
        for slot in (0..self.buckets as usize * SLOTS).map(|at| self.slot(at)) {
            let entry = Entry(slot.load(Relaxed));
            if entry.0 == 0 || !goes(entry.place()) {
                continue;
            }
            let stripe = self.stripe(entry.tag());
            let taken = stripe.take();
            let still = Entry(slot.load(Relaxed));
            if still.tag() == entry.tag() && goes(still.place()) {
                slot.store(0, Release);
                count += 1;
            }
            stripe.give_back();
            drop(taken);
        }
        count
    }

    /// The stripe of this hash, if it is free.
    #[inline]
    pub(crate) fn try_lock(&self, hash: Hash) -> Option<Held<'_>> {
        let stripe = self.stripe(hash.tag());
        // Constructed only after success, because dropping it releases the stripe.
        stripe.try_take().then(|| Held { index: self, hash, stripe, _taken: Rank::STRIPE.tried() })
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

    /// The slot of the entry with this place.
    #[inline]
    pub(crate) fn find_place(&self, place: u64) -> Option<At> {
        let wanted = Entry::new(self.hash, place);
        self.find(|entry| entry == wanted).map(|(_, at)| at)
    }

    /// Replaces the place of an entry.
    #[inline]
    pub(crate) fn replace(&self, at: At, place: u64) {
        self.index.slot(at.0).store(Entry::new(self.hash, place).0, Release);
    }

    /// Removes an entry.
    #[inline]
    pub(crate) fn remove(&self, at: At) {
        self.index.slot(at.0).store(0, Release);
    }

    /// Removes the entry of another key of this stripe that leads to `place`; false if there is none.
    pub(crate) fn remove_other(&self, hash: Hash, place: u64) -> bool {
        let wanted = Entry::new(hash, place);
        let is_own = core::ptr::eq(self.stripe, self.index.stripe(hash.tag()));
        let is_it = |entry: Entry, at: At| (entry == wanted).then_some(at);
        let found = is_own.then(|| self.index.find(hash, is_it)).flatten();
        found.inspect(|at| self.remove(*at)).is_some()
    }

    /// Adds an entry. If both buckets are full, one of their entries moves to its other bucket, if there is room; else
    /// nothing is added.
    #[inline]
    pub(crate) fn insert(&self, place: u64) -> bool {
        let entry = Entry::new(self.hash, place);
        let buckets = self.index.buckets_of(self.hash);
        buckets.iter().any(|bucket| self.take_empty(*bucket, entry.0).is_some())
            || buckets.iter().any(|bucket| self.make_room(*bucket, entry))
    }

    /// Writes an entry into an empty slot of a bucket.
    fn take_empty(&self, bucket: u64, word: u64) -> Option<At> {
        slots_of(bucket)
            .find(|at| {
                let slot = self.index.slot(*at);
                slot.load(Relaxed) == 0 && slot.compare_exchange(0, word, AcqRel, Relaxed).is_ok()
            })
            .map(At)
    }

    /// Writes an entry into the slot of one that can move to its other bucket.
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

    /// Makes room by removing from this key's buckets one entry that `may_go` accepts; it is called with the place, and
    /// that entry's stripe is held.
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
