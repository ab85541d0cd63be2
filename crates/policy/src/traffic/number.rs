//! Real numbers without a library: logarithm, exponential, power, and conversion to and from whole numbers.
//!
//! Only sums, products, quotients and bit operations are used, which all machines round alike, so results are bit-exact
//! everywhere. Series are long enough for at least fourteen digits. Arguments are bounded first, so no result is
//! infinite or NaN.

use nearfar_topology::BasisPoints;

const LN_2: f64 = core::f64::consts::LN_2;
/// Arguments are kept between this and its inverse.
const LEAST: f64 = 1e-280;

/// The natural logarithm; arguments below `LEAST`, also negative ones and NaN, count as `LEAST`.
pub(super) fn ln(x: f64) -> f64 {
    let x = if x > LEAST { x.min(1.0 / LEAST) } else { LEAST };
    let bits = x.to_bits();
    let exponent = ((bits >> 52) & 0x7ff).cast_signed() - 1023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    // Mantissas between half and whole powers of two keep the series short: |z| < 0.172.
    let above = mantissa > core::f64::consts::SQRT_2;
    let (mantissa, exponent) =
        if above { (mantissa / 2.0, exponent + 1) } else { (mantissa, exponent) };
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let series = (0..10).rev().fold(0.0, |sum, i| sum * z * z + 1.0 / f64::from(2 * i + 1));
    exponent as f64 * LN_2 + 2.0 * z * series
}

/// The exponential.
pub(super) fn exp(x: f64) -> f64 {
    let x = x.clamp(-640.0, 640.0);
    let half = if x < 0.0 { -0.5 } else { 0.5 };
    let twos = whole(x / LN_2 + half);
    let rest = x - twos as f64 * LN_2;
    let series = (1..16).rev().fold(1.0, |sum, i| 1.0 + sum * rest / f64::from(i));
    series * f64::from_bits((1023 + twos).cast_unsigned() << 52)
}

/// `x` to the power of `k`, for positive `x`; 0 for others.
pub(super) fn pow(x: f64, k: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { exp(k * ln(x)) }
}

/// Rounds towards zero; saturates.
#[expect(clippy::cast_possible_truncation, reason = "saturates, and that is what is wanted")]
const fn whole(x: f64) -> i64 {
    x as i64
}

/// Rounds to the nearest whole number; negative numbers give 0.
pub(super) const fn count(x: f64) -> u64 {
    let nearest = whole(x + 0.5);
    if nearest > 0 { nearest.cast_unsigned() } else { 0 }
}

/// Converts a share, limited to 0 to 1.
pub(super) fn basis_points(share: f64) -> BasisPoints {
    BasisPoints(u32::try_from(count(share.clamp(0.0, 1.0) * 10_000.0)).unwrap_or(0))
}

/// A share as a number.
pub(super) fn share(share: BasisPoints) -> f64 {
    f64::from(share.0.min(10_000)) / 10_000.0
}

/// Converts a whole number, with sixteen digits.
pub(super) const fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(found: f64, right: f64) -> bool {
        (found - right).abs() <= 1e-13 * right.abs().max(1.0)
    }

    proptest! {
        #[test]
        fn results_match_the_standard_library(x in 1e-9_f64..1e9, e in -300.0_f64..300.0, u in 1e-6_f64..1.0, k in 0.2_f64..9.0) {
            prop_assert!(close(ln(x), x.ln()), "ln {x}");
            prop_assert!(close(exp(e) / e.exp(), 1.0), "exp {e}");
            prop_assert!(close(pow(u, k), u.powf(k)), "{u} to {k}");
        }

        #[test]
        fn any_argument_gives_a_number(x in any::<f64>(), k in any::<f64>()) {
            prop_assert!(ln(x).is_finite() && !exp(x).is_nan() && !pow(x, k.clamp(0.0, 10.0)).is_nan());
            prop_assert!(basis_points(x).0 <= 10_000);
        }
    }

    #[test]
    fn known_values() {
        assert!(close(ln(1.0), 0.0) && close(ln(core::f64::consts::E), 1.0));
        assert!(close(exp(0.0), 1.0) && close(pow(0.5, 2.0), 0.25) && close(pow(0.0, 2.0), 0.0));
        assert_eq!((count(-3.0), count(2.5), count(f64::NAN)), (0, 3, 0));
        assert_eq!(basis_points(0.25), BasisPoints(2_500));
    }
}
