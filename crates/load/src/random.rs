//! Random numbers from a seed, identical on all machines: xoshiro256++ (Blackman and Vigna), with its state from
//! splitmix64.
//!
//! Implemented here, because a workload must not change when a library's generator does.

/// A generator.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// From any seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self([(); 4].map(|()| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let kept = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= kept;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `below`; 0 if that is 0.
    pub fn below(&mut self, below: u64) -> u64 {
        let product = u128::from(self.bits()) * u128::from(below);
        u64::try_from(product >> 64).unwrap_or(u64::MAX)
    }

    /// From 0 to 1, excluding 1.
    pub fn unit(&mut self) -> f64 {
        /// 2^-53: the precision of a float's fraction.
        const STEP: f64 = 1.0 / 9_007_199_254_740_992.0;
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let bits = (self.bits() >> 11) as f64;
        bits * STEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_of_the_published_generator() {
        // splitmix64's first outputs for seed 0 are in its author's reference; xoshiro256++ from that state likewise.
        let mut random = Random::new(0);
        assert_eq!(random.0[0], 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.bits(), 0x5317_5d61_490b_23df);
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut random = Random::new(7);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[usize::try_from(random.below(10)).unwrap()] = true;
            let unit = random.unit();
            assert!((0.0..1.0).contains(&unit));
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.below(0), 0);
    }
}
