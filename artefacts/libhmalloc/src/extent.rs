//! `extent_alloc`: a placed mapping, with the signature of jemalloc's extent hook.
//!
//! This library does not use it. It is for programs with arenas of their own; HMSDK's test reads the policy at its
//! address.
#![expect(unsafe_code, reason = "a function that C calls, which maps memory")]

use core::ffi::{c_uint, c_void};
use core::ptr::null_mut;

use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED_NOREPLACE, MAP_PRIVATE, PROT_READ, PROT_WRITE};

use crate::api::{hmmap, hmunmap};
use crate::nearfar::set_errno;

/// Maps private zeroed memory: at `wanted` and nowhere else unless that is NULL, else at a multiple of `alignment`.
/// NULL with errno. Sets `zero` and `commit` to true.
///
/// # Safety
/// `zero` and `commit` are NULL or have room for a bool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extent_alloc(
    _hooks: *mut c_void,
    wanted: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    let memory = extent(wanted, size, alignment);
    if memory.is_null() {
        return memory;
    }
    for said in [zero, commit] {
        if !said.is_null() {
            // SAFETY: the caller's promise.
            unsafe { said.write(true) };
        }
    }
    memory
}

fn extent(wanted: *mut c_void, size: usize, alignment: usize) -> *mut c_void {
    let page = page();
    if alignment <= page || !wanted.is_null() {
        return map(wanted, size);
    }
    let length = size.checked_next_multiple_of(page);
    let room = length.and_then(|length| length.checked_add(alignment - page));
    let (Some(length), Some(room), true) = (length, room, alignment.is_power_of_two()) else {
        set_errno(libc::EINVAL);
        return null_mut();
    };
    let memory = map(null_mut(), room);
    if memory.is_null() {
        return memory;
    }
    let before = memory.align_offset(alignment);
    let start = memory.wrapping_byte_add(before);
    for (spare, length) in
        [(memory, before), (start.wrapping_byte_add(length), room - before - length)]
    {
        if length > 0 {
            // SAFETY: mapped above, and not published.
            unsafe { hmunmap(spare, length) };
        }
    }
    start
}

fn map(wanted: *mut c_void, length: usize) -> *mut c_void {
    let fixed = if wanted.is_null() { 0 } else { MAP_FIXED_NOREPLACE };
    let (protection, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed);
    // SAFETY: existing mappings are not replaced.
    let memory = unsafe { hmmap(wanted, length, protection, flags, -1, 0) };
    if memory == MAP_FAILED { null_mut() } else { memory }
}

fn page() -> usize {
    // SAFETY: only a query.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page).unwrap_or(4096)
}
