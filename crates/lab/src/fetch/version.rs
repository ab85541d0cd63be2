//! Compares Debian versions, as far as the cache needs it: runs of digits compare as numbers, all else as text.

use std::cmp::Ordering;

/// Orders `a` and `b`.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        match (a.first(), b.first()) {
            (None, None) => return Ordering::Equal,
            (None, Some(b'~')) | (Some(_), None) if a.first() != Some(&b'~') => {
                return Ordering::Greater;
            }
            (None, Some(_)) | (Some(_), None) => return Ordering::Less,
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let order = number(&mut a).cmp(&number(&mut b));
                if order != Ordering::Equal {
                    return order;
                }
            }
            (Some(x), Some(y)) if x == y => (a, b) = (&a[1..], &b[1..]),
            (Some(b'~'), _) => return Ordering::Less,
            (_, Some(b'~')) => return Ordering::Greater,
            (Some(x), Some(y)) => return x.cmp(y),
        }
    }
}

/// Splits leading digits off; compares by length first, so that no number is too long.
fn number<'a>(text: &mut &'a [u8]) -> (usize, &'a [u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    let zeros = digits.iter().take_while(|byte| **byte == b'0').count();
    (digits.len() - zeros, &digits[zeros..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn later_versions_are_greater() {
        for (old, new) in [
            ("6.12.9+deb12", "6.12.95+deb12"),
            ("7.2.6+deb13-amd64", "7.2.12+deb13-amd64"),
            ("10.0~rc1", "10.0"),
            ("10.0.2+ds-2~bpo12+1", "10.0.2+ds-2"),
            ("1", "1.1"),
        ] {
            assert_eq!(compare(old, new), Ordering::Less, "{old} {new}");
            assert_eq!(compare(new, old), Ordering::Greater, "{new} {old}");
        }
    }

    proptest! {
        #[test]
        fn comparing_is_symmetric(a in "[0-9a.~+-]{0,8}", b in "[0-9a.~+-]{0,8}") {
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
        }
    }
}
