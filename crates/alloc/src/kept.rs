//! Cache of freed objects with segments of their own: a kind keeps them with their pages for a while, for the next
//! request of about the same size.
//!
//! Without it, an object of some MiB would be unmapped when freed and mapped when needed again, at a page fault for
//! each of its pages, which takes a hundred times as long as the free and the allocation. Programs with temporaries of
//! such sizes (NumPy) free and allocate the same sizes over and over.
//!
//! Rules: this list is the only owner of kept objects, and no thread waits for its lock: a thread that finds it taken
//! goes on as if nothing were kept. Objects kept for [`DECAY_MS`] are dropped when the kind is used next, the oldest
//! first.
#![expect(unsafe_code, reason = "a cell that its lock guards")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Kept objects expire after this time, as idle pages of arenas do.
pub(crate) const DECAY_MS: u64 = 2_000;
/// The most bytes a kind keeps.
pub(crate) const KEPT_MOST: usize = 64 << 20;
/// Size of the largest object that is kept.
pub(crate) const OBJECT_MOST: usize = KEPT_MOST / 2;
/// The most objects a kind keeps.
const PLACES: usize = 16;

/// A kept object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: usize,
    pub(crate) length: usize,
    since_ms: u64,
}

/// The kept objects of a kind. All zeroes is an empty list.
pub(crate) struct Kept {
    locked: AtomicBool,
    /// Bytes kept, readable without the lock.
    bytes: AtomicUsize,
    list: UnsafeCell<List>,
}

/// The oldest first.
struct List {
    count: usize,
    places: [Place; PLACES],
}

impl Kept {
    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn with<T>(&self, act: impl FnOnce(&mut List) -> T) -> Option<T> {
        let (taken, order) = (Ordering::Acquire, Ordering::Relaxed);
        self.locked.compare_exchange(false, true, taken, order).ok()?;
        // SAFETY: we have the lock.
        let list = unsafe { &mut *self.list.get() };
        let done = act(list);
        let bytes = list.places[..list.count].iter().map(|place| place.length).sum();
        self.bytes.store(bytes, Ordering::Relaxed);
        self.locked.store(false, Ordering::Release);
        Some(done)
    }

    /// Keeps an object, if there is room for it.
    pub(crate) fn put(&self, offset: usize, length: usize, now_ms: u64) -> bool {
        let put = self.with(|list| {
            let has_room = list.count < PLACES && self.bytes() + length <= KEPT_MOST;
            if has_room {
                list.places[list.count] = Place { offset, length, since_ms: now_ms };
                list.count += 1;
            }
            has_room
        });
        put.unwrap_or(false)
    }

    /// Takes the smallest object of at least `length` bytes for which `fits` holds, if it is at most a quarter too
    /// large.
    pub(crate) fn take(&self, length: usize, fits: impl Fn(usize) -> bool) -> Option<Place> {
        if self.bytes() == 0 {
            return None;
        }
        let most = length + length / 4;
        self.with(|list| {
            let kept = list.places[..list.count].iter().enumerate();
            let fitting = kept
                .filter(|(_, place)| (length..=most).contains(&place.length) && fits(place.offset));
            let (at, _) = fitting.min_by_key(|(_, place)| place.length)?;
            Some(list.remove(at))
        })?
    }

    /// Takes the oldest object, if `goes` holds for it.
    pub(crate) fn take_oldest(&self, goes: impl FnOnce(&Place) -> bool) -> Option<Place> {
        if self.bytes() == 0 {
            return None;
        }
        self.with(|list| {
            let goes = list.places[..list.count].first().is_some_and(goes);
            goes.then(|| list.remove(0))
        })?
    }

    /// Takes the oldest object, if it has expired.
    pub(crate) fn take_overdue(&self, now_ms: u64) -> Option<Place> {
        self.take_oldest(|place| now_ms >= place.since_ms + DECAY_MS)
    }

    /// Clears the list, regardless of the lock.
    ///
    /// # Safety
    /// No thread uses the kind.
    pub(crate) unsafe fn reset(&self) {
        // SAFETY: the caller's promise.
        unsafe { (*self.list.get()).count = 0 };
        self.bytes.store(0, Ordering::Relaxed);
        self.locked.store(false, Ordering::Release);
    }

    /// In the child of a fork: clears the list if another thread was changing it.
    ///
    /// # Safety
    /// The child has one thread, and it is here.
    pub(crate) unsafe fn reset_if_locked(&self) {
        if self.locked.load(Ordering::Acquire) {
            // SAFETY: the caller's promise.
            unsafe { self.reset() };
        }
    }
}

impl List {
    fn remove(&mut self, at: usize) -> Place {
        let place = self.places[at];
        self.places.copy_within(at + 1..self.count, at);
        self.count -= 1;
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn empty() -> Kept {
        let list = List { count: 0, places: [Place::default(); PLACES] };
        Kept { locked: AtomicBool::new(false), bytes: AtomicUsize::new(0), list: list.into() }
    }

    #[test]
    fn the_smallest_fitting_extent_is_reused_unless_far_too_large() {
        let kept = empty();
        for (offset, length) in [(1, 8 * MIB), (2, 5 * MIB), (3, 6 * MIB), (4, 5 * MIB)] {
            assert!(kept.put(offset, length, 0));
        }
        assert_eq!(kept.bytes(), 24 * MIB);
        let taken = |length, fits: &dyn Fn(usize) -> bool| {
            kept.take(length, fits).map(|place| (place.offset, place.length))
        };
        assert_eq!(taken(5 * MIB, &|_| true), Some((2, 5 * MIB)));
        assert_eq!(taken(5 * MIB, &|offset| offset != 4), Some((3, 6 * MIB)));
        assert_eq!(taken(6 * MIB, &|_| true), None, "8 MiB are a third more");
        assert_eq!(taken(9 * MIB, &|_| true), None);
        assert_eq!(taken(7 * MIB, &|_| true), Some((1, 8 * MIB)));
        assert_eq!(kept.bytes(), 5 * MIB);
    }

    #[test]
    fn kept_extents_are_bounded_and_evicted_oldest_first() {
        let kept = empty();
        assert!(kept.put(1, KEPT_MOST - MIB, 0) && !kept.put(2, 2 * MIB, 0));
        assert!(kept.take_overdue(DECAY_MS - 1).is_none());
        assert_eq!(kept.take_overdue(DECAY_MS).map(|place| place.offset), Some(1));
        let put = (0..100).filter(|offset| kept.put(*offset, MIB, 5)).count();
        assert_eq!(put, PLACES);
        assert_eq!(kept.take_oldest(|_| true).map(|place| place.offset), Some(0));
        assert_eq!(kept.bytes(), (PLACES - 1) * MIB);
    }

    #[test]
    fn a_locked_list_of_kept_extents_is_skipped_instead_of_awaited() {
        let kept = empty();
        assert!(kept.put(1, MIB, 0));
        kept.with(|_| assert!(!kept.put(2, MIB, 0) && kept.take(MIB, |_| true).is_none()));
        // SAFETY: no other thread is here.
        unsafe { kept.reset_if_locked() };
        assert_eq!(kept.bytes(), MIB, "what is whole stays");
    }
}
