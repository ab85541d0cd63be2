//! The cache's side of the disk tier's callbacks ([`Keeper`]).
//!
//! When a region is about to be reused, those of its objects are reinserted that were read since they were written, and
//! have not been promoted. The thread that makes room also ticks: a thread of [`Movers`](crate::mover::Movers), else a
//! storing thread, after its item is stored. Clearing first bars moves between tiers: moving items would be missed.

use core::sync::atomic::Ordering::Relaxed;

use crate::below::{READ, is_same, on_disk, one, place_of};
use crate::disk::{Fate, Keeper, Place, Places};
use crate::index::{At, Entry, Hash, Held};

use super::Entries;

impl Entries<'_> {
    /// Calls a function with the entry of an object on disk, and its stripe.
    fn with<R>(
        &self,
        hash: u64,
        place: Place,
        found: impl FnOnce(&Held<'_>, Entry, At) -> R,
    ) -> Option<R> {
        let hash = Hash(hash);
        let held = self.contents.index().lock(hash);
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
            if self.contents.are_moves_barred() {
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
        let count = self.contents.index().sweep(is_lost);
        self.below.counted.items.fetch_sub(count, Relaxed);
        self.below.counted.evicted.fetch_add(count, Relaxed);
    }
}
