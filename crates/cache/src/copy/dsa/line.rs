//! Memory of descriptors, read by the device, and of completion records, written by it.
//!
//! A [`Line`] is 64 bytes: a descriptor, or a completion record alone in its line. Its words are atomic, as the device
//! may write a record at any time until the record shows completion; so code that gives up on a record keeps or leaks
//! its line, and never frees it. A record's first word holds its status and is loaded with Acquire: a thread that sees
//! completion also sees the device's earlier writes.

use std::sync::atomic::{AtomicU64, Ordering};

use super::format::{Descriptor, Record};

/// 64 bytes, aligned to 64.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Line([AtomicU64; 8]);

/// Allocates `count` consecutive lines.
pub(super) fn lines(count: usize) -> Box<[Line]> {
    (0..count).map(|_| Line::default()).collect()
}

/// The address of the first line for the device; provenance of all of them is exposed.
pub(super) fn address(lines: &[Line]) -> u64 {
    lines.as_ptr().expose_provenance() as u64
}

impl Line {
    /// Stores a descriptor.
    pub(super) fn put(&self, descriptor: &Descriptor) {
        for (place, word) in self.0.iter().zip(descriptor.words()) {
            place.store(word.to_le(), Ordering::Relaxed);
        }
    }

    /// Loads a descriptor stored before.
    #[cfg(test)]
    pub(super) fn descriptor(&self) -> Descriptor {
        Descriptor::from_words(std::array::from_fn(|at| self.load(at, Ordering::Relaxed)))
    }

    /// Resets it to the record of an incomplete operation. The device is done with it, or does not know it yet.
    pub(super) fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// The record, once the operation is complete.
    pub(super) fn record(&self) -> Option<Record> {
        let first = self.load(0, Ordering::Acquire);
        Record::from_words(first, self.load(1, Ordering::Relaxed))
    }

    fn load(&self, at: usize, order: Ordering) -> u64 {
        u64::from_le(self.0[at].load(order))
    }
}
