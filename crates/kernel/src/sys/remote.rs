//! Calls on another process's pages: move_pages(2), process_madvise(2), and the region on which the latter is tried.
//!
//! They change the place and size of pages; never their contents, nor mappings. So they are safe to offer for any
//! address of any process, and the kernel checks permissions.
#![expect(unsafe_code, reason = "system calls that no safe crate offers")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::{self, NonNull};

use libc::c_int;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The treatment of pages mapped by several processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shared {
    /// They stay, with an errno.
    Stay,
    /// They migrate too; needs CAP_SYS_NICE.
    Move,
}

/// move_pages(2) of process `pid`: migrates each page to its node, and writes the kernel's result for it, if there is
/// one, to `status`. Returns the number of pages not migrated, including those not attempted.
pub(crate) fn move_pages(
    pid: i32,
    pages: &[usize],
    nodes: &[c_int],
    status: &mut [c_int],
    shared: Shared,
) -> io::Result<u64> {
    const MOVE: c_int = 2;
    const MOVE_ALL: c_int = 4;
    let count = pages.len().min(nodes.len()).min(status.len());
    let flags = if shared == Shared::Move { MOVE_ALL } else { MOVE };
    // SAFETY: the kernel reads `count` addresses, which it does not follow in this process, and `count` nodes, and writes
    // at most `count` numbers; all three slices have as many.
    let left = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            count,
            pages.as_ptr(),
            nodes.as_ptr(),
            status.as_mut_ptr(),
            flags,
        )
    };
    u64::try_from(left).map_err(|_| io::Error::last_os_error())
}

/// The same without target nodes: writes the node of each page, or a negative errno.
pub(crate) fn where_pages_are(pid: i32, pages: &[usize], status: &mut [c_int]) -> io::Result<()> {
    let count = pages.len().min(status.len());
    let nowhere = ptr::null::<c_int>();
    // SAFETY: the kernel reads `count` addresses, which it does not follow in this process, and writes `count` numbers; both
    // slices have as many.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            count,
            pages.as_ptr(),
            nowhere,
            status.as_mut_ptr(),
            0_i32,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Advice that changes the size of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resize {
    /// MADV_COLD: of a part of a huge page, makes that small ones.
    Cold,
    /// MADV_COLLAPSE: makes small pages a huge one.
    Collapse,
}

/// process_madvise(2) for one range of the process behind `process`; returns the number of bytes processed.
pub(crate) fn advise(
    process: BorrowedFd<'_>,
    address: usize,
    length: usize,
    resize: Resize,
) -> io::Result<usize> {
    const COLD: c_int = 20;
    const COLLAPSE: c_int = 25;
    let advice = if resize == Resize::Cold { COLD } else { COLLAPSE };
    let range =
        libc::iovec { iov_base: ptr::without_provenance_mut::<c_void>(address), iov_len: length };
    // SAFETY: the kernel reads one range from a place that lives until it returns. Either advice leaves the content of
    // all pages unchanged.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            &raw const range,
            1_usize,
            advice,
            0_u32,
        )
    };
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

/// Anonymous memory for a trial that nothing refers to but this.
#[derive(Debug)]
pub(crate) struct Region {
    mapping: NonNull<c_void>,
    length: usize,
}

impl Region {
    /// Anonymous memory, with huge pages if available.
    pub(crate) fn huge(length: usize) -> io::Result<Self> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so no existing mapping is replaced.
        let mapping = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, rights, flags) };
        let region = Self::of(mapping?, length)?;
        // SAFETY: advice about huge pages changes which pages hold the contents, never the contents.
        unsafe { rustix::mm::madvise(region.mapping.as_ptr(), length, Advice::LinuxHugepage) }?;
        Ok(region)
    }

    fn of(mapping: *mut c_void, length: usize) -> io::Result<Self> {
        Ok(Self { mapping: NonNull::new(mapping).ok_or(io::ErrorKind::OutOfMemory)?, length })
    }

    pub(crate) fn address(&self) -> usize {
        self.mapping.as_ptr().addr()
    }

    /// Writes a byte to each page.
    pub(crate) fn fill(&mut self, byte: u8) {
        for at in (0..self.length).step_by(4096) {
            // SAFETY: at < length, so it is inside the mapping.
            let place = unsafe { self.mapping.cast::<u8>().add(at) };
            // SAFETY: mapped for writing as long as `self` lives, and there is no other reference to it.
            unsafe { place.write_volatile(byte) };
        }
    }

    /// Whether each page begins with this byte.
    pub(crate) fn holds(&self, byte: u8) -> bool {
        (0..self.length).step_by(4096).all(|at| {
            // SAFETY: at < length, so it is inside the mapping.
            let place = unsafe { self.mapping.cast::<u8>().add(at) };
            // SAFETY: mapped for reading as long as `self` lives.
            unsafe { place.read_volatile() == byte }
        })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping; `self` is dropped, and with it the last reference.
        let _ = unsafe { rustix::mm::munmap(self.mapping.as_ptr(), self.length) };
    }
}
