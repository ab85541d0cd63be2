//! Quantities of Kubernetes, as far as they are whole bytes: `17179869184`, `16Gi`, `16G`, `1e9`.

use nearfar_topology::Bytes;

/// Reads a quantity as bytes, rounded up to a whole one as Kubernetes does; `None` if it is negative, malformed or above
/// 2^64.
#[must_use]
pub fn parse(text: &str) -> Option<Bytes> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let end = text.find(|c| !is_number(c)).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    // Digits beyond the ninth decimal are below Kubernetes' precision.
    let fraction = fraction.get(..9).unwrap_or(fraction);
    let digits: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let (multiplier, divisor) = unit(suffix)?;
    let divisor = divisor.checked_mul(power(10, u32::try_from(fraction.len()).ok()?)?)?;
    let bytes = digits.checked_mul(multiplier)?.div_ceil(divisor);
    u64::try_from(bytes).ok().map(Bytes)
}

/// A suffix as multiplier and divisor.
fn unit(suffix: &str) -> Option<(u128, u128)> {
    const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const SMALL: [&str; 3] = ["m", "u", "n"];
    let position = |names: &[&str]| names.iter().position(|name| *name == suffix);
    let power_of = |base, at: usize, each: u32| power(base, u32::try_from(at).ok()? * each);
    if let Some(at) = position(&DECIMAL) {
        return Some((power_of(10, at, 3)?, 1));
    }
    if let Some(at) = position(&BINARY) {
        return Some((power_of(2, at + 1, 10)?, 1));
    }
    if let Some(at) = position(&SMALL) {
        return Some((1, power_of(10, at + 1, 3)?));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let factor = power(10, exponent.unsigned_abs())?;
    Some(if exponent < 0 { (1, factor) } else { (factor, 1) })
}

fn power(base: u128, exponent: u32) -> Option<u128> {
    base.checked_pow(exponent)
}

/// Bytes as a quantity in the largest binary unit that divides them.
#[must_use]
pub fn text(bytes: Bytes) -> String {
    const UNITS: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut value, mut unit) = (bytes.0, "");
    for next in UNITS {
        if value == 0 || !value.is_multiple_of(1024) {
            break;
        }
        (value, unit) = (value / 1024, next);
    }
    format!("{value}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_form_of_a_kubernetes_quantity_parses() {
        for (read, bytes) in [
            ("17179869184", 16 << 30),
            ("16Gi", 16 << 30),
            ("1.5Gi", 3 << 29),
            (".5Ki", 512),
            ("1e9", 1_000_000_000),
            ("2E3", 2000),
            ("1E", 1_000_000_000_000_000_000),
            ("128974848", 128_974_848),
            ("129M", 129_000_000),
            ("128974848000m", 128_974_848),
            ("1500m", 2),
            ("10e-1", 1),
            ("+1k", 1000),
            ("0", 0),
        ] {
            assert_eq!(parse(read), Some(Bytes(bytes)), "{read}");
        }
        for read in [
            "",
            "Gi",
            "-1",
            "1.2.3",
            "1gi",
            "1 Gi",
            "1e",
            "1e99",
            "16Ei",
            "x",
            "99999999999999999999999",
        ] {
            assert_eq!(parse(read), None, "{read}");
        }
    }

    proptest! {
        #[test]
        fn text_reads_back(bytes in any::<u64>(), shift in 0u32..40) {
            let bytes = Bytes(bytes >> shift << shift);
            prop_assert_eq!(parse(&text(bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_read_or_refused(read in "[0-9.eEKMGTPimkun+-]{0,40}") {
            let _ = parse(&read);
        }
    }
}
