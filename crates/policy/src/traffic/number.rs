//! Real numbers without a library: logarithm, exponential and power, and the way to whole numbers and back.
//!
//! Only sums, products, quotients and bits are used, which all machines round alike, so the results are the same to the bit
//! everywhere. Series are long enough for fourteen digits or more. Nothing is infinite or undefined: arguments are bounded first.

use nearfar_topology::BasisPoints;

const LN_2: f64 = core::f64::consts::LN_2;
/// Numbers are kept between this and its inverse.
const LEAST: f64 = 1e-280;

/// The natural logarithm; of what is no positive number, that of a very small one.
pub(super) fn ln(x: f64) -> f64 {
    let x = if x > LEAST { x.min(1.0 / LEAST) } else { LEAST };
    let bits = x.to_bits();
    let exponent = ((bits >> 52) & 0x7ff).cast_signed() - 1023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    // From half to whole powers of two, so that the series is short: |z| < 0.172.
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

/// `x` to the power of `k`, for positive numbers.
pub(super) fn pow(x: f64, k: f64) -> f64 {
    if x <= 0.0 { 0.0 } else { exp(k * ln(x)) }
}

/// Towards zero; at the ends of what there is, the end.
#[expect(clippy::cast_possible_truncation, reason = "saturates, and that is what is wanted")]
const fn whole(x: f64) -> i64 {
    x as i64
}

/// To the nearest whole number that is not below zero.
pub(super) const fn count(x: f64) -> u64 {
    let nearest = whole(x + 0.5);
    if nearest > 0 { nearest.cast_unsigned() } else { 0 }
}

/// As a share, between nothing and the whole.
pub(super) fn basis_points(share: f64) -> BasisPoints {
    BasisPoints(u32::try_from(count(share.clamp(0.0, 1.0) * 10_000.0)).unwrap_or(0))
}

/// A share as a number.
pub(super) fn share(share: BasisPoints) -> f64 {
    f64::from(share.0.min(10_000)) / 10_000.0
}

/// A whole number, to sixteen digits.
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
        fn as_exact_as_a_library(x in 1e-9_f64..1e9, e in -300.0_f64..300.0, u in 1e-6_f64..1.0, k in 0.2_f64..9.0) {
            prop_assert!(close(ln(x), x.ln()), "ln {x}");
            prop_assert!(close(exp(e) / e.exp(), 1.0), "exp {e}");
            prop_assert!(close(pow(u, k), u.powf(k)), "{u} to {k}");
        }

        #[test]
        fn anything_gives_a_number(x in any::<f64>(), k in any::<f64>()) {
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
