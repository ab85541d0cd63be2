//! Sizes of keys and values, and times to live: fixed, one of several by weight, or uniform within intervals by weight.
//!
//! As in cachebench: equal numbers of weights and values form a discrete distribution, one weight less forms intervals
//! between adjacent values. A size is a function of 64 random bits; with the hash of a key's number it is the same each
//! time.

use super::Unusable;
use super::alias::Alias;
use crate::random::{mix, scaled};

/// A distribution of whole numbers.
#[derive(Clone, Debug)]
pub struct Sizes(Shape);

#[derive(Clone, Debug)]
enum Shape {
    Fixed(u32),
    Discrete(Alias, Vec<u32>),
    Pieces(Alias, Vec<u32>),
}

impl Sizes {
    /// A constant.
    #[must_use]
    pub const fn fixed(size: u32) -> Self {
        Self(Shape::Fixed(size))
    }

    /// By weight; `what` names the distribution in errors, `max` is the largest valid size.
    ///
    /// # Errors
    /// The numbers of values and weights do not match, or one of them is invalid.
    /// Numbers of values and weights that do not fit, a weight or a size that is none.
    pub fn weighted(
        what: &'static str,
        values: &[f64],
        weights: &[f64],
        max: u32,
    ) -> Result<Self, Unusable> {
        let pieces = values.len() == weights.len() + 1;
        if weights.is_empty() || !(pieces || values.len() == weights.len()) {
            let (values, weights) = (values.len(), weights.len());
            return Err(Unusable::Lengths { what, values, weights });
        }
        let wrong = |found| Unusable::Size { what, found, max: max.into() };
        if let Some(found) = values.iter().find(|size| !(0.0..=f64::from(max)).contains(*size)) {
            return Err(wrong(*found));
        }
        if let Some(pair) = values.windows(2).find(|pair| pieces && pair[0] > pair[1]) {
            return Err(wrong(pair[1]));
        }
        let alias = Alias::new(weights).map_err(|found| Unusable::Weight { what, found })?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to max, checked above; a fraction of a byte is cut off"
        )]
        let values = values.iter().map(|size| *size as u32).collect();
        let shape = if pieces { Shape::Pieces } else { Shape::Discrete };
        Ok(Self(shape(alias, values)))
    }

    /// The size for 64 random bits.
    #[must_use]
    pub fn of(&self, bits: u64) -> u32 {
        match &self.0 {
            Shape::Fixed(size) => *size,
            Shape::Discrete(alias, values) => values[alias.pick(bits)],
            Shape::Pieces(alias, bounds) => {
                let at = alias.pick(bits);
                let (from, to) = (bounds[at], bounds[at + 1]);
                let within = scaled(mix(bits), (to - from).into());
                from + u32::try_from(within).unwrap_or(0)
            }
        }
    }

    /// The mean over all random bits.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if let Shape::Fixed(size) = self.0 {
            return size.into();
        }
        const DRAWN: u32 = 1 << 16;
        let sum: f64 = (0..DRAWN).map(|at| f64::from(self.of(mix(at.into())))).sum();
        sum / f64::from(DRAWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn with_a_weight_for_each_value_exactly_these_values_are_drawn() {
        let sizes = Sizes::weighted("v", &[31.0, 63.0, 4000.0], &[1.0, 2.0, 1.0], 5000).unwrap();
        let mut seen: Vec<u32> = (0..1000).map(|at| sizes.of(mix(at))).collect();
        seen.sort_unstable();
        let large = seen.iter().filter(|size| **size == 63).count();
        seen.dedup();
        assert_eq!(seen, [31, 63, 4000]);
        assert!((400..600).contains(&large), "{large}");
        let mean = sizes.mean();
        assert!((1020.0..1060.0).contains(&mean), "{mean}");
    }

    #[test]
    fn with_one_weight_less_draws_lie_within_intervals() {
        let sizes = Sizes::weighted("k", &[1.0, 8.0, 64.0], &[0.3, 0.7], 250).unwrap();
        let seen: Vec<u32> = (0..10_000).map(|at| sizes.of(mix(at))).collect();
        assert_eq!((seen.iter().min(), seen.iter().max()), (Some(&1), Some(&63)));
        let short = seen.iter().filter(|size| **size < 8).count();
        assert!((2800..3200).contains(&short), "{short}");
    }

    #[test]
    fn invalid_distributions_are_refused_with_the_reason() {
        let said = |values: &[f64], weights: &[f64]| {
            Sizes::weighted("valSize", values, weights, 100).unwrap_err().to_string()
        };
        assert!(said(&[], &[]).starts_with("valSize: 0 values and 0 weights"));
        assert!(said(&[1.0], &[]).starts_with("valSize: 1 values and 0 weights"));
        assert!(said(&[1.0, 2.0, 3.0, 4.0], &[1.0, 1.0]).contains("4 values and 2 weights"));
        assert!(said(&[101.0], &[1.0]).contains("101 bytes or seconds; at most 100"));
        assert!(said(&[-1.0], &[1.0]).contains("-1 bytes"));
        assert!(said(&[f64::NAN], &[1.0]).contains("NaN bytes"));
        assert!(said(&[9.0, 3.0], &[1.0]).contains("ascending"));
        assert!(said(&[9.0, 3.0], &[1.0, -1.0]).contains("weight -1"));
    }

    proptest! {
        #[test]
        fn sizes_stay_within_their_values(values in prop::collection::vec(0.0..1e6f64, 2..20), bits: u64, cut: bool) {
            let mut values = values;
            values.sort_by(f64::total_cmp);
            let weights = vec![1.0; values.len() - usize::from(cut)];
            let size = f64::from(Sizes::weighted("v", &values, &weights, 1 << 20).unwrap().of(bits));
            prop_assert!(values[0].floor() <= size && size <= values[values.len() - 1]);
        }
    }
}
