//! Whose a cache is: the process that made it, and not a child of fork, which has a copy of its memory without its threads.
//!
//! A page that the kernel empties in children tells them apart, for a read an operation; where it does not do that (before Linux
//! 4.14, and in some sandboxes) the process's number does. The page is written once, before anybody else knows it.
#![expect(unsafe_code, reason = "a page that children find empty")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::io;

use rustix::mm::{Advice, MapFlags, ProtFlags};

const PAGE: usize = 4096;

/// Whose it is.
#[derive(Debug)]
pub(super) struct Owner {
    page: NonNull<AtomicU32>,
    /// Where the kernel does not empty the page.
    process: Option<u32>,
}

// SAFETY: the page is reached through an atomic alone, and lives until drop.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Owner {
    /// The calling process.
    pub(super) fn new() -> io::Result<Self> {
        let (read, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory of ours.
        let at = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), PAGE, read, private) }?;
        let page = NonNull::new(at.cast::<AtomicU32>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the page is ours, and nothing is in it yet.
        let emptied = unsafe { rustix::mm::madvise(at, PAGE, Advice::LinuxWipeOnFork) };
        let process = emptied.is_err().then(std::process::id);
        let owner = Self { page, process };
        owner.mark().store(1, Relaxed);
        Ok(owner)
    }

    fn mark(&self) -> &AtomicU32 {
        // SAFETY: mapped and aligned (the start of a page), used as an atomic alone, and there until self is dropped.
        unsafe { self.page.as_ref() }
    }

    /// Whether this is the process.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.mark().load(Relaxed) == 1
            && self.process.is_none_or(|process| process == std::process::id())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and nobody has a reference into it any more. Failure leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE) };
    }
}
