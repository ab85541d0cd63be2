//! The functions used of libnearfar, as declared in `nearfar.h`.
#![expect(unsafe_code, reason = "functions of a C library")]

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;

use crate::variables::Refused;

/// A memory kind.
pub(crate) type Kind = u32;

/// The kind of memory outside all kinds, including libc's.
pub(crate) const NF_DEFAULT: Kind = 0;
const NF_NONE: Kind = 0xffff_ffff;

/// The maximum number of nodes in Linux.
pub(crate) const NODES: usize = 1024;

unsafe extern "C" {
    fn nf_kind_create(text: *const c_char) -> Kind;
    fn nf_nodes(set: *const c_char, into: *mut u32, room: usize) -> c_int;
    safe fn nf_error() -> *const c_char;
    pub(crate) safe fn nf_malloc(kind: Kind, size: usize) -> *mut c_void;
    pub(crate) safe fn nf_calloc(kind: Kind, count: usize, size: usize) -> *mut c_void;
    pub(crate) safe fn nf_aligned_alloc(kind: Kind, alignment: usize, size: usize) -> *mut c_void;
    pub(crate) fn nf_realloc(kind: Kind, memory: *mut c_void, size: usize) -> *mut c_void;
    pub(crate) fn nf_free(memory: *mut c_void);
    pub(crate) fn nf_usable_size(memory: *const c_void) -> usize;
    pub(crate) safe fn nf_kind_of(memory: *const c_void) -> Kind;
}

/// Creates a kind from a specification.
pub(crate) fn kind(text: &str) -> Result<Kind, Refused> {
    let text = string(text)?;
    // SAFETY: a C string.
    let kind = unsafe { nf_kind_create(text.as_ptr()) };
    if kind == NF_NONE { Err(last()) } else { Ok(kind) }
}

/// The nodes of a set, in order.
pub(crate) fn nodes(set: &str) -> Result<Vec<u32>, Refused> {
    let set = string(set)?;
    let mut nodes = vec![0; NODES];
    // SAFETY: a C string, and an array of the length passed.
    let there = unsafe { nf_nodes(set.as_ptr(), nodes.as_mut_ptr(), nodes.len()) };
    nodes.truncate(usize::try_from(there).map_err(|_| last())?);
    Ok(nodes)
}

fn string(text: &str) -> Result<CString, Refused> {
    let refused = |_| Refused { errno: libc::EINVAL, words: format!("{text:?} holds a zero") };
    CString::new(text).map_err(refused)
}

/// The error of the last call.
fn last() -> Refused {
    let errno = errno();
    // SAFETY: a string of the calling thread, which is copied before the next call.
    let words = unsafe { CStr::from_ptr(nf_error()) };
    Refused { errno, words: words.to_string_lossy().into_owned() }
}

/// The calling thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's own.
    unsafe { *errno }
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's own.
    unsafe { *errno = value };
}
