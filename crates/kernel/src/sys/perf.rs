//! perf_event_open(2) and its mappings: rings of records and of hardware traces, shared with the kernel.
//!
//! Rules: a [`Ring`] owns its mappings from `mmap` to `munmap`. The kernel writes to the buffer ahead of `data_head`
//! and never between `data_tail` and `data_head`, which belongs to this process until `data_tail` is moved; so it is
//! copied out first and released then. Heads are loaded with acquire, tails stored with release, as the kernel's header
//! requires. Head values are not trusted: lengths are bounded by the mapping.
#![expect(unsafe_code, reason = "a system call that no safe crate offers, and shared memory")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

const PAGE: usize = 4096;
/// Indexes of 64-bit words in the first page (include/uapi/linux/perf_event.h, struct perf_event_mmap_page).
const DATA_HEAD: usize = 1024 / 8;
const DATA_TAIL: usize = 1032 / 8;
const AUX_HEAD: usize = 1056 / 8;
const AUX_TAIL: usize = 1064 / 8;
const AUX_OFFSET: usize = 1072 / 8;
const AUX_SIZE: usize = 1080 / 8;

/// struct perf_event_attr as of its fifth version, which every kernel since 4.1 takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attr {
    pub(crate) kind: u32,
    pub(crate) size: u32,
    pub(crate) config: u64,
    pub(crate) sample_period: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    pub(crate) wakeup: u32,
    pub(crate) breakpoint_type: u32,
    pub(crate) config1: u64,
    pub(crate) config2: u64,
    pub(crate) branch_sample_type: u64,
    pub(crate) registers_user: u64,
    pub(crate) stack_user: u32,
    pub(crate) clock: i32,
    pub(crate) registers_intr: u64,
    pub(crate) aux_watermark: u32,
    pub(crate) stack_max: u16,
    pub(crate) reserved: u16,
}

/// Requests to an open event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Enable,
    Disable,
    /// Events per sample.
    Period(u64),
}

/// perf_event_open(2) for a process (or all, -1) on a CPU (or any, -1), in the group of a leader if there is one.
pub(crate) fn open(attr: &Attr, process: i32, cpu: i32, leader: Option<&File>) -> io::Result<File> {
    let leader = leader.map_or(-1, AsRawFd::as_raw_fd);
    const CLOSE_ON_EXEC: u64 = 8;
    let size = u32::try_from(size_of::<Attr>()).unwrap_or(0);
    let attr = Attr { size, ..*attr };
    // SAFETY: the kernel reads `size` bytes of the attributes, which have that length, and may write only to `size`,
    // for which this copy is owned; the rest are numbers.
    let file = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            process,
            cpu,
            leader,
            CLOSE_ON_EXEC,
        )
    };
    let file = i32::try_from(file).unwrap_or(-1);
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the call has just created, owned by nothing else.
    Ok(unsafe { File::from_raw_fd(file) })
}

/// ioctl(2) on an event.
pub(crate) fn ask(event: &File, ask: Ask) -> io::Result<()> {
    let done = match ask {
        // SAFETY: this request takes a number.
        Ask::Enable => unsafe { libc::ioctl(event.as_raw_fd(), 0x2400, 0) },
        // SAFETY: this request takes a number.
        Ask::Disable => unsafe { libc::ioctl(event.as_raw_fd(), 0x2401, 0) },
        // SAFETY: this request reads one 64-bit number, which lives until the call returns.
        Ask::Period(period) => unsafe {
            libc::ioctl(event.as_raw_fd(), 0x4008_2404, &raw const period)
        },
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Memory that an event shares with the kernel.
#[derive(Debug)]
struct Mapping {
    at: NonNull<c_void>,
    length: usize,
}

// SAFETY: the mapping is not bound to a thread; its words are accessed only by atomic loads and stores, and its bytes
// only by the owner of the ring.
unsafe impl Send for Mapping {}

impl Mapping {
    fn of(event: &File, length: usize, offset: u64) -> io::Result<Self> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so no existing mapping is replaced.
        let at = unsafe {
            rustix::mm::mmap(ptr::null_mut(), length, rights, MapFlags::SHARED, event, offset)
        }?;
        Ok(Self { at: NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?, length })
    }

    fn word(&self, place: usize) -> &AtomicU64 {
        assert!(place < self.length / 8, "a word of the mapping");
        // SAFETY: place < length / 8, so it is inside the mapping.
        let word = unsafe { self.at.cast::<AtomicU64>().add(place) };
        // SAFETY: mapped as long as `self` lives, aligned as a page is, and any bits are a number.
        unsafe { word.as_ref() }
    }

    /// Appends `length` bytes from `from` on.
    fn copy(&self, from: usize, length: usize, out: &mut Vec<u8>) {
        assert!(from <= self.length && length <= self.length - from, "bytes of the mapping");
        out.reserve(length);
        let before = out.len();
        // SAFETY: from is inside the mapping, or its end.
        let source = unsafe { self.at.cast::<u8>().add(from) };
        // SAFETY: reserved above, so it is inside the vector's memory.
        let target = unsafe { out.as_mut_ptr().add(before) };
        // SAFETY: both are good for `length` bytes and apart from each other; the kernel does not write to these (see above).
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), target, length) };
        // SAFETY: these were reserved and have just been written.
        unsafe { out.set_len(before + length) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping created by `of`; `self` is dropped, and with it the last reference.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr(), self.length) };
    }
}

/// The ring buffers of an event, written by the kernel.
#[derive(Debug)]
pub(crate) struct Ring {
    control: Mapping,
    /// Length of the buffer of records, after the first page.
    records: usize,
    aux: Option<Mapping>,
}

impl Ring {
    /// Maps the ring of an event, with `pages` pages: a power of two.
    pub(crate) fn map(event: &File, pages: usize) -> io::Result<Self> {
        let records = pages * PAGE;
        Ok(Self { control: Mapping::of(event, PAGE + records, 0)?, records, aux: None })
    }

    /// Maps the buffer of hardware traces as well, with `pages` pages.
    pub(crate) fn map_aux(&mut self, event: &File, pages: usize) -> io::Result<()> {
        let (offset, length) = (PAGE + self.records, pages * PAGE);
        self.control.word(AUX_OFFSET).store(offset as u64, Ordering::Relaxed);
        self.control.word(AUX_SIZE).store(length as u64, Ordering::Relaxed);
        self.aux = Some(Mapping::of(event, length, offset as u64)?);
        Ok(())
    }

    /// Appends the new records, and frees their space.
    pub(crate) fn drain(&mut self, out: &mut Vec<u8>) {
        let (control, records) = (&self.control, self.records);
        drain(control, (DATA_HEAD, DATA_TAIL), records, |from, length| {
            control.copy(PAGE + from, length, out);
        });
    }

    /// The same for hardware traces.
    pub(crate) fn drain_aux(&mut self, out: &mut Vec<u8>) {
        let Some(aux) = &self.aux else { return };
        drain(&self.control, (AUX_HEAD, AUX_TAIL), aux.length, |from, length| {
            aux.copy(from, length, out);
        });
    }
}

/// Copies the bytes between tail and head, in one piece or two, and moves the tail.
fn drain(
    control: &Mapping,
    (head_at, tail_at): (usize, usize),
    size: usize,
    mut piece: impl FnMut(usize, usize),
) {
    let head = control.word(head_at).load(Ordering::Acquire);
    let tail = control.word(tail_at).load(Ordering::Relaxed);
    let length = usize::try_from(head.wrapping_sub(tail)).unwrap_or(usize::MAX).min(size);
    let from = usize::try_from(tail % size as u64).unwrap_or(0);
    let first = length.min(size - from);
    piece(from, first);
    piece(0, length - first);
    control.word(tail_at).store(head, Ordering::Release);
}

/// Writes to `pages` fresh pages that are not huge, and unmaps them; returns their address range.
pub(crate) fn touch_fresh(pages: usize) -> io::Result<(u64, u64)> {
    let length = pages.max(1) * PAGE;
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: without MAP_FIXED the kernel chooses a free range, so no existing mapping is replaced.
    let at = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, rights, flags) }?;
    let mapping = Mapping { at: NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?, length };
    let small = rustix::mm::Advice::LinuxNoHugepage;
    // SAFETY: this advice changes which pages hold the contents, never the contents.
    let _ = unsafe { rustix::mm::madvise(at, length, small) };
    (0..length / 8)
        .step_by(PAGE / 8)
        .for_each(|word| mapping.word(word).store(1, Ordering::Relaxed));
    let from = at.addr() as u64;
    Ok((from, from + length as u64))
}
