//! The C interface, `nearfar.h`: each function a line or two over `heap` and its neighbours.
//!
//! No function here panics, waits for another thread or writes anywhere but to what it is given. After a failure errno says
//! what, and `nf_error` in words where there are any.
#![expect(unsafe_code, reason = "functions that C calls")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{NonNull, null_mut};

use crate::{heap, kind, machine, stats, sys, thread};

/// A memory kind: what `nf_kind_create` gave, or `NF_DEFAULT`.
#[expect(non_camel_case_types, reason = "as C writes types")]
pub type nf_kind_t = u32;

/// Plain memory, placed as the process's policy says.
pub const NF_DEFAULT: nf_kind_t = 0;
const _: () = assert!(NF_DEFAULT == kind::DEFAULT);

/// What `nf_kind_create` gives if it fails, and a kind nothing can be allocated from.
pub const NF_NONE: nf_kind_t = 0xffff_ffff;

fn pointer(memory: Option<NonNull<u8>>) -> *mut c_void {
    memory.map_or(null_mut(), |memory| memory.as_ptr().cast())
}

/// Makes a memory kind: "far", "bind:0,2-3", "prefer:cxl", "interleave:all", "weighted:0=3,1=1", "capacity", "latency" or
/// "bandwidth", with options like ";limit=4g;spill=near;huge=yes".
///
/// Returns `NF_NONE` on failure, with errno EINVAL (not written as kinds are), ENODEV (such nodes are not here), ENOSYS (the
/// kernel lacks what it takes) or ENOMEM (no more kinds), and `nf_error` in words.
///
/// # Safety
/// `text` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_kind_create(text: *const c_char) -> nf_kind_t {
    if text.is_null() {
        sys::set_errno(libc::EINVAL);
        return NF_NONE;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    machine::create(&text).unwrap_or_else(|error| {
        thread::set_error(&error.to_string());
        sys::set_errno(error.errno());
        NF_NONE
    })
}

/// Ends a kind with all that was allocated from it. Returns 0, or -1 with errno EINVAL if there is no such kind.
///
/// # Safety
/// No thread uses the kind, or memory of it, any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_kind_destroy(kind: nf_kind_t) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { kind::destroy(kind) } {
        return 0;
    }
    sys::set_errno(libc::EINVAL);
    -1
}

/// Memory of a kind, of `size` bytes; of size 0 it has an address of its own. NULL with errno ENOMEM if there is none (the
/// kind's limit is reached and it has no spill), EINVAL if there is no such kind.
#[unsafe(no_mangle)]
pub extern "C" fn nf_malloc(kind: nf_kind_t, size: usize) -> *mut c_void {
    pointer(heap::allocate(kind, size))
}

/// Memory of zeroes for `count` elements of `size` bytes. As `nf_malloc`; a product that overflows is ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn nf_calloc(kind: nf_kind_t, count: usize, size: usize) -> *mut c_void {
    let Some(size) = count.checked_mul(size) else {
        sys::set_errno(libc::ENOMEM);
        return null_mut();
    };
    pointer(heap::allocate_zeroed(kind, size))
}

/// Memory at a multiple of `alignment`, a power of two (else EINVAL) of up to 1 GiB and more. `size` need not be a multiple.
#[unsafe(no_mangle)]
pub extern "C" fn nf_aligned_alloc(kind: nf_kind_t, alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() {
        sys::set_errno(libc::EINVAL);
        return null_mut();
    }
    pointer(heap::allocate_aligned(kind, alignment, size))
}

/// Memory of a kind with the content of `memory`, which may be of another kind and is given back. NULL leaves `memory` as it
/// is, with errno as `nf_malloc`. A NULL `memory` is like `nf_malloc`; size 0 is like size 1.
///
/// # Safety
/// `memory` is NULL or was allocated here and is not used any more if another address is returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_realloc(
    kind: nf_kind_t,
    memory: *mut c_void,
    size: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    pointer(unsafe { heap::reallocate(kind, memory.cast(), size) })
}

/// Gives memory back, of any kind. NULL is allowed; errno stays as it is.
///
/// # Safety
/// `memory` is NULL or was allocated here and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_free(memory: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { heap::free(memory.cast()) };
}

/// Bytes that may be used at `memory`: as many as were asked for, or some more. 0 for NULL.
///
/// # Safety
/// `memory` is NULL or was allocated here and not given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_usable_size(memory: *const c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { heap::usable_size(memory as usize) }
}

/// The kind that memory is of; `NF_DEFAULT` for memory that is of none. The pointer is only compared.
#[unsafe(no_mangle)]
pub extern "C" fn nf_kind_of(memory: *const c_void) -> nf_kind_t {
    heap::kind_of(memory as usize)
}

/// Figures of a kind, in bytes and counts since it was made. Other threads go on meanwhile.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nf_stats_t {
    /// Bytes in use, objects as large as their size classes.
    pub allocated: u64,
    /// Bytes in free objects that threads keep for themselves and each other.
    pub kept: u64,
    /// Bytes of address space set aside; what is not in use of it need not be resident.
    pub set_aside: u64,
    /// The most that may be set aside; `UINT64_MAX`: no limit.
    pub limit: u64,
    /// Calls of mbind(2).
    pub binds: u64,
    /// Allocations that went to the kind's spill.
    pub spilled: u64,
    /// Allocations that failed.
    pub failed: u64,
}

/// Figures of a kind. Returns 0, or -1 with errno EINVAL if there is no such kind; the default has none.
///
/// # Safety
/// `into` has room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_stats(kind: nf_kind_t, into: *mut nf_stats_t) -> c_int {
    let (Some(kind), false) = (kind::find(kind), into.is_null()) else {
        sys::set_errno(libc::EINVAL);
        return -1;
    };
    let found = stats::of(kind);
    let figures = nf_stats_t {
        allocated: found.allocated as u64,
        kept: found.kept as u64,
        set_aside: found.set_aside as u64,
        limit: found.limit.map_or(u64::MAX, |limit| limit as u64),
        binds: found.binds,
        spilled: found.spilled,
        failed: found.failed,
    };
    // SAFETY: the caller's promise.
    unsafe { into.write(figures) };
    0
}

/// The number of the binary interface; it is that in the library's soname.
#[unsafe(no_mangle)]
pub extern "C" fn nf_abi_version() -> u32 {
    0
}

/// What went wrong in the calling thread's last call that has words for it; "" if none. The text stays until the next such.
#[unsafe(no_mangle)]
pub extern "C" fn nf_error() -> *const c_char {
    thread::error().cast()
}
