//! Working-set size: accessed bytes per snapshot, and their distribution over snapshots.

use super::{narrow, percentile};
use crate::model::Record;

/// The reported percentiles.
pub const PERCENTS: [u64; 9] = [0, 1, 5, 25, 50, 75, 95, 99, 100];

/// Working-set sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wss {
    /// Least access rate of a region in the working set, permille; 0 means any access at all.
    pub threshold_permille: u64,
    /// Time and size, snapshot by snapshot.
    pub series: Vec<(u64, u64)>,
    /// Size at each of [`PERCENTS`].
    pub percentiles: Vec<(u64, u64)>,
    /// Mean size.
    pub mean_bytes: u64,
    /// Mean of all monitored bytes.
    pub monitored_bytes: u64,
}

/// The working-set sizes of a record; `None` without snapshots.
#[must_use]
pub fn wss(record: &Record, threshold_permille: u64) -> Option<Wss> {
    let count = u128::try_from(record.accesses.len()).ok().filter(|count| *count > 0)?;
    let mut monitored = 0u128;
    let series: Vec<(u64, u64)> = record
        .accesses
        .iter()
        .map(|access| {
            let regions = || access.targets.iter().flat_map(|of| &of.regions);
            monitored += regions().map(|of| u128::from(of.range.bytes())).sum::<u128>();
            let rate = |accesses| access.intervals.rate_permille(accesses);
            let hot =
                regions().filter(|of| of.accesses > 0 && rate(of.accesses) >= threshold_permille);
            (access.at_ns, narrow(hot.map(|of| u128::from(of.range.bytes())).sum()))
        })
        .collect();
    let mut sizes: Vec<u64> = series.iter().map(|(_, bytes)| *bytes).collect();
    sizes.sort_unstable();
    Some(Wss {
        threshold_permille,
        percentiles: PERCENTS.map(|percent| (percent, percentile(&sizes, percent))).to_vec(),
        mean_bytes: narrow(sizes.iter().map(|bytes| u128::from(*bytes)).sum::<u128>() / count),
        monitored_bytes: narrow(monitored / count),
        series,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{self, arbitrary};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_working_set_counts_regions_above_the_access_threshold() {
        let record = testkit::moving_hot_set();
        let any = wss(&record, 0).unwrap();
        assert_eq!(any.percentiles[4], (50, 384 * MIB));
        let hot = wss(&record, 500).unwrap();
        assert_eq!((hot.mean_bytes, hot.monitored_bytes), (256 * MIB, 5120 * MIB));
        assert_eq!(wss(&record, 901).unwrap().mean_bytes, 0);
    }

    #[test]
    fn percentiles_follow_a_working_set_that_grows() {
        let mut record = testkit::moving_hot_set();
        for (at, access) in (1..).zip(&mut record.accesses) {
            access.targets[0].regions.truncate(1);
            access.targets[0].regions[0].range.end =
                access.targets[0].regions[0].range.start + at * MIB;
        }
        let sizes: Vec<_> = wss(&record, 0).unwrap().percentiles;
        assert_eq!(sizes[0], (0, MIB));
        assert_eq!(sizes[4], (50, 30 * MIB));
        assert_eq!(sizes[8], (100, 60 * MIB));
    }

    #[test]
    fn an_empty_record_has_no_working_set() {
        let mut record = testkit::short();
        record.accesses.clear();
        assert_eq!(wss(&record, 0), None);
    }

    proptest! {
        #[test]
        fn percentiles_are_monotonic_and_enclose_the_mean(record in arbitrary::record(), threshold in 0u64..1001) {
            if let Some(found) = wss(&record, threshold) {
                prop_assert!(found.percentiles.windows(2).all(|pair| pair[0].1 <= pair[1].1));
                prop_assert!(found.percentiles[0].1 <= found.mean_bytes);
                prop_assert!(found.mean_bytes <= found.percentiles[8].1);
            }
        }
    }
}
