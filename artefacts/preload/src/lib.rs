//! libnearfar_preload: replaces malloc, free and related functions by `LD_PRELOAD`, for programs that can't be changed.
//!
//! `nearfar run --heap KIND -- CMD` sets it up; by hand it is `LD_PRELOAD=libnearfar_preload.so NEARFAR_CONF="heap=far"
//! CMD`. C++'s new and delete are covered: the C++ library's own call malloc and free. This crate only forwards to
//! nearfar-alloc's `front`.
#![expect(unsafe_code, reason = "functions that C calls")]

use core::ffi::{c_int, c_void};

pub use nearfar_alloc::ffi::*;
use nearfar_alloc::{Inner, Mapping, front};
pub use threads::*;

mod threads;
mod unwind;

const PAGE: usize = 4096;

#[global_allocator]
static OWN: Inner = Inner;

/// Constructors with a priority run before those without.
#[used]
#[unsafe(link_section = ".init_array.00100")]
static FIRST: extern "C" fn() = {
    extern "C" fn first() {
        front::initialise_later();
    }
    first
};

/// Runs before `main`, and before the program's own constructors.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        front::begin(malloc as *const () as usize);
    }
    begin
};

/// malloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    front::malloc(size)
}

/// calloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    front::calloc(count, size)
}

/// realloc(3).
///
/// # Safety
/// As realloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(object: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { front::realloc(object, size) }
}

/// reallocarray(3).
///
/// # Safety
/// As realloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(
    object: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    // A product that overflows saturates, and no allocation can be that large. SAFETY: the caller's promise.
    unsafe { front::realloc(object, count.saturating_mul(size)) }
}

/// free(3).
///
/// # Safety
/// As free(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(object: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { front::free(object) };
}

/// cfree(3), of old programs.
///
/// # Safety
/// As free(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(object: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { front::free(object) };
}

/// posix_memalign(3).
///
/// # Safety
/// As posix_memalign(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    into: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { front::posix_memalign(into, alignment, size) }
}

/// aligned_alloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    front::aligned_alloc(alignment, size)
}

/// memalign(3); an alignment that is not a power of two is rounded up to the next.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    front::aligned_alloc(alignment.checked_next_power_of_two().unwrap_or(0), size)
}

/// valloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    front::aligned_alloc(PAGE, size)
}

/// pvalloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    front::aligned_alloc(PAGE, size.max(1).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX))
}

/// malloc_usable_size(3).
///
/// # Safety
/// As malloc_usable_size(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(object: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { front::usable_size(object) }
}

/// mmap(2).
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let address = address as usize;
    // SAFETY: the caller's promise.
    unsafe { front::mmap(Mapping { address, length, protection, flags, file, offset }) }
}

/// mmap64, an alias of mmap(2).
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mmap(address, length, protection, flags, file, offset) }
}

/// The function that jemalloc in this library calls for mmap(2).
///
/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __wrap_mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let address = address as usize;
    // SAFETY: the caller's promise.
    unsafe { front::system_mmap(Mapping { address, length, protection, flags, file, offset }) }
}
