//! What a worker is given, and how it counts what became of its requests.
//!
//! Requests that begin in the warm-up are asked and not counted. How far a worker is, others see at any time: each counter has
//! one writer, so that showing it costs a store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nearfar_cache::workload::Request;

use super::gate::Waiting;
use super::pace::Pace;
use super::source::{Pulled, Source};
use super::tally::{Kind, Outcome, Tally};
use super::values::Values;
use crate::clock::Stopwatch;

/// What is the end where nothing else is: not for ever, so that sums do not overflow.
pub(crate) const NEVER: u64 = u64::MAX / 4;

/// What others see of a worker that is at work. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Meter {
    /// Requests answered, warm-up included.
    pub(crate) operations: AtomicU64,
    /// Those among them that begin by a read.
    pub(crate) reads: AtomicU64,
    /// Those that found their key.
    pub(crate) hits: AtomicU64,
}

/// Which part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// All keys are stored; nothing counts.
    Preload,
    /// The workload is asked.
    Measure,
}

/// When a worker works, in nanoseconds of its clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Which part of the run it is.
    pub(crate) phase: Phase,
    /// Requests that begin from here on count.
    pub(crate) counts_from: u64,
    /// None begins from here on.
    pub(crate) end: u64,
    /// And no more than so many.
    pub(crate) operations: u64,
}

impl Span {
    /// When none begins any more, if that is by time.
    pub(crate) fn known_end(&self) -> Option<u64> {
        Some(self.end).filter(|end| *end < NEVER)
    }
}

/// What a worker shares with others.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    /// Where it waits for them before it begins.
    pub(crate) waiting: Waiting<'a>,
    /// Where to show how far it is.
    pub(crate) meter: &'a Meter,
    /// Ends it early.
    pub(crate) stop: &'a AtomicBool,
}

/// A worker's part of a run.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    /// Where requests come from.
    pub(crate) source: Source,
    /// When they are due.
    pub(crate) pace: Pace,
    /// What they carry.
    pub(crate) values: Values,
    /// When to begin and end.
    pub(crate) span: Span,
    /// All workers' clock, from [`Job::begin`] on.
    pub(crate) clock: Stopwatch,
    /// What others see and say.
    pub(crate) shared: Shared<'a>,
    /// What was counted.
    pub(crate) tally: Tally,
    /// Requests that have begun.
    pub(crate) begun: u64,
}

/// Something that a request became, with when it began and, if it was timed, ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// What was asked.
    pub(crate) kind: Kind,
    /// What became of it.
    pub(crate) outcome: Outcome,
    /// When it began, or was due.
    pub(crate) from: u64,
    /// When it was answered.
    pub(crate) to: Option<u64>,
}

impl<'a> Job<'a> {
    /// With nothing done yet.
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

    /// Waits until all workers are ready; the clock begins then.
    pub(crate) fn begin(&mut self) {
        if let Some(clock) = self.shared.waiting.pass() {
            self.clock = clock;
        }
    }

    /// The next request, unless there are to be no more.
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

    /// Counts what was done.
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

    /// Looks whether what was read can be right.
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
