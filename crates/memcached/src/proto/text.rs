//! Words and numbers of command lines: parsed without copying, written without allocating.
//!
//! Words are separated by spaces only: a tab belongs to a word, as in memcached. Numbers are decimal digits, with a
//! minus sign if they may be negative.

use memchr::memchr;

/// The remaining words of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a>(&'a [u8]);

/// The words of `line`.
pub(super) fn words(line: &[u8]) -> Words<'_> {
    Words(line)
}

impl<'a> Words<'a> {
    /// The text after the words taken.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let begin = self.0.iter().position(|byte| *byte != b' ')?;
        let word = &self.0[begin..];
        let end = memchr(b' ', word).unwrap_or(word.len());
        self.0 = &word[end..];
        Some(&word[..end])
    }
}

/// Splits a line after its first word; a line that begins with a space has an empty first word.
#[inline]
pub(super) fn cut(line: &[u8]) -> (&[u8], &[u8]) {
    let end = memchr(b' ', line).unwrap_or(line.len());
    line.split_at(end)
}

/// A number that is not negative.
#[inline]
pub(super) fn unsigned(word: &[u8]) -> Option<u64> {
    if word.is_empty() {
        return None;
    }
    let mut sum = 0u64;
    for byte in word {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        sum = sum.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(sum)
}

/// A number as memcached reads values and deltas, by strtoull: white space and a plus sign may precede it, and white space
/// or a NUL (C clients store one) ends it.
pub(super) fn counted(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let is_end = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace() || *byte == 0x0b;
    unsigned(&text[..end]).filter(|_| text.get(end).is_none_or(is_end))
}

/// A number of 32 bits that is not negative.
#[inline]
pub(super) fn unsigned_32(word: &[u8]) -> Option<u32> {
    u32::try_from(unsigned(word)?).ok()
}

/// A number.
#[inline]
pub(super) fn signed(word: &[u8]) -> Option<i64> {
    match word {
        [b'-', digits @ ..] => 0i64.checked_sub_unsigned(unsigned(digits)?),
        digits => i64::try_from(unsigned(digits)?).ok(),
    }
}

/// A number of 32 bits.
#[inline]
pub(super) fn signed_32(word: &[u8]) -> Option<i32> {
    i32::try_from(signed(word)?).ok()
}

/// A number that may have a decimal point.
pub(super) fn real(word: &[u8]) -> Option<f64> {
    str::from_utf8(word).ok()?.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Appends a number.
#[inline]
pub(super) fn push(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_separated_by_any_number_of_spaces() {
        let found: Vec<&[u8]> = words(b"  a bc   d ").collect();
        assert_eq!(found, [&b"a"[..], b"bc", b"d"]);
        assert_eq!(words(b"   ").count(), 0);
        assert_eq!(cut(b"get a b"), (&b"get"[..], &b" a b"[..]));
        assert_eq!(cut(b" get"), (&b""[..], &b" get"[..]));
    }

    #[test]
    fn numbers_have_only_digits_and_are_within_their_range() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"00000000000000000000000000007"), Some(7));
        for wrong in [&b""[..], b"18446744073709551616", b"-1", b"+1", b"1 ", b"0x1", b"1e3"] {
            assert_eq!(unsigned(wrong), None, "{wrong:?}");
        }
        assert_eq!(signed(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(signed_32(b"-2147483649"), None);
        assert_eq!(signed_32(b"--1"), None);
        assert_eq!(unsigned_32(b"4294967296"), None);
        assert_eq!(real(b"0.5"), Some(0.5));
        assert_eq!(real(b"inf"), None);
    }

    #[test]
    fn a_number_is_appended_as_digits() {
        let mut out = b"n=".to_vec();
        push(&mut out, u64::MAX);
        assert_eq!(out, b"n=18446744073709551615");
    }
}
