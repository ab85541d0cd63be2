//! The disk tier below memory, as the cache has it.
//!
//! A large object on disk has an entry in the index, as an item in memory has; a small one has none, and is looked for by key
//! where there is no entry. What an entry says of the disk:
//!
//! ```text
//! 1 (disk) | 1 if read since it was written | 4 of the hash, which are not in the tag | 40 of the place on disk
//! ```
//! A key whose entry leads to memory has none that leads to disk. Of an entry on disk only the hash is known without reading:
//! who *stores* a key takes every such entry with its tag and bits for its own (one store in some 70 thousand loses another key's
//! object so), who *removes or changes* one reads first. What is read is believed if entry and region are the same afterwards.
//! An item that came back from disk unchanged keeps where it lies there (its *copy*), and is not written again when it leaves.
//!
//! Here: what the cache keeps for the disk, and what entries and copies say. Reading and coming back: `fetch.rs`, many at
//! once: `fetcher.rs`, under a stripe: `settle.rs`; leaving memory: `sink.rs`; what the disk asks of the index, ticks, and forgetting all: `keep.rs`.

mod fetch;
mod fetcher;
mod keep;
mod settle;
mod sink;
#[cfg(test)]
pub(crate) mod tests;

pub use fetch::{Lookup, Ticket};
pub(crate) use fetcher::Fetcher;
pub(crate) use keep::open;
pub(crate) use settle::{Found, There};
pub(crate) use sink::Went;

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::config::TIERS_MAX;
use crate::disk::{Disk, Opened, PLACE_BITS, Place};
use crate::index::Hash;
use crate::item::Item;
use crate::store::Meta;

/// Kinds of place from this on are the disk's.
const DISK: u64 = 1 << 45;
/// Set where an object was read since it was written.
const READ: u64 = 1 << 44;
const BITS: u64 = 0xf << PLACE_BITS;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
/// The copy of an item that lies among the small objects.
const SMALL: u64 = u64::MAX;
/// Counts of changes, over which keys are spread.
const CHANGES: usize = 1 << 14;

const _: () = assert!(TIERS_MAX <= 4, "places of memory leave the disk's bit free");

/// Counted since the cache was made, except `items`.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// Entries that lead to disk, now.
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

/// The disk tier of a cache.
#[derive(Debug)]
pub(crate) struct Below {
    pub(crate) disk: Disk,
    pub(crate) opened: Opened,
    pub(crate) bytes: u64,
    pub(crate) counted: Counted,
    /// The Unix second in which the cache's clock stood at 0.
    clock_zero: u32,
    /// Grow with each change of one of their keys; none without small objects.
    changes: Box<[AtomicU32]>,
    /// Held by who ticks.
    ticking: Mutex<()>,
    /// There is something to do for who ticks.
    due: (Mutex<bool>, Condvar),
    closed: AtomicBool,
}

/// Whether a place is the disk's.
#[inline]
pub(crate) const fn is_disk(place: u64) -> bool {
    place & DISK != 0
}

/// Where on disk a place is that is the disk's.
const fn on_disk(place: u64) -> Option<Place> {
    if is_disk(place) { Place::from_bits(place & PLACE) } else { None }
}

/// The place of an object of this hash on disk, as it stands in the index.
const fn place_of(hash: Hash, place: Place) -> u64 {
    DISK | (hash.0 >> 32 << PLACE_BITS) & BITS | place.bits()
}

/// Whether a place is the disk's, and may be that of a key with this hash (whose tag it has).
const fn may_be(place: u64, hash: Hash) -> bool {
    is_disk(place) && (place ^ (hash.0 >> 32 << PLACE_BITS)) & BITS == 0
}

/// Whether two places are the same, read or not.
const fn is_same(one: u64, other: u64) -> bool {
    (one ^ other) & !READ == 0
}

impl Below {
    pub(crate) fn new(disk: Disk, opened: Opened, (bytes, clock_zero): (u64, u32)) -> Self {
        let changes = if disk.largest_small() > 0 { CHANGES } else { 0 };
        Self {
            disk,
            opened,
            bytes,
            counted: Counted::default(),
            clock_zero,
            changes: (0..changes).map(|_| AtomicU32::new(0)).collect(),
            ticking: Mutex::new(()),
            due: (Mutex::new(false), Condvar::new()),
            closed: AtomicBool::new(false),
        }
    }

    /// A second of the cache's clock, as disks know it.
    pub(crate) const fn second(&self, second: u32) -> u32 {
        self.clock_zero.saturating_add(second)
    }

    /// What is kept besides a value, with times as disks know them.
    fn to_disk(&self, meta: &Meta) -> Meta {
        let second = |time: u32| if time == 0 { 0 } else { self.second(time) };
        Meta { expires: second(meta.expires), accessed: second(meta.accessed), ..*meta }
    }

    /// The other way round; what expired before the clock's first second expires then.
    fn off_disk(&self, meta: &Meta) -> Meta {
        let zero = self.clock_zero;
        let second = |time: u32| match time {
            0 => 0,
            time if time > zero => time - zero,
            _ => 1,
        };
        Meta { expires: second(meta.expires), accessed: second(meta.accessed), ..*meta }
    }

    /// The count of changes of a key.
    fn changes(&self, hash: Hash) -> u64 {
        let count = self.changes.get(usize::try_from(hash.0).unwrap_or(0) % CHANGES);
        count.map_or(0, |count| u64::from(count.load(Acquire)))
    }

    /// Counts a change of a key, whose stripe is held.
    fn count_change(&self, hash: Hash) {
        if let Some(count) = self.changes.get(usize::try_from(hash.0).unwrap_or(0) % CHANGES) {
            count.fetch_add(1, AcqRel);
        }
    }

    /// A key, whose stripe is held, leads elsewhere or nowhere now: what small object there may be is no longer it.
    pub(crate) fn changed(&self, hash: Hash, key: &[u8]) {
        self.count_change(hash);
        self.disk.remove_small(hash.0, key);
    }

    /// How an item says that it lies at this place, as it is filled now. `None` if nothing can be there.
    fn copy_of(&self, place: Place) -> Option<u64> {
        Some(self.disk.stamp(place)? << PLACE_BITS | place.bits())
    }

    /// Where a copy is, if it is there still.
    fn copy_at(&self, copy: u64) -> Option<Place> {
        let place = Place::from_bits(copy & PLACE).filter(|_| copy != SMALL)?;
        (self.copy_of(place) == Some(copy)).then_some(place)
    }

    /// Forgets an object on disk to which nothing leads any more.
    pub(crate) fn forget(&self, place: u64) {
        if let Some(place) = on_disk(place) {
            self.counted.items.fetch_sub(1, Relaxed);
            self.disk.forget(place);
        }
    }

    /// Forgets what lies on disk of an item in memory that is no more.
    pub(crate) fn forget_copy(&self, item: &Item<'_>) {
        if let Some(copy) = item.copy(item.header())
            && let Some(place) = self.copy_at(copy)
        {
            self.disk.forget(place);
        }
    }

    /// Says that there is something to do for who ticks.
    pub(crate) fn call(&self) {
        let (due, bell) = &self.due;
        if let Ok(mut due) = due.try_lock()
            && !*due
        {
            *due = true;
            bell.notify_all();
        }
    }

    /// Whether there is something to do for who ticks; it counts as done then.
    fn take_due(&self) -> bool {
        core::mem::take(&mut *self.due.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until there is something to do, or for so long.
    pub(crate) fn wait(&self, pause: Duration) {
        let (due, bell) = &self.due;
        let lock = due.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut lock, _) = bell
            .wait_timeout_while(lock, pause, |due| !*due)
            .unwrap_or_else(PoisonError::into_inner);
        *lock = false;
    }

    /// Writes all that waits, and notes that the disk was left in good order.
    pub(crate) fn close(&self) -> std::io::Result<()> {
        if self.closed.swap(true, AcqRel) {
            return Ok(());
        }
        self.disk.close().inspect_err(|_| self.closed.store(false, Release))
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        // If it can't be, the disk counts as not closed in good order, and says so when it is opened again.
        let _ = self.close();
    }
}
