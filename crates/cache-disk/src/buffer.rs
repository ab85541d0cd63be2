//! Memory aligned to 4 KiB, as direct I/O requires, with a single owner.
//!
//! Rules: a buffer is one allocation, freed when dropped; it is borrowed as an ordinary slice, so the compiler excludes
//! concurrent writes. Buffers that the kernel reads or writes by address are kept alive by the code that submitted them
//! (`uring.rs`). The tests of this file need no kernel, so Miri can run them.
#![expect(unsafe_code, reason = "allocates with an alignment, and lends it as a slice")]

use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Alignment that devices may require for addresses in memory and on the device; sizes are multiples of it.
pub const BLOCK: usize = 4096;

/// Bytes that begin at a multiple of [`BLOCK`].
#[derive(Debug)]
pub struct Aligned {
    at: NonNull<u8>,
    layout: Option<Layout>,
}

// SAFETY: the allocation is owned by this value alone, and any thread may free it.
unsafe impl Send for Aligned {}
// SAFETY: a shared reference lends shared slices only.
unsafe impl Sync for Aligned {}

impl Aligned {
    /// Zeroed bytes, `len` rounded up to a multiple of [`BLOCK`]. `None` if there is no memory for them.
    #[must_use]
    pub fn new(len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self::empty());
        }
        let layout = Layout::from_size_align(len.checked_next_multiple_of(BLOCK)?, BLOCK).ok()?;
        // SAFETY: the layout has a size of at least one block.
        let at = unsafe { alloc_zeroed(layout) };
        NonNull::new(at).map(|at| Self { at, layout: Some(layout) })
    }

    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self { at: NonNull::dangling(), layout: None }
    }

    const fn bytes(&self) -> usize {
        match self.layout {
            Some(layout) => layout.size(),
            None => 0,
        }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: `at` came from `alloc_zeroed` with this layout, and is freed here only.
            unsafe { dealloc(self.at.as_ptr(), layout) }
        }
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `at` is the start of an allocation of this length, zeroed when allocated; or dangling, with length 0.
        // It can't be written while `self` is borrowed.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.bytes()) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zeroed_and_rounded_up() {
        let mut buffer = Aligned::new(5000).expect("two blocks of memory");
        assert_eq!((buffer.len(), buffer.as_ptr().addr() % BLOCK), (8192, 0));
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer[8191] = 7;
        assert_eq!(buffer.last(), Some(&7));
    }

    #[test]
    fn zero_length_buffers_succeed_and_oversized_ones_fail_cleanly() {
        assert!(Aligned::new(0).is_some_and(|buffer| buffer.is_empty()));
        assert!(Aligned::new(usize::MAX - 5).is_none());
    }
}
