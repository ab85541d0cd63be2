//! Regions: what each is used for, and those that are being filled.
//!
//! A region's state is one word: its sequence number, larger than that of all regions filled before, and what it is used for.
//! A reader takes the word before and after: if it is the same, and says that the region is written, what was read is what was
//! written. A region that is filled is a buffer ([`Fill`]) until it is on the device; buffers are found by region.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, RwLock};

use super::buffer::Aligned;
use super::entry;
use super::footer::{self, Record};
use super::place::UNIT;
use super::words::narrow;

/// What a region is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing.
    Free = 0,
    /// It is being filled, or on its way to the device.
    Memory = 1,
    /// It is on the device.
    Written = 2,
    /// It is no longer used.
    Retired = 3,
}

/// State of a region.
#[derive(Debug, Default)]
pub(super) struct Region {
    word: AtomicU64,
    errors: AtomicU32,
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

    /// Whether it is on the device, as filled at that time.
    pub(super) fn is_written(&self, seq: u64) -> bool {
        self.get() == (seq, Phase::Written)
    }

    /// Counts an error; gives how many there are.
    pub(super) fn error(&self) -> u32 {
        self.errors.fetch_add(1, AcqRel) + 1
    }

    pub(super) fn errors(&self) -> u32 {
        self.errors.load(Relaxed)
    }
}

/// A region that is being filled, or is on its way to the device.
#[derive(Debug)]
pub(super) struct Fill {
    pub(super) region: u32,
    pub(super) seq: u64,
    pub(super) body: RwLock<Body>,
}

/// What it holds so far.
#[derive(Debug)]
pub(super) struct Body {
    /// Shared only once it is sealed.
    pub(super) buffer: Arc<Aligned>,
    pub(super) used: usize,
    pub(super) records: Vec<Record>,
    /// It is full, or is to be written as it is: nothing is added any more.
    pub(super) sealed: bool,
    /// Its buffer was taken away: it is on the device, or failed.
    pub(super) over: bool,
}

impl Body {
    pub(super) fn new(buffer: Aligned) -> Self {
        Self { buffer: Arc::new(buffer), used: 0, records: Vec::new(), sealed: false, over: false }
    }

    /// Whether an object of so many bytes fits, and its record, and so many records besides.
    pub(super) fn has_room(&self, bytes: usize, records: usize) -> bool {
        let tail = footer::tail(self.records.len() + 1 + records);
        !self.sealed && self.used + bytes + tail <= self.buffer.len()
    }

    /// Room for an object, not yet used; `None` if it is sealed.
    pub(super) fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let used = self.used;
        Arc::get_mut(&mut self.buffer).and_then(|buffer| buffer.get_mut(used..used + bytes))
    }

    /// Uses the room of an object that is written; gives its unit.
    pub(super) fn keep(&mut self, hash: u64, bytes: usize, expires: u32) -> u32 {
        let unit = narrow(self.used / UNIT);
        self.used = (self.used + bytes).next_multiple_of(UNIT);
        self.records.push(Record { hash, unit, bytes: narrow(bytes), expires });
        unit
    }
}

/// Bytes a region can hold of one object.
pub(super) const fn largest(region_bytes: usize) -> usize {
    region_bytes - footer::tail(1) - entry::HEADER
}
