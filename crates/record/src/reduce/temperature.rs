//! Temperature: histograms of bytes by access rate and by age, averaged over snapshots.

use super::narrow;
use crate::model::Record;

const SECOND_NS: u64 = 1_000_000_000;
/// Lower bounds of the classes of rate, permille; the first is rate 0 alone, the second everything up to 100.
pub const RATES_PERMILLE: [u64; 11] = [0, 1, 101, 201, 301, 401, 501, 601, 701, 801, 901];
/// Lower bounds of the classes of age.
pub const AGES_NS: [u64; 8] = [
    0,
    SECOND_NS,
    5 * SECOND_NS,
    15 * SECOND_NS,
    60 * SECOND_NS,
    300 * SECOND_NS,
    900 * SECOND_NS,
    3600 * SECOND_NS,
];

/// Bytes of a class of rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByRate {
    /// Least rate in it.
    pub from_permille: u64,
    /// Greatest rate in it.
    pub to_permille: u64,
    /// Mean bytes.
    pub bytes: u64,
}

/// Bytes of a class of age: the time for which a region's access rate has been about the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByAge {
    /// Least age in it.
    pub from_ns: u64,
    /// Lower bound of the next class; `None` for the last.
    pub to_ns: Option<u64>,
    /// Mean bytes of accessed regions.
    pub accessed_bytes: u64,
    /// Mean bytes of idle regions.
    pub idle_bytes: u64,
}

/// The two histograms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Temperature {
    /// By access rate.
    pub by_rate: Vec<ByRate>,
    /// By age.
    pub by_age: Vec<ByAge>,
}

/// The temperature of a record; `None` without snapshots.
#[must_use]
pub fn temperature(record: &Record) -> Option<Temperature> {
    let count = u128::try_from(record.accesses.len()).ok().filter(|count| *count > 0)?;
    let mut rates = [0u128; RATES_PERMILLE.len()];
    let mut ages = [(0u128, 0u128); AGES_NS.len()];
    for access in &record.accesses {
        for region in access.targets.iter().flat_map(|of| &of.regions) {
            let bytes = u128::from(region.range.bytes());
            // A rate that rounds to 0 is not idle.
            let rate = access.intervals.rate_permille(region.accesses);
            let rate = rate.max(u64::from(region.accesses > 0));
            rates[class(&RATES_PERMILLE, rate)] += bytes;
            let age = &mut ages[class(&AGES_NS, access.intervals.age_ns(region.age))];
            if rate > 0 {
                age.0 += bytes;
            } else {
                age.1 += bytes;
            }
        }
    }
    let by_rate = rates
        .iter()
        .enumerate()
        .map(|(at, bytes)| ByRate {
            from_permille: RATES_PERMILLE[at],
            to_permille: RATES_PERMILLE.get(at + 1).map_or(1000, |next| next - 1),
            bytes: narrow(bytes / count),
        })
        .collect();
    let by_age = ages
        .iter()
        .enumerate()
        .map(|(at, (accessed, idle))| ByAge {
            from_ns: AGES_NS[at],
            to_ns: AGES_NS.get(at + 1).copied(),
            accessed_bytes: narrow(accessed / count),
            idle_bytes: narrow(idle / count),
        })
        .collect();
    Some(Temperature { by_rate, by_age })
}

fn class(begins: &[u64], value: u64) -> usize {
    begins.partition_point(|begin| *begin <= value).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{self, arbitrary};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn bytes_are_counted_in_the_class_of_their_access_rate() {
        let found = temperature(&testkit::moving_hot_set()).unwrap();
        let at = |permille| {
            let class = found
                .by_rate
                .iter()
                .find(|of| (of.from_permille..=of.to_permille).contains(&permille));
            class.unwrap().bytes / MIB
        };
        assert_eq!((at(900), at(100), at(0)), (256, 128, 5120 - 384));
        assert_eq!(found.by_rate.iter().map(|of| of.bytes).sum::<u64>(), 5120 * MIB);
    }

    #[test]
    fn the_last_age_classes_hold_the_idle_bytes() {
        let found = temperature(&testkit::moving_hot_set()).unwrap();
        let minute = found.by_age.iter().find(|of| of.from_ns == 60 * SECOND_NS).unwrap();
        assert_eq!((minute.idle_bytes / MIB, minute.accessed_bytes / MIB), (5120 - 384, 128));
        assert_eq!(found.by_age.last().unwrap().to_ns, None);
    }

    #[test]
    fn a_rate_below_a_thousandth_is_not_idle() {
        let mut record = testkit::short();
        record.accesses.truncate(1);
        let access = &mut record.accesses[0];
        access.intervals.sample_us = 1;
        access.targets[0].regions.truncate(1);
        access.targets[0].regions[0].accesses = 1;
        let found = temperature(&record).unwrap();
        assert_eq!((found.by_rate[0].bytes, found.by_rate[1].bytes), (0, 128 * MIB));
    }

    proptest! {
        #[test]
        fn both_histograms_hold_the_same_bytes(record in arbitrary::record()) {
            if let Some(found) = temperature(&record) {
                let rates: u128 = found.by_rate.iter().map(|of| u128::from(of.bytes)).sum();
                let ages = found.by_age.iter().map(|of| u128::from(of.accessed_bytes) + u128::from(of.idle_bytes));
                // Each class is rounded down.
                prop_assert!(rates.abs_diff(ages.sum()) <= 16);
            }
        }
    }
}
