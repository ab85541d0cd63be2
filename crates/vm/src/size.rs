//! Sizes as QEMU reads them: a number, also with a fraction, and a unit of one letter.

use nearfar_topology::Bytes;

/// Parses `text`; a number without a unit is in units of `default`.
pub(crate) fn parse(text: &str, default: u64) -> Option<Bytes> {
    let (number, unit) = match text.char_indices().last()? {
        (at, letter) if letter.is_ascii_alphabetic() => (text.get(..at)?, unit(letter)?),
        _ => (text, default),
    };
    if let Some(hex) = number.strip_prefix("0x").or_else(|| number.strip_prefix("0X")) {
        // QEMU accepts no unit after hexadecimal digits but the default one.
        return u64::from_str_radix(hex, 16).ok()?.checked_mul(unit).map(Bytes);
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if fraction.is_empty() {
        return Some(Bytes(whole));
    }
    let parts = u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit);
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_add(u64::try_from(parts / scale).ok()?).map(Bytes)
}

fn unit(letter: char) -> Option<u64> {
    Some(match letter.to_ascii_uppercase() {
        'B' => 1,
        'K' => 1 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        'T' => 1 << 40,
        'P' => 1 << 50,
        'E' => 1 << 60,
        _ => return None,
    })
}

/// The size in the largest unit that is exact: `2G`, `1536M`, `4097`.
pub(crate) fn print(size: Bytes) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let exact = units.iter().find(|(shift, _)| size.0 > 0 && size.0.trailing_zeros() >= *shift);
    exact.map_or_else(|| size.0.to_string(), |(shift, name)| format!("{}{name}", size.0 >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_as_qemu_reads_them() {
        for (text, default, bytes) in [
            ("2G", 1, Some(2 << 30)),
            ("4096", 1 << 20, Some(4 << 30)),
            ("1.5g", 1, Some(3 << 29)),
            ("64", 1, Some(64)),
            ("0x100", 1 << 20, Some(256 << 20)),
            ("512B", 1 << 20, Some(512)),
            ("", 1, None),
            ("G", 1, None),
            ("1Q", 1, None),
            ("-1", 1, None),
            ("99999999999T", 1, None),
        ] {
            assert_eq!(parse(text, default), bytes.map(Bytes), "{text}");
        }
    }

    proptest! {
        #[test]
        fn sizes_print_back(bytes: u64) {
            prop_assert_eq!(parse(&print(Bytes(bytes)), 1), Some(Bytes(bytes)));
        }
    }
}
