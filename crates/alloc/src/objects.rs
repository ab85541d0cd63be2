//! Objects with segments of their own: allocation, resizing, and freeing them or keeping them for a while.
#![expect(unsafe_code, reason = "segments are cleared")]

use core::sync::atomic::Ordering;

use crate::kept::OBJECT_MOST;
use crate::kind::Kind;
use crate::placing::Placing;
use crate::space::{self, Code, SEGMENT};
use crate::{haste, sys};

impl Kind {
    /// Allocates an object with segments of its own: fresh zeroed memory, or a kept object.
    pub(crate) fn object(&self, size: usize, alignment: usize, zeroed: bool) -> Option<usize> {
        self.drop_overdue();
        let fits = |offset| space::address_of(offset).is_multiple_of(alignment);
        let length = size.checked_next_multiple_of(sys::PAGE)?;
        let Some(place) = self.kept.take(length, fits) else {
            return self.object_placed(size, alignment, None);
        };
        self.counts.objects.fetch_add(place.length, Ordering::Relaxed);
        let at = space::address_of(place.offset);
        if zeroed {
            // SAFETY: an object that nothing else uses, of that many bytes.
            unsafe { (at as *mut u8).write_bytes(0, size) };
        }
        Some(at)
    }

    /// Keeps a freed object; false if it should be unmapped instead.
    fn keep(&self, offset: usize, length: usize) -> bool {
        if length > OBJECT_MOST || self.is_apart() {
            return false;
        }
        let now = haste::now_ms();
        while !self.kept.put(offset, length, now) {
            let Some(oldest) = self.kept.take_oldest(|_| true) else { return false };
            self.drop_kept(oldest);
        }
        true
    }

    /// Allocates a fresh object, with its own placement if one is passed.
    pub(crate) fn object_placed(
        &self,
        size: usize,
        alignment: usize,
        own: Option<&Placing>,
    ) -> Option<usize> {
        let length = size.checked_next_multiple_of(sys::PAGE)?;
        if !self.has_room(length) || !self.reserve_or_drop(length) {
            return None;
        }
        let taken = space::take_object(self.index(), length, alignment);
        let placed = taken.filter(|offset| {
            let at = space::address_of(*offset);
            own.map_or_else(
                || self.place(at, length),
                |own| self.counts.bound(own.apply_finely(at, length)),
            )
        });
        let Some(offset) = placed else {
            self.aside.fetch_sub(length, Ordering::Relaxed);
            if let Some(offset) = taken {
                // SAFETY: it was not handed out.
                unsafe { self.clear(offset, length) };
            }
            return None;
        };
        // The page may have belonged to a class before.
        space::set_code(offset, Code::NONE);
        self.counts.objects.fetch_add(length, Ordering::Relaxed);
        Some(space::address_of(offset))
    }

    /// Frees an object with segments of its own, now or after keeping it for a while.
    ///
    /// # Safety
    /// It belongs to this kind, is `length` bytes long, and is not used.
    pub(crate) unsafe fn end_object(&self, offset: usize, length: usize) {
        self.drop_overdue();
        if self.keep(offset, length) {
            self.counts.objects.fetch_sub(length, Ordering::Relaxed);
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.end_object_now(offset, length) };
    }

    /// As [`Self::end_object`], at once.
    ///
    /// # Safety
    /// As [`Self::end_object`].
    pub(crate) unsafe fn end_object_now(&self, offset: usize, length: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.clear(offset, length) };
        self.counts.objects.fetch_sub(length, Ordering::Relaxed);
        self.aside.fetch_sub(length, Ordering::Relaxed);
    }

    /// As [`Self::end_object`], where another mapping may be in its place now: the addresses are never used again.
    pub(crate) fn lose_object(&self, offset: usize, length: usize) {
        space::lose(offset, length);
        self.counts.objects.fetch_sub(length, Ordering::Relaxed);
        self.aside.fetch_sub(length, Ordering::Relaxed);
    }

    /// Resizes an object with segments of its own in place; false if that is not possible.
    ///
    /// # Safety
    /// As [`Self::end_object`], except that the object may be in use.
    pub(crate) unsafe fn resize_object(&self, offset: usize, length: usize, size: usize) -> bool {
        let Some(new) = size.checked_next_multiple_of(sys::PAGE) else { return false };
        if new.div_ceil(SEGMENT) != length.div_ceil(SEGMENT) {
            return false;
        }
        let at = space::address_of(offset);
        if new > length {
            if !self.has_room(new - length) || !self.reserve_or_drop(new - length) {
                return false;
            }
            if !self.place(at + length, new - length) {
                self.aside.fetch_sub(new - length, Ordering::Relaxed);
                return false;
            }
            self.counts.objects.fetch_add(new - length, Ordering::Relaxed);
        } else if new < length {
            // SAFETY: the memory beyond the new length is not needed any more.
            if !unsafe { sys::renew(at + new, length - new) } {
                return false;
            }
            self.aside.fetch_sub(length - new, Ordering::Relaxed);
            self.counts.objects.fetch_sub(length - new, Ordering::Relaxed);
        }
        space::set_bytes(offset, new);
        true
    }
}
