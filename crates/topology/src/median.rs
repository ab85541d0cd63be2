//! The median of measurements: the one definition for benchmarks and checks.
//!
//! A median, not a mean: one disturbed run must not move the result. Here because every crate that measures knows this
//! one. Spread and medians that must be a sample are in probe's `stats`.

use alloc::vec::Vec;

/// The middle figure; the mean of the two middle ones of an even number; `None` without figures. NaN sorts last.
#[must_use]
pub fn median(figures: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(lower, upper) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_slow_run_does_not_change_the_median() {
        assert_eq!(median([3.0, 90.0, 2.0]), Some(3.0));
        assert_eq!(median([]), None);
    }

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle_two() {
        assert_eq!(median([4.0, 1.0, 3.0, 9.0]), Some(3.5));
    }

    proptest! {
        #[test]
        fn half_of_the_figures_lie_on_either_side(figures in proptest::collection::vec(-1e9..1e9, 1..20)) {
            let middle = median(figures.iter().copied()).unwrap();
            let below = figures.iter().filter(|figure| **figure <= middle).count();
            let above = figures.iter().filter(|figure| **figure >= middle).count();
            prop_assert!(2 * below >= figures.len() && 2 * above >= figures.len());
        }

        #[test]
        fn the_order_of_the_figures_does_not_matter(mut figures in proptest::collection::vec(-1e9..1e9, 1..20)) {
            let before = median(figures.iter().copied());
            figures.reverse();
            prop_assert_eq!(median(figures), before);
        }
    }
}
