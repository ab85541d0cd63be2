//! Random numbers for all decisions, from one seed (SplitMix64).

/// A sequence of numbers that follows from its seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

/// A bijective hash of 64 bits.
pub(crate) const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5bf0_3635))
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`.
    pub(crate) const fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 32) as usize * end) >> 32
    }

    /// A number from `first` to `last`, both included.
    pub(crate) const fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last + 1 - first)
    }

    /// True once in `times` calls on average; never for 0.
    pub(crate) const fn one_in(&mut self, times: usize) -> bool {
        times > 0 && self.below(times) == 0
    }
}
