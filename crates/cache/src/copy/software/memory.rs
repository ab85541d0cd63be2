//! What the software queue does to memory: moves bytes, reads lists, writes completion records, all by address.
//!
//! Rules: addresses come in descriptors, whose submitter promised ([`Submit`](crate::copy::dsa::Submit)) that they are mapped,
//! exposed and meant, until the operation is over; so they are used before its record is written and never after.
//! Words of lists and records are atomic.
#![expect(unsafe_code, reason = "descriptors say which memory to move")]

use std::ptr;

use crate::copy::dsa::format::{Descriptor, Record};
use crate::copy::dsa::line::{Line, RecordCell};

/// Bytes of a completion record.
pub(super) const RECORD_ALIGN: u64 = 32;

fn at(address: u64) -> usize {
    usize::try_from(address).unwrap_or(usize::MAX)
}

/// Moves the first `length` bytes of a descriptor's.
///
/// # Safety
/// The descriptor was submitted, and is not over.
pub(super) unsafe fn move_bytes(descriptor: &Descriptor, length: u32) {
    let source: *const u8 = ptr::with_exposed_provenance(at(descriptor.source()));
    let destination: *mut u8 = ptr::with_exposed_provenance_mut(at(descriptor.destination()));
    let length = usize::try_from(length.min(descriptor.size())).unwrap_or_default();
    // SAFETY: whoever submitted the descriptor promised both places for its whole size; they may overlap.
    unsafe { source.copy_to(destination, length) };
}

/// The descriptors of a batch.
///
/// # Safety
/// The descriptor is a batch's that was submitted and is not over; its list is on a multiple of 64.
pub(super) unsafe fn read_list(batch: &Descriptor) -> Vec<Descriptor> {
    let list: *const Line = ptr::with_exposed_provenance(at(batch.source()));
    let count = usize::try_from(batch.size()).unwrap_or_default();
    let read = |index: usize| {
        // SAFETY: whoever submitted the batch promised a list of as many descriptors, aligned as lines are; it is made of lines.
        unsafe { list.wrapping_add(index).as_ref() }.map(Line::descriptor)
    };
    (0..count).filter_map(read).collect()
}

/// Writes a completion record, after which the operation is over.
///
/// # Safety
/// The descriptor was submitted and is not over; its completion address is valid and on a multiple of 32.
pub(super) unsafe fn write_record(descriptor: &Descriptor, record: &Record) {
    let cell: *const RecordCell = ptr::with_exposed_provenance(at(descriptor.record_address()));
    // SAFETY: whoever submitted the descriptor promised a record's 32 bytes there, and its words are only touched whole.
    if let Some(cell) = unsafe { cell.as_ref() } {
        cell.complete(record);
    }
}
