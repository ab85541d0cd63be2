//! Records: their keys, and incompressible values.

use crate::popularity::fnv64;
use crate::random::Random;

/// Composition of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Several fields of the same size; YCSB's are 10 of 100 bytes.
    Fields {
        /// Number of fields.
        count: u32,
        /// Bytes of each.
        bytes: u32,
    },
    /// A single value.
    Value {
        /// Its bytes.
        bytes: u32,
    },
}

impl Shape {
    /// YCSB's.
    pub const YCSB: Self = Self::Fields { count: 10, bytes: 100 };

    /// Bytes of a record, without key and field names.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Fields { count, bytes } => u64::from(count) * u64::from(bytes),
            Self::Value { bytes } => u64::from(bytes),
        }
    }

    /// The same as a single value, for stores without fields.
    #[must_use]
    pub fn joined(self) -> Self {
        match self {
            Self::Fields { count, bytes } => Self::Value { bytes: count.saturating_mul(bytes) },
            Self::Value { .. } => self,
        }
    }

    /// Number of pieces that are written separately, and the bytes of each.
    #[must_use]
    pub fn pieces(self) -> (u32, u32) {
        match self {
            Self::Fields { count, bytes } => (count, bytes),
            Self::Value { bytes } => (1, bytes),
        }
    }
}

/// The key of a record: YCSB's, hashed so that neighbours are scattered.
#[must_use]
pub fn key(record: u64) -> String {
    format!("user{}", fnv64(record))
}

/// Random printable bytes of which values are slices.
#[derive(Clone, Debug)]
pub struct Pool {
    bytes: Vec<u8>,
    longest: usize,
}

impl Pool {
    /// Extra bytes beyond the longest value, so that slices differ.
    const MORE: usize = 1 << 16;

    /// For values of up to `longest` bytes.
    #[must_use]
    pub fn new(longest: u32, random: &mut Random) -> Self {
        let longest = usize::try_from(longest).unwrap_or(usize::MAX >> 1);
        let letters = std::iter::repeat_with(|| random.bits().to_le_bytes()).flatten();
        let bytes = letters.map(|bits| b'!' + bits % 94).take(longest + Self::MORE).collect();
        Self { bytes, longest }
    }

    /// A value of `bytes`, at most the longest.
    pub fn value(&self, bytes: u32, random: &mut Random) -> &[u8] {
        let length = usize::try_from(bytes).unwrap_or(self.longest).min(self.longest);
        let last = u64::try_from(self.bytes.len() - length).unwrap_or(0);
        let start = usize::try_from(random.below(last)).unwrap_or(0);
        &self.bytes[start..start + length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_differ() {
        let keys: BTreeSet<_> = (0..10_000).map(key).collect();
        assert_eq!(keys.len(), 10_000);
        assert!(keys.iter().all(|key| key.starts_with("user")));
    }

    #[test]
    fn values_have_the_requested_length_and_differ() {
        let mut random = Random::new(1);
        let pool = Pool::new(100, &mut random);
        let values: BTreeSet<_> = (0..50).map(|_| pool.value(100, &mut random)).collect();
        assert!(values.len() > 45 && values.iter().all(|value| value.len() == 100));
        assert_eq!(pool.value(0, &mut random), b"");
    }

    #[test]
    fn a_record_of_fields_can_be_one_value() {
        assert_eq!(Shape::YCSB.joined(), Shape::Value { bytes: 1000 });
        assert_eq!(Shape::YCSB.bytes(), 1000);
        assert_eq!(Shape::YCSB.pieces(), (10, 100));
    }
}
