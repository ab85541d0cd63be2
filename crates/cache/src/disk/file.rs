//! A file or block device, read and written directly where its file system allows it, by plain calls.
//!
//! Direct access (O_DIRECT) leaves the page cache alone: what is cached here would be cached twice. File systems without it
//! are used through the page cache, and [`Device::how`] says so. The lock that keeps other processes away is held by a
//! descriptor of its own, which ends with the process, whatever an io_uring still holds. Queues of io_uring: `uring.rs`.

use std::collections::VecDeque;
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, fallocate, fstat, open};

use super::buffer::{Aligned, BLOCK};
use super::config::Access;
use super::device::{Device, Done, Job, Queue, Wait};
use super::error::Error;
use super::uring;
use super::words::wide;

/// The least that devices let us address.
const SECTOR: usize = 512;

/// A file or block device.
#[derive(Debug)]
pub struct BlockFile {
    file: Arc<File>,
    _lock: File,
    path: PathBuf,
    access: Access,
    direct: bool,
    align: usize,
}

impl BlockFile {
    /// Opens a file or device, or makes a file of no bytes.
    ///
    /// # Errors
    /// If it can't be opened, or another process has it.
    pub fn open(path: &Path, access: Access) -> Result<Self, Error> {
        let fail = |call, source| Error::Io { path: path.into(), call, source };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let lock = open(path, flags, mode).map_err(|errno| fail("open", errno.into()))?;
        let kind = FileType::from_raw_mode(
            fstat(&lock).map_err(|errno| fail("stat", errno.into()))?.st_mode,
        );
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
            return Err(Error::Foreign { path: path.into() });
        }
        let lock = File::from(lock);
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { path: path.into() }),
            Err(TryLockError::Error(source)) => return Err(fail("lock", source)),
        }
        let (file, direct) = match open(path, flags | OFlags::DIRECT, mode) {
            Ok(file) => (file, true),
            Err(rustix::io::Errno::INVAL) => {
                (open(path, flags, mode).map_err(|errno| fail("open", errno.into()))?, false)
            }
            Err(errno) => return Err(fail("open O_DIRECT", errno.into())),
        };
        let file = Arc::new(File::from(file));
        Ok(Self { file, _lock: lock, path: path.into(), access, direct, align: BLOCK })
    }

    /// Sees whether single sectors can be read. What is at the begin must have been written: of what was never written
    /// anything can be read.
    #[must_use]
    pub fn with_least_alignment(mut self) -> Self {
        let sector = Aligned::new(BLOCK).and_then(|mut block| {
            self.file
                .read_at(&mut block[..SECTOR], wide(SECTOR))
                .ok()
                .filter(|read| *read == SECTOR)
        });
        if sector.is_some() || !self.direct {
            self.align = SECTOR;
        }
        self
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Device for BlockFile {
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let stat = fstat(&self.file)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
            let there = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?;
            return if there < bytes { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) };
        }
        let before = u64::try_from(stat.st_size).unwrap_or(0);
        // Asked first, so that a file system is not full for the time it takes to find out.
        let held = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(wide(SECTOR));
        let room = rustix::fs::fstatvfs(&self.file)?;
        if bytes.saturating_sub(held) > room.f_bavail.saturating_mul(room.f_frsize) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        match fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => self.file.set_len(bytes.max(before)),
            Err(errno) => {
                // What could be reserved is given back; what was there stays.
                self.file.set_len(before)?;
                Err(errno.into())
            }
        }
    }

    fn may_be_blank(&self, bytes: u64) -> bool {
        fstat(&self.file).is_ok_and(|stat| {
            let device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
            device || stat.st_size == 0 || u64::try_from(stat.st_size) == Ok(bytes)
        })
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < into.len() {
            match self.file.read_at(&mut into[read..], at + wide(read)) {
                Ok(0) => break,
                // Not on a boundary: it ends here, and direct access could not go on.
                Ok(some) if !some.is_multiple_of(SECTOR) => return Ok(read + some),
                Ok(some) => read += some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&self, from: &[u8], at: u64) -> io::Result<usize> {
        let mut written = 0;
        while written < from.len() {
            match self.file.write_at(&from[written..], at + wide(written)) {
                Ok(0) => break,
                Ok(some) => written += some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        if self.access == Access::Auto
            && let Ok(queue) = uring::Ring::new(Arc::clone(&self.file), depth)
        {
            return Ok(Box::new(queue));
        }
        Ok(Box::new(AtOnce::new(Arc::clone(&self.file))?))
    }

    fn align(&self) -> usize {
        self.align
    }

    fn how(&self) -> String {
        let ring =
            self.access == Access::Auto && uring::Ring::new(Arc::clone(&self.file), 1).is_ok();
        let calls = if ring { "io_uring" } else { "plain calls" };
        let cached = if self.direct { "direct" } else { "through the page cache" };
        format!("{calls}, {cached}, in steps of {} bytes", self.align)
    }
}

/// A queue that does everything when it is pushed.
#[derive(Debug)]
struct AtOnce {
    file: Arc<File>,
    done: VecDeque<Done>,
    ready: OwnedFd,
}

impl AtOnce {
    fn new(file: Arc<File>) -> io::Result<Self> {
        Ok(Self { file, done: VecDeque::new(), ready: event()? })
    }
}

impl Queue for AtOnce {
    fn push(&mut self, token: u64, mut job: Job) -> Result<(), Job> {
        let file = &self.file;
        let result = loop {
            let result = match &mut job {
                Job::Read { into, part, at } => file.read_at(&mut into[part.clone()], *at),
                Job::Write { from, part, at } => file.write_at(&from[part.clone()], *at),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        self.done.push_back(Done { token, job, result });
        // A counter that is full is readable all the same.
        let _ = rustix::io::write(&self.ready, &1_u64.to_ne_bytes());
        Ok(())
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reap(&mut self, _: Wait, done: &mut Vec<Done>) -> io::Result<()> {
        reset(&self.ready);
        done.extend(self.done.drain(..));
        Ok(())
    }

    fn under_way(&self) -> usize {
        self.done.len()
    }

    fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

/// A counter that can be waited for.
pub(super) fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Sets it back to nothing.
pub(super) fn reset(event: &OwnedFd) {
    // Nothing there to be read is as good.
    let _ = rustix::io::read(event, &mut [0_u8; 8]);
}
