//! The cache: items by key, over tiers of memory.
//!
//! A reader finds an entry, copies the item, and looks whether item and entry are still the same; it takes no lock and is
//! never waited for. A writer writes a new item beside the old one and exchanges the entry under the stripe of the key; so
//! does who moves an item to another tier. Whoever took an entry away gives the slot back, nobody else. Locks are taken in
//! this order: a stripe, then a class; who has a class and wants a stripe (to evict) may only try. Of two stripes the second
//! is only tried.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex};

use nearfar_kernel::mempolicy::Policy;

use crate::arena::WORD;
use crate::config::{Config, Error, Making};
use crate::index::{At, Entry, Hash, Held, Index, hash};
use crate::item::{EXTRA, HEADER, Header, Item, KEY_MAX, Shape, Stage, size};
use crate::notes::Notes;
use crate::space::{Sizes, Space, State};
use crate::stats::Reads;
use crate::store::{Meta, Refused};

/// A place is a tier and a word in it.
const TIER_SHIFT: u32 = 43;
/// Items that go at once where room is made.
pub(crate) const BATCH: usize = 16;
/// Others may take the room that was made; so often it is made again.
const ATTEMPTS: usize = 4;

/// Items that are wished for in a faster tier, at most.
const WISHES: usize = 1024;
/// Reads that wait to be told to policies that want them.
const READ_NOTES: usize = 64;

/// A cache. Shared by reference among threads.
#[derive(Debug)]
pub struct Cache {
    pub(crate) index: Index,
    pub(crate) spaces: Vec<Space>,
    pub(crate) sizes: Sizes,
    pub(crate) making: Making,
    pub(crate) now: AtomicU32,
    /// What was stored before this second is to go in it; 0 is nothing.
    pub(crate) flush_at: AtomicU32,
    pub(crate) reads: Reads,
    /// Items of slower tiers that are read.
    pub(crate) wishes: Notes,
    /// What was read lately, for policies that want that.
    pub(crate) read_notes: Notes,
    /// Somebody found no room.
    pub(crate) wanted: (Mutex<bool>, Condvar),
    wants_reads: bool,
}

/// What came of trying to read an item without a lock.
enum Tried {
    Read(Meta),
    Expired,
    /// Somebody changed it: once more.
    Again,
}

impl Cache {
    /// A cache that holds nothing.
    ///
    /// # Errors
    /// If it can't be so, or there is no such memory.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let slab = config.check()?;
        let sizes = Sizes::new(slab / WORD);
        let memory = |what: &str, bytes: u64| {
            let what = what.to_owned();
            move |source| Error::Memory { what, bytes, source }
        };
        let items = config.item_count();
        let index = Index::new(items, config.pages, &Policy::Default)
            .map_err(memory("the index", items as u64 * WORD as u64))?;
        let space = |(number, tier): (usize, &crate::config::Tier)| {
            let bytes = usize::try_from(tier.bytes).unwrap_or(usize::MAX);
            Space::new(bytes, slab, &sizes, tier.eviction, (config.pages, &tier.policy))
                .map_err(memory(&format!("tier {number}"), tier.bytes))
        };
        let spaces = config.tiers.iter().enumerate().map(space).collect::<Result<Vec<_>, _>>()?;
        let mut tiers = config.tiers.iter();
        Ok(Self {
            index,
            spaces,
            making: config.making,
            now: AtomicU32::new(1),
            flush_at: AtomicU32::new(0),
            reads: Reads::default(),
            wishes: Notes::new(WISHES),
            read_notes: Notes::new(READ_NOTES),
            wanted: (Mutex::new(false), Condvar::new()),
            wants_reads: tiers.any(|tier| tier.eviction.make().wants_reads()),
            sizes,
        })
    }

    /// The most bytes key and value may have together.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.sizes.largest() * WORD - HEADER - EXTRA
    }

    pub(crate) fn place(tier: usize, at: usize) -> u64 {
        (tier as u64) << TIER_SHIFT | at as u64
    }

    #[inline]
    pub(crate) fn locate(&self, place: u64) -> (usize, &Space, usize) {
        let tier = (place >> TIER_SHIFT) as usize;
        (tier, &self.spaces[tier], (place & ((1 << TIER_SHIFT) - 1)) as usize)
    }

    /// Appends the value of a key to `out`; false if there is none.
    #[inline]
    pub fn get(&self, key: &[u8], out: &mut Vec<u8>) -> bool {
        self.read(key, out, &mut |_, _, _| ()).is_some()
    }

    /// As [`crate::store::Store::get`].
    #[inline]
    pub(crate) fn read<H>(&self, key: &[u8], out: &mut Vec<u8>, head: &mut H) -> Option<Meta>
    where
        H: FnMut(&Meta, usize, &mut Vec<u8>) + ?Sized,
    {
        let hash = hash(key);
        let start = out.len();
        loop {
            match self.index.find(hash, |entry, at| self.try_read(key, (entry, at), out, head)) {
                Some(Tried::Read(meta)) => {
                    self.reads.hit();
                    if self.wants_reads {
                        self.tell_reads_if_many();
                    }
                    return Some(meta);
                }
                Some(Tried::Again) => {
                    out.truncate(start);
                    core::hint::spin_loop();
                }
                Some(Tried::Expired) | None => {
                    self.reads.miss();
                    return None;
                }
            }
        }
    }

    #[inline]
    fn try_read<H>(
        &self,
        key: &[u8],
        (entry, at): (Entry, At),
        out: &mut Vec<u8>,
        head: &mut H,
    ) -> Option<Tried>
    where
        H: FnMut(&Meta, usize, &mut Vec<u8>) + ?Sized,
    {
        let (tier, space, word) = self.locate(entry.place());
        let item = space.item(word);
        let header = item.header();
        if !header.may_be(key.len()) || !item.has_key(header, key) {
            // Another key with the same tag; unless it is just going.
            let same = header.is_live() && item.is_still(header) && self.index.is_there(at, entry);
            return (!same).then_some(Tried::Again);
        }
        let meta = item.meta(header);
        let now = self.now.load(Relaxed);
        let expired = meta.is_over(now);
        if !expired {
            head(&meta, header.value(), out);
            item.read_value(header, out);
        }
        if !item.is_still(header) || !self.index.is_there(at, entry) {
            return Some(Tried::Again);
        }
        if expired {
            return Some(Tried::Expired);
        }
        if header.has_extra() {
            item.note_access(header, now);
        }
        let counted = item.count_read(header);
        if tier > 0 && counted && header.reads() == 1 {
            self.wishes.add(entry.place());
        }
        if self.wants_reads {
            self.read_notes.add(entry.place());
        }
        Some(Tried::Read(meta))
    }

    /// Stores a value under a key, in place of what was there.
    ///
    /// # Errors
    /// If it is too large, or there is no memory for it. Then there is nothing under that key.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        self.put(key, value, None)
    }

    /// As [`Self::set`], with what is kept besides the value.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn put(&self, key: &[u8], value: &[u8], meta: Option<&Meta>) -> Result<(), Refused> {
        let hash = hash(key);
        match self.write(hash, (key, value), meta) {
            Ok(new) => {
                let held = self.index.lock(hash);
                let old = self.exchange(&held, key, new);
                drop(held);
                self.free(old);
                Ok(())
            }
            Err(refused) => {
                self.delete(key);
                Err(refused)
            }
        }
    }

    /// Takes a key away; false if there is none.
    pub fn delete(&self, key: &[u8]) -> bool {
        let hash = hash(key);
        let held = self.index.lock(hash);
        let Some((entry, at)) = self.find(&held, key) else { return false };
        held.remove(at);
        let expired = self.has_expired(entry);
        drop(held);
        self.free(Some(entry.place()));
        !expired
    }

    pub(crate) fn has_expired(&self, entry: Entry) -> bool {
        let item = self.item(entry);
        item.meta(item.header()).is_over(self.now.load(Relaxed))
    }

    pub(crate) fn item(&self, entry: Entry) -> Item<'_> {
        let (_, space, word) = self.locate(entry.place());
        space.item(word)
    }

    /// The entry of a key whose stripe is held.
    pub(crate) fn find(&self, held: &Held<'_>, key: &[u8]) -> Option<(Entry, At)> {
        held.find(|entry| {
            let item = self.item(entry);
            let header = item.header();
            header.may_be(key.len()) && item.has_key(header, key)
        })
    }

    /// Writes an item where nobody looks yet; gives its place.
    pub(crate) fn write(
        &self,
        hash: Hash,
        (key, value): (&[u8], &[u8]),
        meta: Option<&Meta>,
    ) -> Result<u64, Refused> {
        let bytes = size(key.len(), value.len(), meta.is_some());
        let class = self.sizes.class(bytes.div_ceil(WORD));
        if key.len() + value.len() > self.largest() || key.is_empty() || key.len() > KEY_MAX {
            return Err(Refused::TooLarge {
                bytes: key.len() + value.len(),
                limit: self.largest(),
            });
        }
        let (tier, at) = self.room(class, hash).ok_or(Refused::NoMemory { bytes })?;
        let item = self.spaces[tier].item(at);
        let shape = Shape { key: key.len(), value: value.len(), extra: meta.is_some() };
        let header = Header::new(item.header(), shape);
        item.begin(header);
        if let Some(meta) = meta {
            item.set_meta(header, meta);
        }
        item.write(header, key, value);
        Ok(Self::place(tier, at))
    }

    /// Has a key, whose stripe is held, lead to a new item; gives the place that it led to, or that had to go for it.
    pub(crate) fn exchange(&self, held: &Held<'_>, key: &[u8], new: u64) -> Option<u64> {
        let (_, space, word) = self.locate(new);
        let item = space.item(word);
        item.publish(item.header().at(Stage::Live));
        if let Some((entry, at)) = self.find(held, key) {
            held.replace(at, new);
            return Some(entry.place());
        }
        if held.insert(new) {
            return None;
        }
        let mut gone = None;
        held.push_out(|place| {
            gone = Some(place);
            true
        });
        self.reads.crowded();
        // Whoever went left a slot, unless another key took it at once: then this one goes, as if evicted.
        if held.insert(new) {
            gone
        } else {
            self.free(gone);
            Some(new)
        }
    }

    /// Gives the slot of an item back to which nothing leads any more.
    pub(crate) fn free(&self, place: Option<u64>) {
        let Some(place) = place else { return };
        let (_, space, at) = self.locate(place);
        space.remove(&mut space.class_in_use(at).lock(), at);
    }

    /// A slot for an item of this class: its tier and word.
    fn room(&self, class: usize, hash: Hash) -> Option<(usize, usize)> {
        let take = |tier: usize| {
            let space = &self.spaces[tier];
            let mut state = space.class(class).lock();
            let found = space.take(class, &mut state, hash.low());
            state.counts.stored += u64::from(found.is_some());
            found.map(|at| (tier, at))
        };
        if let Some(found) = take(0) {
            return Some(found);
        }
        if self.making == Making::Background {
            self.call_movers();
            if let Some(found) = (1..self.spaces.len()).find_map(take) {
                return Some(found);
            }
        }
        let mut key = Vec::with_capacity(KEY_MAX);
        // Others of its size go first, in any tier; then a slab of other sizes.
        for makes in [Self::make_room, Self::rob] {
            for tier in 0..self.spaces.len() {
                for _ in 0..ATTEMPTS {
                    let made = makes(self, tier, class, &mut key);
                    if let Some(found) = take(tier) {
                        return Some(found);
                    }
                    if !made {
                        break;
                    }
                }
            }
        }
        None
    }

    /// Tells movers that there is no room.
    pub(crate) fn call_movers(&self) {
        let (wanted, bell) = &self.wanted;
        if let Ok(mut wanted) = wanted.try_lock()
            && !*wanted
        {
            *wanted = true;
            bell.notify_all();
        }
    }

    /// Frees slots of a class: its items go to the next tier, or out of the last.
    pub(crate) fn make_room(&self, tier: usize, class: usize, key: &mut Vec<u8>) -> bool {
        if tier + 1 < self.spaces.len() {
            return self.demote(tier, class, key) > 0;
        }
        let space = &self.spaces[tier];
        let mut state = space.class(class).lock();
        self.evict(tier, class, &mut state, key) > 0
    }

    /// Has a batch of items go for good.
    fn evict(&self, tier: usize, class: usize, state: &mut State, key: &mut Vec<u8>) -> usize {
        let space = &self.spaces[tier];
        let mut gone = 0;
        for _ in 0..ATTEMPTS {
            // All at once, so that their lines of the index are under way together.
            let mut victims = [None; BATCH];
            for one in &mut victims[gone..] {
                *one = space.victim(class, state, key);
                match one {
                    Some(victim) => self.index.prefetch(victim.hash),
                    None => break,
                }
            }
            for victim in victims.into_iter().flatten() {
                if self.take_out(victim.hash, Self::place(tier, victim.at)) {
                    state.policy.evicted(victim.slot, victim.hash.low());
                    space.give_back(state, victim.at);
                    state.counts.evicted += 1;
                    gone += 1;
                } else {
                    state.policy.kept(victim.slot);
                    state.counts.contended += 1;
                }
            }
            if gone == BATCH {
                break;
            }
        }
        gone
    }

    /// Takes an entry out of the index, unless somebody holds its stripe, or it has gone.
    pub(crate) fn take_out(&self, hash: Hash, place: u64) -> bool {
        let Some(held) = self.index.try_lock(hash) else { return false };
        let Some(at) = held.find_place(place) else { return false };
        held.remove(at);
        true
    }
}
