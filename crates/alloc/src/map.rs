//! Mappings that are not the allocator's, placed as a kind's memory is.
#![expect(unsafe_code, reason = "memory is mapped here")]

use crate::kind::{self, DEFAULT};
use crate::sys;

/// What mmap(2) is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Where, or 0.
    pub address: usize,
    /// Bytes.
    pub length: usize,
    /// `PROT_*`.
    pub protection: i32,
    /// `MAP_*`.
    pub flags: i32,
    /// The file, or -1.
    pub file: i32,
    /// Into the file.
    pub offset: i64,
}

/// Has pages of a range go where a kind's are, as they are touched for the first time. The errno if that can't be.
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

/// As [`map`], but that memory which can't be placed is mapped all the same.
///
/// # Safety
/// As [`map`].
pub(crate) unsafe fn map_if_can(handle: u32, wanted: Mapping) -> Result<usize, i32> {
    let handle =
        if kind::find(handle).is_some_and(|kind| !kind.is_apart()) { handle } else { DEFAULT };
    // SAFETY: the caller's promise.
    let mapped = unsafe { map(handle, wanted) };
    if mapped.is_err() && handle != DEFAULT {
        // SAFETY: as above; nothing is mapped there by us.
        return unsafe { map(DEFAULT, wanted) };
    }
    mapped
}

/// Maps memory and places it before any of it is there; the errno if that can't be, and nothing is mapped.
///
/// # Safety
/// As mmap(2): what is at a fixed address goes.
pub(crate) unsafe fn map(handle: u32, wanted: Mapping) -> Result<usize, i32> {
    let Mapping { length, protection, file, offset, .. } = wanted;
    // What is to be there at once must not be there before it has its place.
    let at_once = wanted.flags & libc::MAP_POPULATE != 0 && handle != DEFAULT;
    let flags = if at_once { wanted.flags & !libc::MAP_POPULATE } else { wanted.flags };
    // SAFETY: the caller's promise.
    let at = unsafe { sys::mmap(wanted.address, length, [protection, flags, file], offset)? };
    if let Err(error) = bind(handle, at, length) {
        // SAFETY: mapped above, and nobody knows it.
        unsafe { sys::unmap(at, length) };
        return Err(error);
    }
    if at_once {
        sys::populate(at, length, protection & libc::PROT_WRITE != 0);
    }
    Ok(at)
}
