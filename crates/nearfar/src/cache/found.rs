//! What a run found: JSON of the schema `nearfar.cache-bench/1`.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::tally::{Kind, Of, Tally, Trouble};

/// The `schema` of a [`Found`].
pub(crate) const SCHEMA: &str = "nearfar.cache-bench/1";

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Found {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// Version of this program.
    pub(crate) nearfar: String,
    /// What was asked.
    pub(crate) target: String,
    /// What it says it is.
    pub(crate) target_version: Option<String>,
    /// How it was asked.
    pub(crate) load: Load,
    /// Requests of the workload answered, those that fill apart.
    pub(crate) operations: u64,
    /// From the first that counts to the last answer.
    pub(crate) seconds: f64,
    /// Requests a second.
    pub(crate) operations_per_s: f64,
    /// Of the reads, those that found their key.
    pub(crate) hit_ratio: Option<f64>,
    /// Bytes of values read.
    pub(crate) read_bytes: u64,
    /// And stored.
    pub(crate) written_bytes: u64,
    /// Requests without an answer that was understood, warm-up included.
    pub(crate) errors: Trouble,
    /// Stores that the target refused, warm-up included.
    pub(crate) refused: Trouble,
    /// Values that can't be right, warm-up included; another key's are seen always, others with `--verify` alone.
    pub(crate) wrong: Trouble,
    /// Requests that were due and could not begin before the end: the target did not keep up.
    pub(crate) overdue: u64,
    /// By kind.
    pub(crate) kinds: Vec<KindFound>,
    /// Over time, warm-up included.
    pub(crate) windows: Vec<Window>,
    /// Of the target, before.
    pub(crate) memory_before: Memory,
    /// And after.
    pub(crate) memory_after: Memory,
}

/// How a target was asked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Load {
    /// The workload, as given.
    pub(crate) workload: String,
    /// What it is made of, in words.
    pub(crate) made_of: String,
    /// Of all chance.
    pub(crate) seed: u64,
    /// Threads that ask.
    pub(crate) threads: u32,
    /// What only servers have.
    pub(crate) server: Option<Asking>,
    /// Requests a second in an open loop.
    pub(crate) rate: Option<f64>,
    /// How they were spaced.
    pub(crate) arrivals: Option<String>,
    /// Seconds before anything counts.
    pub(crate) warm_up_s: f64,
    /// All keys were stored first.
    pub(crate) preloaded: bool,
    /// Values were checked.
    pub(crate) verified: bool,
}

/// How a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Asking {
    /// Connections of each thread.
    pub(crate) connections: u32,
    /// Commands under way at once on each.
    pub(crate) depth: u32,
    /// Reads that go as one command.
    pub(crate) multiget: u32,
}

/// A kind of request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct KindFound {
    /// Which.
    pub(crate) kind: Kind,
    /// How many.
    pub(crate) operations: u64,
    /// That found their key, or stored it.
    pub(crate) found: u64,
    /// That were refused.
    pub(crate) refused: u64,
    /// Bytes of values read.
    pub(crate) read_bytes: u64,
    /// Bytes of values stored.
    pub(crate) written_bytes: u64,
    /// How long they took, if any was timed.
    pub(crate) latency: Option<Latency>,
}

/// Latencies in nanoseconds; in an open loop from when requests were due.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Latency {
    /// How many were timed.
    pub(crate) timed: u64,
    /// The mean.
    pub(crate) mean_ns: f64,
    /// Half are no longer.
    pub(crate) p50_ns: u64,
    /// Nine in ten are no longer.
    pub(crate) p90_ns: u64,
    /// And so on.
    pub(crate) p99_ns: u64,
    /// And so on.
    pub(crate) p99_9_ns: u64,
    /// The longest.
    pub(crate) max_ns: u64,
    /// The histogram: how many took up to so long, and longer than those before. Sixteen steps from a power of two to the next.
    pub(crate) histogram: Vec<(u64, u64)>,
}

/// A piece of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Window {
    /// When it ended.
    pub(crate) end_s: f64,
    /// Requests a second in it.
    pub(crate) operations_per_s: f64,
    /// Of its reads, those that found their key.
    pub(crate) hit_ratio: Option<f64>,
}

/// Memory of a target, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Memory {
    /// Resident memory: of a server's process on this machine, or by how much this one has grown.
    pub(crate) resident_bytes: Option<u64>,
    /// What the target says of itself.
    pub(crate) figures: BTreeMap<String, u64>,
}

/// What is kept of what a target says of itself, with all of tiers.
const FIGURES: [&str; 6] =
    ["bytes", "limit_maxbytes", "curr_items", "total_items", "evictions", "curr_connections"];

impl Memory {
    /// Keeps a figure, if it is one that is kept.
    pub(crate) fn figure(&mut self, name: &str, value: u64) {
        if FIGURES.contains(&name) || name.starts_with("tier_") {
            self.figures.insert(name.into(), value);
        }
    }
}

/// A part of a whole; `None` of nothing.
#[expect(clippy::cast_precision_loss, reason = "a ratio of counts")]
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Latency {
    /// Of a histogram of nanoseconds; `None` if that is empty.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Option<Self> {
        if histogram.is_empty() {
            return None;
        }
        let at = |share| histogram.value_at_quantile(share);
        Some(Self {
            timed: histogram.len(),
            mean_ns: histogram.mean(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p99_9_ns: at(0.999),
            max_ns: histogram.max(),
            histogram: coarse(histogram),
        })
    }
}

/// The histogram with fewer digits; steps that have none are left out.
fn coarse(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    let mut steps: Vec<(u64, u64)> = Vec::new();
    for of in histogram.iter_recorded() {
        let (ns, count) = (of.value_iterated_to(), of.count_since_last_iteration());
        let below = (u64::BITS - ns.leading_zeros()).saturating_sub(5);
        let upto = ns | ((1 << below) - 1);
        match steps.last_mut() {
            Some((last, counted)) if *last == upto => *counted += count,
            _ => steps.push((upto, count)),
        }
    }
    steps
}

impl KindFound {
    fn of(kind: Kind, of: &Of) -> Self {
        Self {
            kind,
            operations: of.operations,
            found: of.found,
            refused: of.refused,
            read_bytes: of.read,
            written_bytes: of.written,
            latency: Latency::of(&of.latency),
        }
    }
}

impl Found {
    /// From what workers counted.
    pub(crate) fn new(target: (String, Option<String>), load: Load, tally: Tally) -> Self {
        let kinds: Vec<_> = tally.kinds().map(|(kind, of)| KindFound::of(kind, of)).collect();
        let sum = |of: fn(&KindFound) -> u64, kinds: &mut dyn Iterator<Item = &KindFound>| {
            kinds.map(of).sum::<u64>()
        };
        let operations =
            sum(|kind| kind.operations, &mut kinds.iter().filter(|of| of.kind != Kind::Fill));
        let mut reads = kinds.iter().filter(|of| of.kind.reads());
        let read = sum(|kind| kind.operations, &mut reads.clone());
        let hit_ratio = ratio(sum(|kind| kind.found, &mut reads), read);
        let (from, to) = tally.span.unwrap_or_default();
        let seconds = std::time::Duration::from_nanos(to - from).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let operations_per_s = if seconds > 0.0 { operations as f64 / seconds } else { 0.0 };
        Self {
            schema: SCHEMA.into(),
            nearfar: env!("CARGO_PKG_VERSION").into(),
            target: target.0,
            target_version: target.1,
            load,
            operations,
            seconds,
            operations_per_s,
            hit_ratio,
            read_bytes: sum(|kind| kind.read_bytes, &mut kinds.iter()),
            written_bytes: sum(|kind| kind.written_bytes, &mut kinds.iter()),
            errors: tally.errors,
            refused: tally.refused,
            wrong: tally.wrong,
            overdue: tally.overdue,
            kinds,
            windows: Vec::new(),
            memory_before: Memory::default(),
            memory_after: Memory::default(),
        }
    }

    /// Whether nothing was wrong.
    pub(crate) fn is_right(&self) -> bool {
        self.errors.count == 0 && self.wrong.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_the_histogram_are_of_all_that_was_timed() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        (1..=1000).for_each(|ns| histogram.record(ns).unwrap());
        let latency = Latency::of(&histogram).unwrap();
        let Latency { timed, p50_ns, p90_ns, p99_ns, p99_9_ns, max_ns, .. } = latency;
        assert_eq!(
            (timed, p50_ns, p90_ns, p99_ns, p99_9_ns, max_ns),
            (1000, 500, 900, 990, 999, 1000)
        );
        assert_eq!(latency.histogram.iter().map(|(_, count)| count).sum::<u64>(), 1000);
        assert!(latency.histogram.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(latency.histogram[..3], [(1, 1), (2, 1), (3, 1)]);
        assert_eq!(latency.histogram.iter().find(|(upto, _)| *upto >= 64), Some(&(67, 4)));
        assert_eq!(latency.histogram.last(), Some(&(1023, 9)));
        assert_eq!(Latency::of(&Histogram::<u64>::new(3).unwrap()), None);
    }

    #[test]
    fn figures_that_are_not_kept_are_left_out() {
        let mut memory = Memory::default();
        memory.figure("evictions", 3);
        memory.figure("threads", 4);
        memory.figure("tier_1_items", 5);
        let kept: Vec<_> = memory.figures.into_iter().collect();
        assert_eq!(kept, [("evictions".into(), 3), ("tier_1_items".into(), 5)]);
    }
}
