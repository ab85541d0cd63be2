//! numpy's memory handler (NEP 49), the functions that it calls for the data of arrays: created for a kind, and
//! installed.
//!
//! A handler is a structure in a capsule. Every array holds the capsule of the handler that allocated it and is freed
//! by that handler. So arrays may outlive the block that made them, and the handle of their kind lives in the capsule.
//! numpy itself keeps the current handler: one for each context (thread, task).
#![expect(unsafe_code, reason = "functions that numpy calls, and one of numpy's that is called")]

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ptr::{NonNull, without_provenance_mut};
use std::sync::Arc;

use nearfar_alloc::ffi::{NF_NONE, nf_calloc, nf_free, nf_kind_t, nf_malloc, nf_realloc};
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::kind::{Handle, Kind};

/// The name that numpy requires of such capsules.
const NAME: &CStr = c"mem_handler";
/// The index of `PyDataMem_SetHandler` in numpy's function table, since 1.22.
const SET_HANDLER: usize = 304;
/// The version of the structure below.
const VERSION: u8 = 1;

/// `PyDataMemAllocator`.
#[repr(C)]
struct Allocator {
    context: *mut c_void,
    malloc: extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// `PyDataMem_Handler`, followed by fields that numpy does not access.
#[repr(C)]
struct Hook {
    name: [c_char; 127],
    version: u8,
    allocator: Allocator,
    /// Releases the kind when the last array that this handler allocated is freed.
    _kind: Arc<Handle>,
}

// SAFETY: the context is an integer, not an address.
unsafe impl Send for Hook {}

/// The context that numpy passes to a handler's functions holds the kind's number.
fn number(context: *mut c_void) -> nf_kind_t {
    nf_kind_t::try_from(context.addr()).unwrap_or(NF_NONE)
}

extern "C" fn malloc(context: *mut c_void, size: usize) -> *mut c_void {
    nf_malloc(number(context), size)
}

extern "C" fn calloc(context: *mut c_void, count: usize, size: usize) -> *mut c_void {
    nf_calloc(number(context), count, size)
}

unsafe extern "C" fn realloc(context: *mut c_void, old: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: numpy passes back memory of this handler.
    unsafe { nf_realloc(number(context), old, size) }
}

unsafe extern "C" fn free(_: *mut c_void, old: *mut c_void, _: usize) {
    // SAFETY: as above.
    unsafe { nf_free(old) };
}

/// Creates a handler for numpy, as a capsule, that allocates from a kind.
#[pyfunction]
pub(crate) fn numpy_handler<'py>(
    py: Python<'py>,
    kind: &Bound<'py, Kind>,
    name: &str,
) -> PyResult<Bound<'py, PyCapsule>> {
    let held = kind.get().hold()?;
    let mut place = [0; 127];
    // The last byte stays zero.
    for (to, from) in place.iter_mut().take(126).zip(name.bytes().filter(u8::is_ascii)) {
        *to = c_char::from_ne_bytes([from]);
    }
    let context = without_provenance_mut(held.number() as usize);
    let allocator = Allocator { context, malloc, calloc, realloc, free };
    let hook = Hook { name: place, version: VERSION, allocator, _kind: held };
    PyCapsule::new_with_value(py, hook, NAME)
}

/// Installs a handler in the calling context; returns the previous one.
///
/// `api` is numpy's `_ARRAY_API`.
#[pyfunction]
pub(crate) fn numpy_use<'py>(
    api: &Bound<'py, PyCapsule>,
    handler: &Bound<'py, PyCapsule>,
) -> PyResult<Bound<'py, PyAny>> {
    type SetHandler = unsafe extern "C" fn(*mut PyObject) -> *mut PyObject;
    let table: NonNull<*const c_void> = api.pointer_checked(None)?.cast();
    handler.pointer_checked(Some(NAME))?;
    // SAFETY: the table of every numpy for this Python version is longer.
    let place = unsafe { table.add(SET_HANDLER) };
    // SAFETY: as above.
    let function = unsafe { place.read() };
    // SAFETY: numpy documents that this entry is this function, and keeps the order of its table.
    let set = unsafe { transmute::<*const c_void, SetHandler>(function) };
    // SAFETY: a capsule of the required name, to which numpy takes a reference.
    let old = unsafe { set(handler.as_ptr()) };
    // SAFETY: an owned reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(api.py(), old) }
}
