//! Random numbers from a seed, identical on all machines: splitmix64 (Steele, Lea and Flood, "Fast splittable
//! pseudorandom number generators", OOPSLA 2014).
//!
//! Implemented here, because a workload must not change when a library's generator does. `mix` alone serves as a hash
//! of a number: it is bijective.

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// The step between states: the golden ratio's fraction, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of numbers without a visible pattern.
#[must_use]
pub(crate) const fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The high half of a product: maps 64 random bits to a number below `below`.
#[must_use]
pub(crate) fn scaled(bits: u64, below: u64) -> u64 {
    let product = u128::from(bits) * u128::from(below);
    u64::try_from(product >> 64).unwrap_or(u64::MAX)
}

/// From 0 to 1, excluding 1.
#[must_use]
pub(crate) fn unit(bits: u64) -> f64 {
    /// 2^-53: the precision of a float's fraction.
    const LAST: f64 = 1.0 / 9_007_199_254_740_992.0;
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    let bits = (bits >> 11) as f64;
    bits * LAST
}

impl Random {
    /// From any seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator for one of several workers with the same seed.
    #[must_use]
    pub const fn of_worker(seed: u64, worker: u64) -> Self {
        Self(mix(seed ^ mix(worker.wrapping_add(STEP))))
    }

    /// 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `below`; 0 if that is 0.
    pub fn below(&mut self, below: u64) -> u64 {
        scaled(self.bits(), below)
    }

    /// From 0 to 1, excluding 1.
    pub fn unit(&mut self) -> f64 {
        unit(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_of_the_published_generator() {
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut random = Random::new(7);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[usize::try_from(random.below(10)).unwrap()] = true;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn workers_of_one_seed_differ() {
        let first = |worker| Random::of_worker(1, worker).bits();
        assert!(first(0) != first(1) && first(1) != first(2));
    }
}
