//! A histogram of service times: from reading a request to handing its reply to the kernel.

use core::fmt::Write as _;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Reads of a worker for each timed one, as clocks take time.
pub(super) const EVERY: u32 = 16;

/// Upper bounds of the buckets in microseconds, each two or two and a half times the one before.
const BOUNDS_US: [u64; 16] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000,
];

/// The metric's name, without its prefix, and its description.
pub(super) const NAME: &str = "service_seconds";
pub(super) const ABOUT: &str = "Time from reading a request to sending its reply, waits for the disk included; of \
     every 16th read, and once for requests that arrive together";

/// Service times by bucket; the last has those above all bounds.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl Latencies {
    /// Adds one.
    pub(super) fn add(&self, took_ns: u64) {
        let at = BOUNDS_US.partition_point(|bound| bound.saturating_mul(1000) < took_ns);
        self.buckets[at].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(took_ns, Relaxed);
    }

    /// Forgets all.
    pub(super) fn reset(&self) {
        self.buckets.iter().chain([&self.sum_ns]).for_each(|one| one.store(0, Relaxed));
    }

    /// In Prometheus's format, with cumulated buckets.
    pub(super) fn text(&self, prefix: &str) -> String {
        let name = format!("{prefix}{NAME}");
        let mut out = format!("# HELP {name} {ABOUT}.\n# TYPE {name} histogram\n");
        let bounds = BOUNDS_US.map(|bound| seconds(bound, 1_000_000)).into_iter();
        let mut count = 0;
        for (bucket, bound) in self.buckets.iter().zip(bounds.chain(["+Inf".to_owned()])) {
            count += bucket.load(Relaxed);
            // Writing into a string does not fail.
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let sum = seconds(self.sum_ns.load(Relaxed), 1_000_000_000);
        let _ = writeln!(out, "{name}_sum {sum}\n{name}_count {count}");
        out
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds for a monitor")]
fn seconds(time: u64, per_second: u64) -> String {
    (time as f64 / per_second as f64).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_its_bucket_and_all_larger_ones() {
        let times = Latencies::default();
        [10_000, 10_001, 3_000_000_000].into_iter().for_each(|took| times.add(took));
        let text = times.text("");
        for line in [
            "service_seconds_bucket{le=\"0.00001\"} 1\n",
            "service_seconds_bucket{le=\"0.00002\"} 2\n",
            "service_seconds_bucket{le=\"1\"} 2\n",
            "service_seconds_bucket{le=\"+Inf\"} 3\n",
            "service_seconds_sum 3.000020001\n",
            "service_seconds_count 3\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        times.reset();
        assert!(times.text("").contains("_count 0\n"));
    }
}
