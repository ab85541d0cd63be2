//! How long memory stays as hot as it is, and how far samples tell where it is: what came of moves, by what is served where.
//!
//! After a decision it is known where each region's accesses are going to be served, as samples have it, and where all accesses
//! are, as they are counted. Where they turn out to be served elsewhere, what was hot is not, and something else is. A share
//! that drifts so in a second says how long it takes until a placement is worth nothing; what takes longer to get to is not
//! worth going for. Samples are few, so a little is taken for chance; what could not be moved counts, too, as it is just as
//! little worth planning on. Counts that do not follow moves at all are no drift: that is for the judge (`judge.rs`).
//!
//! Samples are of some seconds, so they say where memory *was* hot; counts are of now. Memory that is hot elsewhere by the
//! time it has been moved shows in how the two go apart and together again. A gain is believed only as far as more accesses
//! would be moved than are in doubt so. Where they differ by the same all the time, as where more is counted than sampled, that
//! is no doubt, nor is what goes beyond all that counts have wandered of late.

use alloc::vec::Vec;

use super::{Observation, Shift};
use crate::traffic::number::{real, share};
use crate::traffic::place::{Placement, Spot};

/// So much of a share is chance,
const CHANCE: f64 = 0.01;
/// and a new reading counts so much,
const COUNTS: f64 = 0.1;
/// or so much in what samples are off by all the time.
const OFF_COUNTS: f64 = 0.05;
/// Placements that have lost this share are worth nothing.
const LOST: f64 = 0.7;

/// Where accesses are served: shares of all.
#[derive(Clone, Debug, Default)]
pub(super) struct Served {
    /// As sampled, by region and node: shares of the region's.
    sampled: Placement,
    /// As counted, by CPU node and node.
    counted: Placement,
}

/// What drifts.
#[derive(Clone, Debug, Default)]
pub(super) struct Drift {
    /// As it was, and as it is to be.
    expected: Option<[Served; 2]>,
    /// Share of all accesses in a nanosecond.
    rate: f64,
    /// The same of what is counted, in a decision.
    wanders: f64,
    /// What is counted on each node above what is sampled, on average,
    off: Vec<f64>,
    /// and how far from that it is, on average.
    doubt: f64,
}

impl Served {
    /// Now.
    pub(super) fn of(seen: &Observation, at: &Placement) -> Self {
        let rows = seen.own.iter().flatten();
        let rows: Placement = rows.map(|row| row.iter().map(|of| real(of.0)).collect()).collect();
        let all = rows.iter().flatten().sum::<f64>().max(1.0);
        let shares = |row: Vec<f64>| row.into_iter().map(|of| of / all).collect();
        Self { sampled: at.clone(), counted: rows.into_iter().map(shares).collect() }
    }

    /// The same after these moves, if what moves is as hot as is thought.
    fn after(mut self, spots: &[Spot], shifts: &[Shift]) -> Self {
        for shift in shifts {
            let moved = share(shift.share);
            let at = &mut self.sampled[shift.region];
            (at[shift.from], at[shift.to]) = (at[shift.from] - moved, at[shift.to] + moved);
            for (row, by) in self.counted.iter_mut().zip(&spots[shift.region].by) {
                let part = row.iter().sum::<f64>() * by * moved;
                row[shift.from] -= part;
                row[shift.to] += part;
            }
        }
        self
    }

    /// What is counted on each node above what is sampled there.
    fn off(&self, spots: &[Spot]) -> Vec<f64> {
        let all: f64 = spots.iter().map(part).sum();
        let nodes = self.counted.first().map_or(0, Vec::len);
        let off = |node: usize| {
            let sampled: f64 =
                self.sampled.iter().zip(spots).map(|(at, spot)| at[node] * part(spot)).sum();
            self.counted.iter().map(|row| row[node]).sum::<f64>() - sampled / all.max(1e-12)
        };
        (0..nodes).map(off).collect()
    }
}

/// The share of all accesses that goes to a region.
fn part(spot: &Spot) -> f64 {
    spot.by.iter().sum::<f64>() / real(spot.by.len().max(1) as u64)
}

/// What has come and what was to come need not be the same yet: how much is elsewhere than anywhere between before and after.
fn outside((now, (before, after)): (&Vec<f64>, (&Vec<f64>, &Vec<f64>))) -> f64 {
    let beyond = |(now, (before, after)): (&f64, (&f64, &f64))| {
        (now - before.max(*after)).max(before.min(*after) - now).max(0.0)
    };
    now.iter().zip(before.iter().zip(after)).map(beyond).sum::<f64>() / 2.0
}

/// How much of one is elsewhere than in the other.
fn apart((one, other): (&Vec<f64>, &Vec<f64>)) -> f64 {
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).sum::<f64>() / 2.0
}

/// The share of all accesses that is served elsewhere in one than in the other.
fn apart_in_all((one, other): (&Placement, &Placement), spots: &[Spot]) -> f64 {
    one.iter().zip(other).map(apart).zip(spots).map(|(apart, spot)| apart * part(spot)).sum()
}

impl Drift {
    /// Where all is, and what moves.
    pub(super) fn expect(&mut self, now: Served, spots: &[Spot], shifts: &[Shift]) {
        let after = now.clone().after(spots, shifts);
        self.expected = Some([now, after]);
    }

    /// Where it is; not comparable if regions are others.
    pub(super) fn see(&mut self, now: &Served, spots: &[Spot], elapsed_ns: u64) {
        let same = |[before, _]: &[Served; 2]| before.sampled.len() == now.sampled.len();
        let Some([before, after]) = self.expected.take().filter(same) else {
            return;
        };
        let sampled = apart_in_all((&now.sampled, &after.sampled), spots);
        let between = before.counted.iter().zip(&after.counted);
        let counted: f64 = now.counted.iter().zip(between).map(outside).sum();
        let [sampled, counted] = [sampled, counted].map(|drifts| (drifts - CHANCE).max(0.0));
        self.rate += COUNTS * (sampled.max(counted) / real(elapsed_ns.max(1)) - self.rate);
        self.wanders += COUNTS * (counted - self.wanders);
        let off = now.off(spots);
        if self.off.len() == off.len() {
            let doubt = (apart((&off, &self.off)) - CHANCE).max(0.0);
            self.doubt += COUNTS * (doubt - self.doubt);
            let means = self.off.iter_mut().zip(&off);
            means.for_each(|(mean, now)| *mean += OFF_COUNTS * (now - *mean));
        } else {
            self.off = off;
        }
    }

    /// How long what is hot stays hot, in nanoseconds.
    pub(super) fn hot_ns(&self) -> f64 {
        LOST / self.rate.max(1e-18)
    }

    /// As much of a gain by going from one to the other as can be believed.
    pub(super) fn believed(&self, gain: f64, way: (&Placement, &Placement), spots: &[Spot]) -> f64 {
        let doubt = self.doubt.min(self.wanders / COUNTS);
        gain * (1.0 - doubt / apart_in_all(way, spots).max(1e-12)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use nearfar_topology::{BasisPoints, Bytes};

    fn spots() -> [Spot; 1] {
        [Spot { by: vec![1.0], least: vec![0.0; 2], most: vec![1.0; 2] }]
    }

    /// So much near, as sampled and as counted.
    fn served(sampled: f64, counted: f64) -> Served {
        let at = |near| vec![vec![near, 1.0 - near]];
        Served { sampled: at(sampled), counted: at(counted) }
    }

    /// So many decisions half a second apart, from where all was expected to where it is.
    fn after(decisions: usize, expected: &Served, now: &Served) -> Drift {
        let mut drift = Drift::default();
        for _ in 0..decisions {
            drift.expect(expected.clone(), &[], &[]);
            drift.see(now, &spots(), 500_000_000);
        }
        drift
    }

    #[test]
    fn what_stays_where_it_was_put_is_hot_for_ever_and_chance_is_no_drift() {
        let there = served(0.9, 0.9);
        assert!(after(100, &there, &there).hot_ns() > 1e15);
        assert!(after(100, &there, &served(0.891, 0.891)).hot_ns() > 1e15);
    }

    #[test]
    fn a_tenth_a_second_lasts_nine_seconds_as_sampled_or_as_counted() {
        for now in [served(0.85, 0.9), served(0.9, 0.85)] {
            let drift = after(100, &served(0.9, 0.9), &now);
            let seconds = drift.hot_ns() / 1e9;
            assert!((seconds - 8.75).abs() < 0.1, "{seconds}");
            let few = after(3, &served(0.9, 0.9), &now);
            assert!(few.hot_ns() > 2.0 * drift.hot_ns(), "three may be chance");
        }
    }

    #[test]
    fn a_move_is_expected_to_show_in_samples_and_may_not_be_counted_yet() {
        let (region, from, to) = (0, 1, 0);
        let (share, bytes) = (BasisPoints(1_000), Bytes(1));
        let shift = Shift { region, from, to, share, bytes };
        let lasts = |now: &Served| {
            let mut drift = Drift::default();
            for _ in 0..100 {
                drift.expect(served(0.5, 0.4), &spots(), &[shift]);
                drift.see(now, &spots(), 500_000_000);
            }
            drift.hot_ns()
        };
        assert!(lasts(&served(0.6, 0.5)) > 1e15 && lasts(&served(0.6, 0.43)) > 1e15);
        assert!(lasts(&served(0.5, 0.5)) < 1e10 && lasts(&served(0.6, 0.3)) < 1e10);
        assert!(lasts(&served(0.6, 0.6)) < 1e10, "more than was moved");
    }

    #[test]
    fn regions_that_are_others_are_not_compared() {
        let mut drift = Drift::default();
        drift.expect(served(1.0, 1.0), &[], &[]);
        let now = Served { sampled: vec![vec![0.0, 1.0]; 2], ..served(0.0, 0.0) };
        drift.see(&now, &[], 1);
        assert!(drift.hot_ns() > 1e15);
    }

    /// What is believed of a gain of 0.1 by moving 0.2 of all, after counts were so far from samples in turn.
    fn believed(off: [f64; 2]) -> f64 {
        let mut drift = Drift::default();
        for turn in 0..200 {
            drift.see(&served(0.5, 0.5 + off[turn / 4 % 2]), &spots(), 500_000_000);
            drift.expect(served(0.5, 0.5 + off[turn / 4 % 2]), &[], &[]);
        }
        let [from, to] = [0.5, 0.7].map(|near| vec![vec![near, 1.0 - near]]);
        drift.believed(0.1, (&from, &to), &spots())
    }

    #[test]
    fn a_gain_is_believed_as_far_as_samples_go_with_counts() {
        assert!((believed([0.0, 0.0]) - 0.1).abs() < 1e-9);
        assert!((believed([0.11, -0.11]) - 0.05).abs() < 0.01, "{}", believed([0.11, -0.11]));
        assert!(believed([0.3, -0.3]).abs() < 1e-9, "{}", believed([0.3, -0.3]));
    }

    #[test]
    fn counts_that_stay_while_samples_change_are_for_the_judge() {
        let mut drift = Drift::default();
        for turn in 0..200 {
            let now = served([0.2, 0.8][turn / 4 % 2], 0.5);
            drift.see(&now, &spots(), 500_000_000);
            drift.expect(now, &[], &[]);
        }
        let [from, to] = [0.5, 0.7].map(|near| vec![vec![near, 1.0 - near]]);
        assert!(drift.doubt > 0.1 && drift.believed(0.1, (&from, &to), &spots()) > 0.099);
    }

    #[test]
    fn samples_that_are_off_by_the_same_all_the_time_are_no_doubt() {
        assert!(believed([0.3, 0.3]) > 0.099, "{}", believed([0.3, 0.3]));
    }
}
