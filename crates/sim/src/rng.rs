//! Random numbers from a seed: xoshiro256++ (Blackman and Vigna, 2019), seeded by splitmix64. The sequence is the same
//! on all machines and in all releases; a crate's sequence may change between versions, so none is used.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform in [0, 1).
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform below `end`; 0 if that is 0. Lemire's product; its bias below 2^-32 is negligible here.
    #[inline]
    pub fn below(&mut self, end: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(end)) >> 32) as u32
    }

    /// Normally distributed, mean 0 and standard deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_determines_the_random_stream() {
        let take = |seed| {
            let mut rng = Rng::new(seed);
            (0..4).map(|_| rng.bits()).collect::<Vec<_>>()
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
        // The reference implementation's first number from the state that splitmix64 derives from 0.
        assert_eq!(Rng::new(0).0[0], 0xe220_a839_7b1d_cdaf);
        assert_eq!(Rng([1, 2, 3, 4]).bits(), 41_943_041);
    }

    #[test]
    fn uniform_and_normal_numbers_have_the_expected_moments() {
        let mut rng = Rng::new(7);
        let units: Vec<f64> = (0..100_000).map(|_| rng.unit()).collect();
        let mean = units.iter().sum::<f64>() / 100_000.0;
        assert!((mean - 0.5).abs() < 0.005 && units.iter().all(|unit| (0.0..1.0).contains(unit)));
        let normals: Vec<f64> = (0..100_000).map(|_| rng.normal()).collect();
        let square = normals.iter().map(|normal| normal * normal).sum::<f64>() / 100_000.0;
        assert!((square - 1.0).abs() < 0.02, "{square}");
        assert_eq!(rng.below(0), 0);
        assert!((0..10_000).all(|_| rng.below(10) < 10));
    }
}
