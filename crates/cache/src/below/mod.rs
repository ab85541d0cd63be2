//! The disk tier as part of the cache.
//!
//! A large object on disk has an entry in the index, as an item in memory does; a small one has none, and is searched
//! by key if there is no entry. An entry for the disk has these fields:
//!
//! ```text
//! 1 (disk) | 1 if read since it was written | 4 of the hash, which are not in the tag | 40 of the place on disk
//! ```
//! A key with an entry for memory has none for the disk. Of an entry for the disk only the hash is known without
//! reading: a thread that *stores* a key takes every such entry with its tag and bits for its own (one store in some 70
//! thousand so loses another key's object), a thread that *removes or changes* one reads it first. A read is valid if
//! entry and region are unchanged afterwards. An item that was promoted from disk unchanged keeps its place there (its
//! *copy*), and is not written again when it is demoted.
//!
//! This file has the cache's state for the disk, and the encoding of entries and copies. Reads, promotion, and the
//! disk's callbacks: `on_disk/`; asynchronous reads: `fetcher.rs`; demotion: `placement/sink.rs`.

#[cfg(test)]
pub(crate) mod tests;

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use crate::config::{DiskTier, Error, TIERS_MAX};
use crate::disk::{Device, Disk, Keeper, Opened, PLACE_BITS, Place, Recovered, Ticked};
use crate::index::{Hash, Index};
use crate::item::Item;
use crate::store::Meta;

/// Places from this value on are the disk's.
pub(crate) const DISK: u64 = 1 << 45;
/// Set if an object was read since it was written.
pub(crate) const READ: u64 = 1 << 44;
const BITS: u64 = 0xf << PLACE_BITS;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
/// The copy of an item that is also a small object on disk.
pub(crate) const SMALL: u64 = u64::MAX;
/// Number of change counts, over which keys are distributed.
const CHANGES: usize = 1 << 14;

const _: () = assert!(TIERS_MAX <= 4, "places of memory leave the disk's bit free");

/// Counters since the cache was created, except `items`.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Current number of entries for the disk.
    pub(crate) items: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) unwritten: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) promoted: AtomicU64,
    pub(crate) evicted: AtomicU64,
}

pub(crate) fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// A change of a small object, until it is dropped; the key's stripe is held throughout. It is counted when it begins
/// and when it ends: a read that began before it does not report a miss, and the object that a read in between found
/// is not promoted.
#[must_use]
pub(crate) struct Change<'a>(Option<&'a AtomicU64>);

impl<'a> Change<'a> {
    fn begin(count: Option<&'a AtomicU64>) -> Self {
        let change = Self(count);
        change.count();
        change
    }

    fn count(&self) {
        if let Some(count) = self.0 {
            count.fetch_add(1, AcqRel);
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.count();
    }
}

/// The disk tier of a cache.
#[derive(Debug)]
pub(crate) struct Below {
    pub(crate) disk: Disk,
    pub(crate) opened: Opened,
    pub(crate) bytes: u64,
    pub(crate) counted: Counted,
    /// The Unix second at which the cache's clock was 0.
    clock_zero: u32,
    /// Incremented before and after each change of one of their keys; empty without small objects.
    changes: Box<[AtomicU64]>,
    /// Held by the ticking thread.
    ticking: Mutex<()>,
    /// Whether a tick is due.
    due: (Mutex<bool>, Condvar),
    closed: AtomicBool,
}

/// Whether a place is the disk's.
#[inline]
pub(crate) const fn is_disk(place: u64) -> bool {
    place & DISK != 0
}

/// The place on disk of an entry for the disk.
#[inline]
pub(crate) const fn on_disk(place: u64) -> Option<Place> {
    if is_disk(place) { Place::from_bits(place & PLACE) } else { None }
}

/// The index's encoding of the place on disk of an object with this hash.
#[inline]
pub(crate) const fn place_of(hash: Hash, place: Place) -> u64 {
    DISK | (hash.0 >> 32 << PLACE_BITS) & BITS | place.bits()
}

/// Whether a place is the disk's, and may belong to a key with this hash (whose tag it has).
#[inline]
pub(crate) const fn may_be(place: u64, hash: Hash) -> bool {
    is_disk(place) && (place ^ (hash.0 >> 32 << PLACE_BITS)) & BITS == 0
}

/// Whether two places are equal, ignoring the read mark.
#[inline]
pub(crate) const fn is_same(one: u64, other: u64) -> bool {
    (one ^ other) & !READ == 0
}

/// Opens the disk; adds entries for the objects on it.
pub(crate) fn open(
    index: &Index,
    tier: &DiskTier,
    device: Option<&Arc<dyn Device>>,
) -> Result<Below, Error> {
    let DiskTier { path, config, clock_zero } = tier;
    let path: &Path = path;
    let (mut items, mut crowded) = (0, Vec::new());
    let mut found = |object: &Recovered| {
        // The clock is at 1.
        if object.expires != 0 && object.expires <= clock_zero.saturating_add(1) {
            return;
        }
        let hash = Hash(object.hash);
        if index.lock(hash).insert(place_of(hash, object.place)) {
            items += 1;
        } else {
            crowded.push(object.place);
        }
    };
    let (disk, opened) = match device {
        Some(device) => Disk::open_on(device, path, config, &mut found)?,
        None => Disk::open(path, config, &mut found)?,
    };
    crowded.into_iter().for_each(|place| disk.forget(place));
    let below = Below::new(disk, opened, (config.bytes, *clock_zero));
    below.counted.items.store(items, Relaxed);
    Ok(below)
}

impl Below {
    fn new(disk: Disk, opened: Opened, (bytes, clock_zero): (u64, u32)) -> Self {
        let changes = if disk.largest_small() > 0 { CHANGES } else { 0 };
        Self {
            disk,
            opened,
            bytes,
            counted: Counted::default(),
            clock_zero,
            changes: (0..changes).map(|_| AtomicU64::new(0)).collect(),
            ticking: Mutex::new(()),
            due: (Mutex::new(false), Condvar::new()),
            closed: AtomicBool::new(false),
        }
    }

    /// A second of the cache's clock as Unix time.
    const fn second(&self, second: u32) -> u32 {
        self.clock_zero.saturating_add(second)
    }

    /// Metadata with Unix times, as on disk.
    pub(crate) fn to_disk(&self, meta: &Meta) -> Meta {
        let second = |time: u32| if time == 0 { 0 } else { self.second(time) };
        Meta { expires: second(meta.expires), accessed: second(meta.accessed), ..*meta }
    }

    /// Metadata with times of the cache's clock; an expiry before its first second becomes that second.
    pub(crate) fn off_disk(&self, meta: &Meta) -> Meta {
        let zero = self.clock_zero;
        let second = |time: u32| match time {
            0 => 0,
            time if time > zero => time - zero,
            _ => 1,
        };
        Meta { expires: second(meta.expires), accessed: second(meta.accessed), ..*meta }
    }

    /// The count of changes of a key.
    pub(crate) fn changes(&self, hash: Hash) -> u64 {
        let count = self.changes.get(usize::try_from(hash.0).unwrap_or(0) % CHANGES);
        count.map_or(0, |count| count.load(Acquire))
    }

    /// Begins a change of the small object of a key; its stripe must be held.
    pub(crate) fn change(&self, hash: Hash) -> Change<'_> {
        Change::begin(self.changes.get(usize::try_from(hash.0).unwrap_or(0) % CHANGES))
    }

    /// Invalidates the small object of a key whose stripe is held and whose entry changed.
    pub(crate) fn changed(&self, hash: Hash, key: &[u8]) {
        let _change = self.change(hash);
        self.disk.remove_small(hash.0, key);
    }

    /// The copy to store in an item whose object is at this place. `None` if there can be no object.
    pub(crate) fn copy_of(&self, place: Place) -> Option<u64> {
        Some(self.disk.stamp(place)? << PLACE_BITS | place.bits())
    }

    /// The place of a copy, if it still exists.
    pub(crate) fn copy_at(&self, copy: u64) -> Option<Place> {
        let place = Place::from_bits(copy & PLACE).filter(|_| copy != SMALL)?;
        (self.copy_of(place) == Some(copy)).then_some(place)
    }

    /// Invalidates an object on disk that no entry leads to any more.
    pub(crate) fn forget(&self, place: u64) {
        if let Some(place) = on_disk(place) {
            self.counted.items.fetch_sub(1, Relaxed);
            self.disk.forget(place);
        }
    }

    /// Invalidates the copy on disk of an item in memory that is gone.
    pub(crate) fn forget_copy(&self, item: &Item<'_>) {
        if let Some(copy) = item.copy(item.header())
            && let Some(place) = self.copy_at(copy)
        {
            self.disk.forget(place);
        }
    }

    /// Wakes the ticking thread.
    pub(crate) fn call(&self) {
        let (due, bell) = &self.due;
        if let Ok(mut due) = due.try_lock()
            && !*due
        {
            *due = true;
            bell.notify_all();
        }
    }

    /// Whether a tick is due; resets the flag.
    #[inline]
    pub(crate) fn take_due(&self) -> bool {
        core::mem::take(&mut *self.due.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until a tick is due, or for `pause`.
    pub(crate) fn wait(&self, pause: Duration) {
        let (due, bell) = &self.due;
        let lock = due.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut lock, _) = bell
            .wait_timeout_while(lock, pause, |due| !*due)
            .unwrap_or_else(PoisonError::into_inner);
        *lock = false;
    }

    /// Writes all pending objects, and closes the disk cleanly.
    pub(crate) fn close(&self) -> std::io::Result<()> {
        if self.closed.swap(true, AcqRel) {
            return Ok(());
        }
        self.disk.close().inspect_err(|_| self.closed.store(false, Release))
    }

    /// Whether there are small objects.
    pub(crate) fn has_small(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Removes all objects. `clear` removes their entries, and returns their number.
    pub(crate) fn clear(&self, clear: impl FnOnce() -> u64) {
        // If it can't be recorded on the device, it holds until the disk is reopened, as documented there.
        let _ = self.disk.clear();
        self.counted.items.fetch_sub(clear(), Relaxed);
        // Earlier reads of small objects are no longer valid.
        for count in &self.changes {
            count.fetch_add(1, AcqRel);
        }
    }

    /// Ticks the disk, blocking, in this second of the cache's clock, unless another thread does.
    pub(crate) fn tick(&self, second: u32, keeper: &dyn Keeper) -> Ticked {
        let one = match self.ticking.try_lock() {
            Err(TryLockError::WouldBlock) => return Ticked::default(),
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Ok(one) => one,
        };
        let ticked = self.disk.tick(self.second(second), keeper);
        drop(one);
        ticked
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        // If that fails, the disk counts as not closed cleanly, which is reported when it is reopened.
        let _ = self.close();
    }
}
