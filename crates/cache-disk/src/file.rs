//! A file or block device, with direct I/O where its file system supports it, by system calls.
//!
//! Direct access (O_DIRECT) bypasses the page cache, which would cache everything twice. File systems without it are
//! used through the page cache, and [`Device::how`] reports that. The lock that excludes other processes is held by a
//! separate descriptor, which closes with the process, even if an io_uring still holds the file. Queues of io_uring:
//! `uring.rs`.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, StatVfs, fallocate, fstat, open};

use super::buffer::{Aligned, BLOCK};
use super::claim;
use super::config::{Access, Config};
use super::device::{Device, Done, Job, Queue, Wait};
use super::error::Error;
use super::event::{event, reset};
use super::open::reserving;
use super::uring;
use super::words::wide;

/// The least addressable unit of devices.
const SECTOR: usize = 512;

/// A file or block device.
#[derive(Debug)]
pub struct BlockFile {
    file: Arc<File>,
    lock: File,
    path: PathBuf,
    /// Whether it was created here.
    is_new: bool,
    access: Access,
    direct: bool,
    align: usize,
}

impl BlockFile {
    /// Opens a file or device that no other user can write to, or creates an empty file.
    ///
    /// # Errors
    /// It can't be opened, other users may change it, or it is in use by another process or, if mounted, by the kernel.
    pub fn open(path: &Path, access: Access) -> Result<Self, Error> {
        let there = claim::claim(path, OFlags::RDWR)?;
        let is_new = there.is_none();
        let lock = there.map_or_else(|| claim::make(path), Ok)?;
        Self::new(path, (lock, is_new), (OFlags::RDWR, access))
    }

    /// Opens it read-only. `None` if it does not exist and could be created.
    pub(super) fn to_look_at(path: &Path, config: &Config) -> Result<Option<Self>, Error> {
        let Some(lock) = claim::claim(path, OFlags::RDONLY)? else {
            let reserving = |source| reserving(path, config, source);
            let room = claim::room_for_new(path)?;
            return has_room(&room, config.bytes).map_err(reserving).map(|()| None);
        };
        let file = Self::new(path, (lock, false), (OFlags::RDONLY, config.access))?;
        file.is_large_enough(config.bytes).map_err(|source| reserving(path, config, source))?;
        Ok(Some(file))
    }

    fn new(
        path: &Path,
        (lock, is_new): (File, bool),
        (mode, access): (OFlags, Access),
    ) -> Result<Self, Error> {
        let fail = |call, source| Error::Io { path: path.into(), call, source };
        // By descriptor, so that it is the checked file, wherever its name leads now.
        let same = format!("/proc/self/fd/{}", lock.as_raw_fd());
        let again = |more: OFlags| open(&same, mode | OFlags::CLOEXEC | more, Mode::empty());
        let opened = match again(OFlags::DIRECT) {
            Ok(file) => Ok((file, true)),
            Err(rustix::io::Errno::INVAL) => again(OFlags::empty())
                .map(|file| (file, false))
                .map_err(|errno| fail("open", errno.into())),
            Err(errno) => Err(fail("open O_DIRECT", errno.into())),
        };
        if opened.is_err() && is_new {
            claim::unmake(path, &lock);
        }
        let (file, direct) = opened?;
        let file = Arc::new(File::from(file));
        Ok(Self { file, lock, path: path.into(), is_new, access, direct, align: BLOCK })
    }

    /// Removes the file if it was created here.
    pub(super) fn undo(&self) {
        if self.is_new {
            claim::unmake(&self.path, &self.lock);
        }
    }

    /// Whether the device has `bytes` bytes, or the file system has this much space.
    fn is_large_enough(&self, bytes: u64) -> io::Result<()> {
        let stat = fstat(&self.file)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
            return if self.bytes()? < bytes {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                Ok(())
            };
        }
        let held = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(wide(SECTOR));
        has_room(&rustix::fs::fstatvfs(&self.file)?, bytes.saturating_sub(held))
    }

    /// Tests whether single sectors can be read. The start must have been written before: unwritten data may read as
    /// anything.
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

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Device for BlockFile {
    fn reserve(&self, bytes: u64) -> io::Result<()> {
        // Checked first, so that the file system is not filled temporarily.
        self.is_large_enough(bytes)?;
        let stat = fstat(&self.file)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
            return Ok(());
        }
        let before = u64::try_from(stat.st_size).unwrap_or(0);
        match fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => self.file.set_len(bytes.max(before)),
            Err(errno) => {
                // Reserved space is released; previous contents stay.
                self.file.set_len(before)?;
                Err(errno.into())
            }
        }
    }

    fn bytes(&self) -> io::Result<u64> {
        // The size of devices, too.
        Ok(rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?)
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < into.len() {
            match self.file.read_at(&mut into[read..], at + wide(read)) {
                Ok(0) => break,
                // Not on a boundary: this is the end, and direct access could not continue.
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

impl Drop for BlockFile {
    fn drop(&mut self) {
        // A child process that is just being started may still have the descriptor. If unlocking fails, closing
        // unlocks.
        let _ = self.lock.unlock();
    }
}

fn has_room(room: &StatVfs, bytes: u64) -> io::Result<()> {
    if bytes > room.f_bavail.saturating_mul(room.f_frsize) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    Ok(())
}

/// A queue that performs each job when it is pushed.
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
        // A saturated counter is readable as well.
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
