//! What values carry: any bytes, or such as tell whether what is read later is right.
//!
//! Bytes of a key and its version take a nanosecond each or so to make and to check, so this is done where `--verify` asks for
//! it alone; else a value is a piece of one buffer of random bytes.

use nearfar_cache::workload::{Random, value};

/// One worker's values.
#[derive(Debug)]
pub(crate) enum Values {
    /// Any bytes.
    Any(Vec<u8>),
    /// Bytes that follow from key and version.
    Checked {
        /// The next version: of all workers no two have the same.
        version: u64,
        /// The value made last.
        made: Vec<u8>,
    },
}

impl Values {
    /// Any bytes.
    pub(crate) const fn any() -> Self {
        Self::Any(Vec::new())
    }

    /// Such as can be checked, for `worker` of a run.
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

    /// Whether what was read under `key` can be right.
    pub(crate) fn is_right(&self, key: &[u8], read: &[u8]) -> bool {
        matches!(self, Self::Any(_)) || value::check(key, read).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_values_are_right_under_their_own_key_alone() {
        let mut values = Values::checked(3);
        let first = values.make(b"a", 100).to_vec();
        assert_ne!(first, values.make(b"a", 100));
        assert!(values.is_right(b"a", &first) && !values.is_right(b"b", &first));
        assert!(!values.is_right(b"a", &first[..99]));
    }

    #[test]
    fn any_bytes_have_the_length_asked_for_and_pass_for_right() {
        let mut values = Values::any();
        assert_eq!([values.make(b"a", 0).len(), values.make(b"a", 1000).len()], [0, 1000]);
        assert_eq!(values.make(b"b", 13).len(), 13);
        assert!(values.is_right(b"a", b"whatever"));
    }
}
