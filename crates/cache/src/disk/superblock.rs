//! What the device says of itself, in its first two blocks.
//!
//! ```text
//! magic 64 | crc32c of the rest 32 | version 32 | generation 64 | epoch 64 | closed 64 |
//! bytes 64 | region bytes 64 | sets 64 | next sequence number 64
//! ```
//! The two are written in turns, so that one holds at any time; the one with the larger generation counts.

use std::io;

use super::buffer::{Aligned, BLOCK};
use super::config::Geometry;
use super::device::{Device, read_exact, write_all};
use super::error::Error;
use super::words::{put, u32_at, u64_at, wide};

const MAGIC: u64 = u64::from_le_bytes(*b"nearfar\xd1");
/// The version of all formats on the device.
pub(super) const VERSION: u32 = 2;
const END: usize = 80;

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
}

/// What the first two blocks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Nothing but zeros, or nothing at all.
    Nothing,
    /// A cache's.
    Super(Superblock),
    /// A cache's, of another version.
    Version(u32),
    /// A cache's, damaged.
    Damaged,
    /// Something else.
    Foreign,
}

impl Superblock {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self {
            generation: 0,
            epoch: 1,
            closed: false,
            next_seq: 1,
            bytes: geometry.bytes,
            region_bytes: wide(geometry.region_bytes),
            sets: u64::from(geometry.sets),
        }
    }

    /// The first size that differs: what, as found, as asked.
    pub(super) fn differs(&self, geometry: &Geometry) -> Option<(&'static str, u64, u64)> {
        let asked = Self::new(geometry);
        let sizes = [
            ("bytes", self.bytes, asked.bytes),
            ("region_bytes", self.region_bytes, asked.region_bytes),
            ("small_bytes", self.sets * wide(BLOCK), asked.sets * wide(BLOCK)),
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
        if block.iter().all(|byte| *byte == 0) {
            return Held::Nothing;
        }
        if u64_at(block, 0) != MAGIC {
            return Held::Foreign;
        }
        if crc32c::crc32c(&block[12..END]) != u32_at(block, 8) {
            return Held::Damaged;
        }
        if u32_at(block, 12) != VERSION {
            return Held::Version(u32_at(block, 12));
        }
        let word = |index: usize| u64_at(block, 16 + 8 * index);
        Held::Super(Self {
            generation: word(0),
            epoch: word(1),
            closed: word(2) != 0,
            bytes: word(3),
            region_bytes: word(4),
            sets: word(5),
            next_seq: word(6),
        })
    }

    /// Writes it as the next, and waits until it lasts.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn store(&mut self, device: &dyn Device) -> io::Result<()> {
        self.generation += 1;
        let mut block = Aligned::new(BLOCK).ok_or(io::ErrorKind::OutOfMemory)?;
        self.encode(&mut block);
        write_all(device, &block, self.generation % 2 * wide(BLOCK))?;
        device.sync()
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
                // A file too short for a block is either empty or somebody's.
                let some = device.read_at(&mut block, at)?;
                Ok(if some == 0 { Held::Nothing } else { Held::Foreign })
            }
            Err(error) => Err(error),
        }
    };
    let (first, second) = (one(0), one(wide(BLOCK)));
    Ok(match (first, second) {
        (Err(error), Err(_)) => return Err(error),
        (Ok(Held::Super(a)), Ok(Held::Super(b))) => {
            Held::Super(if a.generation > b.generation { a } else { b })
        }
        (Ok(Held::Super(one)), _) | (_, Ok(Held::Super(one))) => Held::Super(one),
        (Ok(Held::Version(one)), _) | (_, Ok(Held::Version(one))) => Held::Version(one),
        (Ok(Held::Damaged), _) | (_, Ok(Held::Damaged)) => Held::Damaged,
        (Ok(Held::Nothing), Ok(Held::Nothing)) => Held::Nothing,
        (Ok(_), Err(_)) | (Err(_), Ok(_)) => Held::Damaged,
        _ => Held::Foreign,
    })
}

/// The error for what can't be opened.
pub(super) fn refuse(held: &Held, path: &std::path::Path) -> Option<Error> {
    let path = path.to_path_buf();
    match held {
        Held::Nothing | Held::Super(_) => None,
        Held::Version(found) => Some(Error::Version { path, found: *found, known: VERSION }),
        Held::Damaged => Some(Error::Damaged { path }),
        Held::Foreign => Some(Error::Foreign { path }),
    }
}
