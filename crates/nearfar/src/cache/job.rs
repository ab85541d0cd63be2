//! What a worker is given, and how it counts what became of its requests.
//!
//! Requests that begin in the warm-up are asked and not counted. Counts that others look at meanwhile are passed on now and then:
//! a shared counter with each request would cost as much as some requests do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nearfar_cache::workload::Request;

use super::pace::Pace;
use super::source::{Pulled, Source};
use super::tally::{Kind, Outcome, Tally};
use super::values::Values;
use crate::clock::Stopwatch;

/// Requests between two times a worker's counts are passed on.
const PASSED: u64 = 64;

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

/// When a worker works, in nanoseconds of its clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// The clock of the whole run.
    pub(crate) clock: Stopwatch,
    /// Requests that begin from here on count.
    pub(crate) counts_from: u64,
    /// None begins from here on.
    pub(crate) end: u64,
    /// And no more than so many.
    pub(crate) operations: u64,
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
    /// Where to show how far it is.
    pub(crate) meter: &'a Meter,
    /// Ends it early.
    pub(crate) stop: &'a AtomicBool,
    /// What was counted.
    pub(crate) tally: Tally,
    /// Requests that have begun.
    pub(crate) begun: u64,
    shown: [u64; 3],
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
        others: (&'a Meter, &'a AtomicBool),
    ) -> Self {
        let (meter, stop) = others;
        let tally = Tally::default();
        Self { source, pace, values, span, meter, stop, tally, begun: 0, shown: [0; 3] }
    }

    /// The next request, unless there are to be no more.
    pub(crate) fn pull(&mut self, request: &mut Request) -> Pulled {
        if self.begun >= self.span.operations || self.stop.load(Ordering::Relaxed) {
            return Pulled::End;
        }
        let pulled = self.source.pull(request);
        if pulled == Pulled::Ready {
            self.begun += 1;
            self.pace.begun();
        }
        pulled
    }

    /// Whether what begins then counts.
    pub(crate) const fn counts(&self, from: u64) -> bool {
        from >= self.span.counts_from
    }

    /// Counts what was done.
    pub(crate) fn done(&mut self, done: Done) {
        let Done { kind, outcome, from, to } = done;
        if kind != Kind::Fill {
            self.show(kind, outcome);
        }
        if !self.counts(from) {
            return;
        }
        let of = self.tally.count(kind, outcome);
        if let Some(to) = to {
            of.latency.saturating_record(to.saturating_sub(from).max(1));
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

    fn show(&mut self, kind: Kind, outcome: Outcome) {
        let [operations, reads, hits] = &mut self.shown;
        *operations += 1;
        *reads += u64::from(kind.reads());
        *hits += u64::from(kind.reads() && outcome.found);
        if (*operations).is_multiple_of(PASSED) {
            self.pass_on();
        }
    }

    /// Shows how far it is.
    pub(crate) fn pass_on(&self) {
        let [operations, reads, hits] = self.shown;
        self.meter.operations.store(operations, Ordering::Relaxed);
        self.meter.reads.store(reads, Ordering::Relaxed);
        self.meter.hits.store(hits, Ordering::Relaxed);
    }
}
