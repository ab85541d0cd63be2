//! The owner of a cache: the process that opened it. A child of fork has a copy of its memory without its threads.
//!
//! They are distinguished by a page that the kernel clears in children, at the cost of one read per operation; where it
//! does not do that (before Linux 4.14, and in some sandboxes), by the process id. The page is written once, before it
//! is shared.
#![expect(unsafe_code, reason = "a page that children find empty")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::io;

use rustix::mm::{Advice, MapFlags, ProtFlags};

const PAGE: usize = 4096;

/// The owner of a cache.
#[derive(Debug)]
pub(super) struct Owner {
    page: NonNull<AtomicU32>,
    /// The process id, where the kernel does not clear the page.
    process: Option<u32>,
}

// SAFETY: the page is reached through an atomic alone, and lives until drop.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Owner {
    /// The calling process as owner.
    pub(super) fn new() -> io::Result<Self> {
        let (read, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new private mapping at an address chosen by the kernel touches no existing memory.
        let at = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), PAGE, read, private) }?;
        let page = NonNull::new(at.cast::<AtomicU32>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the page is owned and still unused.
        let emptied = unsafe { rustix::mm::madvise(at, PAGE, Advice::LinuxWipeOnFork) };
        let process = emptied.is_err().then(std::process::id);
        let owner = Self { page, process };
        owner.mark().store(1, Relaxed);
        Ok(owner)
    }

    fn mark(&self) -> &AtomicU32 {
        // SAFETY: mapped and aligned (the start of a page), accessed only as an atomic, and valid until self is
        // dropped.
        unsafe { self.page.as_ref() }
    }

    /// Whether the calling process is the owner.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.mark().load(Relaxed) == 1
            && self.process.is_none_or(|process| process == std::process::id())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, has this length, and no reference into it is left. Failure leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE) };
    }
}
