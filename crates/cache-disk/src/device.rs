//! The interface to a device: reads and writes of bytes at addresses, one by one or many at once.
//!
//! [`Device`] is shared; a [`Queue`] belongs to one thread or event loop and has many requests in flight. A job owns
//! its buffer from push to completion, successful or not: nothing can access it in between. The real devices are in
//! `file.rs` and `uring.rs`; tests have one that fails on purpose.

use core::fmt::Debug;
use core::hash::BuildHasher as _;
use core::ops::Range;
use std::hash::RandomState;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::buffer::Aligned;

/// A read or write request. Ranges, addresses and buffers are multiples of [`Device::align`].
#[derive(Debug)]
pub enum Job {
    /// Reads bytes at an address into a part of a buffer.
    Read {
        /// The destination.
        into: Aligned,
        /// The part of the destination.
        part: Range<usize>,
        /// Address on the device.
        at: u64,
    },
    /// Writes a part of a buffer.
    Write {
        /// The source.
        from: Arc<Aligned>,
        /// The part of the source.
        part: Range<usize>,
        /// Address on the device.
        at: u64,
    },
}

/// A completed job, with the number of bytes read or written.
#[derive(Debug)]
pub struct Done {
    /// As given with the job.
    pub token: u64,
    /// The job.
    pub job: Job,
    /// Number of bytes, or the error.
    pub result: io::Result<usize>,
}

/// Whether to wait for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For one completion, unless no job is in flight.
    ForOne,
    /// Not at all.
    No,
}

/// A device, shared by threads.
pub trait Device: Debug + Send + Sync {
    /// Ensures that the device has this many bytes.
    ///
    /// # Errors
    /// The system's: `StorageFull` if there is no space.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Current bytes: 0 for a new file.
    ///
    /// # Errors
    /// The system's.
    fn bytes(&self) -> io::Result<u64>;

    /// A random number. It distinguishes the objects of a tier from those that an earlier tier left on the device.
    fn unique(&self) -> u64 {
        RandomState::new().hash_one(0)
    }

    /// Reads, and returns the number of bytes; fewer only at the end.
    ///
    /// # Errors
    /// The device's.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes, and returns the number of bytes.
    ///
    /// # Errors
    /// The device's.
    fn write_at(&self, from: &[u8], at: u64) -> io::Result<usize>;

    /// Waits until everything written is durable.
    ///
    /// # Errors
    /// The device's.
    fn sync(&self) -> io::Result<()>;

    /// A queue for up to `depth` concurrent jobs.
    ///
    /// # Errors
    /// If the system has no more of them.
    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>>;

    /// Required alignment of addresses and lengths: 512 or 4096.
    fn align(&self) -> usize;

    /// The kind of access, for messages: such as "io_uring, direct".
    fn how(&self) -> String;
}

/// Jobs in flight, and completed ones.
pub trait Queue: Debug + Send {
    /// Takes a job. It may start at once, or with [`Queue::submit`].
    ///
    /// # Errors
    /// The job, if the queue is full.
    fn push(&mut self, token: u64, job: Job) -> Result<(), Job>;

    /// Starts all pushed jobs.
    ///
    /// # Errors
    /// The system's; it may be called again.
    fn submit(&mut self) -> io::Result<()>;

    /// Appends completed jobs to `done`.
    ///
    /// # Errors
    /// The system's; it may be called again.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> io::Result<()>;

    /// Jobs that were pushed and not yet reaped.
    fn under_way(&self) -> usize;

    /// Readable when a job has completed; reset by [`Queue::reap`].
    fn ready(&self) -> BorrowedFd<'_>;
}

/// Reads the whole slice, or fails.
pub(super) fn read_exact(device: &dyn Device, into: &mut [u8], at: u64) -> io::Result<()> {
    match device.read_at(into, at)? {
        all if all == into.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Writes the whole slice, or fails.
pub(super) fn write_all(device: &dyn Device, from: &[u8], at: u64) -> io::Result<()> {
    match device.write_at(from, at)? {
        all if all == from.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}
