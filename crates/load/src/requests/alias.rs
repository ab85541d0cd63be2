//! Weighted choice in constant time: the alias method (Walker 1977, made linear by Vose, "A linear algorithm for
//! generating random numbers with a given distribution", 1991).
//!
//! Sizes are drawn with each request, from up to tens of thousands of values: a search through cumulative weights would
//! miss the processor's caches some ten times.

/// For each slot: the 32-bit threshold below which it returns itself, and the index it returns otherwise.
#[derive(Clone, Debug)]
pub(super) struct Alias(Vec<(u32, u32)>);

impl Alias {
    /// From weights. The error is the first invalid weight, or the sum if that is invalid.
    pub(super) fn new(weights: &[f64]) -> Result<Self, f64> {
        let sum: f64 = weights.iter().sum();
        if let Some(wrong) = weights.iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
            return Err(*wrong);
        }
        if !sum.is_finite() || sum <= 0.0 || u32::try_from(weights.len()).is_err() {
            return Err(sum);
        }
        #[expect(clippy::cast_precision_loss, reason = "fewer than 2^32, checked above")]
        let mean = sum / weights.len() as f64;
        let mut rest: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..rest.len()).partition(|at| rest[*at] < 1.0);
        // Slots left over by rounding return only themselves.
        let mut slots: Vec<(u32, u32)> = (0..).map(|at| (u32::MAX, at)).take(rest.len()).collect();
        while let (Some(poor), Some(rich)) = (small.pop(), large.pop()) {
            slots[poor] = (part(rest[poor]), u32::try_from(rich).unwrap_or(u32::MAX));
            rest[rich] -= 1.0 - rest[poor];
            if rest[rich] < 1.0 { small.push(rich) } else { large.push(rich) }
        }
        Ok(Self(slots))
    }

    /// The index for 64 random bits.
    pub(super) fn pick(&self, bits: u64) -> usize {
        let [low, high] = [bits & u64::from(u32::MAX), bits >> 32];
        let slot = usize::try_from((high * self.0.len() as u64) >> 32).unwrap_or(0);
        let (below, other) = self.0[slot];
        if low < u64::from(below) { slot } else { usize::try_from(other).unwrap_or(slot) }
    }
}

/// A share as a 32-bit number.
fn part(share: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float that is out of range becomes the nearest there is"
    )]
    let part = (share * f64::from(u32::MAX)) as u32;
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn each_index_is_drawn_in_proportion_to_its_weight() {
        let weights = [1.0, 0.0, 5.0, 2.0];
        let alias = Alias::new(&weights).unwrap();
        let (mut random, mut drawn) = (Random::new(3), [0u32; 4]);
        for _ in 0..80_000 {
            drawn[alias.pick(random.bits())] += 1;
        }
        assert_eq!(drawn[1], 0);
        for (count, weight) in drawn.into_iter().zip(weights) {
            assert!((f64::from(count) - weight * 10_000.0).abs() < 500.0, "{drawn:?}");
        }
    }

    #[test]
    fn invalid_weights_are_named() {
        assert_eq!(Alias::new(&[1.0, -2.0]).unwrap_err(), -2.0);
        assert!(Alias::new(&[f64::NAN]).unwrap_err().is_nan());
        assert_eq!(Alias::new(&[0.0, 0.0]).unwrap_err(), 0.0);
        assert_eq!(Alias::new(&[]).unwrap_err(), 0.0);
        assert_eq!(Alias::new(&[f64::MAX, f64::MAX]).unwrap_err(), f64::INFINITY);
    }
}
