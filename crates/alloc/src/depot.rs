//! A depot: free objects of one class of one kind, which threads with a surplus leave for threads in need.
//!
//! A thread that frees objects allocated by another would return each one to its arena, which takes a lock each time.
//! Instead it moves half of its cache to the depot at once, and the other thread takes as many at once (the depot of J.
//! Bonwick and J. Adams, "Magazines and Vmem", USENIX 2001, section 3).
//!
//! A depot has places for one batch each. The thread that changes a place's bit from free to taken, or from full to not
//! full, owns the place until it changes another bit. There is no lock: a thread preempted in here keeps one place from
//! the others, whereas a lock would send all of them to the arenas until it runs again.
//!
//! Rules: no thread waits. A thread that finds no place uses the arena instead. A child of fork(2) releases the places
//! that the parent's other threads owned. Batches unused for a while return to the arena. `tests/orders.rs` checks
//! every interleaving of threads in a depot.
#![expect(unsafe_code, reason = "cells that bits guard")]

use crate::classes::{batch_of_class, size_of_class};
use crate::sync::{AtomicU32, AtomicU64, Ordering, PLACES, UnsafeCell};

/// Most bytes in a depot.
pub(crate) const BYTES: usize = 1 << 20;
/// Most objects in a place.
pub(crate) const BATCH: usize = 32;
/// Number of batches brought after which those not needed in the meantime are surplus.
pub(crate) const VISITS: u32 = 32;

/// A depot. All zeroes is an empty one.
pub(crate) struct Depot {
    /// Places with objects that no thread is accessing, one bit each.
    full: AtomicU64,
    /// Places with objects or owned by a thread, one bit each.
    taken: AtomicU64,
    /// Places that have been full since the last check for a surplus, one bit each.
    idle: AtomicU64,
    visits: AtomicU32,
    places: [Place; PLACES],
}

struct Place {
    count: AtomicU32,
    objects: UnsafeCell<[usize; BATCH]>,
}

/// Places that a depot of a class uses, one bit each.
fn places_of(class: usize) -> u64 {
    let batches = BYTES / (batch_of_class(class) * size_of_class(class)).max(1);
    u64::MAX >> (u64::BITS as usize - batches.clamp(2, PLACES))
}

impl Depot {
    /// An empty one, for tests: those of kinds are zeroes.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        let place = || Place { count: AtomicU32::new(0), objects: UnsafeCell::new([0; BATCH]) };
        Self {
            full: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            visits: AtomicU32::new(0),
            places: core::array::from_fn(|_| place()),
        }
    }

    /// Takes a place and never releases it, for tests: like a thread that a child of fork does not have.
    #[cfg(test)]
    pub(crate) fn leave_in_the_middle(&self) {
        self.full.fetch_and(self.full.load(Ordering::Relaxed) >> 1, Ordering::Acquire);
    }

    /// Moves the objects of a full place into `into` and returns their number; `None` if another thread was first.
    fn empty(&self, at: u32, into: &mut [usize; BATCH]) -> Option<usize> {
        let (bit, place) = (1 << at, &self.places[at as usize]);
        if self.full.fetch_and(!bit, Ordering::Acquire) & bit == 0 {
            return None;
        }
        let count = place.count.load(Ordering::Relaxed) as usize;
        place.objects.with_mut(|objects| {
            // SAFETY: the place is ours: it was full, and no other thread has changed its bit.
            let objects = unsafe { &*objects };
            into[..count].copy_from_slice(&objects[..count]);
        });
        self.taken.fetch_and(!bit, Ordering::Release);
        Some(count)
    }

    /// Puts a batch into a free place; false if another thread was first.
    #[expect(clippy::cast_possible_truncation, reason = "at most a batch")]
    fn fill(&self, at: u32, batch: &[usize]) -> bool {
        let (bit, place) = (1 << at, &self.places[at as usize]);
        if self.taken.fetch_or(bit, Ordering::Acquire) & bit != 0 {
            return false;
        }
        place.objects.with_mut(|objects| {
            // SAFETY: the place is ours: it was not taken, and no other thread has changed its bit.
            let objects = unsafe { &mut *objects };
            objects[..batch.len()].copy_from_slice(batch);
        });
        place.count.store(batch.len() as u32, Ordering::Relaxed);
        self.full.fetch_or(bit, Ordering::Release);
        true
    }

    /// Takes the most recently brought batch, as far as that is known; returns the number of objects.
    pub(crate) fn take(&self, into: &mut [usize; BATCH]) -> usize {
        loop {
            let Some(at) = self.full.load(Ordering::Relaxed).checked_ilog2() else { return 0 };
            if let Some(count) = self.empty(at, into) {
                self.idle.fetch_and(!(1 << at), Ordering::Relaxed);
                return count;
            }
        }
    }

    /// Brings objects of `class`; returns how many, from the front of the slice, there was room for.
    pub(crate) fn bring(&self, class: usize, objects: &[usize]) -> usize {
        let mut brought = 0;
        for batch in objects.chunks(batch_of_class(class)) {
            loop {
                let free = !self.taken.load(Ordering::Relaxed) & places_of(class);
                if free == 0 {
                    return brought;
                }
                if self.fill(free.trailing_zeros(), batch) {
                    break;
                }
            }
            brought += batch.len();
        }
        brought
    }

    /// Takes a batch that was not needed lately, if a check is due after a batch was brought; returns the number of
    /// objects.
    pub(crate) fn surplus(&self, into: &mut [usize; BATCH]) -> usize {
        // Two threads may count as one: the interval is approximate.
        let visits = self.visits.load(Ordering::Relaxed) + 1;
        self.visits.store(visits % VISITS, Ordering::Relaxed);
        if visits < VISITS {
            return 0;
        }
        let full = self.full.load(Ordering::Relaxed);
        let idle = self.idle.swap(full, Ordering::Relaxed) & full;
        if idle == 0 { 0 } else { self.empty(idle.trailing_zeros(), into).unwrap_or(0) }
    }

    /// Number of objects in it.
    pub(crate) fn count(&self) -> usize {
        let full = self.full.load(Ordering::Relaxed);
        let places = self.places.iter().enumerate().filter(|(at, _)| full & 1 << at != 0);
        places.map(|(_, place)| place.count.load(Ordering::Relaxed) as usize).sum()
    }

    /// Empties it without returning the objects.
    ///
    /// # Safety
    /// No thread uses the depot: its kind is destroyed.
    pub(crate) unsafe fn reset(&self) {
        for word in [&self.full, &self.taken, &self.idle] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Releases the places that threads owned; complete batches stay.
    ///
    /// # Safety
    /// No other thread uses the depot: this is a child of fork with one thread.
    pub(crate) unsafe fn free_places(&self) {
        self.taken.store(self.full.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
