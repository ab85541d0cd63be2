//! Mappings outside of the allocator, placed as a kind's memory is.
#![expect(unsafe_code, reason = "memory is mapped here")]

use crate::kind::{self, DEFAULT};
use crate::sys;

/// Arguments of mmap(2).
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Address, or 0.
    pub address: usize,
    /// Bytes.
    pub length: usize,
    /// `PROT_*`.
    pub protection: i32,
    /// `MAP_*`.
    pub flags: i32,
    /// The file, or -1.
    pub file: i32,
    /// Offset into the file.
    pub offset: i64,
}

/// Applies a kind's placement to the pages of a range that are not yet present. Returns the errno on failure.
pub(crate) fn bind(handle: u32, at: usize, length: usize) -> Result<(), i32> {
    if !at.is_multiple_of(sys::PAGE) {
        return Err(libc::EINVAL);
    }
    if handle == DEFAULT {
        return Ok(());
    }
    let kind = kind::find(handle).filter(|kind| !kind.is_apart()).ok_or(libc::EINVAL)?;
    let length = length.checked_next_multiple_of(sys::PAGE).ok_or(libc::ENOMEM)?;
    if kind.place(at, length) { Ok(()) } else { Err(sys::errno()) }
}

/// As [`map`], but memory that can't be placed is mapped without a placement.
///
/// # Safety
/// As [`map`].
pub(crate) unsafe fn map_if_can(handle: u32, wanted: Mapping) -> Result<usize, i32> {
    let can = |kind: &&kind::Kind| !kind.is_apart() && kind.has_room(wanted.length);
    let handle = kind::find(handle).filter(can).map_or(DEFAULT, kind::Kind::handle);
    // SAFETY: the caller's promise.
    let mapped = unsafe { map(handle, wanted) };
    if mapped.is_err() && handle != DEFAULT {
        // SAFETY: as above; our mapping there is gone.
        return unsafe { map(DEFAULT, wanted) };
    }
    mapped
}

/// Maps memory and places it before any page is present. On failure nothing is mapped; returns the errno.
///
/// # Safety
/// As mmap(2): an existing mapping at a fixed address is replaced.
pub(crate) unsafe fn map(handle: u32, wanted: Mapping) -> Result<usize, i32> {
    let Mapping { length, protection, file, offset, .. } = wanted;
    // MAP_POPULATE is applied after the placement, not before.
    let at_once = wanted.flags & libc::MAP_POPULATE != 0 && handle != DEFAULT;
    let flags = if at_once { wanted.flags & !libc::MAP_POPULATE } else { wanted.flags };
    // SAFETY: the caller's promise.
    let at = unsafe { sys::mmap(wanted.address, length, [protection, flags, file], offset)? };
    if let Err(error) = bind(handle, at, length) {
        // SAFETY: mapped above, and no other code knows it.
        unsafe { sys::unmap(at, length) };
        return Err(error);
    }
    if at_once {
        sys::populate(at, length, protection & libc::PROT_WRITE != 0);
    }
    Ok(at)
}
