//! Places of items that were noted by readers for somebody who comes later.
//!
//! There is room for some; newer ones take the place of older ones, and what is lost is lost: these are hints.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};

/// Notes, written and taken without a lock.
#[derive(Debug)]
pub(crate) struct Notes {
    /// Each a place and one, or 0.
    places: Vec<AtomicU64>,
    next: AtomicUsize,
}

impl Notes {
    /// Room for so many.
    pub(crate) fn new(most: usize) -> Self {
        let places = (0..most).map(|_| AtomicU64::new(0)).collect();
        Self { places, next: AtomicUsize::new(0) }
    }

    pub(crate) fn add(&self, place: u64) {
        let at = self.next.fetch_add(1, Relaxed) % self.places.len();
        self.places[at].store(place + 1, Relaxed);
    }

    /// Whether all room has been used since it was so last.
    pub(crate) fn is_full(&self) -> bool {
        self.next.load(Relaxed) % self.places.len() == self.places.len() - 1
    }

    /// Takes what was noted.
    pub(crate) fn take(&self) -> impl Iterator<Item = u64> {
        self.places.iter().filter_map(|place| place.swap(0, Relaxed).checked_sub(1))
    }
}
