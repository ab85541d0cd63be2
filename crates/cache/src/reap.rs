//! Who takes out items whose time is up, without being asked for them.
//!
//! Slots are walked in the order of tiers, sizes and slabs, a few at a time: those are looked at with their size locked, and what
//! has expired leaves the index and gives its slots back one by one. A pass begins at most once in a second of the cache's clock,
//! and no more than [`SLOTS_PER_SECOND`] slots are looked at in one, so that a cache of many items takes some minutes for a pass
//! and some percent of one processor. Of objects on disk only the hash is known here: they go when they are read or their region is
//! used anew. What somebody changes just then is left for the next pass.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, TryLockError};

use crate::cache::Cache;
use crate::item::{Header, KEY_MAX};
use crate::stats::Counts;
use crate::store::Meta;

/// Slots that are looked at in a second of the cache's clock, at most.
pub const SLOTS_PER_SECOND: usize = 1 << 18;
/// Slots that are looked at while their size is locked.
const AT_ONCE: usize = 32;
/// Slots that are looked at in one call.
const ROUND: usize = 4096;

/// Where the walk stands.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// The second it is by the walk,
    second: u32,
    /// and how many slots may be looked at in it still.
    left: usize,
    tier: usize,
    class: usize,
    /// A slab, by its place among those of the class, and a slot of it.
    place: usize,
    slot: usize,
}

/// The walk, and what it counted.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    cursor: Mutex<Cursor>,
    /// Slots that were looked at.
    pub(crate) checked: AtomicU64,
}

impl Counts {
    /// Counts an item that has gone for others' sake; `over` is what was kept of it, if its time was up.
    pub(crate) fn lost(&mut self, over: Option<Meta>) {
        match over {
            None => self.evicted += 1,
            Some(meta) => self.over(&meta),
        }
    }

    /// Counts an item whose time was up.
    fn over(&mut self, meta: &Meta) {
        self.expired += 1;
        self.unfetched += u64::from(!meta.fetched);
    }
}

impl Cache {
    /// What is kept of an item, if its time is up.
    pub(crate) fn over(&self, (tier, at): (usize, usize), header: Header) -> Option<Meta> {
        let now = self.now.load(Relaxed);
        let meta = || self.spaces[tier].item(at).meta(header);
        header.has_extra().then(meta).filter(|meta| meta.is_over(now))
    }

    /// Goes on with a walk over all items in memory that takes out those whose time is up: a few thousand slots, or fewer where
    /// this second's are used up ([`SLOTS_PER_SECOND`]) or somebody else walks. Gives how many items went. Movers do this.
    pub fn reap_some(&self) -> usize {
        let mut cursor = match self.reaper.cursor.try_lock() {
            Ok(cursor) => cursor,
            Err(TryLockError::Poisoned(cursor)) => cursor.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        let now = self.now.load(Relaxed);
        if cursor.second != now {
            (cursor.second, cursor.left) = (now, SLOTS_PER_SECOND);
        }
        let mut key = Vec::with_capacity(KEY_MAX);
        let (mut gone, mut round) = (0, ROUND.min(cursor.left));
        while round > 0 {
            let Some((looked, went)) = self.reap_slots(&mut cursor, round, &mut key) else {
                *cursor = Cursor { second: now, ..Cursor::default() };
                break;
            };
            self.reaper.checked.fetch_add(looked as u64, Relaxed);
            // To pass over what there is not is work as well.
            let work = looked.max(1);
            cursor.left -= work;
            round -= work;
            gone += went;
        }
        gone
    }

    /// Looks at some slots, at most so many; gives how many, and how many items went. None at the end.
    fn reap_slots(
        &self,
        cursor: &mut Cursor,
        most: usize,
        key: &mut Vec<u8>,
    ) -> Option<(usize, usize)> {
        let Cursor { tier, class: number, place, slot, .. } = *cursor;
        let space = self.spaces.get(tier)?;
        if number == self.sizes.count() {
            *cursor = Cursor { tier: tier + 1, class: 0, place: 0, slot: 0, ..*cursor };
            return Some((0, 0));
        }
        let class = space.class(number);
        let (mut found, mut count) = ([None; AT_ONCE], 0);
        let state = class.lock();
        let Some(slab) = state.slab(place) else {
            drop(state);
            *cursor = Cursor { class: number + 1, place: 0, slot: 0, ..*cursor };
            return Some((0, 0));
        };
        let end =
            if slab.is_some() { class.per_slab().min(slot + most.min(AT_ONCE)) } else { slot };
        if let Some(slab) = slab {
            let from = slab as usize * space.slab_words();
            for at in (slot..end).map(|slot| from + slot * class.words()) {
                let header = space.item(at).header();
                if header.is_live() && self.over((tier, at), header).is_some() {
                    found[count] = Some((at, header));
                    count += 1;
                }
            }
        }
        drop(state);
        let is_last = slab.is_none() || end == class.per_slab();
        (cursor.place, cursor.slot) = if is_last { (place + 1, 0) } else { (place, end) };
        let found = found.into_iter().flatten();
        let gone = found.filter(|(at, header)| self.reap_one((tier, *at), *header, key)).count();
        Some((end - slot, gone))
    }

    /// Takes an item out, unless somebody holds its stripe or has changed it.
    fn reap_one(&self, (tier, at): (usize, usize), header: Header, key: &mut Vec<u8>) -> bool {
        let (space, item) = (&self.spaces[tier], self.spaces[tier].item(at));
        let hash = item.hash(header, key);
        let Some(held) = self.index.try_lock(hash) else { return false };
        let entry = held.find_place(Self::place(tier, at)).filter(|_| item.is_still(header));
        let Some(entry) = entry else { return false };
        held.remove(entry);
        drop(held);
        let meta = item.meta(item.header());
        if let Some(below) = &self.below {
            below.forget_copy(&item);
        }
        let mut state = space.class_in_use(at).lock();
        space.remove(&mut state, at);
        state.counts.over(&meta);
        state.counts.reaped += 1;
        true
    }
}
