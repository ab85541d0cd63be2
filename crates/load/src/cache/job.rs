//! A worker's job, and the accounting of its requests.
//!
//! Requests that start in the warm-up are sent and not counted. Other threads can read a worker's progress at any time:
//! each counter has one writer, so that publishing it costs a store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::requests::Request;

use super::gate::Waiting;
use super::pace::Pace;
use super::source::{Pulled, Source};
use super::tally::{Kind, Outcome, Tally};
use super::values::Values;
use nearfar_kernel::clock::Stopwatch;

/// The end time of a run without one: not the maximum, so that sums do not overflow.
pub(crate) const NEVER: u64 = u64::MAX / 4;

/// A worker's progress, read by other threads. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Meter {
    /// Completed requests, warm-up included.
    pub(crate) operations: AtomicU64,
    /// Those of them that begin with a read.
    pub(crate) reads: AtomicU64,
    /// Those that found their key.
    pub(crate) hits: AtomicU64,
}

/// Part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// All keys are stored; nothing is counted.
    Preload,
    /// The workload is run.
    Measure,
}

/// Times of a worker, in nanoseconds of its clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// The part of the run.
    pub(crate) phase: Phase,
    /// Requests that start from here on are counted.
    pub(crate) counts_from: u64,
    /// No request starts from here on.
    pub(crate) end: u64,
    /// The most requests.
    pub(crate) operations: u64,
}

impl Span {
    /// The time from which no request starts, if the end is by time.
    pub(crate) fn known_end(&self) -> Option<u64> {
        Some(self.end).filter(|end| *end < NEVER)
    }
}

/// A worker's shared state.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    /// The gate before the start.
    pub(crate) waiting: Waiting<'a>,
    /// Where to publish its progress.
    pub(crate) meter: &'a Meter,
    /// Ends the job early.
    pub(crate) stop: &'a AtomicBool,
}

/// A worker's part of a run.
#[derive(Debug)]
pub struct Job<'a> {
    /// Source of requests.
    pub(crate) source: Source,
    /// Due times of requests.
    pub(crate) pace: Pace,
    /// Source of values.
    pub(crate) values: Values,
    /// Start and end.
    pub(crate) span: Span,
    /// The clock of all workers, valid from [`Job::begin`] on.
    pub(crate) clock: Stopwatch,
    /// State shared with other threads.
    pub(crate) shared: Shared<'a>,
    /// The counts.
    pub(crate) tally: Tally,
    /// Requests started.
    pub(crate) begun: u64,
}

/// A completed request, with its start time and, if it was timed, its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Kind of request.
    pub(crate) kind: Kind,
    /// Its result.
    pub(crate) outcome: Outcome,
    /// Its start or due time.
    pub(crate) from: u64,
    /// Time of its answer.
    pub(crate) to: Option<u64>,
}

impl<'a> Job<'a> {
    /// A job at its start.
    pub(crate) fn new(
        source: Source,
        pace: Pace,
        values: Values,
        span: Span,
        shared: Shared<'a>,
    ) -> Self {
        let (clock, tally) = (Stopwatch::start(), Tally::default());
        Self { source, pace, values, span, clock, shared, tally, begun: 0 }
    }

    /// Waits until all workers are ready and the clock starts.
    pub(crate) fn begin(&mut self) {
        if let Some(clock) = self.shared.waiting.pass() {
            self.clock = clock;
        }
    }

    /// Makes `request` the next one, unless the job has ended.
    pub(crate) fn pull(&mut self, request: &mut Request) -> Pulled {
        if self.begun >= self.span.operations || self.shared.stop.load(Ordering::Relaxed) {
            return Pulled::End;
        }
        let pulled = self.source.pull(request);
        if pulled == Pulled::Ready {
            self.begun += 1;
            self.pace.begun();
        }
        pulled
    }

    /// Counts a completed request.
    pub(crate) fn done(&mut self, done: Done) {
        let Done { kind, outcome, from, to } = done;
        if kind != Kind::Fill {
            self.show(kind, outcome);
        }
        if from < self.span.counts_from {
            return;
        }
        let of = self.tally.count(kind, outcome);
        if let Some(to) = to {
            of.took(to.saturating_sub(from));
            self.tally.stretch(from, to);
        }
    }

    /// Checks a value that was read.
    pub(crate) fn check(&mut self, key: &[u8], read: &[u8]) {
        if !self.values.is_right(key, read) {
            self.tally.wrong.add(1, || {
                format!("{} bytes under key {:?}", read.len(), String::from_utf8_lossy(key))
            });
        }
    }

    fn show(&self, kind: Kind, outcome: Outcome) {
        let Meter { operations, reads, hits } = self.shared.meter;
        let add = |counter: &AtomicU64, more: bool| {
            if more {
                counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
        };
        add(operations, true);
        add(reads, kind.reads());
        add(hits, kind.reads() && outcome.found);
    }
}
