//! Content of values: arbitrary bytes, or verifiable ones.
//!
//! Deriving bytes from a key and its version takes about a nanosecond each, as does checking them, so this is done only
//! with `--verify`; otherwise a value is a part of one buffer of random bytes.

use crate::random::Random;
use crate::requests::value;

/// One worker's values.
#[derive(Debug)]
pub(crate) enum Values {
    /// Arbitrary bytes.
    Any(Vec<u8>),
    /// Bytes derived from key and version.
    Checked {
        /// The next version: unique across all workers.
        version: u64,
        /// The value generated last.
        made: Vec<u8>,
    },
}

impl Values {
    /// Arbitrary bytes.
    pub(crate) const fn any() -> Self {
        Self::Any(Vec::new())
    }

    /// Verifiable values, for `worker` of a run.
    pub(crate) const fn checked(worker: u32) -> Self {
        Self::Checked { version: ((worker as u64) << 40) + 1, made: Vec::new() }
    }

    /// The bytes to store under `key`.
    pub(crate) fn make(&mut self, key: &[u8], bytes: usize) -> &[u8] {
        match self {
            Self::Any(buffer) => {
                if buffer.len() < bytes {
                    let mut random = Random::new(bytes as u64);
                    while buffer.len() < bytes {
                        buffer.extend_from_slice(&random.bits().to_le_bytes());
                    }
                }
                &buffer[..bytes]
            }
            Self::Checked { version, made } => {
                made.clear();
                value::write(key, *version, bytes, made);
                *version += 1;
                made
            }
        }
    }

    /// Whether a value read under `key` can be right.
    pub(crate) fn is_right(&self, key: &[u8], read: &[u8]) -> bool {
        matches!(self, Self::Any(_)) || value::check(key, read).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_values_pass_only_under_their_own_key() {
        let mut values = Values::checked(3);
        let first = values.make(b"a", 100).to_vec();
        assert_ne!(first, values.make(b"a", 100));
        assert!(values.is_right(b"a", &first) && !values.is_right(b"b", &first));
        assert!(!values.is_right(b"a", &first[..99]));
    }

    #[test]
    fn unchecked_values_have_the_requested_length_and_always_pass() {
        let mut values = Values::any();
        assert_eq!([values.make(b"a", 0).len(), values.make(b"a", 1000).len()], [0, 1000]);
        assert_eq!(values.make(b"b", 13).len(), 13);
        assert!(values.is_right(b"a", b"whatever"));
    }
}
