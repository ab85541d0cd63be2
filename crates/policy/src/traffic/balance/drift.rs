//! How long memory stays as hot as it is: what is served from elsewhere than was expected, though nobody moved it.
//!
//! After a decision it is known where each region's accesses are going to be served. Where they turn out to be served
//! elsewhere, what was hot is not, and something else is. A share that drifts so in a second says how long it takes until
//! half of a placement is worth nothing; what takes longer to get to is not worth going for. Samples are few, so a little is
//! taken for chance; what could not be moved counts, too, as it is just as little worth planning on.

use alloc::vec::Vec;

use crate::traffic::number::real;
use crate::traffic::place::{Placement, Spot};

/// So much of a share is chance,
const CHANCE: f64 = 0.01;
/// and a new reading counts so much.
const COUNTS: f64 = 0.1;
/// Placements that have lost this share are worth nothing.
const LOST: f64 = 0.5;

/// What drifts.
#[derive(Clone, Debug, Default)]
pub(super) struct Drift {
    expected: Option<Placement>,
    /// Share of all accesses in a nanosecond.
    rate: f64,
}

impl Drift {
    /// Where all will be.
    pub(super) fn expect(&mut self, at: Placement) {
        self.expected = Some(at);
    }

    /// Where it is; not comparable if regions are others.
    pub(super) fn see(&mut self, at: &Placement, spots: &[Spot], elapsed_ns: u64) {
        let Some(expected) = self.expected.take().filter(|before| before.len() == at.len()) else {
            return;
        };
        let apart = |(now, then): (&Vec<f64>, &Vec<f64>)| {
            now.iter().zip(then).map(|(now, then)| (now - then).abs()).sum::<f64>() / 2.0
        };
        let part = |spot: &Spot| spot.by.iter().sum::<f64>() / real(spot.by.len().max(1) as u64);
        let all: f64 = at
            .iter()
            .zip(&expected)
            .map(apart)
            .zip(spots)
            .map(|(apart, spot)| apart * part(spot))
            .sum();
        let now = (all - CHANCE).max(0.0) / real(elapsed_ns.max(1));
        self.rate += COUNTS * (now - self.rate);
    }

    /// How long what is hot stays hot, in nanoseconds.
    pub(super) fn hot_ns(&self) -> f64 {
        LOST / self.rate.max(1e-18)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// So many decisions half a second apart, between which so much goes elsewhere by itself.
    fn after(decisions: usize, share: f64) -> Drift {
        let mut drift = Drift::default();
        let spots = [Spot { by: vec![1.0], least: vec![0.0; 2], most: vec![1.0; 2] }];
        for _ in 0..decisions {
            drift.expect(vec![vec![0.9, 0.1]]);
            drift.see(&vec![vec![0.9 - share, 0.1 + share]], &spots, 500_000_000);
        }
        drift
    }

    #[test]
    fn what_stays_where_it_was_put_is_hot_for_ever_and_chance_is_no_drift() {
        assert!(after(100, 0.0).hot_ns() > 1e15 && after(100, 0.009).hot_ns() > 1e15);
    }

    #[test]
    fn a_tenth_a_second_lasts_six_seconds() {
        let seconds = after(100, 0.05).hot_ns() / 1e9;
        assert!((seconds - 6.25).abs() < 0.1, "{seconds}");
        assert!(after(3, 0.05).hot_ns() > 2.0 * after(100, 0.05).hot_ns(), "three may be chance");
    }

    #[test]
    fn regions_that_are_others_are_not_compared() {
        let mut drift = Drift::default();
        drift.expect(vec![vec![1.0, 0.0]]);
        drift.see(&vec![vec![0.0, 1.0]; 2], &[], 1);
        assert!(drift.hot_ns() > 1e15);
    }
}
