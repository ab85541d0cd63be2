//! An access record as a source for the simulator: its address ranges become consecutive pages, its snapshots spans of
//! them, each weighted by access count times size.

use std::collections::BTreeMap;

use nearfar_record::{Access, Record};
use nearfar_sim::stream::source::PAGES_MAX;
use nearfar_sim::stream::{Source, Span};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// Replays an access record at its recorded pace, in epochs of this length.
///
/// # Errors
/// The record has no accesses, or they can't be placed on pages.
pub fn source(record: &Record, epoch_ms: u32) -> anyhow::Result<Source> {
    let pages = Pages::of(record)?;
    let snapshots: Vec<Vec<Span>> =
        record.accesses.iter().map(|access| pages.spans(access)).collect();
    let each_ns = record.duration_ns() / u64::try_from(snapshots.len()).unwrap_or(1).max(1);
    let epochs_each = each_ns / (u64::from(epoch_ms.max(1)) * 1_000_000);
    Ok(Source::trace(pages.count, &snapshots, epochs_each)?)
}

/// The pages of all ranges in any snapshot, by target and address.
struct Pages {
    /// For each range: by target and first page's address, its end and the number of its first page.
    ranges: BTreeMap<(u32, u64), (u64, u32)>,
    count: u32,
}

impl Pages {
    fn of(record: &Record) -> anyhow::Result<Self> {
        let mut seen: Vec<(u32, u64, u64)> = Vec::new();
        for access in &record.accesses {
            for target in &access.targets {
                let ranges = target.regions.iter().map(|region| region.range);
                let pages = ranges.map(|of| (of.start / PAGE_BYTES, of.end.div_ceil(PAGE_BYTES)));
                seen.extend(
                    pages
                        .filter(|(start, end)| start < end)
                        .map(|(start, end)| (target.target, start, end)),
                );
            }
            // Ranges repeat from snapshot to snapshot: merged at once, they stay few.
            seen = joined(seen);
        }
        let count = seen.iter().fold(0u64, |sum, (_, start, end)| sum.saturating_add(end - start));
        let Some(count) = u32::try_from(count).ok().filter(|count| *count <= PAGES_MAX) else {
            anyhow::bail!(
                "{count} pages were recorded: the simulator plays up to {PAGES_MAX}, 256 GiB"
            );
        };
        anyhow::ensure!(count > 0, "no memory was recorded: nothing to play back");
        let mut first = 0;
        let ranges = seen.into_iter().map(|(target, start, end)| {
            let row = ((target, start), (end, first));
            // The sum is below PAGES_MAX.
            first += u32::try_from(end - start).unwrap_or_default();
            row
        });
        Ok(Self { ranges: ranges.collect(), count })
    }

    fn spans(&self, access: &Access) -> Vec<Span> {
        let mut spans = Vec::new();
        for target in &access.targets {
            for region in target.regions.iter().filter(|region| region.accesses > 0) {
                let (start, end) =
                    (region.range.start / PAGE_BYTES, region.range.end.div_ceil(PAGE_BYTES));
                let before = self.ranges.range(..=(target.target, start)).next_back();
                let Some(((_, from), (_, first))) = before.filter(|_| start < end) else {
                    continue;
                };
                let pages = u32::try_from(end - start).unwrap_or_default();
                let weight = f64::from(region.accesses) * f64::from(pages);
                let offset = u32::try_from(start - from).unwrap_or_default();
                spans.push(Span { first: first + offset, pages, weight });
            }
        }
        spans
    }
}

/// Sorts ranges and merges adjacent or overlapping ones.
fn joined(mut ranges: Vec<(u32, u64, u64)>) -> Vec<(u32, u64, u64)> {
    ranges.sort_unstable();
    let mut out: Vec<(u32, u64, u64)> = Vec::new();
    for (target, start, end) in ranges {
        match out.last_mut() {
            Some((of, _, last)) if *of == target && start <= *last => *last = end.max(*last),
            _ => out.push((target, start, end)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_record::testkit;
    use nearfar_sim::rng::Rng;

    #[test]
    fn a_recorded_hot_set_is_replayed_at_its_recorded_location() {
        let record = testkit::moving_hot_set();
        let source = source(&record, 10).unwrap();
        let played = |epoch| {
            let mut counts = vec![0u32; source.pages() as usize];
            source.count(epoch, 100_000, &mut Rng::new(1), &mut counts);
            counts
        };
        // In the first second the hot set is in another place than in the last.
        let [first, last] = [played(0), played(5900)];
        let hottest = |counts: &[u32]| {
            let mut pages: Vec<usize> =
                (0..counts.len()).filter(|page| counts[*page] > 0).collect();
            pages.sort_by_key(|page| std::cmp::Reverse(counts[*page]));
            pages.truncate(1000);
            pages.into_iter().collect::<std::collections::BTreeSet<_>>()
        };
        assert!(hottest(&first).intersection(&hottest(&last)).count() < 500);
    }

    proptest::proptest! {
        #[test]
        fn any_recorded_ranges_are_accepted_or_rejected_without_panic(
            regions in proptest::collection::vec((0u32..3, proptest::num::u64::ANY, 0u64..1 << 40, 0u32..30), 0..40),
            backwards: bool,
        ) {
            let mut record = testkit::moving_hot_set();
            for (access, (target, start, bytes, accesses)) in record.accesses.iter_mut().zip(&regions) {
                let end = if backwards { start.saturating_sub(*bytes) } else { start.saturating_add(*bytes) };
                let range = nearfar_record::Range { start: *start, end };
                let region = nearfar_record::Region { range, accesses: *accesses, age: 0 };
                access.targets = vec![nearfar_record::Snapshot { target: *target, regions: vec![region] }];
            }
            record.accesses.truncate(regions.len());
            if let Ok(source) = source(&record, 10) {
                let mut counts = vec![0u32; source.pages() as usize];
                source.count(3, 100, &mut Rng::new(1), &mut counts);
            }
        }
    }

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(
            joined(vec![(0, 5, 9), (0, 1, 5), (1, 5, 6), (0, 20, 30), (0, 22, 25)]),
            [(0, 1, 9), (0, 20, 30), (1, 5, 6)]
        );
    }

    #[test]
    fn a_record_without_memory_or_with_too_much_of_it_is_refused() {
        let mut record = testkit::moving_hot_set();
        record.accesses[0].targets[0].regions[0].range.end = u64::MAX;
        assert!(source(&record, 10).unwrap_err().to_string().contains("pages were recorded"));
        record.accesses.clear();
        assert!(source(&record, 10).unwrap_err().to_string().contains("no memory"));
    }
}
