//! Lossy buffer of item places, written by readers and consumed later by another thread.
//!
//! It has a fixed size; new notes overwrite old ones, and losses are harmless because notes are hints.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};

/// Hints, written and taken without a lock.
#[derive(Debug)]
pub(crate) struct Hints {
    /// Each a place plus one, or 0.
    places: Vec<AtomicU64>,
    next: AtomicUsize,
}

impl Hints {
    /// A buffer of `most` notes.
    pub(crate) fn new(most: usize) -> Self {
        let places = (0..most).map(|_| AtomicU64::new(0)).collect();
        Self { places, next: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn add(&self, place: u64) {
        let at = self.next.fetch_add(1, Relaxed) % self.places.len();
        self.places[at].store(place + 1, Relaxed);
    }

    /// Whether the buffer was filled since the last time this returned true.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.next.load(Relaxed) % self.places.len() == self.places.len() - 1
    }

    /// Takes the buffered notes.
    pub(crate) fn take(&self) -> impl Iterator<Item = u64> {
        self.places.iter().filter_map(|place| place.swap(0, Relaxed).checked_sub(1))
    }
}
