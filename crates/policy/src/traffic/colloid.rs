//! Colloid's bounds search: finds the near share at which near and far memory have equal latency.
//!
//! It needs the fewest inputs: the two measured latencies, and the share of accesses that near memory serves. While
//! near memory is faster, the target share is above the present one, else below: two bounds converge on it, and the
//! step goes to their middle. Latencies within 5 % of each other count as equal. If bounds have met but latencies
//! differ, the machine has changed: the bound on the side of the target is reset.
//!
//! Equal latencies are the equilibrium of traffic in which each line chooses for itself. It is not the optimum
//! ([`place`](super::place)): under moderate load it loses 3 to 6 % of throughput. So this law is for users who select
//! it, and for machines on which own load is unknown.
//!
//! Source: Vuppalapati and Agarwal, Tiered Memory Management: Access Latency is the Key! (SOSP 2024), its port to
//! HeMem.

use nearfar_topology::{BasisPoints, Nanoseconds};

const WHOLE: u64 = 10_000;
/// Smoothed latencies are in this fraction of a nanosecond.
const FINE: u64 = 1024;

/// Limits; [`Config::default`] has the published ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Latencies closer than this are equal.
    pub equal: BasisPoints,
    /// Bounds closer than this have met.
    pub met: BasisPoints,
    /// Weight of a new reading.
    pub reading: BasisPoints,
}

impl Default for Config {
    fn default() -> Self {
        Self { equal: BasisPoints(500), met: BasisPoints(100), reading: BasisPoints(625) }
    }
}

/// Direction of the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// No step: latencies are equal.
    Stay,
    /// More near, by this share of accesses.
    Near(BasisPoints),
    /// Less near, by this share of accesses.
    Far(BasisPoints),
}

/// State of the search.
#[derive(Clone, Copy, Debug)]
pub struct Colloid {
    config: Config,
    low: u64,
    high: u64,
    /// Smoothed near and far latency.
    latency: Option<[u64; 2]>,
}

impl Colloid {
    /// A search without readings.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self { config, low: 0, high: WHOLE, latency: None }
    }

    /// Records latencies, and returns the next step from the near share `share`.
    pub fn step(&mut self, near: Nanoseconds, far: Nanoseconds, share: BasisPoints) -> Wish {
        self.feel(near, far);
        self.wish(share)
    }

    /// Records latencies without a step, for the time while pages migrate.
    pub fn feel(&mut self, near: Nanoseconds, far: Nanoseconds) {
        let counts = u64::from(self.config.reading.0.min(10_000));
        let smooth = |before: u64, now: u64| {
            let sum = u128::from(before) * u128::from(WHOLE - counts)
                + u128::from(now) * u128::from(counts);
            u64::try_from(sum / u128::from(WHOLE)).unwrap_or(u64::MAX)
        };
        let now = [near, far].map(|latency| latency.0.saturating_mul(FINE));
        let before = self.latency.unwrap_or(now);
        self.latency = Some([smooth(before[0], now[0]), smooth(before[1], now[1])]);
    }

    /// The next step by the smoothed latencies; none before the first reading.
    fn wish(&mut self, share: BasisPoints) -> Wish {
        let Some([near, far]) = self.latency else { return Wish::Stay };
        let apart = u128::from(near.abs_diff(far)) * u128::from(WHOLE);
        if apart <= u128::from(near.max(far)) * u128::from(self.config.equal.0) {
            return Wish::Stay;
        }
        let share = u64::from(share.0).min(WHOLE);
        let toward_near = near < far;
        if toward_near {
            self.low = share;
            self.high = if self.high < share { WHOLE } else { self.high };
        } else {
            self.high = share;
            self.low = if self.low > share { 0 } else { self.low };
        }
        if self.high - self.low < u64::from(self.config.met.0) {
            (self.low, self.high) = if toward_near { (self.low, WHOLE) } else { (0, self.high) };
        }
        let apart = u32::try_from(u64::midpoint(self.low, self.high).abs_diff(share));
        let apart = BasisPoints(apart.unwrap_or(0));
        if toward_near { Wish::Near(apart) } else { Wish::Far(apart) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at_once() -> Colloid {
        Colloid::new(Config { reading: BasisPoints(10_000), ..Config::default() })
    }

    fn step(one: &mut Colloid, near: u64, far: u64, share: u32) -> Wish {
        one.step(Nanoseconds(near), Nanoseconds(far), BasisPoints(share))
    }

    #[test]
    fn latencies_within_five_per_cent_are_equal() {
        let mut one = at_once();
        assert_eq!(step(&mut one, 100, 105, 5000), Wish::Stay);
        assert_eq!(step(&mut one, 100, 106, 5000), Wish::Near(BasisPoints(2500)));
    }

    #[test]
    fn bounds_converge_to_the_share_with_equal_latencies() {
        // Bounds meet at a near share of 30 %.
        let mut one = at_once();
        let mut share = 9_000_u32;
        for _ in 0..20 {
            let near = 100 + u64::from(share) / 30;
            share = match step(&mut one, near, 200, share) {
                Wish::Stay => share,
                Wish::Near(by) => share + by.0,
                Wish::Far(by) => share - by.0,
            };
        }
        assert!(share.abs_diff(3_000) < 300, "{share}");
    }

    #[test]
    fn converged_bounds_reopen_when_latencies_change() {
        let mut one = at_once();
        step(&mut one, 100, 300, 2_950);
        step(&mut one, 300, 100, 3_000);
        // Met at 30 %; then contention ends, and near memory is much faster.
        assert_eq!(step(&mut one, 100, 300, 2_960), Wish::Near(BasisPoints(3_520)));
        // Contention returns: the target is below the former lower bound.
        assert_eq!(step(&mut one, 300, 100, 2_000), Wish::Far(BasisPoints(1_000)));
    }

    #[test]
    fn a_single_reading_has_a_weight_of_one_sixteenth() {
        let mut one = Colloid::new(Config::default());
        step(&mut one, 100, 110, 5000);
        assert!(matches!(step(&mut one, 240, 110, 5000), Wish::Stay), "108.75 and 110");
        assert!(matches!(step(&mut one, 240, 110, 5000), Wish::Far(_)), "117 and 110");
    }

    proptest! {
        #[test]
        fn a_requested_shift_stays_within_the_present_shares(steps in prop::collection::vec((any::<u64>(), any::<u64>(), 0_u32..12_000), 1..50)) {
            let mut one = Colloid::new(Config::default());
            for (near, far, share) in steps {
                let now = share.min(10_000);
                match step(&mut one, near, far, share) {
                    Wish::Stay => {}
                    Wish::Near(by) => prop_assert!(now + by.0 <= 10_000),
                    Wish::Far(by) => prop_assert!(by.0 <= now),
                }
            }
        }
    }
}
