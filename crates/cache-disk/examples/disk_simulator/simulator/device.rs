//! A device in memory that fails depending on its seed.
//!
//! Writes since the last flush are in the device's own cache: a power cut keeps any subset of their sectors. A queue
//! completes its jobs late and in any order. Writes may be lost, misdirected, done later than reported (one at a time),
//! fail, or end short; reads may fail, return other blocks, or flipped bits. After a number of writes the machine ends:
//! before, within or after one. A successful flush is honest: a device that lies there can return to an earlier state,
//! which is not detectable.

use core::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nearfar_cache_disk::{Device, Done, Job, Queue, Wait};
use rustix::event::{EventfdFlags, eventfd};

use super::dice::Dice;
use super::tally::Tally;

pub(crate) const BLOCK: usize = 4096;
const SECTOR: usize = 512;

/// Rate of each fault: once in N operations on average; 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost: usize,
    pub(crate) astray: usize,
    pub(crate) late: usize,
    pub(crate) write_error: usize,
    pub(crate) read_error: usize,
    pub(crate) flip: usize,
    pub(crate) read_astray: usize,
    pub(crate) sync_error: usize,
    /// A queue stops reporting completions.
    pub(crate) stuck: usize,
}

/// How the machine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The process does.
    Kill,
    /// The power fails.
    Cut,
}

/// A write that a power cut may undo, or that is done later than reported.
struct Write {
    at: usize,
    before: Vec<u8>,
    after: Vec<u8>,
}

pub(crate) struct State {
    pub(crate) image: Vec<u8>,
    cached: Vec<Write>,
    late: Vec<Write>,
    dice: Dice,
    pub(crate) faults: Faults,
    /// Writes and flushes until the machine ends, and how.
    pub(crate) ends: Option<(usize, End)>,
    /// How it ended.
    pub(crate) ended: Option<End>,
    recent: [usize; 8],
    align: usize,
    pub(crate) tally: Tally,
}

fn failed() -> io::Error {
    rustix::io::Errno::IO.into()
}

impl State {
    pub(crate) fn new(bytes: usize, mut dice: Dice) -> Self {
        Self {
            align: [SECTOR, BLOCK][dice.below(2)],
            image: vec![0; bytes],
            cached: Vec::new(),
            late: Vec::new(),
            dice,
            faults: Faults::default(),
            ends: None,
            ended: None,
            recent: [0; 8],
            tally: Tally::default(),
        }
    }

    /// Ends the machine now. After a power cut each sector that was not flushed is either old or new.
    pub(crate) fn end(&mut self, end: End) {
        self.ended = Some(end);
        self.ends = None;
        match end {
            End::Kill => self.tally.kills += 1,
            End::Cut => {
                self.tally.cuts += 1;
                self.late.clear();
                let cached = core::mem::take(&mut self.cached);
                for write in cached.iter().rev() {
                    self.put(write.at, &write.before);
                }
                let kept = self.dice.below(4);
                for write in &cached {
                    self.put_part(write.at, &write.after, kept);
                }
            }
        }
    }

    /// Restarts after an end; a delayed write may have happened meanwhile.
    pub(crate) fn begin(&mut self) {
        self.do_late(2);
        (self.ended, self.ends) = (None, None);
        self.cached.clear();
        self.late.clear();
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes no sector, some of them, nearly all, or all.
    fn put_part(&mut self, at: usize, bytes: &[u8], kept: usize) {
        for (number, sector) in bytes.chunks(SECTOR).enumerate() {
            let is_kept = match kept {
                0 => false,
                1 => self.dice.one_in(2),
                2 => !self.dice.one_in(16),
                _ => true,
            };
            if is_kept {
                self.put(at + number * SECTOR, sector);
            }
        }
    }

    /// Counts down to the end; returns whether it is reached.
    fn is_last(&mut self) -> bool {
        let Some((left, _)) = &mut self.ends else { return false };
        *left = left.saturating_sub(1);
        *left == 0
    }

    /// Another block address at which `len` bytes fit: a random, near, or recently written one.
    fn elsewhere(&mut self, at: usize, len: usize) -> usize {
        let blocks = self.image.len() / BLOCK;
        let to = match self.dice.below(3) {
            0 => self.dice.below(blocks) * BLOCK,
            1 => (at / BLOCK + self.dice.below(9)).saturating_sub(4) * BLOCK,
            _ => self.recent[self.dice.below(8)],
        };
        to.min(self.image.len() - len)
    }

    fn write(&mut self, from: &[u8], at: u64) -> io::Result<usize> {
        if self.ended.is_some() {
            return Err(failed());
        }
        self.tally.writes += 1;
        let mut at = at as usize;
        if at + from.len() > self.image.len() {
            return Err(failed());
        }
        if let Some(end) = self.ends.map(|(_, end)| end)
            && self.is_last()
        {
            // Before, within, or after it.
            let kept = self.dice.below(4);
            self.tally.torn += u64::from(kept == 1 || kept == 2);
            self.put_part(at, from, kept);
            self.end(end);
            return Err(failed());
        }
        self.recent[self.dice.below(8)] = at / BLOCK * BLOCK;
        let mut result = Ok(from.len());
        if self.dice.one_in(self.faults.lost) {
            self.tally.lost += 1;
            return result;
        }
        if self.dice.one_in(self.faults.write_error) {
            self.tally.write_errors += 1;
            let kept = self.dice.below(4);
            self.put_part(at, from, kept);
            return if kept == 1 { Ok(from.len() / 2 / SECTOR * SECTOR) } else { Err(failed()) };
        }
        if self.dice.one_in(self.faults.astray) {
            self.tally.astray += 1;
            at = self.elsewhere(at, from.len());
            result = Ok(from.len());
        }
        let write =
            Write { at, before: self.image[at..at + from.len()].to_vec(), after: from.to_vec() };
        if self.late.is_empty() && self.dice.one_in(self.faults.late) {
            self.tally.late += 1;
            self.late.push(write);
        } else {
            self.put(at, from);
            self.cached.push(write);
        }
        self.do_late(4);
        result
    }

    /// Performs some writes that were reported as done.
    fn do_late(&mut self, times: usize) {
        while !self.late.is_empty() && self.dice.one_in(times) {
            let number = self.dice.below(self.late.len());
            let mut write = self.late.swap_remove(number);
            write.before = self.image[write.at..write.at + write.after.len()].to_vec();
            let after = core::mem::take(&mut write.after);
            self.put(write.at, &after);
            self.cached.push(Write { after, ..write });
        }
    }

    fn read(&mut self, into: &mut [u8], at: u64) -> io::Result<usize> {
        if self.ended.is_some() {
            return Err(failed());
        }
        let mut at = at as usize;
        if self.dice.one_in(self.faults.read_error) {
            self.tally.read_errors += 1;
            return if self.dice.one_in(2) {
                Err(failed())
            } else {
                Ok(into.len() / 2 / SECTOR * SECTOR)
            };
        }
        if self.dice.one_in(self.faults.read_astray) && into.len() <= self.image.len() {
            self.tally.read_astray += 1;
            at = self.elsewhere(at, into.len());
        }
        let end = (at + into.len()).min(self.image.len());
        let len = end.saturating_sub(at);
        into[..len].copy_from_slice(&self.image[at.min(end)..end]);
        if len > 0 && self.dice.one_in(self.faults.flip) {
            self.tally.flips += 1;
            let byte = self.dice.below(len);
            into[byte] ^= 1 << self.dice.below(8);
        }
        Ok(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.ended.is_some() {
            return Err(failed());
        }
        if let Some(end) = self.ends.map(|(_, end)| end)
            && self.is_last()
        {
            self.end(end);
            return Err(failed());
        }
        self.do_late(2);
        if self.dice.one_in(self.faults.sync_error) {
            self.tally.sync_errors += 1;
            return Err(failed());
        }
        self.cached.clear();
        Ok(())
    }

    /// Changes something while the device is closed: a bit, a sector, a block, or a block that is overwritten by
    /// another one.
    pub(crate) fn rot(&mut self) {
        self.tally.rots += 1;
        let at = match self.dice.below(4) {
            // The superblocks and the table, a block that was written lately, or any.
            0 => [0, BLOCK, 64 * BLOCK][self.dice.below(3)],
            1 => self.dice.below(self.image.len() / BLOCK) * BLOCK,
            _ => self.recent[self.dice.below(8)],
        };
        let byte = at + self.dice.below(BLOCK);
        match self.dice.below(5) {
            0 => self.image[at..at + BLOCK].fill(0),
            1 => {
                let from = self.recent[self.dice.below(8)];
                self.image.copy_within(from..from + BLOCK, at);
            }
            2 => self.image[byte / SECTOR * SECTOR..][..SECTOR].fill(0xaa),
            3 => self.image[at + byte % 88] ^= 1 << self.dice.below(8),
            _ => self.image[byte] ^= 1 << self.dice.below(8),
        }
    }
}

/// The device.
pub(crate) struct Simulated {
    state: Mutex<State>,
    this: Weak<Self>,
}

impl fmt::Debug for Simulated {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("Simulated")
    }
}

impl Simulated {
    pub(crate) fn new(state: State) -> Arc<Self> {
        Arc::new_cyclic(|this| Self { state: Mutex::new(state), this: this.clone() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for Simulated {
    fn reserve(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.state().image.len() as u64)
    }
    fn unique(&self) -> u64 {
        self.state().dice.next()
    }
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.state().read(into, at)
    }
    fn write_at(&self, from: &[u8], at: u64) -> io::Result<usize> {
        self.state().write(from, at)
    }
    fn sync(&self) -> io::Result<()> {
        self.state().sync()
    }
    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let device = self.this.upgrade().ok_or_else(failed)?;
        // Always readable, so that nothing ever blocks; the tier polls again after an early wake-up.
        let ready = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let jobs = Vec::new();
        Ok(Box::new(Jobs { device, jobs, depth: depth as usize, ready, is_stuck: false }))
    }
    fn align(&self) -> usize {
        self.state().align
    }
    fn how(&self) -> String {
        String::from("simulated")
    }
}

/// Submitted jobs. A reap executes some of them, in random order.
#[derive(Debug)]
struct Jobs {
    device: Arc<Simulated>,
    jobs: Vec<(u64, Job)>,
    depth: usize,
    ready: OwnedFd,
    is_stuck: bool,
}

impl Queue for Jobs {
    fn push(&mut self, token: u64, job: Job) -> Result<(), Job> {
        if self.jobs.len() >= self.depth {
            return Err(job);
        }
        self.jobs.push((token, job));
        Ok(())
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> io::Result<()> {
        let mut state = self.device.state();
        let times = state.faults.stuck;
        if !self.is_stuck && !self.jobs.is_empty() && state.dice.one_in(times) {
            state.tally.stuck += 1;
            self.is_stuck = true;
        }
        if self.is_stuck {
            return Err(failed());
        }
        let mut least = usize::from(wait == Wait::ForOne);
        while !self.jobs.is_empty() && (least > 0 || state.dice.one_in(2)) {
            least = 0;
            let number = state.dice.below(self.jobs.len());
            let (token, mut job) = self.jobs.swap_remove(number);
            let result = match &mut job {
                Job::Read { into, part, at } => state.read(&mut into[part.clone()], *at),
                Job::Write { from, part, at } => state.write(&from[part.clone()], *at),
            };
            done.push(Done { token, job, result });
        }
        Ok(())
    }

    fn under_way(&self) -> usize {
        self.jobs.len()
    }

    fn ready(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Drop for Jobs {
    /// A write in flight when the machine ended may still have reached the device, whole or in part.
    fn drop(&mut self) {
        let mut state = self.device.state();
        for (_, job) in self.jobs.drain(..) {
            if let Job::Write { from, part, at } = job {
                let kept = state.dice.below(4);
                state.put_part(at as usize, &from[part], kept);
            }
        }
    }
}
