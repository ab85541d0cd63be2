//! The driver of one work queue: submits the jobs of a batch, waits for them, and lets the CPU copy the rest.
//!
//! Jobs are submitted in groups: as one batch descriptor if the submission method supports it, otherwise one plain
//! descriptor each. Jobs too short to be worth a descriptor, or too long for one, are copied by the CPU while the
//! device works. Waiting polls with PAUSE, then with `yield`.
//!
//! # One writer at a time
//! The CPU writes a target only if the device was never given it or is done with it. If a group does not complete
//! within `patience` polls, a drain descriptor is submitted. Once that has completed, everything before it is over: a
//! job without a record then was lost, and the CPU copies it. If the drain does not complete either, the device may
//! still write at any time: these jobs are [`Outcome::Unfinished`], and their arenas are never unmapped. In both cases
//! records may still be written: their memory is never freed, and the queue is retired.
#![expect(unsafe_code, reason = "descriptors are handed over")]

use super::super::job::Job;
use super::super::{Outcome, cpu};
use super::discover::WorkQueue;
use super::format::{BATCH_MIN, Descriptor, Record, Status};
use super::line::{self, Line, lines};
use super::submit::Submit;
use crate::arena::WORD;

/// Maximal number of jobs per group.
const GROUP: usize = 64;
/// Shorter jobs are copied by the CPU.
const LEAST: usize = 2 << 10;
/// The lines of a queue: the record of a batch, the records of jobs, the list of a batch, the record of a drain.
const RECORDS: usize = 1;
const LIST: usize = RECORDS + GROUP;
const DRAIN: usize = LIST + GROUP;

/// Limits of retries and polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueConfig {
    /// Retries on a full queue before the CPU copies the rest of a group.
    pub(super) retries_max: u32,
    /// Polls with PAUSE before those with `yield`.
    pub(super) spins: u32,
    /// Polls for a group before the queue is drained, and for the drain.
    pub(super) patience: u32,
    /// Consecutive groups with nothing copied by the device before the queue is retired.
    pub(super) failures_max: u32,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { retries_max: 256, spins: 4096, patience: 1 << 20, failures_max: 8 }
    }
}

/// Counters of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Bytes copied by the device, including those before page faults.
    pub(super) device_bytes: u64,
    /// Bytes of its jobs copied by the CPU.
    pub(super) cpu_bytes: u64,
    /// Jobs stopped by a page fault.
    pub(super) faults: u64,
    /// Jobs that failed otherwise, were not run, or were lost.
    pub(super) failures: u64,
    /// Submissions to a full queue.
    pub(super) full: u64,
    /// Submissions that failed.
    pub(super) refused: u64,
    /// Drain descriptors submitted.
    pub(super) drains: u64,
    /// Jobs given up as unfinished.
    pub(super) unfinished: u64,
}

/// A work queue.
#[derive(Debug)]
pub(super) struct Queue {
    door: Box<dyn Submit>,
    limits: WorkQueue,
    config: QueueConfig,
    lines: Box<[Line]>,
    /// Consecutive groups with nothing copied by the device.
    failures: u32,
    is_retired: bool,
    pub(super) counts: Counts,
}

/// One poll while waiting, with its number.
pub(super) fn wait(door: &mut dyn Submit, config: QueueConfig, polls: u32) {
    door.idle();
    if polls < config.spins { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Bytes of a completed job that the device copied: up to a page fault, unless the device copied backwards; nothing
/// after other failures.
fn moved(record: Record, length: usize) -> usize {
    let completed = usize::try_from(record.completed).unwrap_or(usize::MAX);
    match record.status {
        Status::SUCCESS => length,
        Status::PAGE_FAULT if record.result == 0 && completed <= length => completed,
        _ => 0,
    }
}

impl Queue {
    /// Drives an empty queue.
    pub(super) fn new(door: Box<dyn Submit>, limits: WorkQueue, config: QueueConfig) -> Self {
        let lines = lines(DRAIN + 1);
        Self {
            door,
            limits,
            config,
            lines,
            failures: 0,
            is_retired: false,
            counts: Counts::default(),
        }
    }

    /// The NUMA node of its device, if known.
    pub(super) fn node(&self) -> Option<u32> {
        self.limits.node
    }

    /// Whether it is still in use.
    pub(super) fn is_usable(&self) -> bool {
        !self.is_retired && self.failures < self.config.failures_max
    }

    /// Copies jobs, and sets the outcomes of those left unfinished.
    pub(super) fn copy(&mut self, jobs: &[Job<'_>], outcomes: &mut [Outcome]) {
        cpu::fence();
        let most = self.limits.transfer_max.min(u32::MAX.into());
        let is_for_device = |at: &usize| {
            let bytes = jobs[*at].bytes();
            bytes >= LEAST && bytes as u64 <= most
        };
        let (device, mut others): (Vec<usize>, Vec<usize>) =
            (0..jobs.len()).partition(is_for_device);
        let takes_batches = self.limits.has_batches() && self.door.takes_batches();
        // A dedicated queue loses excess descriptors, and one entry is reserved for a drain.
        let entries = self.limits.entries().saturating_sub(1);
        let most = if takes_batches { self.limits.batch_max } else { entries };
        let most = usize::try_from(most).unwrap_or(GROUP).clamp(1, GROUP);
        for group in device.chunks(most) {
            let is_batch = takes_batches && group.len() >= BATCH_MIN;
            let handed = if self.is_usable() { self.hand(jobs, group, is_batch) } else { 0 };
            let (handed, left) = group.split_at(handed);
            others.drain(..).for_each(|at| cpu::copy(&jobs[at]));
            left.iter().for_each(|at| self.by_cpu(&jobs[*at], 0));
            if !handed.is_empty() {
                self.settle(jobs, handed, is_batch, outcomes);
            }
        }
        others.drain(..).for_each(|at| cpu::copy(&jobs[at]));
        cpu::fence();
    }

    fn address(&self, line: usize) -> u64 {
        line::address(&self.lines[line..])
    }

    /// Submits a group; returns the number of its jobs that the queue accepted.
    fn hand(&mut self, jobs: &[Job<'_>], group: &[usize], is_batch: bool) -> usize {
        self.lines.iter().for_each(Line::clear);
        let copy = |(at, record): (&usize, usize)| {
            let source = jobs[*at].source().expose_provenance() as u64;
            let target = jobs[*at].destination().expose_provenance() as u64;
            // Longer jobs are not given to the device.
            let length = u32::try_from(jobs[*at].bytes()).unwrap_or(u32::MAX);
            Descriptor::copy(source, target, length).recorded_at(self.address(record))
        };
        let copies: Vec<Descriptor> = group.iter().zip(RECORDS..).map(copy).collect();
        if !is_batch {
            return self.submit(&copies);
        }
        self.lines[LIST..].iter().zip(&copies).for_each(|(line, copy)| line.put(copy));
        let count = u32::try_from(copies.len()).unwrap_or(u32::MAX);
        let batch = Descriptor::batch(self.address(LIST), count).recorded_at(self.address(0));
        self.submit(&[batch]) * copies.len()
    }

    /// Submits descriptors until all are accepted, or the queue stays full; returns the number accepted.
    fn submit(&mut self, descriptors: &[Descriptor]) -> usize {
        let (mut taken, mut tries) = (0, 0);
        while taken < descriptors.len() && tries <= self.config.retries_max {
            // SAFETY: descriptors are made of jobs, whose arenas stay mapped while the jobs are borrowed, which is
            // until the device is done with them, or for ever (`keep_mapped`); memory there is for concurrent use.
            // Records and lists are lines of this queue, which are leaked unless the device is done with them.
            // Addresses were exposed.
            match unsafe { self.door.submit(&descriptors[taken..]) } {
                Ok(0) => {
                    self.counts.full += 1;
                    tries += 1;
                    wait(&mut *self.door, self.config, tries);
                }
                Ok(more) => (taken, tries) = (taken + more, 0),
                Err(_) => {
                    self.counts.refused += 1;
                    self.failures += 1;
                    break;
                }
            }
        }
        taken
    }

    /// Waits for the submitted jobs of a group, and copies the rest by the CPU.
    fn settle(
        &mut self,
        jobs: &[Job<'_>],
        group: &[usize],
        is_batch: bool,
        outcomes: &mut [Outcome],
    ) {
        let records = if is_batch { 0..1 } else { RECORDS..RECORDS + group.len() };
        let is_over =
            |lines: &[Line]| lines[records.clone()].iter().all(|line| line.record().is_some());
        let (mut polls, mut is_hung) = (0, false);
        while !is_over(&self.lines) {
            if polls == self.config.patience {
                is_hung = !self.drain();
                break;
            }
            wait(&mut *self.door, self.config, polls);
            polls += 1;
        }
        // Jobs of the list that the device has started.
        let begun = match self.lines[0].record().filter(|_| is_batch) {
            Some(Record { status, .. }) if status.is_refusal() => 0,
            Some(Record { status: Status::BATCH_PAGE_FAULT, completed, .. }) => {
                usize::try_from(completed).unwrap_or(usize::MAX)
            }
            _ => group.len(),
        };
        let mut is_lost = is_hung || !is_over(&self.lines);
        let device_bytes = self.counts.device_bytes;
        for (number, at) in group.iter().enumerate() {
            let (job, record) = (&jobs[*at], self.lines[RECORDS + number].record());
            is_lost |= record.is_none() && number < begun;
            if record.is_none() && is_hung {
                outcomes[*at] = Outcome::Unfinished;
                job.keep_mapped();
                self.counts.unfinished += 1;
                continue;
            }
            let moved = record.map_or(0, |record| moved(record, job.bytes()));
            let is_fault = record.is_some_and(|record| record.status == Status::PAGE_FAULT);
            self.counts.faults += u64::from(is_fault);
            self.counts.failures += u64::from(!is_fault && moved < job.bytes());
            self.counts.device_bytes += moved as u64;
            self.by_cpu(job, moved);
        }
        let is_good = self.counts.device_bytes > device_bytes;
        self.failures = if is_good { 0 } else { self.failures.saturating_add(1) };
        if is_lost {
            self.is_retired = true;
            Box::leak(core::mem::replace(&mut self.lines, lines(0)));
        }
    }

    /// Drains the queue; false if operations may still be outstanding.
    fn drain(&mut self) -> bool {
        self.counts.drains += 1;
        let drain = Descriptor::drain().recorded_at(self.address(DRAIN));
        let is_taken = self.submit(&[drain]) > 0;
        for polls in 0..self.config.patience {
            match self.lines[DRAIN].record() {
                Some(record) => return record.status == Status::SUCCESS,
                None if !is_taken => return false,
                None => wait(&mut *self.door, self.config, polls),
            }
        }
        false
    }

    /// Copies the rest of a job from byte `from` on.
    fn by_cpu(&mut self, job: &Job<'_>, from: usize) {
        let (_, rest) = job.split(from / WORD);
        cpu::copy(&rest);
        self.counts.cpu_bytes += (job.bytes() - from) as u64;
    }
}
