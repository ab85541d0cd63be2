//! Growth of a kind: address space for its arenas and its objects, within its limit and while its nodes have room. Kept
//! objects are dropped first, and when they have expired.
//!
//! Runs within jemalloc, too, which asks for address space by a hook, so nothing here allocates.
#![expect(unsafe_code, reason = "jemalloc calls the hook, and segments are cleared")]

use core::ffi::{c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use tikv_jemalloc_sys::extent_hooks_t;

use crate::kept::Place;
use crate::kind::{self, Kind};
use crate::room::Need;
use crate::space::{self, SEGMENT};
use crate::{arena, haste, sys};

/// The hooks of every kind.
pub(crate) static HOOKS: extent_hooks_t = extent_hooks_t { alloc: Some(on_alloc), ..arena::HOOKS };

unsafe extern "C" fn on_alloc(
    hooks: *mut extent_hooks_t,
    place: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    // SAFETY: hooks are given to jemalloc as part of a kind only, and kinds are never freed.
    let kind = unsafe { Kind::of_hooks(hooks) };
    let extended = if place.is_null() { kind.extend(size, alignment) } else { None };
    let Some(at) = extended else { return null_mut() };
    // SAFETY: jemalloc's pointer for our result. Address space is handed out once, so it is fresh.
    unsafe { *zero = true };
    // SAFETY: as above.
    unsafe { *commit = true };
    at as *mut c_void
}

impl Kind {
    /// Address space for an arena, with fresh pages.
    pub(crate) fn extend(&self, size: usize, alignment: usize) -> Option<usize> {
        let fits = size <= SEGMENT && alignment <= SEGMENT;
        if !fits || !self.has_room(size) || !self.reserve_or_drop(size) {
            return None;
        }
        let extended = self.advance(size, alignment);
        if extended.is_none() {
            self.aside.fetch_sub(size, Ordering::Relaxed);
        }
        extended
    }

    fn advance(&self, size: usize, alignment: usize) -> Option<usize> {
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
        loop {
            let cursor = self.cursor.load(Ordering::Acquire);
            let at = cursor.next_multiple_of(alignment);
            if at + size <= cursor.next_multiple_of(SEGMENT) {
                if self.cursor.compare_exchange(cursor, at + size, order, otherwise).is_ok() {
                    return Some(at);
                }
                continue;
            }
            let offset = space::take_segment(self.index())?;
            let at = space::address_of(offset);
            let won = self.place(at, SEGMENT)
                && self.cursor.compare_exchange(cursor, at + size, order, otherwise).is_ok();
            if won {
                return Some(at);
            }
            // SAFETY: nothing was handed out from the segment.
            unsafe { self.clear(offset, SEGMENT) };
            if self.cursor.load(Ordering::Acquire) == cursor {
                return None;
            }
        }
    }

    /// Applies the kind's placement to the pages of a range.
    pub(crate) fn place(&self, at: usize, length: usize) -> bool {
        let Some(plan) = self.plan() else { return false };
        if let Some(huge) = plan.huge {
            sys::advise_huge(at, length, huge);
        }
        self.counts.bound(plan.placing.apply(at, length))
    }

    /// Whether `bytes` more may come from the kind's nodes; false only if another kind can serve the request.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let Some(plan) = self.plan().filter(|plan| !plan.bound.nodes.is_empty()) else {
            return true;
        };
        let spills = plan.spill.is_some();
        // With a limit, the limit decides.
        if !spills && plan.limit.is_some() {
            return true;
        }
        let aside = self.set_aside().saturating_add(bytes);
        let need = Need { bound: &plan.bound, bytes, aside, spills, text: &plan.text };
        self.room.has(need, drop_all_kept)
    }

    /// Sets `bytes` aside, if the limit allows it; drops kept objects first if necessary.
    pub(crate) fn reserve_or_drop(&self, bytes: usize) -> bool {
        self.reserve(bytes) || self.drop_all_kept() && self.reserve(bytes)
    }

    /// Frees kept objects that have expired.
    pub(crate) fn drop_overdue(&self) {
        if self.kept.bytes() == 0 {
            return;
        }
        let now = haste::now_ms();
        while let Some(place) = self.kept.take_overdue(now) {
            self.drop_kept(place);
        }
    }

    /// Frees all kept objects; returns whether there were any.
    fn drop_all_kept(&self) -> bool {
        core::iter::from_fn(|| self.kept.take_oldest(|_| true))
            .map(|place| self.drop_kept(place))
            .count()
            > 0
    }

    /// Frees an object that was kept.
    pub(crate) fn drop_kept(&self, place: Place) {
        // SAFETY: it was kept, so nothing uses it.
        unsafe { self.clear(place.offset, place.length) };
        self.aside.fetch_sub(place.length, Ordering::Relaxed);
    }

    /// Releases segments.
    ///
    /// # Safety
    /// The segments belong to this kind, and nothing in them is used.
    pub(crate) unsafe fn clear(&self, offset: usize, length: usize) {
        // SAFETY: the caller's promise.
        if unsafe { sys::renew(space::address_of(offset), length) } {
            space::give(offset, length);
        }
    }
}

/// Frees all kept objects of all kinds; returns whether there were any.
fn drop_all_kept() -> bool {
    kind::all().chain(kind::visit(0)).filter(|kind| kind.drop_all_kept()).count() > 0
}
