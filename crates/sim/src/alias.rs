//! Sampling from any discrete distribution in constant time: Walker's alias method, in Vose's form
//! (1991).

use crate::rng::Rng;

/// A distribution over 0..n.
#[derive(Clone, Debug, PartialEq)]
pub struct Alias {
    /// A slot with a draw up to this threshold, of 2^32, returns its own index, else the other.
    slots: Vec<(u32, u32)>,
}

impl Alias {
    /// The distribution with these weights; `None` if their sum is zero or not finite, one is
    /// negative, or there are too many.
    #[must_use]
    pub fn of(weights: &[f64]) -> Option<Self> {
        let count = u32::try_from(weights.len()).ok()?;
        let sum: f64 = weights.iter().sum();
        if !(sum > 0.0 && sum.is_finite()) || weights.iter().any(|weight| *weight < 0.0) {
            return None;
        }
        let scale = f64::from(count) / sum;
        let mut share: Vec<f64> = weights.iter().map(|weight| weight * scale).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..count).partition(|at| share[*at as usize] < 1.0);
        let mut slots: Vec<(u32, u32)> = (0..count).map(|at| (u32::MAX, at)).collect();
        while let (Some(less), Some(more)) = (small.pop(), large.last().copied()) {
            slots[less as usize] = (threshold(share[less as usize]), more);
            share[more as usize] -= 1.0 - share[less as usize];
            if share[more as usize] < 1.0 {
                large.pop();
                small.push(more);
            }
        }
        Some(Self { slots })
    }

    /// Draws one number.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> u32 {
        let bits = rng.bits();
        let at = (((bits >> 32) * self.slots.len() as u64) >> 32) as u32;
        let (below, other) = self.slots[at as usize];
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower half, which the slot was not chosen by"
        )]
        let itself = (bits as u32) <= below;
        if itself { at } else { other }
    }
}

/// A share as a threshold of 2^32.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn threshold(share: f64) -> u32 {
    (share * 4_294_967_296.0).clamp(0.0, 4_294_967_295.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::{prop_assert, prop_assume, proptest};

    #[test]
    fn invalid_or_zero_weights_give_no_distribution() {
        for weights in [&[][..], &[0.0, 0.0], &[f64::NAN], &[1.0, -1.0, 3.0], &[f64::INFINITY]] {
            assert_eq!(Alias::of(weights), None, "{weights:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_are_drawn_in_proportion_to_their_weights(weights in proptest::collection::vec(0.0f64..10.0, 1..20), seed: u64) {
            let sum: f64 = weights.iter().sum();
            prop_assume!(sum > 0.1);
            let alias = Alias::of(&weights).unwrap();
            let mut rng = Rng::new(seed);
            let mut seen = vec![0u32; weights.len()];
            for _ in 0..20_000 {
                seen[alias.draw(&mut rng) as usize] += 1;
            }
            for (weight, seen) in weights.iter().zip(seen) {
                prop_assert!((f64::from(seen) / 20_000.0 - weight / sum).abs() < 0.025);
            }
        }
    }
}
