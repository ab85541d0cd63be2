//! The contents of a cache: the index, the tiers of memory, and the disk tier, with the clock by which items expire.
//!
//! A reader finds an entry, copies the item, and then checks that item and entry are unchanged; it takes no lock, and
//! writers never wait for it. A writer writes the new item beside the old one and exchanges the entry under the stripe
//! of the key; so does a thread that moves an item to another tier. Only the thread that removed an entry frees the
//! slot. Locks are taken in this order: a stripe, the emptying lock of a tier, a class; of two tiers the faster first.
//! A thread that holds a class and needs a stripe (to evict) may only try. Of two stripes the second is only tried
//! (`order.rs` checks this). Where items are placed, and how room is made: `placement/`; entries that lead to disk:
//! `on_disk/`.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::Arc;

use nearfar_kernel::mempolicy::Policy;

use crate::arena::WORD;
use crate::below::{self, Below, is_disk};
use crate::config::{Config, Error};
use crate::disk::Device;
use crate::index::{At, Entry, Hash, Hasher, Held, Index};
use crate::item::{Header, Item, KEY_MAX, Last, Stage};
use crate::sizes::Sizes;
use crate::space::Space;
use crate::store::Meta;

/// A place is a tier and a word in it.
const TIER_SHIFT: u32 = 43;

/// The index, and the items to which it leads.
#[derive(Debug)]
pub(crate) struct Contents {
    hasher: Hasher,
    index: Index,
    below: Option<Box<Below>>,
    spaces: Vec<Space>,
    sizes: Sizes,
    now: AtomicU32,
    /// Items stored before `flush_at` expire in this second; 0: none.
    flush_at: AtomicU32,
    /// Number of threads that need items to stay in their tiers.
    barred: AtomicU32,
    /// Items evicted because their buckets in the index were full.
    crowded: AtomicU64,
}

impl Contents {
    /// Nothing, but for the objects on disk; slabs have `slab` bytes.
    ///
    /// # Errors
    /// Unavailable memory, or a disk that can't be opened.
    pub(crate) fn new(
        config: &Config,
        slab: usize,
        device: Option<&Arc<dyn Device>>,
    ) -> Result<Self, Error> {
        let sizes = Sizes::new(slab / WORD);
        let memory = |what: &str, bytes: u64| {
            let what = what.to_owned();
            move |source| Error::Memory { what, bytes, source }
        };
        let items = config.item_count();
        let index = Index::new(items, config.pages, &Policy::Default)
            .map_err(memory("the index", items as u64 * WORD as u64))?;
        let disk = config.disk.as_ref();
        let below = disk.map(|disk| below::open(&index, disk, device)).transpose()?;
        let hasher = match &below {
            _ if cfg!(test) => Hasher::FIXED,
            // Objects on disk are found by the hashes of their keys.
            Some(below) => Hasher::seeded(below.opened.seed),
            None => Hasher::random(),
        };
        let space = |(number, tier): (usize, &crate::config::Tier)| {
            let bytes = usize::try_from(tier.bytes).unwrap_or(usize::MAX);
            Space::new(
                bytes,
                slab,
                (number, &sizes, hasher),
                tier.eviction,
                (config.pages, &tier.policy),
            )
            .map_err(memory(&format!("tier {number}"), tier.bytes))
        };
        let spaces = config.tiers.iter().enumerate().map(space).collect::<Result<Vec<_>, _>>();
        if let (Err(_), Some(below)) = (&spaces, &below) {
            // Its objects are kept for the next attempt. The error to report is that of the memory.
            let _ = below.disk.close();
        }
        Ok(Self {
            hasher,
            index,
            below: below.map(Box::new),
            spaces: spaces?,
            sizes,
            now: AtomicU32::new(1),
            flush_at: AtomicU32::new(0),
            barred: AtomicU32::new(0),
            crowded: AtomicU64::new(0),
        })
    }

    /// Hashes keys.
    #[inline]
    pub(crate) const fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    /// The index.
    #[inline]
    pub(crate) const fn index(&self) -> &Index {
        &self.index
    }

    /// The disk tier, if there is one.
    #[inline]
    pub(crate) fn below(&self) -> Option<&Below> {
        self.below.as_deref()
    }

    /// The tiers of memory, fastest first.
    #[inline]
    pub(crate) fn spaces(&self) -> &[Space] {
        &self.spaces
    }

    /// A tier of memory.
    #[inline]
    pub(crate) fn space(&self, tier: usize) -> &Space {
        &self.spaces[tier]
    }

    /// The size classes, which are the same in all tiers.
    #[inline]
    pub(crate) const fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The second of the cache's clock.
    #[inline]
    pub(crate) fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    /// Sets the clock. Removes all items if that is due.
    pub(crate) fn set_now(&self, second: u32) {
        self.now.store(second, Relaxed);
        let at = self.flush_at.load(Relaxed);
        let due = at != 0 && at <= second;
        if due && self.flush_at.compare_exchange(at, 0, AcqRel, Relaxed).is_ok() {
            self.remove_all();
        }
    }

    /// Removes all items at second `at`, or now if that is 0 or past.
    pub(crate) fn flush(&self, at: u32) {
        if at == 0 || at <= self.now() {
            self.flush_at.store(0, Relaxed);
            self.remove_all();
        } else {
            self.flush_at.store(at, Relaxed);
        }
    }

    /// Items evicted because their buckets in the index were full.
    pub(crate) fn crowded(&self) -> u64 {
        self.crowded.load(Relaxed)
    }

    /// The place of a word of a tier.
    #[inline]
    pub(crate) fn place(tier: usize, at: usize) -> u64 {
        (tier as u64) << TIER_SHIFT | at as u64
    }

    #[inline]
    pub(crate) fn locate(&self, place: u64) -> (usize, &Space, usize) {
        self.in_memory(place).expect("only places in memory are asked for")
    }

    /// Tier and word of a place; `None` if it is on disk.
    #[inline]
    pub(crate) fn in_memory(&self, place: u64) -> Option<(usize, &Space, usize)> {
        let tier = (place >> TIER_SHIFT) as usize;
        Some((tier, self.spaces.get(tier)?, (place & ((1 << TIER_SHIFT) - 1)) as usize))
    }

    #[inline]
    pub(crate) fn item(&self, place: u64) -> Item<'_> {
        let (_, space, word) = self.locate(place);
        space.item(word)
    }

    /// The entry of a key whose stripe is held, if it leads to memory.
    #[inline]
    pub(crate) fn find(&self, held: &Held<'_>, key: &[u8]) -> Option<(Entry, At)> {
        held.find(|entry| {
            let Some((_, space, word)) = self.in_memory(entry.place()) else { return false };
            let item = space.item(word);
            let header = item.header();
            header.may_be(key.len()) && item.has_key(header, key)
        })
    }

    /// Removes an entry; returns the place it led to.
    #[inline]
    pub(crate) fn remove_held(held: &Held<'_>, old: Option<(Entry, At)>) -> Option<u64> {
        old.map(|(entry, at)| {
            held.remove(at);
            entry.place()
        })
    }

    /// Removes an entry from the index, unless its stripe is held or it is gone.
    #[inline]
    pub(crate) fn take_out(&self, hash: Hash, place: u64) -> bool {
        let Some(held) = self.index.try_lock(hash) else { return false };
        let Some(at) = held.find_place(place) else { return false };
        held.remove(at);
        true
    }

    /// Invalidates the copy on disk, if any, of an item that no entry leads to.
    pub(crate) fn forget_copy(&self, item: &Item<'_>) {
        if let Some(below) = &self.below {
            below.forget_copy(item);
        }
    }

    /// Invalidates the small object on disk of a key whose stripe is held.
    #[inline]
    pub(crate) fn changed(&self, held: &Held<'_>, key: &[u8]) {
        if let Some(below) = &self.below {
            below.changed(held.hash(), key);
        }
    }

    /// Makes the entry of a key, whose stripe is held, lead to a new item, replacing the old entry, if any. Returns the
    /// place that was replaced or evicted for it.
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
        self.crowded.fetch_add(1, Relaxed);
        // Each removed entry left a free slot, unless another key took it at once: then this item is dropped, as if
        // evicted.
        if held.insert(new) {
            gone
        } else {
            self.discard(gone);
            Some(new)
        }
    }

    /// Frees an item that no entry leads to: its copy on disk is invalidated and its slot, if any, is free.
    pub(crate) fn discard(&self, place: Option<u64>) {
        if let (Some(below), Some(place)) = (&self.below, place) {
            if self.in_memory(place).is_none() {
                return below.forget(place);
            }
            below.forget_copy(&self.item(place));
        }
        self.free(place);
    }

    /// Frees the slot of an item that no entry leads to.
    pub(crate) fn free(&self, place: Option<u64>) {
        let Some(place) = place else { return };
        let (_, space, at) = self.locate(place);
        space.remove(&mut space.class_in_use(at).lock(), at);
    }

    /// The metadata of an item, and whether it has expired.
    #[inline]
    pub(crate) fn last(&self, (tier, at): (usize, usize), header: Header) -> Last {
        let meta = self.spaces[tier].item(at).meta(header);
        Last { meta, is_over: header.has_extra() && meta.is_over(self.now()) }
    }

    /// Calls `each` with tier and word of every slot that holds an item, until it returns false. Classes are locked one
    /// after another, and only to see which slabs they have.
    pub(crate) fn for_each_item(&self, each: &mut dyn FnMut(usize, usize) -> bool) {
        for (tier, space) in self.spaces.iter().enumerate() {
            for class in 0..self.sizes.count() {
                let slabs: Vec<_> = space.class(class).lock().slabs().collect();
                let slots = slabs.into_iter().flat_map(|(_, slab)| space.slots_of(class, slab));
                let live = slots.filter(|at| space.item(*at).header().is_live());
                for at in live {
                    if !each(tier, at) {
                        return;
                    }
                }
            }
        }
    }

    /// Removes all present items.
    fn remove_all(&self) {
        self.without_moves(|| {
            self.drop_items(&|_| true);
            self.clear_disk();
        });
    }

    /// Removes all items in memory whose metadata `goes` accepts; returns their number.
    pub(crate) fn drop_items(&self, goes: &dyn Fn(&Meta) -> bool) -> u64 {
        let (mut key, mut count) = (Vec::with_capacity(KEY_MAX), 0);
        self.for_each_item(&mut |tier, at| {
            count += u64::from(self.drop_item((tier, at), goes, &mut key));
            true
        });
        count
    }

    /// Removes the item of a slot, if there is one that `goes`.
    fn drop_item(
        &self,
        (tier, at): (usize, usize),
        goes: &dyn Fn(&Meta) -> bool,
        key: &mut Vec<u8>,
    ) -> bool {
        let space = &self.spaces[tier];
        let (item, place) = (space.item(at), Self::place(tier, at));
        let meta = loop {
            let header = item.header();
            let meta = item.meta(header);
            if !header.is_live() || !goes(&meta) {
                return false;
            }
            let hash = item.hash(header, key, &self.hasher);
            let held = self.index.lock(hash);
            let Some(entry) = held.find_place(place) else { return false };
            if item.is_still(header) {
                held.remove(entry);
                break meta;
            }
            // An edit, or a slab that changed its class and so ended the epoch: the item may be the same.
        };
        let mut state = space.class_in_use(at).lock();
        space.remove(&mut state, at);
        state.counts.expired += u64::from(meta.is_over(self.now()));
        true
    }

    /// Whether moves between tiers are barred. An answer obtained under a stripe holds until the stripe is released.
    #[inline]
    pub(crate) fn are_moves_barred(&self) -> bool {
        self.barred.load(Relaxed) > 0
    }

    /// Calls a function while no item moves between tiers.
    fn without_moves<R>(&self, what: impl FnOnce() -> R) -> R {
        self.barred.fetch_add(1, AcqRel);
        // Threads that asked before hold a stripe until their item has moved.
        self.index.wait_for_all();
        let done = what();
        self.barred.fetch_sub(1, AcqRel);
        done
    }

    /// Clears the disk. Moves must be barred.
    fn clear_disk(&self) {
        let Some(below) = &self.below else { return };
        below.clear(|| self.index.sweep(is_disk));
    }
}
