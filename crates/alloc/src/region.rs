//! A replicated region at work: reads and writes cut into granules, and which copy is whose.
//!
//! Who reads is told its CPU by glibc, which has it from the thread's restartable-sequences area (rseq(2)) or else from the
//! kernel's vDSO, and a table says which copy that CPU's node has, or is nearest to. It is where the thread was a moment ago:
//! that is enough, as every copy gives the same. Here: `granule` is how threads meet, `shared` the memory, `bytes` the copying.
//! Not here: making one of words (`regions`).
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
    /// Bytes, as asked for.
    pub(crate) size: usize,
    /// A granule is two to this power.
    pub(crate) granule_bits: u32,
    pub(crate) rule: Rule,
    /// What it was made of.
    pub(crate) text: String,
    /// Whose the copies are, home first.
    pub(crate) nodes: Vec<NodeId>,
    /// By CPU the copy of its node, or the nearest.
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

/// What is read or written lies outside of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at {offset}: the region ends at {size}")]
pub struct OutOfRegion {
    /// The first byte.
    pub offset: usize,
    /// How many.
    pub length: usize,
    /// Bytes that the region has.
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
    /// Copies home to a copy, all of the granule.
    fn bring(&self, copy: usize) {
        let Region { memory, granule_bits, .. } = self.region;
        let start = self.index << granule_bits;
        // SAFETY: the data of each copy is whole granules, mapped as long as the region is; who else is at them uses `bytes`.
        unsafe {
            bytes::copy(memory.data(HOME) + start, memory.data(copy) + start, 1 << granule_bits);
        }
    }
}

/// A part of a granule, and where it is among what is read or written.
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

    /// Whether so many bytes are in it.
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

    /// As [`Self::read`], by a thread that is where a copy is.
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
    /// `from` has as many, which are not of the region.
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
                // SAFETY: within home's data, and within what the caller has.
                unsafe { bytes::copy(from + done, self.memory.data(HOME) + start, length) };
            });
            // Counted when it is there to be copied: see `sync`.
            counts.writes.fetch_add(1, Ordering::Release);
            counts.collapses.fetch_add(u64::from(wrote.is_collapse), Ordering::Relaxed);
            counts.settled.fetch_add(u64::from(wrote.is_settled), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Has every copy be what was written before.
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
        // Writes that ended meanwhile make the count another, so that the next look is a thorough one.
        counts.synced.store(writes, Ordering::Release);
    }

    /// Where the copy is that the calling thread's node has.
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
