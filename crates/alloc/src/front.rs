//! Replacement of the program's malloc; the preload library forwards to it.
//!
//! Memory comes from the *heap*, which is plain memory until [`begin`] has read the configuration (`setup`): earlier
//! allocations, by the dynamic linker and other libraries' constructors, are plain. `free` takes both.
//!
//! The plain heap is unmodified jemalloc; one comparison shows that a pointer does not belong to a kind.
#![expect(unsafe_code, reason = "malloc and free")]

use core::ffi::{CStr, c_int, c_void};
use core::ptr::{NonNull, null_mut};

#[cfg(not(feature = "checked"))]
use tikv_jemalloc_sys as je;

#[cfg(feature = "checked")]
use crate::checked::{self as heap, plain as je};
use crate::choice::kind_for;
#[cfg(not(feature = "checked"))]
use crate::heap;
use crate::kind::{self, DEFAULT};
use crate::map::{self, Mapping};
pub use crate::setup::begin;
use crate::{arena, choice, space, sys};

fn raw(object: Option<NonNull<u8>>) -> *mut c_void {
    object.map_or(null_mut(), |object| object.as_ptr().cast())
}

/// Handles a full kind: retries once if limits can be raised, else returns NULL or aborts.
#[cold]
fn when_full(again: impl Fn() -> Option<NonNull<u8>>) -> *mut c_void {
    let error = sys::errno();
    if choice::raises() {
        kind::all().for_each(|kind| kind.raise_limit());
        if let Some(object) = again() {
            return raw(Some(object));
        }
    }
    if choice::aborts() {
        sys::say(
            "nearfar: the heap has no more memory, and the configuration has the program end then\n",
        );
        std::process::abort();
    }
    sys::set_errno(error);
    null_mut()
}

/// Leaves jemalloc's initialisation to its first use. For a constructor that runs before others, of a library that
/// calls [`before_threads`] so that jemalloc is initialised before a second thread starts.
pub fn initialise_later() {
    arena::later();
}

/// Looks up the function that this name would resolve to without the preload library, after initialising jemalloc. For
/// functions that start threads: a child that is forked while another thread initialises jemalloc could not allocate.
#[must_use]
pub fn before_threads(name: &CStr) -> *mut c_void {
    arena::wake();
    // SAFETY: a name.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// malloc(3).
#[inline(always)]
#[must_use]
pub fn malloc(size: usize) -> *mut c_void {
    let kind = kind_for(size);
    if kind == DEFAULT {
        // SAFETY: no preconditions.
        return unsafe { je::malloc(size) };
    }
    match heap::quickly(kind, size) {
        Some(object) => object.as_ptr().cast(),
        None => malloc_otherwise(kind, size),
    }
}

#[cold]
#[inline(never)]
fn malloc_otherwise(kind: u32, size: usize) -> *mut c_void {
    let allocate = || heap::allocate(kind, size);
    allocate().map_or_else(|| when_full(allocate), |object| object.as_ptr().cast())
}

/// calloc(3).
#[inline(always)]
#[must_use]
pub fn calloc(count: usize, size: usize) -> *mut c_void {
    let all = count.saturating_mul(size);
    let kind = kind_for(all);
    if kind == DEFAULT {
        // SAFETY: no preconditions.
        return unsafe { je::calloc(count, size) };
    }
    match heap::allocate_zeroed(kind, all) {
        Some(object) => object.as_ptr().cast(),
        None => when_full(|| heap::allocate_zeroed(kind, all)),
    }
}

/// Memory at a multiple of `alignment`, a power of two.
fn aligned(alignment: usize, size: usize) -> *mut c_void {
    let kind = kind_for(size);
    if kind == DEFAULT {
        return raw(heap::plain_aligned(alignment, size));
    }
    let object = heap::allocate_aligned(kind, alignment, size);
    if object.is_some() {
        return raw(object);
    }
    when_full(|| heap::allocate_aligned(kind, alignment, size))
}

/// aligned_alloc(3), and memalign(3) for alignments that are powers of two: NULL with EINVAL for others.
#[must_use]
pub fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() {
        sys::set_errno(libc::EINVAL);
        return null_mut();
    }
    aligned(alignment, size)
}

/// posix_memalign(3); errno stays as it is.
///
/// # Safety
/// `into` has room for a pointer.
pub unsafe fn posix_memalign(into: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let error = sys::errno();
    let object = aligned(alignment, size);
    sys::set_errno(error);
    if object.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { into.write(object) };
    0
}

/// realloc(3); with size 0 it frees and returns NULL.
///
/// # Safety
/// As realloc(3).
#[must_use]
pub unsafe fn realloc(object: *mut c_void, size: usize) -> *mut c_void {
    if object.is_null() {
        return malloc(size);
    }
    if size == 0 {
        // SAFETY: the caller's promise.
        unsafe { free(object) };
        return null_mut();
    }
    let wanted = kind_for(size);
    let has = heap::kind_of(object as usize);
    if wanted == DEFAULT && space::offset_of(object as usize).is_none() {
        // SAFETY: the caller's promise; it is not of a kind, so jemalloc's.
        return unsafe { je::realloc(object, size) };
    }
    // An object of a kind stays with its kind, even if that is not the heap's: it may have been spilled.
    let first = if has == DEFAULT { wanted } else { has };
    // SAFETY: the caller's promise.
    let again = |kind| unsafe { heap::reallocate(kind, object.cast(), size) };
    match again(first).or_else(|| again(wanted)) {
        Some(moved) => moved.as_ptr().cast(),
        None => when_full(|| again(wanted)),
    }
}

/// free(3).
///
/// # Safety
/// As free(3).
#[inline(always)]
pub unsafe fn free(object: *mut c_void) {
    if space::offset_of(object as usize).is_none() {
        // SAFETY: the caller's promise; it is of no kind, so jemalloc's.
        return unsafe { je::free(object) };
    }
    // SAFETY: the caller's promise.
    unsafe { heap::free(object.cast()) };
}

/// malloc_usable_size(3).
///
/// # Safety
/// As malloc_usable_size(3).
#[must_use]
pub unsafe fn usable_size(object: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { heap::usable_size(object as usize) }
}

/// mmap(2). Writable private anonymous memory is placed as the heap is, if it is large enough; stacks are not.
///
/// # Safety
/// As mmap(2).
#[must_use]
pub unsafe fn mmap(wanted: Mapping) -> *mut c_void {
    const KIND: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    const STACK: c_int = libc::MAP_STACK | libc::MAP_GROWSDOWN;
    let is_data =
        wanted.flags & (KIND | STACK) == KIND && wanted.protection & libc::PROT_WRITE != 0;
    let kind = if is_data { choice::kind_for_mapping(wanted.length) } else { DEFAULT };
    // SAFETY: the caller's promise.
    mapped(unsafe { map::map_if_can(kind, wanted) })
}

/// mmap(2) itself.
///
/// # Safety
/// As mmap(2).
#[must_use]
pub unsafe fn system_mmap(wanted: Mapping) -> *mut c_void {
    // SAFETY: the caller's promise.
    mapped(unsafe { map::map(DEFAULT, wanted) })
}

fn mapped(at: Result<usize, c_int>) -> *mut c_void {
    at.map_or_else(
        |error| {
            sys::set_errno(error);
            libc::MAP_FAILED
        },
        |at| at as *mut c_void,
    )
}
