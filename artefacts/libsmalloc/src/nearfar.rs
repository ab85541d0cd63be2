//! The functions used of libnearfar (`nearfar.h`), declared by hand: `build.rs` explains why it is not a crate
//! dependency.
#![expect(unsafe_code, reason = "functions of a C library")]

use core::ffi::{CStr, c_char, c_int, c_void};

/// A memory kind.
#[expect(non_camel_case_types, reason = "as C writes types")]
pub(crate) type nf_kind_t = u32;

/// Plain memory.
pub(crate) const NF_DEFAULT: nf_kind_t = 0;
/// The invalid kind.
const NF_NONE: nf_kind_t = 0xffff_ffff;

/// `nf_stats_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    allocated: u64,
    _others: [u64; 6],
}

/// `nf_node_t`: a node, sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Node {
    _memory: u32,
    _tier: u32,
    pub(crate) cpus: u32,
    _reserved: u32,
    pub(crate) size: u64,
    pub(crate) free: u64,
}

unsafe extern "C" {
    pub(crate) safe fn nf_malloc(kind: nf_kind_t, size: usize) -> *mut c_void;
    pub(crate) safe fn nf_calloc(kind: nf_kind_t, count: usize, size: usize) -> *mut c_void;
    pub(crate) safe fn nf_aligned_alloc(
        kind: nf_kind_t,
        alignment: usize,
        size: usize,
    ) -> *mut c_void;
    /// The memory is of libnearfar, and no longer used if another address is returned.
    pub(crate) fn nf_realloc(kind: nf_kind_t, memory: *mut c_void, size: usize) -> *mut c_void;
    /// The memory is of libnearfar or null, and no longer used.
    pub(crate) fn nf_free(memory: *mut c_void);
    pub(crate) safe fn nf_kind_of(memory: *const c_void) -> nf_kind_t;
    fn nf_kind_create(text: *const c_char) -> nf_kind_t;
    fn nf_kind_destroy(kind: nf_kind_t) -> c_int;
    fn nf_stats(kind: nf_kind_t, into: *mut Figures) -> c_int;
    fn nf_node(node: u32, into: *mut Node) -> c_int;
    fn nf_nodes(set: *const c_char, nodes: *mut u32, room: usize) -> c_int;
    fn nf_error() -> *const c_char;
}

/// Creates a kind; `None`, with errno set, on failure.
pub(crate) fn create(text: &CStr) -> Option<nf_kind_t> {
    // SAFETY: a C string.
    let kind = unsafe { nf_kind_create(text.as_ptr()) };
    (kind != NF_NONE).then_some(kind)
}

/// Destroys a kind that is unused and not published.
pub(crate) fn destroy_unused(kind: nf_kind_t) {
    // SAFETY: the caller's promise: it is unused.
    unsafe { nf_kind_destroy(kind) };
}

/// Bytes allocated from a kind and not freed.
pub(crate) fn allocated(kind: nf_kind_t) -> u64 {
    let mut figures = Figures::default();
    // SAFETY: a valid place for the statistics.
    let status = unsafe { nf_stats(kind, &raw mut figures) };
    if status == 0 { figures.allocated } else { 0 }
}

/// A node's current state; `None` if it does not exist.
pub(crate) fn node(node: u32) -> Option<Node> {
    let mut about = Node::default();
    // SAFETY: a valid place for a node.
    let status = unsafe { nf_node(node, &raw mut about) };
    (status == 0).then_some(about)
}

/// The nodes of a node set expression, written to `room`; `None`, with errno set, on failure.
pub(crate) fn nodes<'a>(set: &CStr, room: &'a mut [u32]) -> Option<&'a [u32]> {
    // SAFETY: a C string, and an array of the length passed.
    let count = unsafe { nf_nodes(set.as_ptr(), room.as_mut_ptr(), room.len()) };
    let count = usize::try_from(count).ok()?;
    Some(&room[..count.min(room.len())])
}

/// The message for this thread's last error.
pub(crate) fn error() -> &'static str {
    // SAFETY: no preconditions.
    let words = unsafe { nf_error() };
    // SAFETY: a string that is valid until this thread's next error; it is printed before that.
    unsafe { CStr::from_ptr(words) }.to_str().unwrap_or("")
}
