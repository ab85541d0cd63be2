//! Parses damo's formatted numbers: `4,294,967,296`, `143.027 MiB`, `4 %`, `1 m 2 s 500 ms`, `max`, or plain numbers.
//!
//! Each quantity is a type that accepts a JSON number or a text; arithmetic is on whole numbers, rounded down; values
//! above 64 bits are clamped to the maximum.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A decimal number: its digits as a whole number, and how many of them are fractional.
fn decimal(text: &str) -> Option<(u128, u32)> {
    let (mut digits, mut places, mut point, mut any) = (0u128, 0u32, false, false);
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' => {
                any = true;
                // Further fractional digits do not matter.
                if places < 9 {
                    digits = digits.checked_mul(10)?.checked_add(u128::from(byte - b'0'))?;
                    places += u32::from(point);
                }
            }
            b',' if !point && any => (),
            b'.' if !point => point = true,
            _ => return None,
        }
    }
    any.then_some((digits, places))
}

/// `text` times `unit`, as a whole number.
fn scaled(text: &str, unit: u128) -> Option<u64> {
    let (digits, places) = decimal(text)?;
    let value = digits.checked_mul(unit).map(|value| value / 10u128.pow(places));
    Some(value.map_or(u64::MAX, |value| u64::try_from(value).unwrap_or(u64::MAX)))
}

/// Splits a text into the number and the unit.
fn split(text: &str) -> (&str, &str) {
    let unit = text.find(|c: char| c.is_ascii_alphabetic() || c == '%').unwrap_or(text.len());
    (text[..unit].trim(), text[unit..].trim())
}

fn size(text: &str) -> Option<u64> {
    if text == "max" {
        return Some(u64::MAX);
    }
    let (number, unit) = split(text);
    let power = match unit {
        "" | "B" => 0,
        "K" | "KB" | "KiB" => 1,
        "M" | "MB" | "MiB" => 2,
        "G" | "GB" | "GiB" => 3,
        "T" | "TB" | "TiB" => 4,
        "P" | "PB" | "PiB" => 5,
        "E" | "EB" | "EiB" => 6,
        _ => return None,
    };
    scaled(number, 1 << (10 * power))
}

/// Nanoseconds; a number without a unit is in units of `bare` nanoseconds.
fn time(text: &str, bare: u128) -> Option<u64> {
    if text == "max" {
        return Some(u64::MAX);
    }
    let mut rest = text;
    let mut sum = 0u64;
    loop {
        let number = rest.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (digits, behind) = rest.split_at(number);
        let end = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let unit = match unit {
            "" => bare,
            "ns" => 1,
            "us" | "usec" => 1_000,
            "ms" | "msec" => 1_000_000,
            "s" | "sec" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return None,
        };
        sum = sum.saturating_add(scaled(digits.trim(), unit)?);
        rest = behind.trim();
        if rest.is_empty() {
            return Some(sum);
        }
    }
}

fn count(text: &str) -> Option<u64> {
    if text == "max" { Some(u64::MAX) } else { scaled(text.trim(), 1) }
}

/// Millionths of a per cent.
fn percent(text: &str) -> Option<u64> {
    if text == "max" {
        return Some(100_000_000);
    }
    let (number, unit) = split(text);
    matches!(unit, "" | "%").then(|| scaled(number, 1_000_000)).flatten()
}

/// Declares a quantity: its meaning, its text parser, and its description in errors.
macro_rules! figure {
    ($(#[$doc:meta])* $name:ident, $read:expr, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub u64);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Figure { read: $read, what: $what }).map($name)
            }
        }
    };
}

figure!(
    /// Bytes, or an address.
    Size, size, "a size such as 4096 or \"143.027 MiB\""
);
figure!(
    /// Nanoseconds; so are numbers without a unit.
    Nanos, |text| time(text, 1), "a time such as \"1 s 200 ms\""
);
figure!(
    /// Microseconds; so are numbers without a unit.
    Micros, |text| time(text, 1_000).map(|ns| ns / 1_000), "a time such as \"5 ms\""
);
figure!(
    /// A count.
    Count, count, "a number such as 20 or \"1,024\""
);
figure!(
    /// Millionths of a per cent.
    Percent, percent, "a share such as \"4 %\""
);

struct Figure {
    read: fn(&str) -> Option<u64>,
    what: &'static str,
}

impl Visitor<'_> for Figure {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
        self.visit_str(&value.to_string())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<u64, E> {
        self.visit_str(&format!("{value:.6}"))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        let shown: String = text.chars().take(40).collect();
        (self.read)(text.trim()).ok_or_else(|| E::invalid_value(de::Unexpected::Str(&shown), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_as_damo_writes_them() {
        for (text, bytes) in [
            ("4,294,967,296", Some(1 << 32)),
            ("143.027 MiB", Some(149_974_679)),
            ("4K", Some(4096)),
            ("0 B", Some(0)),
            ("max", Some(u64::MAX)),
            ("99999999 EiB", Some(u64::MAX)),
            ("4.5.6 KiB", None),
            ("-1", None),
            ("MiB", None),
            ("", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }

    #[test]
    fn times_are_sums_of_units() {
        for (text, ns) in [
            ("5 ms", Some(5_000_000)),
            ("1 m 2 s 500 ms", Some(62_500_000_000)),
            ("1 m 2.5 s", Some(62_500_000_000)),
            ("100ms", Some(100_000_000)),
            ("62100000000", Some(62_100_000_000)),
            ("2 h", Some(7_200_000_000_000)),
            ("1 fortnight", None),
            ("5 ms ms", None),
        ] {
            assert_eq!(time(text, 1), ns, "{text}");
        }
        assert_eq!(time("5000", 1000), Some(5_000_000));
    }

    #[test]
    fn shares_are_read_with_and_without_the_sign() {
        assert_eq!((percent("4 %"), percent("4.0")), (Some(4_000_000), Some(4_000_000)));
        assert_eq!((percent("max"), percent("4 GiB")), (Some(100_000_000), None));
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_text_never_panics(text: String) {
            let _ = (size(&text), time(&text, 1), count(&text), percent(&text));
        }

        #[test]
        fn thousands_separators_are_ignored(number: u64) {
            let mut text = number.to_string();
            for at in (1..text.len()).rev().filter(|at| (text.len() - at).is_multiple_of(3)).collect::<Vec<_>>() {
                text.insert(at, ',');
            }
            prop_assert_eq!((count(&text), size(&text)), (Some(number), Some(number)));
        }
    }
}
