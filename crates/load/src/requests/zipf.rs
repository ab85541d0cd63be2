//! Ranks by Zipf's law with any exponent: rank k (from 1) is drawn in proportion to 1 / k^s.
//!
//! By rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete
//! distributions", 1996): exact for every exponent, 1 and above included, without a table, in less than 1.2 tries on average.
//! The area under x^-s, H below, is written with expm1 and ln_1p so that it passes smoothly through s = 1, where it is ln x.

use super::Unusable;
use crate::random::Random;

/// Largest exponent: above it, practically every draw is rank 1.
pub(super) const EXPONENT_MAX: f64 = 50.0;

/// A distribution of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    items: u64,
    last: f64,
    exponent: f64,
    /// The area from the first rank's left edge, clipped to its height, to the last one's right edge.
    from: f64,
    to: f64,
    /// A draw this close to its rank is accepted without a check.
    sure: f64,
}

impl Zipf {
    /// Over this many ranks.
    ///
    /// # Errors
    /// There are no ranks, or the exponent is invalid.
    pub fn new(items: u64, exponent: f64) -> Result<Self, Unusable> {
        if !(1..=super::synthetic::KEYS_MAX).contains(&items) {
            return Err(Unusable::Keys(items));
        }
        if !(0.0..=EXPONENT_MAX).contains(&exponent) {
            return Err(Unusable::Exponent(exponent));
        }
        Ok(Self::within(items, exponent))
    }

    /// Over this many ranks, or the closest number of ranks that is possible, with an exponent from 0 to
    /// [`EXPONENT_MAX`].
    pub(crate) fn within(items: u64, exponent: f64) -> Self {
        let items = items.clamp(1, super::synthetic::KEYS_MAX);
        #[expect(clippy::cast_precision_loss, reason = "at most 2^53, by the clamp above")]
        let last = items as f64;
        let mut zipf = Self { items, last, exponent, from: 0.0, to: 0.0, sure: 0.0 };
        zipf.from = zipf.area(1.5) - 1.0;
        zipf.to = zipf.area(last + 0.5);
        zipf.sure = 2.0 - zipf.edge(zipf.area(2.5) - zipf.height(2.0));
        zipf
    }

    /// Number of ranks.
    pub(crate) const fn items(&self) -> u64 {
        self.items
    }

    /// Draws a rank from 0; 0 is the most frequent.
    pub fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.to + random.unit() * (self.from - self.to);
            let edge = self.edge(area);
            let rank = (edge + 0.5).floor().clamp(1.0, self.last);
            if rank - edge <= self.sure || area >= self.area(rank + 0.5) - self.height(rank) {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "1 to items, by the clamp above"
                )]
                let rank = rank as u64;
                return rank.saturating_sub(1).min(self.items - 1);
            }
        }
    }

    /// x^-s.
    fn height(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// The area under it from 1 to x.
    fn area(&self, x: f64) -> f64 {
        let log = x.ln();
        let grown = (1.0 - self.exponent) * log;
        // (e^g - 1) / g, which is 1 at 0.
        let rate = if grown.abs() > 1e-8 { grown.exp_m1() / grown } else { 1.0 + grown / 2.0 };
        rate * log
    }

    /// The x up to which the area has this value.
    fn edge(&self, area: f64) -> f64 {
        let grown = (area * (1.0 - self.exponent)).max(-1.0);
        // ln(1 + g) / g, which is 1 at 0.
        let rate = if grown.abs() > 1e-8 { grown.ln_1p() / grown } else { 1.0 - grown / 2.0 };
        (rate * area).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The frequency of each rank, by the law itself.
    fn shares(items: u32, exponent: f64) -> Vec<f64> {
        let terms: Vec<f64> = (1..=items).map(|k| f64::from(k).powf(-exponent)).collect();
        let sum: f64 = terms.iter().sum();
        terms.into_iter().map(|term| term / sum).collect()
    }

    #[test]
    fn ranks_follow_zipfs_law_for_exponents_below_at_and_above_one() {
        for exponent in [0.0, 0.6, 0.99, 1.0, 1.1, 2.0, 5.0] {
            let (zipf, mut random) = (Zipf::new(50, exponent).unwrap(), Random::new(11));
            let mut drawn = [0u32; 50];
            for _ in 0..200_000 {
                drawn[usize::try_from(zipf.draw(&mut random)).unwrap()] += 1;
            }
            for (rank, (count, share)) in drawn.iter().zip(shares(50, exponent)).enumerate() {
                let due = share * 200_000.0;
                // Five standard deviations, plus one for rare ranks.
                let off = (f64::from(*count) - due).abs();
                assert!(off < 5.0 * due.sqrt() + 1.0, "{exponent} {rank}: {count}, due {due}");
            }
        }
    }

    #[test]
    fn invalid_exponents_and_empty_ranges_are_refused() {
        assert_eq!(Zipf::new(0, 1.0).unwrap_err(), Unusable::Keys(0));
        assert_eq!(Zipf::new(9, -0.1).unwrap_err(), Unusable::Exponent(-0.1));
        assert!(Zipf::new(9, f64::NAN).is_err() && Zipf::new(9, f64::INFINITY).is_err());
        assert!(Zipf::new(u64::MAX, 1.0).is_err());
    }

    proptest! {
        #[test]
        fn ranks_stay_below_the_number_of_keys(items in 1u64..1 << 50, exponent in 0.0..50.0f64, seed: u64) {
            let (zipf, mut random) = (Zipf::new(items, exponent).unwrap(), Random::new(seed));
            for _ in 0..20 {
                prop_assert!(zipf.draw(&mut random) < items);
            }
        }
    }
}
