//! Memory that the device reads descriptors from and writes completion records to.
//!
//! A [`Line`] is 64 bytes: a descriptor, or a completion record with nothing else in the line. Its words are atomic, as the
//! device may write a record at any time until it has been seen to be over; so whoever gives up on a record keeps or leaks its
//! line, never frees it. A record's first word holds its status and is loaded with Acquire: what the device wrote before is
//! seen by whoever has seen that.

use std::sync::atomic::{AtomicU64, Ordering};

use super::format::{Descriptor, Record};

/// 64 bytes of their own.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Line([AtomicU64; 8]);

/// So many of them, side by side.
pub(crate) fn lines(count: usize) -> Box<[Line]> {
    (0..count).map(|_| Line::default()).collect()
}

/// Where the device finds the first of them, and with it all.
pub(crate) fn address(lines: &[Line]) -> u64 {
    lines.as_ptr().expose_provenance() as u64
}

impl Line {
    /// Puts a descriptor there.
    pub(crate) fn put(&self, descriptor: &Descriptor) {
        for (place, word) in self.0.iter().zip(descriptor.words()) {
            place.store(word.to_le(), Ordering::Relaxed);
        }
    }

    /// Reads a descriptor that was put there.
    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor::from_words(std::array::from_fn(|at| self.load(at, Ordering::Relaxed)))
    }

    /// Has it be the record of an operation that is not over. The device is done with it, or does not know it yet.
    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// The record there, once the operation is over.
    pub(crate) fn record(&self) -> Option<Record> {
        let first = self.load(0, Ordering::Acquire);
        Record::from_words(first, self.load(1, Ordering::Relaxed))
    }

    fn load(&self, at: usize, order: Ordering) -> u64 {
        u64::from_le(self.0[at].load(order))
    }
}

/// A completion record as whoever writes it sees it: 32 bytes on a multiple of 32.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RecordCell([AtomicU64; 4]);

impl RecordCell {
    /// Writes a record as a device does: its first word last.
    pub(crate) fn complete(&self, record: &Record) {
        let [first, second] = record.to_words();
        self.0[1].store(second.to_le(), Ordering::Relaxed);
        self.0[0].store(first.to_le(), Ordering::Release);
    }
}
