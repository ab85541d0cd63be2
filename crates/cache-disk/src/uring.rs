//! A queue of jobs in the kernel: io_uring over one registered file.
//!
//! Rules: the kernel reads and writes buffers by address from a job's push until its completion is seen. Until then the
//! job is in `jobs`, where nothing reads it; buffers are separate allocations, which stay in place when a job moves. A
//! dropped ring waits for jobs in flight; if even that fails, it leaks the buffers. Miri does not support io_uring:
//! this file is tested by the tests of the tier, on a kernel.
#![expect(unsafe_code, reason = "the kernel is given addresses of buffers")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};

use super::device::{Done, Job, Queue, Wait};
use super::event::{event, reset};
use super::words::{narrow, size, wide};

/// Number of retries of a job that the kernel asks to retry.
const AGAIN_MAX: u8 = 16;

struct Slot {
    token: u64,
    job: Job,
    again: u8,
}

/// A ring.
pub(super) struct Ring {
    ring: IoUring,
    jobs: Vec<Option<Slot>>,
    free: Vec<usize>,
    ready: OwnedFd,
    _file: Arc<File>,
}

impl core::fmt::Debug for Ring {
    fn fmt(&self, to: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        to.debug_struct("Ring").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}

impl Ring {
    pub(super) fn new(file: Arc<File>, depth: u32) -> io::Result<Self> {
        let depth = depth.clamp(1, 4096).next_power_of_two();
        let ring = IoUring::new(depth)?;
        let ready = event()?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        ring.submitter().register_eventfd(ready.as_raw_fd())?;
        let slots = depth as usize;
        let jobs = (0..slots).map(|_| None).collect();
        Ok(Self { ring, jobs, free: (0..slots).rev().collect(), ready, _file: file })
    }

    /// Submits the job of a slot. There is room: there are no more slots than entries.
    fn enter(&mut self, slot: usize) -> io::Result<()> {
        let Some(Slot { job, .. }) = &mut self.jobs[slot] else { return Ok(()) };
        let file = types::Fixed(0);
        let entry: squeue::Entry = match job {
            Job::Read { into, part, at } => {
                let into = &mut into[part.clone()];
                opcode::Read::new(file, into.as_mut_ptr(), narrow(into.len())).offset(*at).build()
            }
            Job::Write { from, part, at } => {
                let from = &from[part.clone()];
                opcode::Write::new(file, from.as_ptr(), narrow(from.len())).offset(*at).build()
            }
        };
        let entry = entry.user_data(wide(slot));
        // SAFETY: the buffer is an allocation that lives until its job leaves `jobs`, when its completion is seen;
        // until then there is no reference to a buffer being read into, and references to one being written are shared.
        // The file is registered for the lifetime of the ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| io::ErrorKind::WouldBlock.into())
    }

    /// Takes completions.
    fn take(&mut self, done: &mut Vec<Done>) {
        let found: Vec<(u64, i32)> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (slot, result) in found {
            let slot = size(slot);
            let again =
                [-rustix::io::Errno::INTR.raw_os_error(), -rustix::io::Errno::AGAIN.raw_os_error()];
            if again.contains(&result)
                && let Some(Slot { again, .. }) = &mut self.jobs[slot]
                && *again < AGAIN_MAX
            {
                *again += 1;
                if self.enter(slot).is_ok() {
                    continue;
                }
            }
            let Some(Slot { token, job, .. }) = self.jobs[slot].take() else { continue };
            self.free.push(slot);
            let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            done.push(Done { token, job, result });
        }
    }
}

impl Queue for Ring {
    fn push(&mut self, token: u64, job: Job) -> Result<(), Job> {
        let Some(slot) = self.free.pop() else { return Err(job) };
        self.jobs[slot] = Some(Slot { token, job, again: 0 });
        if self.enter(slot).is_ok() {
            return Ok(());
        }
        self.free.push(slot);
        self.jobs[slot].take().map_or(Ok(()), |slot| Err(slot.job))
    }

    fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        match self.ring.submit() {
            // Completions must be taken first; entries not submitted stay in the ring.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            result => result.map(|_| ()),
        }
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> io::Result<()> {
        reset(&self.ready);
        self.submit()?;
        let before = done.len();
        self.take(done);
        while wait == Wait::ForOne && done.len() == before && self.under_way() > 0 {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => self.take(done),
            }
        }
        // Retried jobs.
        self.submit()
    }

    fn under_way(&self) -> usize {
        self.jobs.len() - self.free.len()
    }

    fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.under_way() > 0 {
            if self.reap(Wait::ForOne, &mut done).is_err() {
                // The kernel may still use these buffers: they are never freed.
                core::mem::take(&mut self.jobs).leak();
                return;
            }
            done.clear();
        }
    }
}
