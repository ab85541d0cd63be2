//! Replacements of functions that start threads: they ensure that jemalloc is initialised before a second thread
//! exists.
#![expect(unsafe_code, reason = "functions that C calls")]

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute;

use nearfar_alloc::front;

/// Arguments of pthread_create(3) and thrd_create(3): addresses that are passed on unchanged.
type Four = extern "C" fn(*mut c_void, *const c_void, *const c_void, *mut c_void) -> c_int;
type Three = extern "C" fn(*mut c_void, *const c_void, *mut c_void) -> c_int;

/// The C library's error codes for missing resources: EAGAIN, and `thrd_error`.
const NONE: [c_int; 2] = [11, 2];

fn next(name: &CStr) -> *mut c_void {
    front::before_threads(name)
}

/// pthread_create(3).
#[unsafe(no_mangle)]
pub extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    start: *const c_void,
    argument: *mut c_void,
) -> c_int {
    let found = next(c"pthread_create");
    if found.is_null() {
        return NONE[0];
    }
    // SAFETY: the C library's function of that name, which has this signature.
    let found: Four = unsafe { transmute(found) };
    found(thread, attributes, start, argument)
}

/// thrd_create(3).
#[unsafe(no_mangle)]
pub extern "C" fn thrd_create(
    thread: *mut c_void,
    start: *const c_void,
    argument: *mut c_void,
) -> c_int {
    let found = next(c"thrd_create");
    if found.is_null() {
        return NONE[1];
    }
    // SAFETY: as above.
    let found: Three = unsafe { transmute(found) };
    found(thread, start, argument)
}
