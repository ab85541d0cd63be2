//! Regions: their states, and the buffers of those being filled.
//!
//! A region's state is one word: its sequence number, larger than that of all regions filled before, and its phase. A
//! reader reads the word before and after; if it is unchanged, and the phase is written, the data read is valid. A
//! region being filled is a buffer ([`Fill`]) until it is on the device; buffers are found by region.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, RwLock};

use super::buffer::Aligned;
use super::entry;
use super::footer::{self, Record};
use super::place::UNIT;
use super::words::narrow;

/// The phase of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Unused.
    Free = 0,
    /// Being filled, or in flight to the device.
    Memory = 1,
    /// On the device.
    Written = 2,
    /// Retired.
    Retired = 3,
}

/// State of a region.
#[derive(Debug, Default)]
pub(super) struct Region {
    word: AtomicU64,
    errors: AtomicU32,
    /// The checksum of its footer.
    sum: AtomicU32,
}

impl Region {
    pub(super) fn get(&self) -> (u64, Phase) {
        let word = self.word.load(Acquire);
        let phase = match word & 3 {
            0 => Phase::Free,
            1 => Phase::Memory,
            2 => Phase::Written,
            _ => Phase::Retired,
        };
        (word >> 2, phase)
    }

    pub(super) fn set(&self, seq: u64, phase: Phase) {
        self.word.store(seq << 2 | phase as u64, Release);
    }

    /// Whether it is on the device, with this sequence number.
    pub(super) fn is_written(&self, seq: u64) -> bool {
        self.get() == (seq, Phase::Written)
    }

    /// The checksum of the footer that was, or will be, written.
    pub(super) fn sum(&self) -> u32 {
        self.sum.load(Acquire)
    }

    pub(super) fn set_sum(&self, sum: u32) {
        self.sum.store(sum, Release);
    }

    /// Counts an error; returns the number of errors.
    pub(super) fn error(&self) -> u32 {
        self.errors.fetch_add(1, AcqRel) + 1
    }

    pub(super) fn errors(&self) -> u32 {
        self.errors.load(Relaxed)
    }
}

/// A region being filled or in flight to the device.
#[derive(Debug)]
pub(super) struct Fill {
    pub(super) region: u32,
    pub(super) seq: u64,
    pub(super) epoch: u64,
    pub(super) body: RwLock<Body>,
}

/// Its contents so far.
#[derive(Debug)]
pub(super) struct Body {
    /// Shared only once it is sealed.
    pub(super) buffer: Arc<Aligned>,
    pub(super) used: usize,
    pub(super) records: Vec<Record>,
    /// It is full, or is to be written as it is: nothing is added any more.
    pub(super) sealed: bool,
    /// Its buffer was taken: it is on the device, or failed.
    pub(super) over: bool,
}

impl Body {
    pub(super) fn new(buffer: Aligned) -> Self {
        Self { buffer: Arc::new(buffer), used: 0, records: Vec::new(), sealed: false, over: false }
    }

    /// Whether an object with this many bytes fits, with its record and `records` more.
    pub(super) fn has_room(&self, bytes: usize, records: usize) -> bool {
        let tail = footer::tail(self.records.len() + 1 + records);
        !self.sealed && self.used + bytes + tail <= self.buffer.len()
    }

    /// Space for an object, not yet used; `None` if it is sealed.
    pub(super) fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let used = self.used;
        Arc::get_mut(&mut self.buffer).and_then(|buffer| buffer.get_mut(used..used + bytes))
    }

    /// Commits the space of a written object; returns its unit.
    pub(super) fn keep(&mut self, hash: u64, bytes: usize, expires: u32) -> u32 {
        let unit = narrow(self.used / UNIT);
        self.used = (self.used + bytes).next_multiple_of(UNIT);
        self.records.push(Record { hash, unit, bytes: narrow(bytes), expires });
        unit
    }
}

/// Maximum bytes of one object in a region.
pub(super) const fn largest(region_bytes: usize) -> usize {
    region_bytes - footer::tail(1) - entry::HEADER
}
