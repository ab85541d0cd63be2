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
