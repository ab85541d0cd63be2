//! The cache: items by key, over tiers of memory and one on disk.
//!
//! A reader finds an entry, copies the item, and looks whether item and entry are still the same; it takes no lock and is
//! never waited for. A writer writes a new item beside the old one and exchanges the entry under the stripe of the key; so
//! does who moves an item to another tier. Whoever took an entry away gives the slot back, nobody else. Locks are taken in
//! this order: a stripe, who empties a slab, a class; of two tiers the faster first; who has a class and wants a stripe (to
//! evict) may only try. Of two stripes the second is only tried. What leads to disk is in `below/`; here it is passed over.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex};

use nearfar_kernel::mempolicy::Policy;

use crate::arena::WORD;
use crate::below::{self, Below, Found};
use crate::config::{Config, Error, Making};
use crate::disk::Device;
use crate::index::{At, Entry, Hash, Held, Index, hash};
use crate::item::{EXTRA, HEADER, Header, Item, KEY_MAX, Shape, Stage, VALUE_MAX, size};
use crate::notes::Notes;
use crate::reap::Reaper;
use crate::sizes::Sizes;
use crate::space::Space;
use crate::stats::Reads;
use crate::store::{Meta, Old, Refused};

/// A place is a tier and a word in it.
const TIER_SHIFT: u32 = 43;
/// Items that go at once where room is made.
pub(crate) const BATCH: usize = 16;

/// Items that are wished for in a faster tier, at most.
const WISHES: usize = 1024;
/// Reads that wait to be told to policies that want them.
const READ_NOTES: usize = 64;

/// A cache. Shared by reference among threads.
#[derive(Debug)]
pub struct Cache {
    pub(crate) index: Index,
    pub(crate) below: Option<Box<Below>>,
    pub(crate) spaces: Vec<Space>,
    pub(crate) sizes: Sizes,
    pub(crate) making: Making,
    /// Bytes key and value may have.
    largest: usize,
    pub(crate) now: AtomicU32,
    /// What was stored before this second is to go in it; 0 is nothing.
    pub(crate) flush_at: AtomicU32,
    pub(crate) reads: Reads,
    /// Items of slower tiers that are read.
    pub(crate) wishes: Notes,
    /// What was read lately, for policies that want that.
    pub(crate) read_notes: Notes,
    /// How many want items to stay in their tiers.
    pub(crate) barred: AtomicU32,
    pub(crate) reaper: Reaper,
    /// Somebody found no room.
    pub(crate) wanted: (Mutex<bool>, Condvar),
    wants_reads: bool,
}

/// What came of trying to read an item without a lock.
pub(crate) enum Tried {
    Read(Meta),
    Expired,
    /// Somebody changed it: once more.
    Again,
}

impl Cache {
    /// A cache that holds nothing.
    ///
    /// # Errors
    /// If it can't be so, there is no such memory, or the disk can't be opened.
    pub fn new(config: &Config) -> Result<Self, Error> {
        Self::with_device(config, None)
    }

    /// The same with a device for its disk; the path is what errors call it.
    pub(crate) fn with_device(
        config: &Config,
        device: Option<&Arc<dyn Device>>,
    ) -> Result<Self, Error> {
        let slab = config.check()?;
        let sizes = Sizes::new(slab / WORD);
        let single = sizes.largest() * WORD - HEADER - EXTRA;
        let largest = config.largest(single);
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
        let disk = config.disk.as_ref();
        let below = disk.map(|disk| below::open(&index, disk, device)).transpose()?;
        Ok(Self {
            index,
            below: below.map(Box::new),
            spaces,
            making: config.making,
            largest,
            now: AtomicU32::new(1),
            flush_at: AtomicU32::new(0),
            reads: Reads::default(),
            wishes: Notes::new(WISHES),
            read_notes: Notes::new(READ_NOTES),
            barred: AtomicU32::new(0),
            reaper: Reaper::default(),
            wanted: (Mutex::new(false), Condvar::new()),
            wants_reads: tiers.any(|tier| tier.eviction.make().wants_reads()),
            sizes,
        })
    }

    /// The most bytes key and value may have together.
    #[must_use]
    pub const fn largest(&self) -> usize {
        self.largest
    }

    pub(crate) fn place(tier: usize, at: usize) -> u64 {
        (tier as u64) << TIER_SHIFT | at as u64
    }

    #[inline]
    pub(crate) fn locate(&self, place: u64) -> (usize, &Space, usize) {
        self.in_memory(place).expect("only places in memory are asked for")
    }

    /// Tier and word of a place, unless it is on disk.
    #[inline]
    fn in_memory(&self, place: u64) -> Option<(usize, &Space, usize)> {
        let tier = (place >> TIER_SHIFT) as usize;
        Some((tier, self.spaces.get(tier)?, (place & ((1 << TIER_SHIFT) - 1)) as usize))
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
                    self.note_reads();
                    return Some(meta);
                }
                Some(Tried::Again) => {
                    out.truncate(start);
                    core::hint::spin_loop();
                }
                Some(Tried::Expired) => break,
                None => match &self.below {
                    None => break,
                    Some(below) => {
                        let head = &mut |meta: &Meta, len, out: &mut Vec<u8>| head(meta, len, out);
                        return self.read_below(below, key, out, head);
                    }
                },
            }
        }
        self.reads.miss();
        None
    }

    /// Tells policies that want it what was read, where enough has come together.
    #[inline]
    pub(crate) fn note_reads(&self) {
        if self.wants_reads {
            self.tell_reads_if_many();
        }
    }

    #[inline]
    pub(crate) fn try_read<H>(
        &self,
        key: &[u8],
        (entry, at): (Entry, At),
        out: &mut Vec<u8>,
        head: &mut H,
    ) -> Option<Tried>
    where
        H: FnMut(&Meta, usize, &mut Vec<u8>) + ?Sized,
    {
        let (tier, space, word) = self.in_memory(entry.place())?;
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
        if self.reads.is_noted() {
            space.warm(word);
        }
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
        let new = self.write(hash, (key, value), (meta, None));
        let held = self.index.lock(hash);
        let (mut old, mut more) = (self.find(&held, key), Vec::new());
        if old.is_none() && self.below.is_some() {
            old = self.claim(&held, &mut more);
        }
        let gone = match new {
            Ok(new) => self.exchange(&held, old, new),
            Err(_) => Self::remove_held(&held, old),
        };
        self.changed(&held, key);
        drop(held);
        self.discard(gone);
        more.into_iter().for_each(|place| self.discard(Some(place)));
        self.tick_if_due();
        new.map(|_| ())
    }

    /// Takes a key away; false if there is none.
    pub fn delete(&self, key: &[u8]) -> bool {
        let (held, found) = self.settle(hash(key), key);
        let Some(Found { at, there }) = found else { return false };
        let expired = there.meta().is_over(self.now.load(Relaxed));
        let gone = Self::remove_held(&held, at);
        self.changed(&held, key);
        drop(held);
        self.discard(gone);
        !expired
    }

    /// Takes an entry away; gives the place it led to.
    pub(crate) fn remove_held(held: &Held<'_>, old: Option<(Entry, At)>) -> Option<u64> {
        old.map(|(entry, at)| {
            held.remove(at);
            entry.place()
        })
    }

    /// Tells the disk that a key, whose stripe is held, leads elsewhere or nowhere now.
    #[inline]
    pub(crate) fn changed(&self, held: &Held<'_>, key: &[u8]) {
        if let Some(below) = &self.below {
            below.changed(held.hash(), key);
        }
    }

    pub(crate) fn item(&self, place: u64) -> Item<'_> {
        let (_, space, word) = self.locate(place);
        space.item(word)
    }

    /// The entry of a key whose stripe is held, if it leads to memory.
    pub(crate) fn find(&self, held: &Held<'_>, key: &[u8]) -> Option<(Entry, At)> {
        held.find(|entry| {
            let Some((_, space, word)) = self.in_memory(entry.place()) else { return false };
            let item = space.item(word);
            let header = item.header();
            header.may_be(key.len()) && item.has_key(header, key)
        })
    }

    /// Writes an item where nobody looks yet, with where it lies on disk, if it does; gives its place.
    pub(crate) fn write(
        &self,
        hash: Hash,
        (key, value): (&[u8], &[u8]),
        (meta, copy): (Option<&Meta>, Option<u64>),
    ) -> Result<u64, Refused> {
        let more = if copy.is_some() { WORD } else { 0 };
        let bytes = size(key.len(), value.len(), meta.is_some()) + more;
        let class = self.sizes.class(bytes.div_ceil(WORD));
        let too_large =
            || Refused::TooLarge { bytes: key.len() + value.len(), limit: self.largest };
        let is_one = key.is_empty() || key.len() > KEY_MAX || value.len() > VALUE_MAX;
        if is_one || key.len() + value.len() > self.largest {
            return Err(too_large());
        }
        let (extra, copied) = (meta.is_some(), copy.is_some());
        let chained = class == self.sizes.count();
        let shape = Shape { key: key.len(), value: value.len(), extra, copy: copied, chained };
        let (tier, at, header) = if chained {
            let header = Header::new(Header(0), shape);
            let cut = self.sizes.cut(header.before_slots() + 1, value.len());
            let cut = cut.ok_or_else(too_large)?;
            let found = self.room_for_chain(cut, hash);
            let (tier, slots) = found.ok_or(Refused::NoMemory { bytes })?;
            let item = self.spaces[tier].item(slots[0]);
            let header = Header::new(item.header(), shape);
            item.set_chain(header, cut.slot, &slots);
            (tier, slots[0], header)
        } else {
            let (tier, at) = self.room(class, hash).ok_or(Refused::NoMemory { bytes })?;
            (tier, at, Header::new(self.spaces[tier].item(at).header(), shape))
        };
        let item = self.spaces[tier].item(at);
        item.begin(header);
        if let Some(meta) = meta {
            item.set_meta(header, meta);
        }
        item.write(header, key, value);
        if let Some(copy) = copy {
            item.set_copy(header, copy);
        }
        Ok(Self::place(tier, at))
    }

    /// Has a key, whose stripe is held, lead to a new item, in place of the old entry, if it has one; gives the place that led
    /// to, or that had to go for it.
    pub(crate) fn exchange(
        &self,
        held: &Held<'_>,
        old: Option<(Entry, At)>,
        new: u64,
    ) -> Option<u64> {
        let item = self.item(new);
        item.publish(item.header().at(Stage::Live));
        if let Some((entry, at)) = old {
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
            self.discard(gone);
            Some(new)
        }
    }

    /// An item is no more, nothing leads to it: what lies on disk of it is forgotten, and its slot, if it has one, is free.
    pub(crate) fn discard(&self, place: Option<u64>) {
        if let (Some(below), Some(place)) = (&self.below, place) {
            if self.in_memory(place).is_none() {
                return below.forget(place);
            }
            below.forget_copy(&self.item(place));
        }
        self.free(place);
    }

    /// Gives the slot of an item back to which nothing leads any more.
    pub(crate) fn free(&self, place: Option<u64>) {
        let Some(place) = place else { return };
        let (_, space, at) = self.locate(place);
        space.remove(&mut space.class_in_use(at).lock(), at);
    }
}
