//! A device as the tier sees it: bytes at addresses, asked one by one or many at once.
//!
//! [`Device`] is what is shared, [`Queue`] what one thread or event loop holds to have many things asked for at once. Buffers
//! belong to a job from when it is pushed until it comes back, done or failed: nobody can touch them in between.
//! The real ones are in `file.rs` and `uring.rs`; tests bring one that fails on purpose.

use core::fmt::Debug;
use core::ops::Range;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::buffer::Aligned;

/// Something to be read or written. Ranges, addresses and buffers are multiples of [`Device::align`].
#[derive(Debug)]
pub enum Job {
    /// Reads bytes at an address into a part of a buffer.
    Read {
        /// Where they go.
        into: Aligned,
        /// Which part of it.
        part: Range<usize>,
        /// Where they are on the device.
        at: u64,
    },
    /// Writes a part of a buffer.
    Write {
        /// Where they are.
        from: Arc<Aligned>,
        /// Which part of it.
        part: Range<usize>,
        /// Where they go on the device.
        at: u64,
    },
}

/// What became of a job: it comes back, with how many bytes were read or written.
#[derive(Debug)]
pub struct Done {
    /// As given with the job.
    pub token: u64,
    /// The job.
    pub job: Job,
    /// Bytes, or why not.
    pub result: io::Result<usize>,
}

/// Whether to wait for something to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until one job is done, unless none is under way.
    ForOne,
    /// Not at all.
    No,
}

/// A device, shared by threads.
pub trait Device: Debug + Send + Sync {
    /// Makes sure that so many bytes are there.
    ///
    /// # Errors
    /// The system's: `StorageFull` if there is no room.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Whether, if its first blocks are zeros, nothing of others can be in it: a block device, or a file of no or so many bytes.
    fn may_be_blank(&self, bytes: u64) -> bool;

    /// Reads, and says how many bytes; fewer only at the end.
    ///
    /// # Errors
    /// The device's.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes, and says how many bytes.
    ///
    /// # Errors
    /// The device's.
    fn write_at(&self, from: &[u8], at: u64) -> io::Result<usize>;

    /// Waits until everything written lasts.
    ///
    /// # Errors
    /// The device's.
    fn sync(&self) -> io::Result<()>;

    /// A queue for so many jobs at once.
    ///
    /// # Errors
    /// If the system has no more of them.
    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>>;

    /// What addresses and lengths must be multiples of: 512 or 4096.
    fn align(&self) -> usize;

    /// How it is asked, for people: such as "io_uring, direct".
    fn how(&self) -> String;
}

/// Jobs under way, and those done.
pub trait Queue: Debug + Send {
    /// Takes a job. It may begin at once, or with [`Queue::submit`].
    ///
    /// # Errors
    /// Gives it back if there are as many as the queue can hold.
    fn push(&mut self, token: u64, job: Job) -> Result<(), Job>;

    /// Has everything that was pushed begin.
    ///
    /// # Errors
    /// The system's; it may be called again.
    fn submit(&mut self) -> io::Result<()>;

    /// Adds what is done to `done`.
    ///
    /// # Errors
    /// The system's; it may be called again.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> io::Result<()>;

    /// Jobs that were pushed and not yet reaped.
    fn under_way(&self) -> usize;

    /// Readable when something is done; reset by [`Queue::reap`].
    fn ready(&self) -> BorrowedFd<'_>;
}

/// Reads all of it, or fails.
pub(super) fn read_exact(device: &dyn Device, into: &mut [u8], at: u64) -> io::Result<()> {
    match device.read_at(into, at)? {
        all if all == into.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Writes all of it, or fails.
pub(super) fn write_all(device: &dyn Device, from: &[u8], at: u64) -> io::Result<()> {
    match device.write_at(from, at)? {
        all if all == from.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}
