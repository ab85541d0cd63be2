//! Drift: how long memory stays as hot as it is, and how far samples can be trusted, from predicted against observed
//! traffic per node.
//!
//! After a decision the expected placement of each region's accesses is known, from samples, and so is the expected
//! traffic per node, from counters. If accesses are then served elsewhere, the hot set has changed. The share that
//! drifts in a second gives the time after which a placement is worthless; a placement that takes longer to reach is
//! not worth migrating for. Samples are few, so a small share is attributed to chance; migrations that could not be
//! carried out count as drift too, since planning on them is equally useless. Counters that do not follow migrations at
//! all are no drift: `feedback.rs` handles them.
//!
//! Samples cover some seconds, so they show where memory *was* hot; counters show the present. Memory that is hot
//! elsewhere by the time it has been migrated makes the two diverge and converge again. A gain is credible only as far
//! as the migrated accesses exceed those in doubt. A constant difference, as when counters include more than samples,
//! is no doubt, nor is anything beyond the recent variation of the counters.

use alloc::vec::Vec;

use super::{Observation, Shift};
use crate::traffic::number::{real, share};
use crate::traffic::place::{Placement, Spot};

/// This much of a share is chance,
const CHANCE: f64 = 0.01;
/// the weight of a new reading in averages,
const COUNTS: f64 = 0.1;
/// and its weight in the average difference between counters and samples.
const OFF_COUNTS: f64 = 0.05;
/// A placement that has lost this share is worthless.
const LOST: f64 = 0.7;

/// Distribution of accesses: shares of all.
#[derive(Clone, Debug, Default)]
pub(super) struct Served {
    /// From samples, by region and node: shares of the region's accesses.
    sampled: Placement,
    /// From counters, by CPU node and memory node.
    counted: Placement,
}

/// State of the drift estimate.
#[derive(Clone, Debug, Default)]
pub(super) struct Drift {
    /// The distribution before the last decision, and the one expected after it.
    expected: Option<[Served; 2]>,
    /// Drift: share of all accesses per nanosecond.
    rate: f64,
    /// Drift of the counters alone, per decision.
    wanders: f64,
    /// Counted less sampled share of each node, on average,
    off: Vec<f64>,
    /// and the average distance from that average.
    doubt: f64,
}

impl Served {
    /// The present distribution.
    pub(super) fn of(seen: &Observation, at: &Placement) -> Self {
        let rows = seen.own.iter().flatten();
        let rows: Placement = rows.map(|row| row.iter().map(|of| real(of.0)).collect()).collect();
        let all = rows.iter().flatten().sum::<f64>().max(1.0);
        let shares = |row: Vec<f64>| row.into_iter().map(|of| of / all).collect();
        Self { sampled: at.clone(), counted: rows.into_iter().map(shares).collect() }
    }

    /// The expected distribution after these shifts, if the migrated pages are as hot as assumed.
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

    /// Counted less sampled share of each node.
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

/// Migration may be partly complete: the share that lies outside the range between `before` and `after`.
fn outside((now, (before, after)): (&Vec<f64>, (&Vec<f64>, &Vec<f64>))) -> f64 {
    let beyond = |(now, (before, after)): (&f64, (&f64, &f64))| {
        (now - before.max(*after)).max(before.min(*after) - now).max(0.0)
    };
    now.iter().zip(before.iter().zip(after)).map(beyond).sum::<f64>() / 2.0
}

/// The share that differs between two distributions.
fn apart((one, other): (&Vec<f64>, &Vec<f64>)) -> f64 {
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).sum::<f64>() / 2.0
}

/// The share of all accesses that differs between two placements.
fn apart_in_all((one, other): (&Placement, &Placement), spots: &[Spot]) -> f64 {
    one.iter().zip(other).map(apart).zip(spots).map(|(apart, spot)| apart * part(spot)).sum()
}

impl Drift {
    /// Records the present distribution and the shifts that were decided.
    pub(super) fn expect(&mut self, now: Served, spots: &[Spot], shifts: &[Shift]) {
        let after = now.clone().after(spots, shifts);
        self.expected = Some([now, after]);
    }

    /// Compares the present distribution with the expected one; skipped if the regions have changed.
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

    /// Estimate of how long the hot set stays hot, in nanoseconds.
    pub(super) fn hot_ns(&self) -> f64 {
        LOST / self.rate.max(1e-18)
    }

    /// The credible part of the gain of migrating from the first placement to the second.
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

    /// A distribution with these near shares, from samples and from counters.
    fn served(sampled: f64, counted: f64) -> Served {
        let at = |near| vec![vec![near, 1.0 - near]];
        Served { sampled: at(sampled), counted: at(counted) }
    }

    /// The state after this many decisions half a second apart, from the expected to the present distribution.
    fn after(decisions: usize, expected: &Served, now: &Served) -> Drift {
        let mut drift = Drift::default();
        for _ in 0..decisions {
            drift.expect(expected.clone(), &[], &[]);
            drift.see(now, &spots(), 500_000_000);
        }
        drift
    }

    #[test]
    fn stable_placement_and_sampling_noise_show_no_drift() {
        let there = served(0.9, 0.9);
        assert!(after(100, &there, &there).hot_ns() > 1e15);
        assert!(after(100, &there, &served(0.891, 0.891)).hot_ns() > 1e15);
    }

    #[test]
    fn drift_of_a_tenth_a_second_gives_a_lifetime_of_nine_seconds() {
        for now in [served(0.85, 0.9), served(0.9, 0.85)] {
            let drift = after(100, &served(0.9, 0.9), &now);
            let seconds = drift.hot_ns() / 1e9;
            assert!((seconds - 8.75).abs() < 0.1, "{seconds}");
            let few = after(3, &served(0.9, 0.9), &now);
            assert!(few.hot_ns() > 2.0 * drift.hot_ns(), "three may be chance");
        }
    }

    #[test]
    fn an_expected_move_must_show_in_samples_and_may_lag_in_counts() {
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
    fn drift_is_not_computed_across_different_regions() {
        let mut drift = Drift::default();
        drift.expect(served(1.0, 1.0), &[], &[]);
        let now = Served { sampled: vec![vec![0.0, 1.0]; 2], ..served(0.0, 0.0) };
        drift.see(&now, &[], 1);
        assert!(drift.hot_ns() > 1e15);
    }

    /// The credible part of a gain of 0.1 by migrating 0.2 of all, after counters differed from samples alternately by
    /// `off`.
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
    fn a_gain_is_discounted_by_the_disagreement_of_samples_and_counts() {
        assert!((believed([0.0, 0.0]) - 0.1).abs() < 1e-9);
        assert!((believed([0.11, -0.11]) - 0.05).abs() < 0.01, "{}", believed([0.11, -0.11]));
        assert!(believed([0.3, -0.3]).abs() < 1e-9, "{}", believed([0.3, -0.3]));
    }

    #[test]
    fn samples_that_vary_under_constant_counts_do_not_discount_the_gain() {
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
    fn a_constant_sampling_bias_does_not_discount_the_gain() {
        assert!(believed([0.3, 0.3]) > 0.099, "{}", believed([0.3, 0.3]));
    }
}
