//! Background expiry: removes expired items that nobody reads.
//!
//! Slots are walked in the order of tiers, sizes and slabs, a few at a time: they are examined with their class locked,
//! and expired items leave the index and free their slots one by one. A pass begins at most once per second of the
//! cache's clock, and at most [`SLOTS_PER_SECOND`] slots are examined per second, so that a pass over a cache with many
//! items takes some minutes and a few percent of one processor. For objects on disk only the hash is in memory: they
//! expire when they are read or when their region is reused. Items that change concurrently are left to the next pass.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, TryLockError};

use crate::contents::Contents;
use crate::item::{Header, KEY_MAX};

/// Maximum number of slots examined per second of the cache's clock.
pub const SLOTS_PER_SECOND: usize = 1 << 18;
/// Slots examined while their class is locked.
const AT_ONCE: usize = 32;
/// Slots examined in one call.
const ROUND: usize = 4096;

/// Position of the walk.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// The current second of the walk,
    second: u32,
    /// and the number of slots that may still be examined in it.
    left: usize,
    tier: usize,
    class: usize,
    /// A slab, by its position among those of the class, and a slot of it.
    place: usize,
    slot: usize,
}

/// The walk and its counters.
#[derive(Debug, Default)]
pub(crate) struct Expirer {
    cursor: Mutex<Cursor>,
    /// Number of slots examined.
    checked: AtomicU64,
}

impl Expirer {
    /// Number of slots examined.
    pub(crate) fn checked(&self) -> u64 {
        self.checked.load(Relaxed)
    }

    /// Continues the walk over all items in memory and removes expired ones: a few thousand slots, or fewer if this
    /// second's budget ([`SLOTS_PER_SECOND`]) is used up or another thread walks. Returns the number of removed items.
    /// Movers call this.
    pub(crate) fn expire_some(&self, contents: &Contents) -> usize {
        let mut cursor = match self.cursor.try_lock() {
            Ok(cursor) => cursor,
            Err(TryLockError::Poisoned(cursor)) => cursor.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        let now = contents.now();
        if cursor.second != now {
            (cursor.second, cursor.left) = (now, SLOTS_PER_SECOND);
        }
        let mut key = Vec::with_capacity(KEY_MAX);
        let (mut gone, mut round) = (0, ROUND.min(cursor.left));
        while round > 0 {
            let Some((looked, went)) = expire_slots(contents, &mut cursor, round, &mut key) else {
                *cursor = Cursor { second: now, ..Cursor::default() };
                break;
            };
            self.checked.fetch_add(looked as u64, Relaxed);
            // Skipping vacant slots counts as work, too.
            let work = looked.max(1);
            cursor.left -= work;
            round -= work;
            gone += went;
        }
        gone
    }
}

/// Examines at most `most` slots; returns the number examined and the number of removed items; `None` at the end.
fn expire_slots(
    contents: &Contents,
    cursor: &mut Cursor,
    most: usize,
    key: &mut Vec<u8>,
) -> Option<(usize, usize)> {
    let Cursor { tier, class: number, place, slot, .. } = *cursor;
    let space = contents.spaces().get(tier)?;
    if number == contents.sizes().count() {
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
    let end = if slab.is_some() { class.per_slab().min(slot + most.min(AT_ONCE)) } else { slot };
    if let Some(slab) = slab {
        let from = slab as usize * space.slab_words();
        for at in (slot..end).map(|slot| from + slot * class.words()) {
            let header = space.item(at).header();
            if header.is_live() && contents.last((tier, at), header).is_over {
                found[count] = Some((at, header));
                count += 1;
            }
        }
    }
    drop(state);
    let is_last = slab.is_none() || end == class.per_slab();
    (cursor.place, cursor.slot) = if is_last { (place + 1, 0) } else { (place, end) };
    let found = found.into_iter().flatten();
    let gone = found.filter(|(at, header)| expire_one(contents, (tier, *at), *header, key)).count();
    Some((end - slot, gone))
}

/// Removes an item, unless its stripe is held or it has changed.
fn expire_one(
    contents: &Contents,
    (tier, at): (usize, usize),
    header: Header,
    key: &mut Vec<u8>,
) -> bool {
    let space = contents.space(tier);
    let item = space.item(at);
    let hash = item.hash(header, key, contents.hasher());
    let Some(held) = contents.index().try_lock(hash) else { return false };
    let entry = held.find_place(Contents::place(tier, at)).filter(|_| item.is_still(header));
    let Some(entry) = entry else { return false };
    held.remove(entry);
    drop(held);
    let meta = item.meta(item.header());
    if let Some(below) = contents.below() {
        below.forget_copy(&item);
    }
    let mut state = space.class_in_use(at).lock();
    space.remove(&mut state, at);
    state.counts.over(&meta);
    state.counts.reaped += 1;
    true
}
