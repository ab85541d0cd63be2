//! The driver of one work queue: the same code whatever way descriptors take to it.
//!
//! Jobs are cut into pieces of at most the queue's transfer size, pieces put together into groups (`group.rs`), groups handed
//! over as long as fewer entries than the cap are in use. Who waits looks again and again, with PAUSE and, after a while,
//! `yield`. Whatever the device leaves undone the CPU does: the rest after a page fault, what was refused, what found the
//! queue full too often.
//!
//! # One writer at a time
//! The CPU writes a destination only if the device was never given it, or is done with it. If nothing comes back within
//! `patience` polls, a drain descriptor asks: when it is done, all that was in the queue before is over, and what has no
//! record then was lost and is the CPU's. If the drain does not come back either, the device may still write at any time:
//! these jobs are failed as unfinished, their destinations given up, their records kept, and the queue gets nothing more until
//! all have come in ([`Copier::settled`](crate::copy::Copier::settled)). Records that may yet be written are never freed or
//! used again.
#![expect(unsafe_code, reason = "descriptors are handed over")]

use std::collections::VecDeque;

use super::discover::WorkQueue;
use super::format::Flags;
use super::group::{Form, Group, Piece};
use super::judge::Verdict;
use super::submit::Submit;
use crate::copy::cpu::{Cpu, CpuConfig};
use crate::copy::job::{Job, Place};
use crate::copy::{Failure, Outcome, Ran};

mod late;

use late::GivenUp;

/// Bytes a piece has at most whatever the queue takes: what a descriptor can say, in whole lines.
const PIECE_MAX: u64 = (u32::MAX - 63) as u64;

/// What a queue can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Descriptors at once.
    pub entries: usize,
    /// Descriptors in a batch; less than 2 is no batches.
    pub batch_max: usize,
    /// Bytes of a descriptor.
    pub transfer_max: u64,
    /// The NUMA node of the device.
    pub node: Option<u32>,
    /// Whether descriptors may ask the device to wait for page faults.
    pub block_on_fault: bool,
}

impl Limits {
    /// Of a queue that was discovered.
    #[must_use]
    pub fn of(found: &WorkQueue) -> Self {
        let wide = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
        Self {
            entries: wide(found.entries()),
            batch_max: if found.has_batches() { wide(found.batch_max) } else { 1 },
            transfer_max: found.transfer_max,
            node: found.node,
            block_on_fault: found.block_on_fault,
        }
    }
}

/// Where the device puts what it copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To memory: what is moved in the background is read by nobody soon.
    Memory,
    /// To the last-level cache.
    Cache,
}

/// What a device does about a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFault {
    /// Stops, and the CPU goes on: faults that a device resolves take it tens of microseconds.
    Stop,
    /// Waits, where the queue allows it.
    Wait,
}

/// How a queue is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Entries of the queue in use at once, if it holds as many.
    pub in_flight_max: usize,
    /// Pieces in a group.
    pub group_max: usize,
    /// A full queue is tried so often in a row before the CPU does the rest of a batch.
    pub retries_max: u32,
    /// Polls with PAUSE before those with `yield`.
    pub spins: u32,
    /// Polls without anything coming back until a queue is asked to drain, and again until it is given up.
    pub patience: u32,
    /// Groups in a row of which nothing was done until a queue is not used any more.
    pub failures_max: u32,
    /// Where copies go.
    pub target: Target,
    /// What is done about page faults.
    pub on_fault: OnFault,
    /// How the CPU copies what the device leaves to it.
    pub cpu: CpuConfig,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            in_flight_max: 16,
            group_max: 32,
            retries_max: 256,
            spins: 4096,
            patience: 1 << 20,
            failures_max: 8,
            target: Target::Memory,
            on_fault: OnFault::Stop,
            cpu: CpuConfig::default(),
        }
    }
}

/// What a queue went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pieces that the device copied.
    pub done: u64,
    /// Bytes it copied, those before page faults among them.
    pub device_bytes: u64,
    /// Bytes that the CPU copied in its place.
    pub cpu_bytes: u64,
    /// Pieces that met a page fault.
    pub faults: u64,
    /// Pieces that failed otherwise.
    pub failures: u64,
    /// Pieces that were not run, or of which nothing is known though the device is done with them.
    pub unknown: u64,
    /// Times the queue was full.
    pub full: u64,
    /// Batches of which the CPU did the rest, as the queue was full too often.
    pub crowded: u64,
    /// Errors when handing over.
    pub refused: u64,
    /// Times nothing came back and a drain was asked for.
    pub drains: u64,
    /// Pieces given up.
    pub unfinished: u64,
    /// Groups whose records were left to the device for ever.
    pub leaked: u64,
}

/// A work queue and what is under way in it.
#[derive(Debug)]
pub struct Queue {
    door: Box<dyn Submit>,
    limits: Limits,
    config: QueueConfig,
    flags: Flags,
    cpu: Cpu,
    waiting: VecDeque<Piece>,
    groups: Vec<Group>,
    spare: Vec<Group>,
    given_up: Vec<GivenUp>,
    settled: Vec<Place>,
    /// Jobs of this batch that are unfinished.
    unfinished: Vec<usize>,
    /// Times in a row that the queue was full, and groups of which nothing was done.
    retries: u32,
    failures: u32,
    ran: Ran,
    counts: Counts,
}

/// One turn of waiting, the `polls`th.
pub(super) fn wait(door: &mut dyn Submit, config: QueueConfig, polls: u32) {
    door.idle();
    if polls < config.spins { std::hint::spin_loop() } else { std::thread::yield_now() }
}

impl Queue {
    /// Drives a queue that has nothing in it.
    #[must_use]
    pub fn new(door: Box<dyn Submit>, limits: Limits, config: QueueConfig) -> Self {
        let mut flags = Flags::default();
        if config.target == Target::Cache {
            flags = flags.and(Flags::TO_CACHE);
        }
        if config.on_fault == OnFault::Wait && limits.block_on_fault {
            flags = flags.and(Flags::BLOCK_ON_FAULT);
        }
        Self {
            door,
            limits,
            config,
            flags,
            cpu: Cpu::new(config.cpu),
            waiting: VecDeque::new(),
            groups: Vec::new(),
            spare: Vec::new(),
            given_up: Vec::new(),
            settled: Vec::new(),
            unfinished: Vec::new(),
            retries: 0,
            failures: 0,
            ran: Ran::default(),
            counts: Counts::default(),
        }
    }

    /// What it went through.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The node of its device.
    #[must_use]
    pub fn node(&self) -> Option<u32> {
        self.limits.node
    }

    /// Whether it is given anything: it is not while jobs are unfinished, and never again after too many failures in a row.
    pub fn is_usable(&mut self) -> bool {
        self.sweep();
        self.given_up.is_empty() && self.failures < self.config.failures_max
    }

    /// Adds a job to the batch, under a number. Its places don't overlap.
    pub(super) fn add(&mut self, of: usize, job: &Job) {
        let longest = self.limits.transfer_max.clamp(1, PIECE_MAX);
        let longest = usize::try_from(longest).unwrap_or(usize::MAX);
        let mut from = 0;
        while from < job.length() {
            let job = job.part(from, longest);
            from += job.length();
            self.waiting.push_back(Piece { of, job });
        }
    }

    /// Does what is due, without waiting; whether anything came of it.
    fn turn(&mut self) -> bool {
        let collected = self.collect();
        self.hand() || collected
    }

    /// Does what is due, without waiting; whether all is done.
    pub(super) fn poll(&mut self) -> bool {
        self.turn();
        self.is_done()
    }

    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.groups.is_empty()
    }

    /// Waits for the batch. Jobs not done are set so in `outcomes`, by their numbers.
    pub(super) fn finish(&mut self, outcomes: &mut [Outcome]) -> Ran {
        let mut polls = 0;
        while !self.is_done() {
            if self.turn() {
                polls = 0;
                continue;
            }
            wait(&mut *self.door, self.config, polls);
            polls += 1;
            if polls >= self.config.patience {
                self.give_up();
                polls = 0;
            }
        }
        self.cpu.fence();
        for of in self.unfinished.drain(..) {
            if let Some(outcome) = outcomes.get_mut(of) {
                *outcome = Outcome::Failed(Failure::Unfinished);
            }
        }
        std::mem::take(&mut self.ran)
    }

    /// Moves to `places` what was given up and can be used again.
    pub(super) fn settled(&mut self, places: &mut Vec<Place>) {
        self.sweep();
        places.append(&mut self.settled);
    }

    /// Hands over what waits, as far as it goes; whether anything came of it.
    fn hand(&mut self) -> bool {
        let mut any = false;
        if !self.waiting.is_empty() && !self.is_usable() {
            self.withdraw();
            return true;
        }
        loop {
            if self.groups.last().is_none_or(|group| group.unhanded().is_empty()) && !self.form() {
                return any;
            }
            let Some(group) = self.groups.last_mut() else { return any };
            // SAFETY: the descriptors were made in `Group::fill`, of jobs, whose places are what they say and nobody else's until
            // their outcome is known, which is after the device is done with them or when their places are given up; and of
            // lines of the group, which is kept or leaked until then.
            let taken = unsafe { self.door.submit(group.unhanded()) };
            match taken {
                Ok(0) => return self.full() || any,
                Ok(taken) => {
                    group.hand(taken);
                    self.retries = 0;
                    any = true;
                }
                Err(_) => {
                    self.counts.refused += 1;
                    self.failures += 1;
                    self.withdraw();
                    return true;
                }
            }
        }
    }

    /// Makes a group of what waits, if there is anything and room for it.
    fn form(&mut self) -> bool {
        let used: usize = self.groups.iter().map(Group::entries).sum();
        // One entry is kept for a drain: a dedicated queue loses what is too much.
        let cap = self.config.in_flight_max.min(self.limits.entries.saturating_sub(1)).max(1);
        let left = cap.saturating_sub(used);
        if left == 0 || self.waiting.is_empty() {
            return false;
        }
        let takes_batches = self.limits.batch_max > 1 && self.door.takes_batches();
        let form = if takes_batches { Form::Batch } else { Form::Plain };
        let most = if takes_batches { self.limits.batch_max } else { left };
        let room = self.config.group_max.max(1);
        let mut group = self.spare.pop().unwrap_or_else(|| Group::new(room));
        let count = self.waiting.len().min(most).min(room);
        group.fill(self.waiting.drain(..count), form, self.flags);
        self.groups.push(group);
        true
    }

    /// The queue was full; whether that was once too often.
    fn full(&mut self) -> bool {
        self.counts.full += 1;
        self.retries += 1;
        if self.retries <= self.config.retries_max {
            return false;
        }
        self.retries = 0;
        self.counts.crowded += 1;
        self.withdraw();
        true
    }

    /// Has the CPU do what was not handed over.
    fn withdraw(&mut self) {
        if let Some(mut group) = self.groups.pop() {
            let unhanded: Vec<Piece> = group.withdraw().collect();
            unhanded.iter().for_each(|piece| self.by_cpu(piece, 0));
            if group.is_empty() { self.spare.push(group) } else { self.groups.push(group) }
        }
        while let Some(piece) = self.waiting.pop_front() {
            self.by_cpu(&piece, 0);
        }
    }

    fn by_cpu(&mut self, piece: &Piece, from: usize) {
        let rest = piece.job.part(from, usize::MAX);
        self.cpu.one(&rest);
        self.ran.cpu_bytes += rest.length() as u64;
        self.counts.cpu_bytes += rest.length() as u64;
    }

    /// Settles the groups that the device is done with; whether there were any.
    fn collect(&mut self) -> bool {
        let mut at = 0;
        let before = self.groups.len();
        while at < self.groups.len() {
            if self.groups[at].is_over() {
                let group = self.groups.remove(at);
                self.close(group);
            } else {
                at += 1;
            }
        }
        self.groups.len() < before
    }

    /// Settles a group that the device is done with.
    fn close(&mut self, mut group: Group) {
        let done = self.counts.done + self.counts.faults;
        self.settle(&mut group);
        let may_be_written = group.may_be_written();
        for piece in group.take_rest() {
            self.counts.unknown += 1;
            self.by_cpu(&piece, 0);
        }
        let is_good = self.counts.done + self.counts.faults > done;
        self.failures = if is_good { 0 } else { self.failures.saturating_add(1) };
        self.retire(group, may_be_written);
    }

    /// Settles the pieces of a group that have a record.
    fn settle(&mut self, group: &mut Group) {
        while let Some((piece, verdict)) = group.next_over() {
            let moved = match verdict {
                Verdict::Done => {
                    self.counts.done += 1;
                    piece.job.length()
                }
                Verdict::Faulted(moved) => {
                    self.counts.faults += 1;
                    self.ran.faults += 1;
                    moved
                }
                Verdict::Failed | Verdict::Unknown => {
                    self.counts.failures += 1;
                    0
                }
            };
            self.ran.device_bytes += moved as u64;
            self.counts.device_bytes += moved as u64;
            if moved < piece.job.length() {
                self.by_cpu(&piece, moved);
            }
        }
    }
}
