//! Parser of memcaslap's report (libmemcached's load generator, run with `-S` so that it prints statistics).
//!
//! It uses the last line, `Ops: 50000 TPS: 69060`, and the number and histogram of the block `Total Statistics (45000
//! events)`. Ops, and therefore TPS, count keys, including those of the untimed filling; an event is a request for one
//! or several keys. So throughput is TPS times the share of the events' keys. The histogram: after `Log2 Dist:` rows of
//! four counts, preceded by the index of the first. Index `i` counts requests of more than 2^(i-1) and at most 2^i µs.
//! A percentile is interpolated linearly within its bucket, and never exceeds the block's `Max`; [`NOTE`] tells the
//! reader.

use super::{Measured, NotUnderstood};
use nearfar_report::model::Latency;

/// Caveat on the percentiles.
pub(crate) const NOTE: &str = "Latencies are of requests for 16 keys; memcaslap keeps them in powers of two of a microsecond, and percentiles are \
     interpolated within these.";

/// Parses a report of requests for `keys` keys each; operations are keys.
pub(crate) fn parse(text: &str, keys: u64) -> Result<Measured, NotUnderstood> {
    let missing = |missing| NotUnderstood { client: "memcaslap", missing };
    let positive = |found: Option<f64>| found.filter(|found| found.is_finite() && *found > 0.0);
    let tps = positive(labelled(text, "TPS:")).ok_or_else(|| missing("TPS"))?;
    let all = positive(labelled(text, "Ops:")).ok_or_else(|| missing("count of operations"))?;
    // With periodic output there may be several; the last covers the whole run.
    let total = text.rsplit_once("Total Statistics").map(|(_, rest)| rest);
    let total = total.ok_or_else(|| missing("total statistics"))?;
    let timed = positive(labelled(total, "(")).ok_or_else(|| missing("count of events"))?;
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let operations_per_second = tps * timed * keys as f64 / all;
    let histogram = histogram(total);
    let max_us = labelled(total, "Max:").ok_or_else(|| missing("maximum"))?;
    if histogram.iter().all(|(_, count)| *count == 0) {
        return Err(missing("histogram"));
    }
    let at = |share| percentile(&histogram, max_us, share);
    let latency = Latency { p50_ns: at(0.5), p99_ns: at(0.99), p999_ns: at(0.999) };
    Ok(Measured { operations_per_second, latency })
}

/// Index and count, in order.
fn histogram(total: &str) -> Vec<(u32, u64)> {
    let rows = total.lines().skip_while(|line| !line.contains("Log2 Dist")).skip(1);
    rows.map_while(|row| {
        let (first, counts) = row.split_once(':')?;
        let first: u32 = first.trim().parse().ok()?;
        let counts: Option<Vec<u64>> = counts.split_whitespace().map(|n| n.parse().ok()).collect();
        Some((first..).zip(counts?))
    })
    .flatten()
    .collect()
}

fn labelled(text: &str, label: &str) -> Option<f64> {
    text.split_once(label)?.1.split_whitespace().next()?.parse().ok()
}

/// Latency in nanoseconds at the percentile `share`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate within a bucket; casts saturate"
)]
fn percentile(histogram: &[(u32, u64)], max_us: f64, share: f64) -> Option<u64> {
    let all: u64 = histogram.iter().map(|(_, count)| count).sum();
    let wanted = all as f64 * share;
    let mut below = 0.0;
    for &(index, count) in histogram {
        let count = count as f64;
        if count > 0.0 && below + count >= wanted {
            let power = i32::try_from(index).ok()?;
            let (low, high) =
                (if index == 0 { 0.0 } else { 2f64.powi(power - 1) }, 2f64.powi(power).min(max_us));
            let us = low + (high - low).max(0.0) * (wanted - below) / count;
            return Some((us * 1_000.0).round() as u64);
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = include_str!("../../../../../fixtures/demo/memcaslap.txt");

    #[test]
    fn a_recorded_report_is_understood() {
        let found = parse(RECORDED, 1).unwrap();
        assert!(RECORDED.contains(&format!("TPS: {:.0}", found.operations_per_second)));
        let Latency { p50_ns, p99_ns, p999_ns } = found.latency;
        assert!(p50_ns > Some(0) && p50_ns <= p99_ns && p99_ns <= p999_ns, "{found:?}");
    }

    #[test]
    fn the_total_histogram_counts_every_operation() {
        let total = RECORDED.rsplit_once("Total Statistics").unwrap().1;
        let sum: u64 = histogram(total).iter().map(|(_, count)| count).sum();
        assert!(total.starts_with(&format!(" ({sum} events)")), "{sum}");
    }

    #[test]
    fn a_percentile_lies_in_its_bucket_and_below_the_maximum() {
        // 90 between 32 and 64 µs, then 10 of at most 128.
        let of = |share| percentile(&[(6, 90), (7, 10)], 100.0, share);
        assert_eq!(of(0.45), Some(48_000));
        assert_eq!(of(0.9), Some(64_000));
        assert_eq!(of(1.0), Some(100_000));
        assert_eq!(percentile(&[], 1.0, 0.5), None);
    }

    #[test]
    fn other_output_is_rejected_with_the_missing_part() {
        assert_eq!(parse("", 1).unwrap_err().missing, "TPS");
        assert_eq!(parse("Ops: 9 TPS: 5", 1).unwrap_err().missing, "total statistics");
        let text = "Total Statistics (3 events)\nMax: 3\nOps: 9 TPS: 5";
        assert_eq!(parse(text, 1).unwrap_err().missing, "histogram");
    }

    #[test]
    fn the_fill_phase_is_excluded_from_throughput() {
        let text = "Total Statistics (3 events)\nMax: 3\nLog2 Dist:\n   0: 0 3\n\nOps: 9 TPS: 600";
        assert!((parse(text, 1).unwrap().operations_per_second - 200.0).abs() < 1e-6);
    }
}
