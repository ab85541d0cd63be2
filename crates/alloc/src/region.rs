//! A replicated region at run time: cuts reads and writes into granules, and chooses the copy for a reader.
//!
//! A reader gets its CPU from glibc, which takes it from the thread's restartable-sequences area (rseq(2)) or else from
//! the kernel's vDSO; a table maps the CPU to the copy of its node, or the nearest. The CPU may be out of date, which
//! does no harm: every copy gives the same result. `granule` synchronises threads, `shared` is the memory, `bytes`
//! copies. Not here: creation from text (`regions`).
#![expect(unsafe_code, reason = "memory that threads share is copied")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::string::String;
use std::vec::Vec;

use nearfar_topology::NodeId;

use crate::granule::{self, HOME, Quiet, Rule, Words};
use crate::shared::{Counts, Shared};
use crate::{bytes, haste};

/// A region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) memory: Shared,
    /// Bytes, as requested.
    pub(crate) size: usize,
    /// Binary logarithm of the granule size.
    pub(crate) granule_bits: u32,
    pub(crate) rule: Rule,
    /// The text it was made from.
    pub(crate) text: String,
    /// The node of each copy, home first.
    pub(crate) nodes: Vec<NodeId>,
    /// By CPU, the copy of its node or the nearest.
    pub(crate) here: Vec<u16>,
}

/// Figures of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicatedStats {
    /// Granules written, one for each that a write touches.
    pub writes: u64,
    /// Times that a granule's copies went out of use as it was written.
    pub collapses: u64,
    /// Copies made of granules.
    pub copies: u64,
    /// Granules that have collapsed so often that all read them at home, for good.
    pub settled: u64,
}

/// A read or write outside of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at {offset}: the region ends at {size}")]
pub struct OutOfRegion {
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of bytes.
    pub length: usize,
    /// Bytes in the region.
    pub size: usize,
}

/// A granule of a region.
struct Granule<'a> {
    region: &'a Region,
    index: usize,
}

impl Words for Granule<'_> {
    #[inline]
    fn copies(&self) -> usize {
        self.region.nodes.len()
    }

    #[inline]
    fn version(&self, copy: usize) -> &AtomicU64 {
        self.region.memory.version(copy, self.index)
    }

    #[inline]
    fn life(&self) -> &AtomicU64 {
        self.region.memory.life(self.index)
    }
}

impl Granule<'_> {
    /// Copies the whole granule from home to a copy.
    fn bring(&self, copy: usize) {
        let Region { memory, granule_bits, .. } = self.region;
        let start = self.index << granule_bits;
        // SAFETY: the data of each copy is whole granules, mapped as long as the region is; other threads access them
        // through `bytes`.
        unsafe {
            bytes::copy(memory.data(HOME) + start, memory.data(copy) + start, 1 << granule_bits);
        }
    }
}

/// A part of a granule, and its position in the caller's buffer.
struct Piece {
    granule: usize,
    start: usize,
    length: usize,
    done: usize,
}

impl Region {
    fn counts(&self) -> &Counts {
        self.memory.counts()
    }

    /// The copy of the calling thread's node, or the nearest.
    #[inline]
    pub(crate) fn here(&self) -> usize {
        // SAFETY: no preconditions.
        let cpu = unsafe { libc::sched_getcpu() };
        let copy = usize::try_from(cpu).ok().and_then(|cpu| self.here.get(cpu));
        copy.map_or(HOME, |copy| usize::from(*copy))
    }

    /// Checks that this range lies in the region.
    #[inline]
    pub(crate) fn has(&self, offset: usize, length: usize) -> Result<(), OutOfRegion> {
        let size = self.size;
        let is_within = offset.checked_add(length).is_some_and(|end| end <= size);
        if is_within { Ok(()) } else { Err(OutOfRegion { offset, length, size }) }
    }

    #[inline]
    fn pieces(&self, offset: usize, length: usize) -> impl Iterator<Item = Piece> {
        let (bits, end) = (self.granule_bits, offset + length);
        let mut start = offset;
        core::iter::from_fn(move || {
            if start == end {
                return None;
            }
            let granule = start >> bits;
            let next = end.min((granule + 1) << bits);
            let piece = Piece { granule, start, length: next - start, done: start - offset };
            start = next;
            Some(piece)
        })
    }

    /// Reads `length` bytes from `offset` on, each granule whole.
    ///
    /// # Safety
    /// `into` has room for them, and is not of the region.
    #[inline]
    pub(crate) unsafe fn read(
        &self,
        offset: usize,
        into: usize,
        length: usize,
    ) -> Result<(), OutOfRegion> {
        // SAFETY: the caller's promise.
        unsafe { self.read_by(self.here(), offset, into, length) }
    }

    /// As [`Self::read`], from the given copy.
    ///
    /// # Safety
    /// As [`Self::read`].
    #[inline]
    pub(crate) unsafe fn read_by(
        &self,
        copy: usize,
        offset: usize,
        into: usize,
        length: usize,
    ) -> Result<(), OutOfRegion> {
        self.has(offset, length)?;
        for Piece { granule, start, length, done } in self.pieces(offset, length) {
            let granule = Granule { region: self, index: granule };
            let get = |copy| {
                // SAFETY: within the data of a copy, and within the caller's room.
                unsafe { bytes::copy(self.memory.data(copy) + start, into + done, length) };
            };
            let bring = |copy| granule.bring(copy);
            let quiet = Quiet { now_ms: haste::now_ms, rule: &self.rule, bring };
            if granule::read(&granule, copy, get, quiet) {
                self.counts().copies.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Writes `length` bytes from `offset` on, granule by granule.
    ///
    /// # Safety
    /// `from` has that many bytes, which are not in the region.
    pub(crate) unsafe fn write(
        &self,
        offset: usize,
        from: usize,
        length: usize,
    ) -> Result<(), OutOfRegion> {
        self.has(offset, length)?;
        let (now_ms, counts) = (haste::now_ms(), self.counts());
        for Piece { granule, start, length, done } in self.pieces(offset, length) {
            let granule = Granule { region: self, index: granule };
            let wrote = granule::write(&granule, now_ms, &self.rule, || {
                // SAFETY: within home's data, and within the caller's buffer.
                unsafe { bytes::copy(from + done, self.memory.data(HOME) + start, length) };
            });
            // Counted once the data is in place to be copied: see `sync`.
            counts.writes.fetch_add(1, Ordering::Release);
            counts.collapses.fetch_add(u64::from(wrote.is_collapse), Ordering::Relaxed);
            counts.settled.fetch_add(u64::from(wrote.is_settled), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Brings every copy up to the state before this call.
    pub(crate) fn sync(&self) {
        let counts = self.counts();
        let writes = counts.writes.load(Ordering::Acquire);
        if counts.synced.load(Ordering::Acquire) == writes || self.nodes.len() == 1 {
            return;
        }
        let mut made = 0;
        for index in 0..self.size.div_ceil(1 << self.granule_bits) {
            let granule = Granule { region: self, index };
            made += granule::sync(&granule, &self.rule, |copy| granule.bring(copy));
        }
        counts.copies.fetch_add(made, Ordering::Relaxed);
        // A write that ended in the meantime changes the count, so the next sync checks every granule.
        counts.synced.store(writes, Ordering::Release);
    }

    /// Address of the copy for the calling thread's node.
    pub(crate) fn view(&self) -> *const u8 {
        self.memory.view(self.here()) as *const u8
    }

    pub(crate) fn stats(&self) -> ReplicatedStats {
        let counts = self.counts();
        ReplicatedStats {
            writes: counts.writes.load(Ordering::Relaxed),
            collapses: counts.collapses.load(Ordering::Relaxed),
            copies: counts.copies.load(Ordering::Relaxed),
            settled: counts.settled.load(Ordering::Relaxed),
        }
    }
}
