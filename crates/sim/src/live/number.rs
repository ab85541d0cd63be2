//! Conversions between the policies' integers and the simulator's real numbers.

/// The nearest integer; negative numbers and NaN are 0, too large ones the largest.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
pub(super) const fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// A count as a real number; above 2^53 it is rounded.
#[expect(clippy::cast_precision_loss, reason = "counts and bytes, for rates")]
pub(super) const fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_number_becomes_the_nearest_count_and_never_wraps() {
        assert_eq!([0.4, 0.5, 1.49, 2.5].map(whole), [0, 1, 1, 3]);
        assert_eq!([-3.0, f64::NAN, f64::INFINITY, 1e30].map(whole), [0, 0, u64::MAX, u64::MAX]);
    }

    #[test]
    fn counts_of_up_to_53_bits_round_trip_through_floats() {
        for count in [0, 1, 4_095, (1 << 53) - 1] {
            assert_eq!(whole(real(count)), count);
        }
    }
}
