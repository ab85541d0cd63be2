//! Content of values, by which a wrong, torn or foreign one is detected when it is read.
//!
//! ```text
//! 16 bytes or more   version (8 bytes, little endian), then bytes that follow from key, version and length
//! fewer              bytes that follow from key and length
//! ```
//!
//! A version is any number; each store of a key uses another one. A mixture of two versions is not a valid value, nor
//! is a truncated value or another key's. Whether a value is the newest is not checked: that would need a record of the
//! stores.

use crate::random::mix;

/// Values of at least this many bytes contain a version.
pub const VERSIONED: usize = 16;
const VERSION: usize = 8;

/// Appends to `out` the value of `key` in this version, of this many bytes.
pub fn write(key: &[u8], version: u64, bytes: usize, out: &mut Vec<u8>) {
    let mut left = bytes;
    let version = if bytes < VERSIONED { 0 } else { version };
    if bytes >= VERSIONED {
        out.extend_from_slice(&version.to_le_bytes());
        left -= VERSION;
    }
    let mut words = Words::of(key, version, bytes);
    while left >= 8 {
        out.extend_from_slice(&words.next());
        left -= 8;
    }
    out.extend_from_slice(&words.next()[..left]);
}

/// The version of a value of `key` (0 if it is too short for one); `None` if these bytes are no valid value of it.
#[must_use]
pub fn check(key: &[u8], value: &[u8]) -> Option<u64> {
    let (version, rest) = match value.split_first_chunk::<VERSION>() {
        Some((version, rest)) if value.len() >= VERSIONED => (u64::from_le_bytes(*version), rest),
        _ => (0, value),
    };
    let mut words = Words::of(key, version, value.len());
    let (whole, last) = rest.as_chunks::<8>();
    let right = whole.iter().all(|word| *word == words.next());
    (right && *last == words.next()[..last.len()]).then_some(version)
}

/// Generates the derived bytes, eight at a time.
struct Words(u64);

impl Words {
    fn of(key: &[u8], version: u64, bytes: usize) -> Self {
        let key = rapidhash::v3::rapidhash_v3(key);
        Self(mix(mix(key ^ mix(version)) ^ bytes as u64))
    }

    fn next(&mut self) -> [u8; 8] {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(key: &[u8], version: u64, bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        write(key, version, bytes, &mut out);
        out
    }

    #[test]
    fn torn_short_and_foreign_values_fail_the_check() {
        let [old, new] = [1, 2].map(|version| value(b"key", version, 4096));
        assert_eq!((check(b"key", &old), check(b"key", &new)), (Some(1), Some(2)));
        let torn = [&new[..2048], &old[2048..]].concat();
        assert_eq!(check(b"key", &torn), None);
        assert_eq!(check(b"key", &new[..4000]), None);
        assert_eq!(check(b"kez", &new), None);
        assert_eq!(check(b"kez", &value(b"key", 7, 9)), None);
        assert_eq!(check(b"key", b""), Some(0));
    }

    proptest! {
        #[test]
        fn a_value_passes_the_check_as_written_and_fails_with_a_changed_byte(
            key in prop::collection::vec(any::<u8>(), 1..40), version: u64, bytes in 1usize..300,
            at: prop::sample::Index, flip in 1u8..,
        ) {
            let mut value = value(&key, version, bytes);
            prop_assert_eq!(value.len(), bytes);
            prop_assert_eq!(check(&key, &value), Some(if bytes < VERSIONED { 0 } else { version }));
            let at = at.index(bytes);
            value[at] ^= flip;
            prop_assert_eq!(check(&key, &value), None);
        }
    }
}
