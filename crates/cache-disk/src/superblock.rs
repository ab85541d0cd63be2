//! The superblock, in each of the device's first two blocks.
//!
//! ```text
//! magic 64 | crc32c of the rest 32 | version 32 | generation 64 | epoch 64 | closed 64 |
//! bytes 64 | region bytes 64 | sets 64 | next sequence number 64 | crc32c of the table 64 (if closed) | seed 64
//! ```
//! Both copies are equal, unless the process ended while they were written: then the one with the larger generation
//! counts. A single damaged copy is harmless, because before the next change the other has the same contents. The rest
//! of each block is zeros. Formatting the device for another use may keep the first bytes of a block, so a block with
//! other bytes after them is no cache's any more.

use std::io;

use super::buffer::{Aligned, BLOCK};
use super::config::Geometry;
use super::device::{Device, read_exact, write_all};
use super::words::{is_zero, low32, put, u32_at, u64_at, wide};

const MAGIC: u64 = u64::from_le_bytes(*b"nearfar\xd1");
/// No device lives to write this many generations or regions: a larger number is damage, and would overflow.
pub(super) const COUNTED: u64 = 1 << 62;
/// The version of all formats on the device.
pub(super) const VERSION: u32 = 4;
const END: usize = 96;
/// Where the fields of earlier versions ended.
const ENDS: [usize; 2] = [80, 88];

/// A superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) generation: u64,
    pub(super) epoch: u64,
    pub(super) closed: bool,
    pub(super) next_seq: u64,
    pub(super) bytes: u64,
    pub(super) region_bytes: u64,
    pub(super) sets: u64,
    /// Checksum of the table, if it was closed.
    pub(super) table_sum: u32,
    /// The seed of the hashes of keys. It stays while there are objects, which are found by these hashes.
    pub(super) seed: u64,
}

/// Contents of the first two blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Zeros, or no data.
    Nothing,
    /// A cache's.
    Super(Superblock),
    /// A cache's, of another version.
    Version(u32),
    /// A cache's, damaged.
    Damaged,
    /// Foreign data.
    Foreign,
}

impl Superblock {
    pub(super) fn new(geometry: &Geometry, epoch: u64, seed: u64) -> Self {
        Self {
            generation: 0,
            epoch,
            closed: false,
            next_seq: 1,
            bytes: geometry.bytes,
            region_bytes: wide(geometry.region_bytes),
            sets: u64::from(geometry.sets),
            table_sum: 0,
            seed,
        }
    }

    /// The first size that differs: its name, the value found, the value configured.
    pub(super) fn differs(&self, geometry: &Geometry) -> Option<(&'static str, u64, u64)> {
        let asked = Self::new(geometry, 0, 0);
        let sizes = [
            ("bytes", self.bytes, asked.bytes),
            ("region_bytes", self.region_bytes, asked.region_bytes),
            ("small_bytes", self.sets.saturating_mul(wide(BLOCK)), asked.sets * wide(BLOCK)),
        ];
        sizes.into_iter().find(|(_, found, asked)| found != asked)
    }

    fn encode(&self, block: &mut [u8]) {
        let words = [
            self.generation,
            self.epoch,
            u64::from(self.closed),
            self.bytes,
            self.region_bytes,
            self.sets,
            self.next_seq,
            u64::from(self.table_sum),
            self.seed,
        ];
        put(block, 0, &MAGIC.to_le_bytes());
        put(block, 12, &VERSION.to_le_bytes());
        for (at, word) in (16..).step_by(8).zip(words) {
            put(block, at, &word.to_le_bytes());
        }
        let sum = crc32c::crc32c(&block[12..END]);
        put(block, 8, &sum.to_le_bytes());
    }

    fn decode(block: &[u8]) -> Held {
        if is_zero(block) {
            return Held::Nothing;
        }
        if u64_at(block, 0) != MAGIC || !is_zero(&block[END..]) {
            return Held::Foreign;
        }
        let (sum, version) = (u32_at(block, 8), u32_at(block, 12));
        let is_earlier = |end: usize| crc32c::crc32c(&block[12..end]) == sum;
        if version != VERSION && ENDS.into_iter().any(is_earlier) {
            return Held::Version(version);
        }
        if crc32c::crc32c(&block[12..END]) != sum {
            return Held::Damaged;
        }
        if version != VERSION {
            return Held::Version(version);
        }
        let word = |index: usize| u64_at(block, 16 + 8 * index);
        if word(0) >= COUNTED || word(6) >= COUNTED {
            return Held::Damaged;
        }
        Held::Super(Self {
            generation: word(0),
            epoch: word(1),
            closed: word(2) != 0,
            bytes: word(3),
            region_bytes: word(4),
            sets: word(5),
            next_seq: word(6),
            table_sum: low32(word(7)),
            seed: word(8),
        })
    }

    /// Writes it as the next generation to both blocks, one after the other, and waits until it is durable. Both are
    /// read back: if the device lost the write, an older superblock would count.
    ///
    /// # Errors
    /// The device's, that the write was lost, or that a counter has come to an impossible value from a damaged device
    /// ([`COUNTED`]), which would not be read again. Either the previous or the new superblock is found then.
    pub(super) fn store(&mut self, device: &dyn Device) -> io::Result<()> {
        self.generation += 1;
        if self.generation >= COUNTED || self.next_seq >= COUNTED {
            return Err(io::Error::other("the superblock is damaged: a counter is near its limit"));
        }
        let mut block = Aligned::new(BLOCK).ok_or(io::ErrorKind::OutOfMemory)?;
        self.encode(&mut block);
        for at in [0, wide(BLOCK)] {
            write_all(device, &block, at)?;
            device.sync()?;
        }
        let mut found = Aligned::new(2 * BLOCK).ok_or(io::ErrorKind::OutOfMemory)?;
        read_exact(device, &mut found, 0)?;
        if found[..BLOCK] != *block || found[BLOCK..] != *block {
            return Err(io::Error::other("the superblock was written, and is not there"));
        }
        Ok(())
    }
}

/// Sets this checksum of the table in both superblocks of a device, and corrects their own.
#[cfg(any(fuzzing, test))]
pub(super) fn seal(device: &mut [u8], table_sum: u32) {
    for block in device.chunks_mut(BLOCK).take(2) {
        put(block, 72, &u64::from(table_sum).to_le_bytes());
        let sum = crc32c::crc32c(&block[12..END]);
        put(block, 8, &sum.to_le_bytes());
    }
}

/// Reads both.
///
/// # Errors
/// The device's, if neither can be read.
pub(super) fn load(device: &dyn Device) -> io::Result<Held> {
    let mut block = Aligned::new(BLOCK).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut one = |at: u64| -> io::Result<Held> {
        match read_exact(device, &mut block, at) {
            Ok(()) => Ok(Superblock::decode(&block)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                // A file too short for a block is either empty or foreign.
                let some = device.read_at(&mut block, at)?;
                Ok(if some == 0 { Held::Nothing } else { Held::Foreign })
            }
            Err(error) => Err(error),
        }
    };
    Ok(match (one(0), one(wide(BLOCK))) {
        (Ok(Held::Foreign), _) | (_, Ok(Held::Foreign)) => Held::Foreign,
        (Ok(Held::Super(a)), Ok(Held::Super(b))) => {
            Held::Super(if a.generation > b.generation { a } else { b })
        }
        (Ok(Held::Super(one)), _) | (_, Ok(Held::Super(one))) => Held::Super(one),
        (Err(error), _) | (_, Err(error)) => return Err(error),
        (Ok(Held::Version(one)), _) | (_, Ok(Held::Version(one))) => Held::Version(one),
        (Ok(Held::Nothing), Ok(Held::Nothing)) => Held::Nothing,
        _ => Held::Damaged,
    })
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::*;

    #[test]
    fn an_impossible_set_count_differs_from_the_configuration() {
        let geometry = Geometry::new(&Config::default()).unwrap();
        let found = Superblock { sets: u64::MAX, ..Superblock::new(&geometry, 1, 2) };
        let (what, found, _) = found.differs(&geometry).unwrap();
        assert_eq!((what, found), ("small_bytes", u64::MAX));
    }

    #[test]
    fn earlier_versions_are_distinguished_from_damage() {
        let geometry = Geometry::new(&Config::default()).unwrap();
        for (version, end) in [(2_u32, 80), (3, 88)] {
            let mut block = vec![0; BLOCK];
            Superblock::new(&geometry, 1, 0).encode(&mut block);
            put(&mut block, 12, &version.to_le_bytes());
            let sum = crc32c::crc32c(&block[12..end]);
            put(&mut block, 8, &sum.to_le_bytes());
            assert_eq!(Superblock::decode(&block), Held::Version(version));
            put(&mut block, 16, &[9]);
            assert_eq!(Superblock::decode(&block), Held::Damaged);
        }
    }

    #[test]
    fn a_counter_that_would_overflow_is_damage() {
        let geometry = Geometry::new(&Config::default()).unwrap();
        let new = Superblock::new(&geometry, 1, 2);
        let found = |one: Superblock| {
            let mut block = vec![0; BLOCK];
            one.encode(&mut block);
            Superblock::decode(&block)
        };
        assert_eq!(found(new), Held::Super(new));
        assert_eq!(found(Superblock { generation: u64::MAX, ..new }), Held::Damaged);
        assert_eq!(found(Superblock { next_seq: u64::MAX - 1, ..new }), Held::Damaged);
        let folder = tempfile::tempdir().unwrap();
        let device = super::super::testkit::Faulty::new(&folder.path().join("device"));
        for mut last in
            [Superblock { generation: COUNTED - 1, ..new }, Superblock { next_seq: COUNTED, ..new }]
        {
            assert!(last.store(&*device).unwrap_err().to_string().contains("counter"), "{last:?}");
            assert_eq!(load(&*device).unwrap(), Held::Nothing, "nothing was written");
        }
    }
}
