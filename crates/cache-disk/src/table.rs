//! The table of regions and sets that a clean close writes, and the next open uses.
//!
//! ```text
//! regions   12 bytes each: sequence number 64 (0: not to be recovered) | checksum of the footer 32
//! sets      4 bytes each: `set::sum` of the block
//! ```
//! Without it, a region that was damaged while the tier was closed, or that the device never wrote, would seem free,
//! and the objects it had replaced or removed would reappear. The table's checksum is in the superblocks of the clean
//! close; the table is written before them, while the superblocks still mark the tier as open.

use core::sync::atomic::Ordering::Acquire;
use std::io;

use super::buffer::Aligned;
use super::config::{Geometry, REGION, SET, TABLE_AT, table_bytes};
use super::device::{Device, read_exact, write_all};
use super::locks::lock;
use super::log::Log;
use super::sets::Sets;
use super::words::{put, size, u32_at, u64_at};

/// A table that was read.
#[derive(Debug)]
pub(super) struct Table {
    bytes: Aligned,
    regions: usize,
}

/// A region of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) seq: u64,
    pub(super) sum: u32,
    pub(super) region: u32,
}

fn empty(geometry: &Geometry) -> io::Result<Aligned> {
    let bytes = size(table_bytes(geometry.regions.into(), geometry.sets.into()));
    Aligned::new(bytes).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// Writes the table; returns its checksum.
///
/// # Errors
/// The device's, or that there is no memory.
pub(super) fn write(log: &Log, sets: Option<&Sets>) -> io::Result<u32> {
    let mut bytes = empty(&log.geometry)?;
    let lost = log.lost.load(Acquire);
    for (seq, region) in lock(&log.order).iter().filter(|(seq, _)| **seq > lost) {
        let at = *region as usize * REGION;
        put(&mut bytes, at, &seq.to_le_bytes());
        put(&mut bytes, at + 8, &log.regions[*region as usize].sum().to_le_bytes());
    }
    let first = log.regions.len() * REGION;
    for (at, sum) in (first..).step_by(SET).zip(sets.iter().flat_map(|sets| sets.sums())) {
        put(&mut bytes, at, &sum.to_le_bytes());
    }
    write_all(&*log.device, &bytes, TABLE_AT)?;
    Ok(crc32c::crc32c(&bytes))
}

impl Table {
    /// Reads the table with this checksum, if it is there.
    pub(super) fn read(device: &dyn Device, geometry: &Geometry, sum: u32) -> Option<Self> {
        let mut bytes = empty(geometry).ok()?;
        read_exact(device, &mut bytes, TABLE_AT).ok()?;
        let holds = crc32c::crc32c(&bytes) == sum;
        holds.then_some(Self { bytes, regions: geometry.regions as usize })
    }

    /// Regions to be recovered, newest first.
    pub(super) fn regions(&self) -> Vec<Known> {
        let known = |(region, at): (u32, usize)| {
            let (seq, sum) = (u64_at(&self.bytes, at), u32_at(&self.bytes, at + 8));
            (seq > 0).then_some(Known { seq, sum, region })
        };
        let all = (0..).zip((0..self.regions * REGION).step_by(REGION));
        let mut all: Vec<Known> = all.filter_map(known).collect();
        all.sort_unstable_by_key(|one| core::cmp::Reverse(one.seq));
        all
    }

    /// Sums of sets, in their order.
    pub(super) fn sets(&self) -> impl Iterator<Item = u32> {
        (self.regions * REGION..).step_by(SET).map(|at| u32_at(&self.bytes, at))
    }
}
