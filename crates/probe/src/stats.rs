//! Median and spread of repeats.
//!
//! A median, not a mean: one disturbed repeat must not move the figure, only widen the spread that is shown with it.

use nearfar_topology::BasisPoints;

/// The median and the extremes of some repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread<T> {
    /// The middle value; the lower of the two for an even number.
    pub median: T,
    /// The smallest.
    pub min: T,
    /// The largest.
    pub max: T,
    /// (largest - smallest) / median.
    pub relative: BasisPoints,
}

/// Median and extremes of floating-point samples; `None` without a sample. NaN sorts last.
#[must_use]
pub fn of_floats(samples: &[f64]) -> Option<Spread<f64>> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, median, max) = (*sorted.first()?, middle(&sorted)?, *sorted.last()?);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "float to integer casts saturate, and NaN gives 0"
    )]
    let relative = BasisPoints(((max - min) / median * 10_000.0).round() as u32);
    Some(Spread { median, min, max, relative })
}

/// Median and extremes of whole numbers; `None` without a sample.
#[must_use]
pub fn of_integers(samples: &[u64]) -> Option<Spread<u64>> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let (min, median, max) = (*sorted.first()?, middle(&sorted)?, *sorted.last()?);
    let relative = u128::from(max - min) * 10_000 / u128::from(median.max(1));
    Some(Spread {
        median,
        min,
        max,
        relative: BasisPoints(u32::try_from(relative).unwrap_or(u32::MAX)),
    })
}

fn middle<T: Copy>(sorted: &[T]) -> Option<T> {
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_sample_has_no_median() {
        assert_eq!(of_floats(&[]), None);
        assert_eq!(of_integers(&[]), None);
    }

    #[test]
    fn one_disturbed_repeat_widens_the_spread_but_not_the_median() {
        let spread = of_floats(&[100.0, 101.0, 180.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (101.0, 100.0, 180.0));
        assert_eq!(spread.relative, BasisPoints(7921));
        let spread = of_integers(&[50, 10, 49]).unwrap();
        assert_eq!((spread.median, spread.relative), (49, BasisPoints(8163)));
    }

    #[test]
    fn the_median_of_an_even_count_is_the_lower_middle_sample() {
        assert_eq!(of_integers(&[4, 1, 3, 2]).unwrap().median, 2);
        assert_eq!(of_integers(&[0, 0]).unwrap().relative, BasisPoints(0));
    }

    proptest! {
        #[test]
        fn the_median_is_a_sample_between_the_extremes(samples in proptest::collection::vec(0u64.., 1..20)) {
            let spread = of_integers(&samples).unwrap();
            prop_assert!(samples.contains(&spread.median));
            prop_assert!(spread.min <= spread.median && spread.median <= spread.max);
            let below = samples.iter().filter(|sample| **sample <= spread.median).count();
            let above = samples.iter().filter(|sample| **sample >= spread.median).count();
            prop_assert!(2 * below >= samples.len() && 2 * above >= samples.len());
        }
    }
}
