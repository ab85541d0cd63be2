//! What the disk asks of the index, ticks, and forgetting everything.
//!
//! When a region is about to be used anew, those of its objects are put in again that were read since they were written, and
//! have not come to memory. Whoever makes room ticks: a thread of [`Movers`](crate::mover::Movers), else who stores, after
//! its item is stored. To forget everything, moves between tiers are barred first: what moves would not be met.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::io;
use std::path::Path;
use std::sync::{Arc, TryLockError};

use crate::cache::Cache;
use crate::config::{DiskTier, Error};
use crate::disk::{Device, Disk, Fate, Keeper, Place, Places, Recovered, Ticked};
use crate::index::{At, Entry, Hash, Held, Index};

use super::{Below, READ, is_disk, is_same, on_disk, one, place_of};

/// The index, as the disk asks it.
struct Entries<'a> {
    cache: &'a Cache,
    below: &'a Below,
}

impl Entries<'_> {
    /// The entry of an object on disk, and its stripe.
    fn with<R>(
        &self,
        hash: u64,
        place: Place,
        found: impl FnOnce(&Held<'_>, Entry, At) -> R,
    ) -> Option<R> {
        let hash = Hash(hash);
        let held = self.cache.index.lock(hash);
        let wanted = place_of(hash, place);
        let (entry, at) = held.find(|entry| is_same(entry.place(), wanted))?;
        Some(found(&held, entry, at))
    }

    fn remove(&self, held: &Held<'_>, at: At) {
        held.remove(at);
        self.below.counted.items.fetch_sub(1, Relaxed);
        one(&self.below.counted.evicted);
    }
}

impl Keeper for Entries<'_> {
    fn evicted(&self, hash: u64, place: Place) -> Fate {
        let fate = self.with(hash, place, |held, entry, at| {
            if entry.place() & READ != 0 {
                return Fate::Keep;
            }
            self.remove(held, at);
            Fate::Gone
        });
        fate.unwrap_or(Fate::Gone)
    }

    fn moved(&self, hash: u64, from: Place, to: Place) -> bool {
        let to = place_of(Hash(hash), to);
        let moved = self.with(hash, from, |held, _, at| {
            if self.cache.are_moves_barred() {
                self.remove(held, at);
                return false;
            }
            held.replace(at, to);
            true
        });
        moved.unwrap_or(false)
    }

    fn gone(&self, hash: u64, place: Place) {
        self.with(hash, place, |held, _, at| self.remove(held, at));
    }

    fn lost(&self, places: Places) {
        let is_lost = |place: u64| on_disk(place).is_some_and(|place| places.contains(place));
        let count = self.cache.index.sweep(is_lost);
        self.below.counted.items.fetch_sub(count, Relaxed);
        self.below.counted.evicted.fetch_add(count, Relaxed);
    }
}

/// Opens the disk; what is there has entries from then on.
pub(crate) fn open(
    index: &Index,
    tier: &DiskTier,
    device: Option<&Arc<dyn Device>>,
) -> Result<Below, Error> {
    let DiskTier { path, config, clock_zero } = tier;
    let path: &Path = path;
    let (mut items, mut crowded) = (0, Vec::new());
    let mut found = |object: &Recovered| {
        // The clock stands at 1.
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

impl Cache {
    /// Has the disk do what is due, and waits for it, unless somebody else does that. For who runs no
    /// [`Movers`](crate::mover::Movers).
    pub fn tick_disk(&self) -> Ticked {
        let Some(below) = &self.below else { return Ticked::default() };
        let one = match below.ticking.try_lock() {
            Err(TryLockError::WouldBlock) => return Ticked::default(),
            Err(TryLockError::Poisoned(one)) => one.into_inner(),
            Ok(one) => one,
        };
        let now = below.second(self.now.load(Relaxed));
        let ticked = below.disk.tick(now, &Entries { cache: self, below });
        drop(one);
        ticked
    }

    /// The same where who stores makes room, and something is due. No stripe may be held.
    #[inline]
    pub(crate) fn tick_if_due(&self) {
        if let Some(below) = &self.below
            && self.making == crate::config::Making::Inline
            && below.take_due()
        {
            self.tick_disk();
        }
    }

    /// Writes what waits to the disk, and notes that it was left in good order. Nothing goes there any more, and what is changed
    /// or removed from then on is there as it was when it is opened again. Dropping the cache does the same, and says nothing.
    ///
    /// # Errors
    /// If something could not be written: what removals were not written is undone when the disk is opened again.
    pub fn close(&self) -> io::Result<()> {
        self.below.as_ref().map_or(Ok(()), |below| below.close())
    }

    /// Whether items must stay in the tier they are in, or leave. What was asked under a stripe holds until that is given back.
    #[inline]
    pub(crate) fn are_moves_barred(&self) -> bool {
        self.barred.load(Relaxed) > 0
    }

    /// Does something while no item moves from tier to tier.
    pub(crate) fn without_moves<R>(&self, what: impl FnOnce() -> R) -> R {
        self.barred.fetch_add(1, AcqRel);
        // Who asked before holds a stripe until its item has moved.
        self.index.wait_for_all();
        let done = what();
        self.barred.fetch_sub(1, AcqRel);
        done
    }

    /// Forgets everything on disk. Moves must be barred.
    pub(crate) fn clear_disk(&self) {
        let Some(below) = &self.below else { return };
        // What can't be noted on the device is forgotten until it is opened again, as said there.
        let _ = below.disk.clear();
        let count = self.index.sweep(is_disk);
        below.counted.items.fetch_sub(count, Relaxed);
        // What was read of small objects before is not to be believed.
        for count in &below.changes {
            count.fetch_add(1, AcqRel);
        }
    }
}
