//! Output: JSON of the schema `nearfar.load/1`, a line of JSON per window, and text.
//!
//! The lines per window have the form of the lab's workloads in C (`lab/programs/workload.h`): `program`, `end_s`,
//! `operations`, `operations_per_s`, and a last line with `"done":true`.

use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::workload::Kind;

/// The `schema` of a [`Report`].
pub const SCHEMA: &str = "nearfar.load/1";

/// The result of a phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// `load` or `run`.
    pub phase: String,
    /// The store and its address.
    pub store: String,
    /// YCSB's letter.
    pub workload: Option<char>,
    /// The request distribution.
    pub popularity: Option<String>,
    /// Records at the start of a run, at the end of a load.
    pub records: u64,
    /// Bytes per record, without keys.
    pub record_bytes: u64,
    /// Requests sent at once; latencies are of this many.
    pub pipeline: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Operations done.
    pub operations: u64,
    /// Run time.
    pub seconds: f64,
    /// Run time without sleeps.
    pub busy_s: f64,
    /// Throughput, relative to the time at work.
    pub operations_per_s: f64,
    /// Reads of missing records.
    pub missed: u64,
    /// Number of moves of the hot set.
    pub moves: u64,
    /// Results by kind of operation.
    pub kinds: Vec<KindReport>,
    /// Throughput over time.
    pub windows: Vec<Window>,
}

/// Results of a kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindReport {
    /// The kind.
    pub kind: Kind,
    /// Number of operations.
    pub operations: u64,
    /// Their latencies.
    #[serde(flatten)]
    pub latency: Latency,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p99_9_us: f64,
    /// Maximum.
    pub max_us: f64,
}

impl Latency {
    /// From a histogram of nanoseconds.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let us = |ns: u64| {
            #[expect(clippy::cast_precision_loss, reason = "two digits are kept anyway")]
            let us = ns as f64 / 1000.0;
            us
        };
        let at = |share| us(histogram.value_at_quantile(share));
        Self {
            mean_us: histogram.mean() / 1000.0,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            max_us: us(histogram.max()),
        }
    }
}

/// A time window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Its end, from the start of the phase.
    pub end_s: f64,
    /// Its length without sleeps.
    pub busy_s: f64,
    /// Operations in it.
    pub operations: u64,
    /// Throughput in it, relative to the time at work.
    pub operations_per_s: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of latency.
    pub p99_us: f64,
    /// Number of moves of the hot set so far.
    pub moves: u64,
}

/// A window, or the final result, as a line.
#[derive(Debug, Serialize)]
pub struct Line<'a, T> {
    program: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    done: bool,
    #[serde(flatten)]
    what: &'a T,
}

impl<'a> Line<'a, Window> {
    /// A window.
    #[must_use]
    pub fn window(what: &'a Window) -> Self {
        Self { program: "nearfar-load", done: false, what }
    }
}

impl<'a> Line<'a, Report> {
    /// The final result.
    #[must_use]
    pub fn done(what: &'a Report) -> Self {
        Self { program: "nearfar-load", done: true, what }
    }
}

/// A window as text.
#[must_use]
pub fn window_text(window: &Window) -> String {
    let Window { end_s, operations_per_s, p50_us, p99_us, moves, .. } = window;
    format!(
        "{end_s:>9.3} s {operations_per_s:>12.0} operations/s  p50 {p50_us:>9.1} us  p99 {p99_us:>9.1} us{}\n",
        if *moves > 0 { format!("  hot set moved {moves} times") } else { String::new() },
    )
}

/// A phase as text.
#[must_use]
pub fn text(report: &Report) -> String {
    let Report { phase, store, records, record_bytes, operations, seconds, .. } = report;
    let what = report.workload.map_or(String::new(), |letter| {
        let popularity = report.popularity.as_deref().unwrap_or_default();
        format!(" of workload {}, {popularity}", letter.to_ascii_uppercase())
    });
    let mut out = format!(
        "{phase}{what}: {store}, {records} records of {record_bytes} bytes\n\
         {operations} operations in {seconds:.3} s, {:.0} a second\n",
        report.operations_per_s
    );
    for KindReport { kind, operations, latency } in &report.kinds {
        let Latency { mean_us, p50_us, p90_us, p99_us, p99_9_us, max_us } = latency;
        let kind = kind.to_string();
        let _ = writeln!(
            out,
            "  {kind:<18} {operations:>10}  us: mean {mean_us:.1}  p50 {p50_us:.1}  p90 {p90_us:.1}  \
             p99 {p99_us:.1}  p99.9 {p99_9_us:.1}  max {max_us:.1}"
        );
    }
    if report.pipeline > 1 {
        let _ = writeln!(out, "  (latencies are of {} requests sent at once)", report.pipeline);
    }
    if report.missed > 0 {
        let missed = report.missed;
        let _ =
            writeln!(out, "  {missed} reads found nothing: was it loaded with these --records?");
    }
    out
}
