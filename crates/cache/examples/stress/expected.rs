//! Expected contents: values that identify their key, and for each key the changes begun and acknowledged.
//!
//! Changes of a key are numbered, and done one at a time. A value contains the number of the change that stored it; its
//! metadata has the same number in the flags, and the number of the last change in the CAS number; an item stored
//! without metadata has zeros there.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearfar_cache::store::Meta;

/// Bytes of a value's header: key, number, length.
const HEAD: usize = 24;

/// The last acknowledged change of a key: the number in its value, and the CAS number; `None` if it was removed.
pub(crate) type Last = Option<(u64, u64)>;

/// A key.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    last: Mutex<Last>,
    begun: AtomicU64,
    acknowledged: AtomicU64,
}

/// An exclusive change of a key. Dropped without an end, it has changed nothing.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    slot: &'a Slot,
    last: MutexGuard<'a, Last>,
    pub(crate) number: u64,
}

impl Slot {
    /// Begins a change.
    pub(crate) fn begin(&self) -> Change<'_> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.begun.load(Acquire) + 1;
        self.begun.store(number, Release);
        Change { slot: self, last, number }
    }

    /// The last change that was acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Acquire)
    }

    /// The last change that was begun.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Acquire)
    }
}

impl Change<'_> {
    /// The state before it, if the item has not been evicted.
    pub(crate) fn before(&self) -> Last {
        *self.last
    }

    /// Acknowledges the change.
    pub(crate) fn end(mut self, last: Last) {
        *self.last = last;
        self.slot.acknowledged.store(self.number, Release);
    }
}

/// All keys.
#[derive(Debug)]
pub(crate) struct Expected(Vec<Slot>);

impl Expected {
    pub(crate) fn new(keys: u64) -> Self {
        Self((0..keys).map(|_| Slot::default()).collect())
    }

    pub(crate) fn keys(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn of(&self, key: u64) -> &Slot {
        &self.0[usize::try_from(key).unwrap_or(usize::MAX)]
    }

    /// Begins a change of all keys.
    pub(crate) fn begin_all(&self) -> Vec<Change<'_>> {
        self.0.iter().map(Slot::begin).collect()
    }
}

/// The name of a key; some are short and some are long.
pub(crate) fn name(key: u64) -> Vec<u8> {
    let mut name = format!("key-{key}-").into_bytes();
    name.resize(name.len() + usize::try_from(key * 31 % 200).unwrap_or(0), b'k');
    name
}

/// The bytes of a value after its header.
fn filler(key: u64, number: u64) -> impl Iterator<Item = u8> {
    let mut state =
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03) | 1;
    let words = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten()
}

/// Writes to `out` the value of a key stored by a change, of at least this many bytes.
pub(crate) fn fill(key: u64, number: u64, bytes: usize, out: &mut Vec<u8>) {
    let length = bytes.max(HEAD);
    out.clear();
    for word in [key, number, length as u64] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend(filler(key, number).take(length - HEAD));
}

/// The number in a value.
///
/// # Errors
/// The error, if it is not a whole value of this key.
pub(crate) fn number_of(key: u64, value: &[u8]) -> Result<u64, String> {
    let word = |at: usize| {
        let bytes = value.get(at * 8..at * 8 + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_le_bytes).ok_or_else(|| format!("{} bytes are no value", value.len()))
    };
    let (of, number, length) = (word(0)?, word(1)?, word(2)?);
    if of != key {
        return Err(format!("a value of key {of}"));
    }
    if length != value.len() as u64
        || !filler(key, number).take(value.len() - HEAD).eq(value[HEAD..].iter().copied())
    {
        return Err(format!("{} bytes of change {number}, which has {length}: torn", value.len()));
    }
    Ok(number)
}

/// The number in a value, and the last change of the item.
///
/// # Errors
/// The error, if it is not a whole item of this key.
pub(crate) fn item_of(key: u64, value: &[u8], meta: &Meta) -> Result<(u64, u64), String> {
    let number = number_of(key, value)?;
    if (meta.flags, meta.cas) == (0, 0) {
        return Ok((number, 0));
    }
    if u64::from(meta.flags) != number & 0xffff_ffff || meta.cas < number {
        return Err(format!("the value of change {number} with {meta:?}"));
    }
    Ok((number, meta.cas))
}

/// The metadata of a value stored by one change, after another.
pub(crate) fn meta(number: u64, last: u64) -> Meta {
    let flags = u32::try_from(number & 0xffff_ffff).unwrap_or(0);
    Meta { flags, cas: last, ..Meta::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_and_foreign_values_are_detected() {
        let mut value = Vec::new();
        fill(7, 3, 500, &mut value);
        assert_eq!(item_of(7, &value, &meta(3, 5)), Ok((3, 5)));
        assert_eq!(item_of(7, &value, &Meta::default()), Ok((3, 0)));
        assert!(number_of(8, &value).is_err(), "another key's");
        assert!(item_of(7, &value, &meta(4, 5)).is_err(), "another change's flags");
        assert!(number_of(7, &value[..499]).is_err(), "cut off");
        assert!(number_of(7, &value[..3]).is_err() && number_of(7, &[]).is_err());
        for at in 0..value.len() {
            value[at] ^= 1;
            assert!(number_of(7, &value) != Ok(3), "byte {at} is another");
            value[at] ^= 1;
        }
    }
}
