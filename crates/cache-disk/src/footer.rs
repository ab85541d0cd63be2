//! The list of a region's objects, at its end, and the footer after it.
//!
//! ```text
//! list    20 bytes each, in order of arrival: hash 64 | unit in the region 32 | bytes 32 | expires 32
//!         (unit 0xffff_ffff: a removal, of the object at unit `bytes` of the region with sequence number `hash`)
//! footer  the region's last 4 KiB: magic 64 | crc32c of the rest 32 | region 32 | sequence 64 | epoch 64 |
//!         objects 32 | crc32c of the list 32
//! ```
//! The list ends where the footer begins; its start is rounded down to 4 KiB. It is written after the objects, and the
//! footer is cleared before a region is refilled: a valid footer describes objects that were written. The epoch is the
//! superblock's; data of other epochs is ignored.

use super::buffer::BLOCK;
use super::place::UNIT;
use super::superblock::COUNTED;
use super::words::{low32, put, u32_at, u64_at};

/// Bytes of a record.
const RECORD: usize = 20;
const MAGIC: u64 = u64::from_le_bytes(*b"nfregion");
const REMOVAL: u32 = u32::MAX;
const END: usize = 48;

/// An object of a region, or a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) hash: u64,
    pub(super) unit: u32,
    pub(super) bytes: u32,
    pub(super) expires: u32,
}

impl Record {
    pub(super) const fn removal(seq: u64, unit: u32) -> Self {
        Self { hash: seq, unit: REMOVAL, bytes: unit, expires: 0 }
    }

    /// The removed object, if this is a removal: the sequence number of its region, and its unit.
    pub(super) const fn removes(&self) -> Option<(u64, u32)> {
        if self.unit == REMOVAL { Some((self.hash, self.bytes)) } else { None }
    }
}

/// Contents of a footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) region: u32,
    pub(super) seq: u64,
    pub(super) epoch: u64,
    pub(super) records: u32,
    pub(super) list_sum: u32,
    /// Checksum of the footer itself.
    pub(super) sum: u32,
}

/// Bytes of list and footer for this many records.
pub(super) const fn tail(records: usize) -> usize {
    (records * RECORD).next_multiple_of(BLOCK) + BLOCK
}

/// Writes list and footer to the end of a region's buffer; returns the footer's checksum. The number of records and
/// both sums in `footer` are ignored.
pub(super) fn write(buffer: &mut [u8], footer: Footer, records: &[Record]) -> u32 {
    let begin = buffer.len() - tail(records.len());
    let end = buffer.len() - BLOCK;
    buffer[begin..].fill(0);
    for (at, record) in (begin..).step_by(RECORD).zip(records) {
        put(buffer, at, &record.hash.to_le_bytes());
        put(buffer, at + 8, &record.unit.to_le_bytes());
        put(buffer, at + 12, &record.bytes.to_le_bytes());
        put(buffer, at + 16, &record.expires.to_le_bytes());
    }
    let list_sum = crc32c::crc32c(&buffer[begin..end]);
    let block = &mut buffer[end..];
    put(block, 0, &MAGIC.to_le_bytes());
    put(block, 12, &footer.region.to_le_bytes());
    put(block, 16, &footer.seq.to_le_bytes());
    put(block, 24, &footer.epoch.to_le_bytes());
    put(block, 32, &low32(records.len() as u64).to_le_bytes());
    put(block, 36, &list_sum.to_le_bytes());
    let sum = crc32c::crc32c(&block[12..END]);
    put(block, 8, &sum.to_le_bytes());
    sum
}

/// Reads a footer from a region's last block.
pub(super) fn read(block: &[u8]) -> Option<Footer> {
    let holds = block.len() >= END
        && u64_at(block, 0) == MAGIC
        && crc32c::crc32c(&block[12..END]) == u32_at(block, 8)
        && u64_at(block, 16) < COUNTED;
    holds.then(|| Footer {
        region: u32_at(block, 12),
        seq: u64_at(block, 16),
        epoch: u64_at(block, 24),
        records: u32_at(block, 32),
        list_sum: u32_at(block, 36),
        sum: u32_at(block, 8),
    })
}

/// Reads a list: the bytes between its start and the footer.
pub(super) fn records(list: &[u8], footer: &Footer) -> Option<Vec<Record>> {
    let count = footer.records as usize;
    if list.len() + BLOCK != tail(count) || crc32c::crc32c(list) != footer.list_sum {
        return None;
    }
    let record = |at: &[u8]| Record {
        hash: u64_at(at, 0),
        unit: u32_at(at, 8),
        bytes: u32_at(at, 12),
        expires: u32_at(at, 16),
    };
    Some(list.chunks_exact(RECORD).take(count).map(record).collect())
}

/// Whether each object lies after the one before it, and all lie in the first `room` bytes of the region.
pub(super) fn is_in_order(records: &[Record], room: usize) -> bool {
    let mut free = 0;
    records.iter().filter(|record| record.removes().is_none()).all(|record| {
        let begin = record.unit as usize * UNIT;
        let is_free = begin >= free && record.bytes > 0;
        free = begin + record.bytes as usize;
        is_free && free <= room
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_footer_list_round_trips_and_any_changed_byte_is_detected(
            hashes in proptest::collection::vec(any::<(u64, u32, u32)>(), 0..500),
            at in any::<prop::sample::Index>(),
            flip in 1..=255_u8,
        ) {
            let mut list: Vec<Record> = hashes
                .iter()
                .map(|(hash, unit, expires)| Record { hash: *hash, unit: *unit, bytes: 9, expires: *expires })
                .collect();
            list.push(Record::removal(7, 5));
            let mut buffer = vec![1; 64 << 10];
            let footer = Footer { region: 3, seq: 9, epoch: 2, records: 0, list_sum: 0, sum: 0 };
            let sum = write(&mut buffer, footer, &list);
            let begin = buffer.len() - tail(list.len());
            let end = buffer.len() - BLOCK;
            let found = read(&buffer[end..]).unwrap();
            prop_assert_eq!((found.region, found.seq, found.epoch, found.sum), (3, 9, 2, sum));
            prop_assert_eq!(records(&buffer[begin..end], &found).unwrap(), list);
            let at = begin + at.index(end + END - begin);
            buffer[at] ^= flip;
            let found = read(&buffer[end..]);
            prop_assert!(found.is_none_or(|found| records(&buffer[begin..end], &found).is_none()));
        }
    }

    #[test]
    fn overlapping_or_out_of_bounds_objects_are_rejected() {
        let object = |unit, bytes| Record { hash: 7, unit, bytes, expires: 0 };
        let unit = u32::try_from(UNIT).unwrap();
        let [first, second] = [object(0, unit + 1), object(2, 9)];
        let removal = Record::removal(3, 0);
        assert!(is_in_order(&[removal, first, removal, second], 2 * UNIT + 9));
        assert!(!is_in_order(&[first, second], 2 * UNIT + 8), "outside");
        assert!(!is_in_order(&[second, first], 4096), "backwards");
        assert!(!is_in_order(&[first, object(1, 9)], 4096), "overlapping");
        assert!(!is_in_order(&[first, object(2, 0)], 4096), "empty");
        assert!(!is_in_order(&[object(u32::MAX - 1, u32::MAX)], 4096), "far outside");
    }

    #[test]
    fn short_and_empty_blocks_are_no_footers() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[0; BLOCK]), None);
        let footer = Footer { region: 0, seq: 0, epoch: 0, records: u32::MAX, list_sum: 0, sum: 0 };
        assert_eq!(records(&[0; BLOCK], &footer), None);
    }
}
