//! The exported symbols: the nine functions of `hmalloc.h`, and the additional ones of HMSDK's library, except the
//! last, which is in `extent.rs`.
//!
//! Memory is freed by the allocator that it came from, libc or the pool, regardless of the settings at that time:
//! libnearfar recognises its own.
#![expect(unsafe_code, reason = "functions that C calls")]

use core::ffi::{c_int, c_ulong, c_void};
use core::ptr::null_mut;

use libc::{MAP_FAILED, off_t};

use crate::nearfar::{
    NF_DEFAULT, errno, nf_aligned_alloc, nf_calloc, nf_free, nf_kind_of, nf_malloc, nf_realloc,
    nf_usable_size, set_errno,
};
use crate::settings::{self, Source};
use crate::variables;

fn failed(errno: c_int) -> *mut c_void {
    set_errno(errno);
    null_mut()
}

/// Allocates `size` bytes; size 0 returns a unique address. NULL with errno.
#[unsafe(no_mangle)]
pub extern "C" fn hmalloc(size: usize) -> *mut c_void {
    match settings::now().source {
        Source::Pool(kind) => nf_malloc(kind, size),
        // SAFETY: any size is allowed.
        Source::Libc => unsafe { libc::malloc(size) },
        Source::Nowhere(errno) => failed(errno),
    }
}

/// Frees memory; errno is preserved.
///
/// # Safety
/// `memory` is NULL or was allocated by functions of this file, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hfree(memory: *mut c_void) {
    if nf_kind_of(memory) == NF_DEFAULT {
        // SAFETY: the caller's promise, and not the pool's: libc's, or NULL.
        unsafe { libc::free(memory) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { nf_free(memory) };
    }
}

/// Allocates zeroed memory for `count` elements of `size` bytes. A product that overflows is ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn hcalloc(count: usize, size: usize) -> *mut c_void {
    match settings::now().source {
        Source::Pool(kind) => nf_calloc(kind, count, size),
        // SAFETY: any sizes are allowed.
        Source::Libc => unsafe { libc::calloc(count, size) },
        Source::Nowhere(errno) => failed(errno),
    }
}

/// Reallocates `memory`, preserving its content; on failure it returns NULL with errno and `memory` stays valid. Size 0
/// frees it and returns NULL.
///
/// # Safety
/// As [`hfree`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hrealloc(memory: *mut c_void, size: usize) -> *mut c_void {
    if memory.is_null() {
        return hmalloc(size);
    }
    if size == 0 {
        // SAFETY: the caller's promise.
        unsafe { hfree(memory) };
        return null_mut();
    }
    let has = nf_kind_of(memory);
    if has == NF_DEFAULT {
        // SAFETY: the caller's promise, and not the pool's: libc's.
        return unsafe { libc::realloc(memory, size) };
    }
    let kind = match settings::now().source {
        Source::Pool(kind) => kind,
        Source::Libc => has,
        Source::Nowhere(errno) => return failed(errno),
    };
    // SAFETY: the caller's promise.
    unsafe { nf_realloc(kind, memory, size) }
}

/// Allocates memory at a multiple of a power of two, or returns the errno.
fn aligned(alignment: usize, size: usize) -> Result<*mut c_void, c_int> {
    if !alignment.is_power_of_two() {
        return Err(libc::EINVAL);
    }
    let memory = match settings::now().source {
        Source::Pool(kind) => nf_aligned_alloc(kind, alignment, size),
        Source::Libc => {
            let mut memory = null_mut();
            // libc refuses smaller alignments; a pointer's alignment satisfies those as well.
            let alignment = alignment.max(size_of::<*mut c_void>());
            // SAFETY: room for a pointer.
            let error = unsafe { libc::posix_memalign(&raw mut memory, alignment, size) };
            return if error == 0 { Ok(memory) } else { Err(error) };
        }
        Source::Nowhere(errno) => failed(errno),
    };
    if memory.is_null() { Err(errno()) } else { Ok(memory) }
}

/// Allocates memory at a multiple of `alignment`, a power of two (else EINVAL). `size` need not be a multiple. NULL
/// with errno.
#[unsafe(no_mangle)]
pub extern "C" fn haligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    aligned(alignment, size).unwrap_or_else(failed)
}

/// As `haligned_alloc`, stored in `into`; NULL there on failure. Returns 0 or the errno, and preserves errno itself.
///
/// # Safety
/// `into` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hposix_memalign(
    into: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    if into.is_null() {
        return libc::EINVAL;
    }
    let before = errno();
    let found = aligned(alignment, size);
    set_errno(before);
    // SAFETY: the caller's promise.
    unsafe { into.write(found.unwrap_or(null_mut())) };
    found.err().unwrap_or(0)
}

/// As mmap(2), with pages placed by the policy. `MAP_FAILED` with errno if mapping fails; NULL with errno, and nothing
/// mapped, if placing fails.
///
/// # Safety
/// As mmap(2): with MAP_FIXED, existing content at the address is not needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hmmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    let policy = &settings::now().policy;
    // Pages must not be allocated before the policy is set, so MAP_POPULATE is deferred.
    let at_once = flags & libc::MAP_POPULATE != 0 && *policy != Ok(None);
    let flags = if at_once { flags & !libc::MAP_POPULATE } else { flags };
    // SAFETY: the caller's promise.
    let memory = unsafe { libc::mmap(address, length, protection, flags, file, offset) };
    if memory == MAP_FAILED {
        return memory;
    }
    let placed = match policy {
        Ok(None) => Ok(()),
        Ok(Some(policy)) if policy.bind(memory, length) => Ok(()),
        Ok(Some(_)) => Err(errno()),
        Err(errno) => Err(*errno),
    };
    if let Err(errno) = placed {
        // SAFETY: mapped above, and not published.
        unsafe { libc::munmap(memory, length) };
        return failed(errno);
    }
    if at_once {
        let write = protection & libc::PROT_WRITE != 0 && flags & libc::MAP_SHARED == 0;
        let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        let before = errno();
        // As with MAP_POPULATE, incomplete allocation is not an error. SAFETY: mapped above; pages are only made
        // present.
        unsafe { libc::madvise(memory, length, advice) };
        set_errno(before);
    }
    memory
}

/// As munmap(2).
///
/// # Safety
/// As munmap(2): the range is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hmunmap(memory: *mut c_void, length: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(memory, length) }
}

/// The usable size of `memory`, at least the requested size; 0 for NULL.
///
/// # Safety
/// `memory` is NULL or was allocated by functions of this file, and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hmalloc_usable_size(memory: *mut c_void) -> usize {
    if nf_kind_of(memory) == NF_DEFAULT {
        // SAFETY: the caller's promise, and not the pool's: libc's, or NULL, for which libc returns 0.
        unsafe { libc::malloc_usable_size(memory) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { nf_usable_size(memory) }
    }
}

/// Reads the variables again: they apply to later allocations and mappings.
#[unsafe(no_mangle)]
pub extern "C" fn update_env() {
    let _ = settings::take();
}

/// As `update_env`; it is called as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn hmalloc_init() {
    update_env();
}

/// Whether `HMALLOC_JEMALLOC` is `1`.
#[unsafe(no_mangle)]
pub extern "C" fn getenv_jemalloc() -> bool {
    variables::pool()
}

/// The value of `HMALLOC_NODEMASK`; 0 if it is missing or invalid.
#[unsafe(no_mangle)]
pub extern "C" fn getenv_nodemask() -> c_ulong {
    variables::mask().unwrap_or(0)
}

/// The value of `HMALLOC_MPOL_MODE`; 0 if it is missing or invalid.
#[unsafe(no_mangle)]
pub extern "C" fn getenv_mpol_mode() -> c_int {
    variables::mode().unwrap_or(0)
}
