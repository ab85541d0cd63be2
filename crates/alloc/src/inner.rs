//! The heap of the preload library's own code: a `#[global_allocator]` that never calls the malloc it replaces.
//!
//! The library needs a few KiB at its start. They are packed in static memory, instead of taking a page of each of
//! jemalloc's size classes; the rest comes from jemalloc.
#![expect(unsafe_code, reason = "allocators are unsafe to write")]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

use tikv_jemalloc_sys as je;

use crate::arena;

const ROOM: usize = 64 << 10;

#[repr(align(64))]
struct Room(UnsafeCell<[u8; ROOM]>);

// SAFETY: each byte is handed out to one owner at a time.
unsafe impl Sync for Room {}

static FIRST: Room = Room(UnsafeCell::new([0; ROOM]));
/// Bytes handed out, from the front.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The allocator.
#[derive(Clone, Copy, Debug)]
pub struct Inner;

/// An offset into the static memory; `None` for jemalloc's objects.
fn offset(at: *mut u8) -> Option<usize> {
    let offset = (at as usize).wrapping_sub(FIRST.0.get() as usize);
    (offset < ROOM).then_some(offset)
}

/// Moves the end of the handed-out memory from `from` to `to`; false if it is not at `from`.
fn move_end(from: usize, to: usize) -> bool {
    to <= ROOM && USED.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

// SAFETY: memory has the size and alignment of its layout, and is handed out again only if it is the last and was given back.
unsafe impl GlobalAlloc for Inner {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let place = |used: usize| used.next_multiple_of(layout.align());
        let more = |used| place(used).checked_add(layout.size()).filter(|end| *end <= ROOM);
        let used = if layout.align() <= 64 {
            USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()
        } else {
            None
        };
        match used {
            // SAFETY: within the static memory.
            Some(used) => unsafe { FIRST.0.get().cast::<u8>().add(place(used)) },
            None if !arena::wake() => core::ptr::null_mut(),
            None => {
                let flags = je::MALLOCX_ALIGN(layout.align());
                // SAFETY: layouts of allocations are not empty; the alignment is a power of two.
                unsafe { je::mallocx(layout.size(), flags).cast() }
            }
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match offset(at) {
            Some(offset) => {
                move_end(offset + layout.size(), offset);
            }
            // SAFETY: the caller's promise: from above, so jemalloc's.
            None => unsafe { je::free(at.cast()) },
        }
    }

    unsafe fn realloc(&self, at: *mut u8, old: Layout, size: usize) -> *mut u8 {
        let is_last = |offset: usize| move_end(offset + old.size(), offset + size);
        if offset(at).is_some_and(is_last) {
            return at;
        }
        let Ok(layout) = Layout::from_size_align(size, old.align()) else {
            return core::ptr::null_mut();
        };
        // SAFETY: a layout that is not empty.
        let moved = unsafe { self.alloc(layout) };
        if !moved.is_null() {
            // SAFETY: both have that many bytes, and they are two objects.
            unsafe { at.copy_to_nonoverlapping(moved, old.size().min(size)) };
            // SAFETY: the caller's promise.
            unsafe { self.dealloc(at, old) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_requests_use_static_memory_and_the_last_block_is_reused() {
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        // SAFETY: here and below: layouts that are not empty, and objects allocated with them.
        let first = unsafe { Inner.alloc(layout(10, 1)) };
        // SAFETY: as above.
        let second = unsafe { Inner.alloc(layout(100, 16)) };
        assert!(offset(first).is_some() && (second as usize).is_multiple_of(16));
        // SAFETY: as above.
        assert_eq!(unsafe { Inner.realloc(second, layout(100, 16), 1000) }, second);
        // SAFETY: as above.
        unsafe { first.write_bytes(7, 10) };
        // SAFETY: as above.
        let moved = unsafe { Inner.realloc(first, layout(10, 1), 20) };
        // SAFETY: ten bytes that were written.
        assert!(moved != first && unsafe { core::slice::from_raw_parts(moved, 10) } == [7; 10]);
        // SAFETY: as above.
        unsafe { Inner.dealloc(moved, layout(20, 1)) };
        // SAFETY: as above.
        assert_eq!(unsafe { Inner.alloc(layout(20, 1)) }, moved);
        for large in [layout(ROOM + 1, 1), layout(64, 4096)] {
            // SAFETY: as above.
            let other = unsafe { Inner.alloc(large) };
            assert!(offset(other).is_none() && (other as usize).is_multiple_of(large.align()));
            // SAFETY: as above.
            unsafe { Inner.dealloc(other, large) };
        }
    }
}
