//! Memory kinds for Rust: as the allocator of one collection ([`Kind`]), or of a whole program ([`Global`]).
//!
//! ```
//! use allocator_api2::vec::Vec;
//! use nearfar_alloc::Kind;
//!
//! let kind = Kind::new("bind:0;limit=64m")?;
//! let mut numbers = Vec::new_in(&kind);
//! numbers.extend(0..1000_u64);
//! assert!(kind.stats().allocated >= 8000);
//! # Ok::<(), nearfar_alloc::KindError>(())
//! ```
//!
//! ```
//! use nearfar_alloc::Global;
//!
//! #[global_allocator]
//! static HEAP: Global = Global::new("prefer:all");
//! # fn main() {}
//! ```
#![expect(unsafe_code, reason = "allocators are unsafe to write")]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU32, Ordering};

use allocator_api2::alloc::{AllocError, Allocator};

#[cfg(feature = "checked")]
use crate::checked as heap;
#[cfg(not(feature = "checked"))]
use crate::heap;
use crate::kind::{self, DEFAULT};
use crate::machine::{self, KindError};
use crate::stats;

pub use crate::stats::Stats;

/// Alignment of every object, except of those smaller than it.
const ALIGNMENT: usize = 16;

/// A memory kind. Collections borrow it as their allocator; it is destroyed after the last of them.
#[derive(Debug)]
pub struct Kind {
    handle: u32,
}

impl Kind {
    /// Creates a kind from its text: "far", "weighted:0=3,1=1;limit=4g;spill=near" (docs/alloc.md).
    ///
    /// # Errors
    /// [`KindError`]: the text is not a kind, such nodes do not exist, or the kernel lacks the required feature.
    pub fn new(text: &str) -> Result<Self, KindError> {
        Ok(Self { handle: machine::create(text)? })
    }

    /// Its handle, as in the C interface.
    #[must_use]
    pub const fn handle(&self) -> u32 {
        self.handle
    }

    /// Its current statistics.
    #[must_use]
    pub fn stats(&self) -> Stats {
        kind::find(self.handle).map(stats::of).unwrap_or_default()
    }
}

impl Drop for Kind {
    fn drop(&mut self) {
        // SAFETY: everything allocated from it has borrowed it, and so is freed or never used again.
        unsafe { kind::destroy(self.handle) };
    }
}

/// Memory for a layout that is not empty.
fn allocate(kind: u32, layout: Layout, zeroed: bool) -> Option<NonNull<u8>> {
    let (size, alignment) = (layout.size(), layout.align());
    if alignment <= ALIGNMENT && size >= alignment {
        return if zeroed { heap::allocate_zeroed(kind, size) } else { heap::allocate(kind, size) };
    }
    let object = heap::allocate_aligned(kind, alignment, size)?;
    if zeroed {
        // SAFETY: just allocated, with that many bytes.
        unsafe { object.write_bytes(0, size) };
    }
    Some(object)
}

/// Resizes memory; `None` if the new layout needs a larger alignment than every object has, or on failure.
unsafe fn resize(kind: u32, object: *mut u8, old: Layout, size: usize) -> Option<NonNull<u8>> {
    if old.align() > ALIGNMENT || size < old.align() {
        return None;
    }
    // SAFETY: the caller's promise: allocated here.
    unsafe { heap::reallocate(kind, object, size) }
}

fn sized(object: Option<NonNull<u8>>, size: usize) -> Result<NonNull<[u8]>, AllocError> {
    Ok(NonNull::slice_from_raw_parts(object.ok_or(AllocError)?, size))
}

// SAFETY: memory stays valid until it is freed or the kind is dropped, which can't happen before collections that
// borrow it; kinds are found by number, so copies of the reference are the same allocator.
unsafe impl Allocator for &Kind {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return sized(NonNull::new(layout.align() as *mut u8), 0);
        }
        sized(allocate(self.handle, layout, false), layout.size())
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return self.allocate(layout);
        }
        sized(allocate(self.handle, layout, true), layout.size())
    }

    unsafe fn deallocate(&self, object: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: the caller's promise.
            unsafe { heap::free(object.as_ptr()) };
        }
    }

    unsafe fn grow(
        &self,
        object: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if old.size() > 0 && old.align() == new.align() {
            // SAFETY: the caller's promise.
            if let Some(grown) = unsafe { resize(self.handle, object.as_ptr(), old, new.size()) } {
                return sized(Some(grown), new.size());
            }
        }
        let moved = self.allocate(new)?;
        // SAFETY: the caller's promise: the first has as many bytes, and the second more.
        unsafe { object.copy_to_nonoverlapping(moved.cast(), old.size()) };
        // SAFETY: the caller's promise.
        unsafe { self.deallocate(object, old) };
        Ok(moved)
    }
}

/// A kind as the allocator of a whole program. The first allocation creates it; allocations during its creation are
/// plain memory, as are all if the creation fails.
#[derive(Debug)]
pub struct Global {
    text: &'static str,
    kind: AtomicU32,
}

/// The kind is not made yet, or is being made; these values are no handles of kinds.
const NEW: u32 = u32::MAX;
const MAKING: u32 = u32::MAX - 1;

impl Global {
    /// The allocator for a kind, given as text.
    #[must_use]
    pub const fn new(text: &'static str) -> Self {
        Self { text, kind: AtomicU32::new(NEW) }
    }

    /// The kind's handle, as in the C interface; 0 while there is none.
    #[must_use]
    pub fn handle(&self) -> u32 {
        match self.kind.load(Ordering::Acquire) {
            NEW | MAKING => DEFAULT,
            kind => kind,
        }
    }

    #[inline(always)]
    fn kind(&self) -> u32 {
        let kind = self.kind.load(Ordering::Acquire);
        if kind < MAKING { kind } else { self.make() }
    }

    #[cold]
    fn make(&self) -> u32 {
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
        if self.kind.compare_exchange(NEW, MAKING, order, otherwise).is_ok() {
            self.kind.store(machine::create(self.text).unwrap_or(DEFAULT), Ordering::Release);
        }
        self.handle()
    }
}

fn raw(object: Option<NonNull<u8>>) -> *mut u8 {
    object.map_or(null_mut(), NonNull::as_ptr)
}

// SAFETY: memory has the size and alignment of its layout and belongs to the caller only; nothing here unwinds.
unsafe impl GlobalAlloc for Global {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        raw(allocate(self.kind(), layout, false))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        raw(allocate(self.kind(), layout, true))
    }

    unsafe fn dealloc(&self, object: *mut u8, _: Layout) {
        // SAFETY: the caller's promise.
        unsafe { heap::free(object) };
    }

    unsafe fn realloc(&self, object: *mut u8, old: Layout, size: usize) -> *mut u8 {
        // Plain memory stays plain: it was allocated before the kind existed.
        let kind = heap::kind_of(object as usize);
        // SAFETY: the caller's promise.
        if let Some(resized) = unsafe { resize(kind, object, old, size) } {
            return resized.as_ptr();
        }
        let Ok(layout) = Layout::from_size_align(size, old.align()) else { return null_mut() };
        let moved = raw(allocate(self.kind(), layout, false));
        if !moved.is_null() {
            // SAFETY: both have that many bytes, and they are two objects.
            unsafe { object.copy_to_nonoverlapping(moved, old.size().min(size)) };
            // SAFETY: the caller's promise.
            unsafe { heap::free(object) };
        }
        moved
    }
}
