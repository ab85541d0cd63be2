//! Selects the address ranges to show.
//!
//! A process has a heap, a mapping area and a stack, terabytes apart; a machine has idle memory between busy memory.
//! Drawn to scale, that is a black page. So: every range of addresses gets its heat over the whole record (samples with
//! an access, times time); ranges below a hundredth of the hottest one's heat are noise or idle; the remaining ones are
//! joined over small gaps, and separated only at large ones, into a few areas to be drawn side by side. If there are
//! many processes, those with the most accesses are shown.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Range, Record};

/// The most areas.
const AREAS_MAX: usize = 8;
/// A gap separates areas if it is above this fraction of the bytes shown.
const GAP_PART: u64 = 32;
/// A range is shown if its heat is at least this fraction of the hottest one's.
const HEAT_PART: u128 = 100;

/// A range of one target's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// The target.
    pub target: u32,
    /// Its addresses.
    pub range: Range,
}

/// Selection of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Ranges with accesses.
    Accessed,
    /// All monitored ranges.
    Monitored,
}

/// The areas to show, by target and address, and the number of monitored bytes outside of them.
#[must_use]
pub fn areas(record: &Record, which: Which) -> (Vec<Area>, u64) {
    let heats = heats(record);
    let hottest = heats.iter().map(|(_, heat)| *heat).max().unwrap_or(0);
    let least = if which == Which::Monitored { 0 } else { (hottest / HEAT_PART).max(1) };
    let mut worth: Vec<Area> = joined(&heats, least);
    if worth.is_empty() {
        worth = joined(&heats, 0);
    }
    if which == Which::Accessed {
        let shown = hottest_targets(&heats);
        worth.retain(|area| shown.contains(&area.target));
    }
    let monitored: u128 = heats.iter().map(|(area, _)| u128::from(area.range.bytes())).sum();
    let areas = cut_at_large_gaps(worth);
    let shown: u128 = heats
        .iter()
        .map(|(piece, _)| {
            let inside = areas.iter().filter(|area| area.target == piece.target);
            inside.map(|area| u128::from(area.range.shared(piece.range))).sum::<u128>()
        })
        .sum();
    (areas, super::narrow(monitored.saturating_sub(shown)))
}

/// The monitored addresses, split wherever a region began or ended in any snapshot, with the heat of each piece.
fn heats(record: &Record) -> Vec<(Area, u128)> {
    // The changes at an address: in the number of regions that cover it, and in their heat.
    let mut changes: BTreeMap<(u32, u64), (i64, i128)> = BTreeMap::new();
    for (access, (from, to)) in record.accesses.iter().zip(super::spans(record)) {
        let time = i128::from((to - from) / 1_000_000 + 1);
        for snapshot in &access.targets {
            for region in &snapshot.regions {
                let rate = i128::from(access.intervals.rate_permille(region.accesses));
                let start = changes.entry((snapshot.target, region.range.start)).or_default();
                *start = (start.0 + 1, start.1 + rate * time);
                let end = changes.entry((snapshot.target, region.range.end)).or_default();
                *end = (end.0 - 1, end.1 - rate * time);
            }
        }
    }
    let mut pieces = Vec::new();
    let mut state = (0, 0);
    let mut before: Option<(u32, u64)> = None;
    for ((target, at), (covers, heat)) in changes {
        if let Some((_, start)) = before.filter(|(of, _)| *of == target && state.0 > 0) {
            let range = Range { start, end: at };
            pieces.push((Area { target, range }, u128::try_from(state.1).unwrap_or(0)));
        }
        state = (state.0 + covers, state.1 + heat);
        before = Some((target, at));
    }
    pieces
}

/// The targets with the most heat times bytes, as many as there may be areas.
fn hottest_targets(heats: &[(Area, u128)]) -> BTreeSet<u32> {
    let mut sums: BTreeMap<u32, u128> = BTreeMap::new();
    for (piece, heat) in heats {
        let sum = sums.entry(piece.target).or_default();
        *sum = sum.saturating_add(heat.saturating_mul(piece.range.bytes().into()));
    }
    let mut order: Vec<(u128, Reverse<u32>)> =
        sums.into_iter().map(|(target, sum)| (sum, Reverse(target))).collect();
    order.sort_unstable_by(|a, b| b.cmp(a));
    order.into_iter().take(AREAS_MAX).map(|(_, Reverse(target))| target).collect()
}

/// Pieces of at least this heat, with adjacent ones merged.
fn joined(heats: &[(Area, u128)], least: u128) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for (piece, _) in heats.iter().filter(|(_, heat)| *heat >= least) {
        match areas.last_mut() {
            Some(last) if last.target == piece.target && last.range.end == piece.range.start => {
                last.range.end = piece.range.end;
            }
            _ => areas.push(*piece),
        }
    }
    areas
}

/// Merges pieces over all gaps except the largest.
fn cut_at_large_gaps(pieces: Vec<Area>) -> Vec<Area> {
    let total = super::narrow(pieces.iter().map(|area| u128::from(area.range.bytes())).sum());
    let gap = |pair: &[Area]| {
        if pair[0].target == pair[1].target {
            pair[1].range.start - pair[0].range.end
        } else {
            u64::MAX
        }
    };
    let mut gaps: Vec<u64> =
        pieces.windows(2).map(gap).filter(|gap| *gap > total / GAP_PART).collect();
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    let least = gaps.get(AREAS_MAX - 2).or(gaps.last()).copied().unwrap_or(u64::MAX);
    let mut areas: Vec<Area> = Vec::new();
    for piece in pieces {
        match areas.last_mut() {
            Some(last)
                if last.target == piece.target && piece.range.start - last.range.end < least =>
            {
                last.range.end = piece.range.end;
            }
            _ => areas.push(piece),
        }
    }
    areas
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{self, arbitrary};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn spans(areas: &[Area]) -> Vec<(u64, u64)> {
        areas.iter().map(|area| (area.range.start / MIB, area.range.bytes() / MIB)).collect()
    }

    #[test]
    fn memory_without_accesses_is_omitted_and_counted() {
        let (areas, left_out) = areas(&testkit::moving_hot_set(), Which::Accessed);
        // 60 GiB lie between near and far memory, and 1.75 GiB between the two locations of the hot set.
        let far = 65_536 + 1024;
        assert_eq!(spans(&areas), [(4096, 128), (4608, 256), (far, 256), (far + 2048, 256)]);
        assert_eq!(left_out / MIB, 5 * 1024 - 128 - 3 * 256);
    }

    #[test]
    fn monitored_areas_omit_the_hole_in_the_addresses() {
        let (areas, left_out) = areas(&testkit::moving_hot_set(), Which::Monitored);
        assert_eq!((spans(&areas), left_out), (vec![(4096, 1024), (65_536, 4096)], 0));
    }

    #[test]
    fn a_rare_access_to_a_large_idle_area_does_not_show_it() {
        let mut record = testkit::moving_hot_set();
        let last = record.accesses[30].targets[0].regions.last_mut().unwrap();
        last.accesses = 1;
        let (areas, _) = areas(&record, Which::Accessed);
        assert_eq!(areas.len(), 4);
    }

    #[test]
    fn a_record_without_accesses_shows_the_monitored_areas() {
        let mut record = testkit::short();
        for region in record.accesses.iter_mut().flat_map(|of| &mut of.targets[0].regions) {
            region.accesses = 0;
        }
        assert_eq!(areas(&record, Which::Accessed).0.len(), 2);
        record.accesses.clear();
        assert_eq!(areas(&record, Which::Accessed), (vec![], 0));
    }

    #[test]
    fn the_processes_with_the_most_accesses_are_shown() {
        let mut record = testkit::short();
        let one = record.accesses[0].targets[0].clone();
        for access in &mut record.accesses {
            access.targets = (0..20)
                .map(|target| {
                    let mut of = one.clone();
                    of.target = target;
                    of.regions.iter_mut().for_each(|region| region.accesses = 1 + target % 10);
                    of
                })
                .collect();
        }
        let shown = |which| -> BTreeSet<u32> {
            areas(&record, which).0.iter().map(|area| area.target).collect()
        };
        assert_eq!(shown(Which::Accessed), [6, 7, 8, 9, 16, 17, 18, 19].into());
        assert_eq!(shown(Which::Monitored).len(), 20);
        assert!(areas(&record, Which::Accessed).1 > 0, "the others are counted as left out");
    }

    proptest! {
        #[test]
        fn areas_are_sorted_disjoint_and_limited_in_number(record in arbitrary::record()) {
            for which in [Which::Accessed, Which::Monitored] {
                let (areas, _) = areas(&record, which);
                for pair in areas.windows(2) {
                    let (a, b) = (pair[0], pair[1]);
                    prop_assert!((a.target, a.range.end) < (b.target, b.range.start));
                }
                let targets: std::collections::BTreeSet<_> = areas.iter().map(|of| of.target).collect();
                prop_assert!(areas.len() < AREAS_MAX + targets.len());
                prop_assert!(areas.iter().all(|area| area.range.bytes() > 0));
            }
        }
    }
}
