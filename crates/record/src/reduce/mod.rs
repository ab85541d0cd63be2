//! reduce: statistics of a record, as pure functions over whole numbers.
//!
//! Names carry the units: bytes, nanoseconds, permille. An access rate is the share of samples that found an access in
//! one aggregation, in thousandths. [`areas`] selects the addresses to show, [`heatmap`] shows them over time; [`wss`],
//! [`temperature`], [`hot`] and [`residency`] compute size, heat, concentration and location.

pub mod areas;
pub mod heatmap;
pub mod hot;
pub mod residency;
pub mod temperature;
pub mod wss;

use crate::model::{Access, Record};

/// The time that a snapshot represents: since the one before; the first gets the length of the second.
fn spans(record: &Record) -> Vec<(u64, u64)> {
    let first = record.accesses.first().map_or(0, |first| {
        let aggregation_ns = first.intervals.aggregation_us.saturating_mul(1000);
        let second =
            record.accesses.get(1).map_or(0, |second| second.at_ns.saturating_sub(first.at_ns));
        first.at_ns.saturating_sub(aggregation_ns.max(second))
    });
    let mut from = first;
    let span = |of: &Access| {
        let span = (from.min(of.at_ns), of.at_ns);
        from = of.at_ns;
        span
    };
    record.accesses.iter().map(span).collect()
}

/// The value at `percent` of `sorted`, by the nearest rank; 0 if it is empty.
fn percentile(sorted: &[u64], percent: u64) -> u64 {
    let count = u64::try_from(sorted.len()).unwrap_or(u64::MAX);
    let rank = (count * percent).div_ceil(100).max(1) - 1;
    usize::try_from(rank).ok().and_then(|rank| sorted.get(rank)).copied().unwrap_or(0)
}

/// A 128-bit sum, clamped to 64 bits.
fn narrow(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let sorted = [10, 20, 30, 40];
        let at = [0, 25, 26, 50, 75, 100].map(|percent| percentile(&sorted, percent));
        assert_eq!(at, [10, 10, 20, 20, 30, 40]);
        assert_eq!(percentile(&[], 50), 0);
    }
}
