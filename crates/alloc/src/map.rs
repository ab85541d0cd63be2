//! Mappings that are not the allocator's, placed as a kind's memory is.
#![expect(unsafe_code, reason = "memory is mapped here")]

use crate::kind::{self, DEFAULT};
use crate::sys;

/// What mmap(2) is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) address: usize,
    pub(crate) length: usize,
    pub(crate) protection: i32,
    pub(crate) flags: i32,
    pub(crate) file: i32,
    pub(crate) offset: i64,
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

/// Maps memory and places it before any of it is there; the errno if that can't be, and nothing is mapped.
///
/// # Safety
/// As mmap(2): what is at a fixed address goes.
pub(crate) unsafe fn map(handle: u32, wanted: Mapping) -> Result<usize, i32> {
    let Mapping { length, protection, file, offset, .. } = wanted;
    // What is to be there at once must not be there before it has its place.
    let at_once = wanted.flags & libc::MAP_POPULATE != 0 && handle != DEFAULT;
    let flags = if at_once { wanted.flags & !libc::MAP_POPULATE } else { wanted.flags };
    let address = wanted.address as *mut libc::c_void;
    // SAFETY: the caller's promise.
    let at = unsafe { libc::mmap(address, length, protection, flags, file, offset) };
    if at == libc::MAP_FAILED {
        return Err(sys::errno());
    }
    if let Err(error) = bind(handle, at as usize, length) {
        // SAFETY: mapped above, and nobody knows it.
        unsafe { sys::unmap(at as usize, length) };
        return Err(error);
    }
    if at_once {
        sys::populate(at as usize, length, protection & libc::PROT_WRITE != 0);
    }
    Ok(at as usize)
}
