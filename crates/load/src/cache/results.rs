//! The result of a run: JSON of the schema `nearfar.cache-bench/1`.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use nearfar_command::disturbance::Disturbance;
use serde::Serialize;

use super::tally::{Kind, Of, Tally, Trouble};

/// The `schema` of a [`Found`].
pub const SCHEMA: &str = "nearfar.cache-bench/1";

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// Version of this program.
    pub(crate) nearfar: String,
    /// Name of the target.
    pub(crate) target: String,
    /// Its version, as it reports it.
    pub(crate) target_version: Option<String>,
    /// Parameters of the load.
    pub(crate) load: Load,
    /// Completed requests of the workload, without those that fill.
    pub(crate) operations: u64,
    /// Time from the first counted request to the last answer.
    pub(crate) seconds: f64,
    /// Requests per second.
    pub(crate) operations_per_s: f64,
    /// Fraction of the reads that found their key.
    pub(crate) hit_ratio: Option<f64>,
    /// Bytes of values read.
    pub(crate) read_bytes: u64,
    /// Bytes of values stored.
    pub(crate) written_bytes: u64,
    /// Requests without a valid answer, warm-up included.
    pub(crate) errors: Trouble,
    /// Stores that the target refused, warm-up included.
    pub(crate) refused: Trouble,
    /// Wrong values, warm-up included; another key's value is always detected, other errors only with `--verify`.
    pub(crate) wrong: Trouble,
    /// Requests that were due and could not start before the end, because the target was too slow.
    pub(crate) overdue: u64,
    /// Results by kind of request.
    pub(crate) kinds: Vec<KindFound>,
    /// Results over time, warm-up included.
    pub(crate) windows: Vec<Window>,
    /// Memory of the target before the run.
    pub(crate) memory_before: Memory,
    /// Memory of the target after the run.
    pub(crate) memory_after: Memory,
    /// Other load on the machine, if there was much of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disturbance: Option<Disturbance>,
}

/// Parameters of a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Load {
    /// The workload, as given by the user.
    pub(crate) workload: String,
    /// Its composition, in words.
    pub(crate) made_of: String,
    /// Seed of all random choices.
    pub(crate) seed: u64,
    /// Number of client threads.
    pub(crate) threads: u32,
    /// Parameters that apply to servers only.
    pub(crate) server: Option<Asking>,
    /// Requests per second in an open loop.
    pub(crate) rate: Option<f64>,
    /// Distribution of their arrival times.
    pub(crate) arrivals: Option<String>,
    /// Seconds before requests are counted.
    pub(crate) warm_up_s: f64,
    /// Whether all keys were stored first.
    pub(crate) preloaded: bool,
    /// Whether values were verified.
    pub(crate) verified: bool,
}

/// Parameters of requests to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Asking {
    /// Connections per thread.
    pub connections: u32,
    /// Outstanding commands per connection.
    pub depth: u32,
    /// Reads combined into one command.
    pub multiget: u32,
}

/// Results of a kind of request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct KindFound {
    /// The kind.
    pub(crate) kind: Kind,
    /// Number of requests.
    pub(crate) operations: u64,
    /// Number that found their key, or stored it.
    pub(crate) found: u64,
    /// Number that were refused.
    pub(crate) refused: u64,
    /// Bytes of values read.
    pub(crate) read_bytes: u64,
    /// Bytes of values stored.
    pub(crate) written_bytes: u64,
    /// Their latencies, if any was timed.
    pub(crate) latency: Option<Latency>,
}

/// Latencies in nanoseconds; in an open loop from the due time of requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Latency {
    /// Number of timed requests.
    pub(crate) timed: u64,
    /// The mean.
    pub(crate) mean_ns: f64,
    /// Median.
    pub(crate) p50_ns: u64,
    /// 90th percentile.
    pub(crate) p90_ns: u64,
    /// 99th percentile.
    pub(crate) p99_ns: u64,
    /// 99.9th percentile.
    pub(crate) p99_9_ns: u64,
    /// Maximum.
    pub(crate) max_ns: u64,
    /// The histogram: pairs of an upper bound and the number of requests up to it and above the previous bound. Sixteen
    /// buckets per power of two.
    pub(crate) histogram: Vec<(u64, u64)>,
}

/// Results of a time window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Window {
    /// End of the window.
    pub(crate) end_s: f64,
    /// Requests per second in it.
    pub(crate) operations_per_s: f64,
    /// Fraction of its reads that found their key.
    pub(crate) hit_ratio: Option<f64>,
}

/// Memory of a target, where known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// Resident memory: of a server's process on this machine, or the growth of this process.
    pub(crate) resident_bytes: Option<u64>,
    /// Statistics reported by the target.
    pub(crate) figures: BTreeMap<String, u64>,
}

/// The target's statistics that are kept, besides those of tiers.
const FIGURES: [&str; 6] =
    ["bytes", "limit_maxbytes", "curr_items", "total_items", "evictions", "curr_connections"];

impl Memory {
    /// Keeps a statistic, if it is one of those.
    pub(crate) fn figure(&mut self, name: &str, value: u64) {
        if FIGURES.contains(&name) || name.starts_with("tier_") {
            self.figures.insert(name.into(), value);
        }
    }
}

/// The fraction `part / whole`; `None` if `whole` is 0.
#[expect(clippy::cast_precision_loss, reason = "a ratio of counts")]
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Latency {
    /// Latencies from a histogram of nanoseconds; `None` if it is empty.
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

/// The histogram at a lower resolution, without empty buckets.
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
    /// The result from the workers' counts.
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
            disturbance: None,
        }
    }

    /// Whether there were no errors.
    pub fn is_right(&self) -> bool {
        self.errors.count == 0 && self.wrong.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_histogram_cover_all_timed_requests() {
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
    fn figures_that_a_store_does_not_keep_are_omitted() {
        let mut memory = Memory::default();
        memory.figure("evictions", 3);
        memory.figure("threads", 4);
        memory.figure("tier_1_items", 5);
        let kept: Vec<_> = memory.figures.into_iter().collect();
        assert_eq!(kept, [("evictions".into(), 3), ("tier_1_items".into(), 5)]);
    }
}
