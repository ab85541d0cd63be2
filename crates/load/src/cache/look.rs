//! Progress of workers: time windows for the result, and a status line for a terminal.

use std::sync::atomic::{AtomicU64, Ordering};

use super::job::{Meter, Phase, Span};
use super::results::{Window, ratio};
use nearfar_command::progress::StatusLine;
use nearfar_report::words;

/// Approximate number of windows in a run.
const WINDOWS: f64 = 100.0;
/// Least and greatest length of a window.
const WINDOW_S: (f64, f64) = (0.1, 10.0);
/// Length of windows in a run of unknown duration.
const WINDOW_UNKNOWN_S: f64 = 1.0;
/// Interval between updates of the status line.
const LINE_S: f64 = 0.5;

/// Time and counts of a sample.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    at_s: f64,
    operations: u64,
    reads: u64,
    hits: u64,
}

impl Seen {
    fn of(at_s: f64, meters: &[Meter]) -> Self {
        let sum = |of: fn(&Meter) -> &AtomicU64| {
            meters.iter().map(|meter| of(meter).load(Ordering::Relaxed)).sum::<u64>()
        };
        // Hits before reads, so that there are never more hits than reads.
        let hits = sum(|meter| &meter.hits);
        let reads = sum(|meter| &meter.reads);
        Self { at_s, operations: sum(|meter| &meter.operations), reads, hits }
    }

    /// The difference to an earlier sample.
    fn since(&self, before: &Self) -> Window {
        let operations = self.operations - before.operations;
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let operations_per_s = operations as f64 / (self.at_s - before.at_s).max(1e-9);
        let hit_ratio = ratio(self.hits - before.hits, self.reads - before.reads);
        Window { end_s: self.at_s, operations_per_s, hit_ratio }
    }
}

/// The samples of one phase of a run.
pub(crate) struct Look<'a> {
    meters: &'a [Meter],
    line: &'a StatusLine,
    phase: Phase,
    counts_from_s: f64,
    end_s: Option<f64>,
    windows: Vec<Window>,
    window: Seen,
    shown: Seen,
}

impl<'a> Look<'a> {
    /// For workers that have not started.
    pub(crate) fn new(meters: &'a [Meter], span: Span, line: &'a StatusLine) -> Self {
        let seconds = |ns| std::time::Duration::from_nanos(ns).as_secs_f64();
        Self {
            meters,
            line,
            phase: span.phase,
            counts_from_s: seconds(span.counts_from),
            end_s: span.known_end().map(seconds),
            windows: Vec::new(),
            window: Seen::default(),
            shown: Seen::default(),
        }
    }

    /// Takes a sample at this time, in seconds since the start.
    pub(crate) fn on(&mut self, now_s: f64) {
        let (least, most) = WINDOW_S;
        let length = self.end_s.map_or(WINDOW_UNKNOWN_S, |end| (end / WINDOWS).clamp(least, most));
        if now_s - self.window.at_s >= length {
            self.end_window(now_s);
        }
        if now_s - self.shown.at_s >= LINE_S {
            let seen = Seen::of(now_s, self.meters);
            self.show(seen, seen.since(&self.shown));
            self.shown = seen;
        }
    }

    fn end_window(&mut self, now_s: f64) {
        let seen = Seen::of(now_s, self.meters);
        self.windows.push(seen.since(&self.window));
        self.window = seen;
    }

    /// The windows, with one for the remaining time.
    pub(crate) fn windows(mut self, now_s: f64) -> Vec<Window> {
        let left = Seen::of(now_s, self.meters).operations > self.window.operations;
        if left && (self.windows.is_empty() || now_s - self.window.at_s >= WINDOW_S.0 / 2.0) {
            self.end_window(now_s);
        }
        self.windows
    }

    fn show(&self, seen: Seen, window: Window) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
        let rate = words::grouped(window.operations_per_s as u64);
        let at = seen.at_s;
        let what = match self.phase {
            Phase::Preload => {
                let stored = words::grouped(seen.operations);
                return self.line.show(format_args!(
                    "[{at:.0} s] storing all keys: {stored} so far, {rate} a second"
                ));
            }
            Phase::Measure if at < self.counts_from_s => "warming up",
            Phase::Measure => "measuring",
        };
        let end = self.end_s.map_or(String::new(), |end| format!(" of {end:.0}"));
        let hits = window.hit_ratio.map_or(String::new(), |hits| format!(", hit ratio {hits:.3}"));
        self.line.show(format_args!("[{at:.0}{end} s] {what}: {rate} requests/s{hits}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(meter: &Meter, more: [u64; 3]) {
        let counters = [&meter.operations, &meter.reads, &meter.hits];
        for (of, more) in counters.into_iter().zip(more) {
            of.fetch_add(more, Ordering::Relaxed);
        }
    }

    fn span(end_s: u64) -> Span {
        let (counts_from, end) = (0, end_s * 1_000_000_000);
        Span { phase: Phase::Measure, counts_from, end, operations: u64::MAX }
    }

    #[test]
    fn windows_sum_the_operations_of_all_workers() {
        let meters = [Meter::default(), Meter::default()];
        let line = StatusLine::hidden();
        let mut look = Look::new(&meters, span(50), &line);
        look.on(0.4);
        count(&meters[0], [10, 4, 3]);
        count(&meters[1], [20, 4, 1]);
        look.on(0.5);
        look.on(0.6);
        count(&meters[0], [6, 0, 0]);
        look.on(1.0);
        count(&meters[0], [1, 1, 1]);
        let windows = look.windows(1.1);
        let rates: Vec<_> =
            windows.iter().map(|of| (of.operations_per_s.round(), of.hit_ratio)).collect();
        assert_eq!(rates, [(60.0, Some(0.5)), (12.0, None), (10.0, Some(1.0))]);
    }

    #[test]
    fn a_run_shorter_than_a_window_has_one_window() {
        let meters = [Meter::default()];
        let line = StatusLine::hidden();
        count(&meters[0], [3, 3, 0]);
        let windows = Look::new(&meters, span(50), &line).windows(0.01);
        assert_eq!((windows.len(), windows[0].hit_ratio), (1, Some(0.0)));
        assert!(Look::new(&[], span(50), &line).windows(9.0).is_empty());
    }
}
