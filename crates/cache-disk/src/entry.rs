//! Layout of a large object in a region.
//!
//! ```text
//! 0   crc32c of epoch 64, sequence number 64 and unit 32, and of all that follows here, to the end of the value
//! 4   low 32 bits of the region's sequence number
//! 8   value length 32 | key length 16 | marks 16 (read, stale, won)
//! 16  flags 32 | expires 32 | cas 64 | accessed 32
//! 36  key, then value; the next object begins at the next multiple of 64
//! ```
//! The sequence number distinguishes an object from older contents of its place; the key distinguishes it from others
//! with the same tag in the index. The checksum also covers epoch and place, so that a misdirected write does not
//! match.

use core::ops::Range;

use crate::meta::Meta;

use super::place::UNIT;
use super::words::{low32, narrow, put, short, size, u16_at, u32_at, u64_at};

/// Bytes before the key.
pub(super) const HEADER: usize = 36;
/// Longest key.
pub(super) const KEY_MAX: usize = u16::MAX as usize;
const FETCHED: u16 = 1;
const STALE: u16 = 2;
const WON: u16 = 4;

/// Marks of metadata, as bits.
pub(super) fn marks(meta: &Meta) -> u16 {
    let mark = |bit, set| if set { bit } else { 0 };
    mark(FETCHED, meta.fetched) | mark(STALE, meta.stale) | mark(WON, meta.won)
}

/// Sets the metadata's marks from bits.
pub(super) fn with_marks(meta: Meta, marks: u16) -> Meta {
    Meta { fetched: marks & FETCHED != 0, stale: marks & STALE != 0, won: marks & WON != 0, ..meta }
}

/// Bytes of an object, without padding to the next unit.
pub(super) const fn bytes(key: usize, value: usize) -> usize {
    HEADER + key + value
}

/// Bytes an object takes in a region.
pub(super) const fn room(key: usize, value: usize) -> usize {
    bytes(key, value).next_multiple_of(UNIT)
}

/// Position and time of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) epoch: u64,
    /// Sequence number of the region.
    pub(super) seq: u64,
    /// Unit in the region.
    pub(super) unit: u32,
}

impl Spot {
    fn sum(&self, bytes: &[u8]) -> u32 {
        let mut spot = [0; 20];
        put(&mut spot, 0, &self.epoch.to_le_bytes());
        put(&mut spot, 8, &self.seq.to_le_bytes());
        put(&mut spot, 16, &self.unit.to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c(&spot), bytes)
    }
}

/// Writes everything except the value, which is already there, into `into`: exactly the object's bytes.
pub(super) fn seal(into: &mut [u8], spot: &Spot, key: &[u8], meta: &Meta) {
    let value = into.len() - HEADER - key.len();
    put(into, 4, &low32(spot.seq).to_le_bytes());
    put(into, 8, &narrow(value).to_le_bytes());
    put(into, 12, &short(key.len()).to_le_bytes());
    put(into, 14, &marks(meta).to_le_bytes());
    put(into, 16, &meta.flags.to_le_bytes());
    put(into, 20, &meta.expires.to_le_bytes());
    put(into, 24, &meta.cas.to_le_bytes());
    put(into, 32, &meta.accessed.to_le_bytes());
    put(into, HEADER, key);
    let sum = spot.sum(&into[4..]);
    put(into, 0, &sum.to_le_bytes());
}

/// Corrects the checksum of the object at this unit of a region.
#[cfg(any(fuzzing, test))]
pub(super) fn seal_again(region: &mut [u8], spot: &Spot) {
    let bytes = region.get_mut(spot.unit as usize * UNIT..).unwrap_or_default();
    let end = HEADER + usize::from(u16_at(bytes, 12)) + u32_at(bytes, 8) as usize;
    if (HEADER..=bytes.len()).contains(&end) {
        put(bytes, 4, &low32(spot.seq).to_le_bytes());
        let sum = spot.sum(&bytes[4..end]);
        put(bytes, 0, &sum.to_le_bytes());
    }
}

/// Contents of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The requested object; its value is this range.
    Hit(Meta, Range<usize>),
    /// The object is longer than the bytes read: this many bytes are needed.
    More(usize),
    /// Another key's object.
    Other,
    /// Older contents of the place, or the middle of an object.
    Older,
    /// Invalid data.
    Corrupt,
}

/// Checks the bytes of a place; `most` is the number of bytes to the region's end.
pub(super) fn look(bytes: &[u8], most: usize, spot: &Spot, key: &[u8]) -> Found {
    match whole(bytes, most, spot) {
        Ok((meta, found, value)) if &bytes[found.clone()] == key => Found::Hit(meta, value),
        Ok(_) => Found::Other,
        Err(other) => other,
    }
}

/// The metadata and the ranges of key and value of an object with any key.
pub(super) fn whole(
    bytes: &[u8],
    most: usize,
    spot: &Spot,
) -> Result<(Meta, Range<usize>, Range<usize>), Found> {
    if bytes.len() < HEADER {
        return Err(if most < HEADER { Found::Corrupt } else { Found::More(HEADER) });
    }
    if u32_at(bytes, 4) != low32(spot.seq) {
        return Err(Found::Older);
    }
    let value_at = HEADER + usize::from(u16_at(bytes, 12));
    let end = value_at + size(u64::from(u32_at(bytes, 8)));
    if end > most {
        return Err(Found::Corrupt);
    }
    if end > bytes.len() {
        return Err(Found::More(end));
    }
    if spot.sum(&bytes[4..end]) != u32_at(bytes, 0) {
        return Err(Found::Corrupt);
    }
    let meta = Meta {
        flags: u32_at(bytes, 16),
        expires: u32_at(bytes, 20),
        cas: u64_at(bytes, 24),
        accessed: u32_at(bytes, 32),
        ..Meta::default()
    };
    Ok((with_marks(meta, u16_at(bytes, 14)), HEADER..value_at, value_at..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spot(seq: u64) -> Spot {
        Spot { epoch: 9, seq, unit: 3 }
    }

    fn made(key: &[u8], value: &[u8], seq: u64, meta: &Meta) -> Vec<u8> {
        let mut into = vec![0; bytes(key.len(), value.len())];
        put(&mut into, HEADER + key.len(), value);
        seal(&mut into, &spot(seq), key, meta);
        into
    }

    #[test]
    fn entries_of_another_key_or_region_generation_are_rejected() {
        let bytes = made(b"key", b"value", 5, &Meta::default());
        assert!(matches!(look(&bytes, 100, &spot(5), b"key"), Found::Hit(..)));
        assert_eq!(look(&bytes, 100, &spot(5), b"kex"), Found::Other);
        assert_eq!(look(&bytes, 100, &spot(6), b"key"), Found::Older);
        assert_eq!(look(&bytes, 40, &spot(5), b"key"), Found::Corrupt);
        assert_eq!(look(&bytes[..40], 100, &spot(5), b"key"), Found::More(44));
        assert_eq!(look(&bytes[..10], 100, &spot(5), b"key"), Found::More(HEADER));
        for other in
            [Spot { epoch: 8, ..spot(5) }, Spot { unit: 4, ..spot(5) }, spot(5 + (1 << 32))]
        {
            assert_eq!(look(&bytes, 100, &other, b"key"), Found::Corrupt, "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn a_written_entry_is_found_and_any_changed_byte_is_detected(
            key in proptest::collection::vec(any::<u8>(), 0..300),
            value in proptest::collection::vec(any::<u8>(), 0..3000),
            kept in any::<(u32, u64, u32, u32, bool)>(),
            at in any::<prop::sample::Index>(),
            flip in 1..=255_u8,
        ) {
            let (flags, cas, expires, accessed, mark) = kept;
            let meta = Meta { flags, cas, expires, accessed, fetched: mark, stale: !mark, won: mark };
            let mut bytes = made(&key, &value, u64::from(flags) << 20, &meta);
            let seq = u64::from(flags) << 20;
            let found = look(&bytes, bytes.len(), &spot(seq), &key);
            prop_assert_eq!(found, Found::Hit(meta, HEADER + key.len()..bytes.len()));
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let found = look(&bytes, bytes.len(), &spot(seq), &key);
            prop_assert!(matches!(found, Found::Other | Found::Older | Found::Corrupt), "{:?}", found);
        }

        #[test]
        fn parsing_arbitrary_entry_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let seq = u64::from(u32_at(&bytes, 4));
            prop_assert!(!matches!(look(&bytes, 4096, &spot(seq), b"k"), Found::Hit(..)));
        }
    }
}
