//! The C interface, `smdk_opt_api.h`: each function a few lines over its neighbours.
//!
//! No function here panics or waits for another thread. Types are plain integers here, since C programs may pass any
//! value.
#![expect(unsafe_code, reason = "functions that C calls")]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::fmt;
use core::ptr::null_mut;

use crate::interleave::{self, Refused};
use crate::nearfar::{
    self, nf_aligned_alloc, nf_calloc, nf_free, nf_kind_of, nf_kind_t, nf_malloc, nf_realloc,
};
use crate::nodes::{self, Memory, Nodes};
use crate::text::{self, Quoted};
use crate::{kinds, stats};

/// `SMDK_MEM_NORMAL` or `SMDK_MEM_EXMEM`.
#[expect(non_camel_case_types, reason = "as C writes types")]
pub type smdk_memtype_t = c_uint;

/// The kind for memory of a type; `None`, with errno EINVAL or ENODEV, if there is no such type or no such memory.
#[inline]
fn kind_for(memory: smdk_memtype_t) -> Option<nf_kind_t> {
    interleave::kind(Memory::of_number(memory)?)
}

/// Allocates memory of a type. NULL with errno EINVAL (no such type), ENODEV (no node is of it) or ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn s_malloc(memory: smdk_memtype_t, size: usize) -> *mut c_void {
    kind_for(memory).map_or(null_mut(), |kind| nf_malloc(kind, size))
}

/// Allocates zeroed memory. As `s_malloc`; a product that overflows is ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn s_calloc(memory: smdk_memtype_t, count: usize, size: usize) -> *mut c_void {
    kind_for(memory).map_or(null_mut(), |kind| nf_calloc(kind, count, size))
}

/// Reallocates `object` in memory of a type, in place if possible. NULL leaves `object` unchanged, except for size 0,
/// which frees it. Memory that is already of the type stays on its nodes.
///
/// # Safety
/// `object` is NULL or was allocated here, and is no longer used if another address, or NULL for size 0, is returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s_realloc(
    memory: smdk_memtype_t,
    object: *mut c_void,
    size: usize,
) -> *mut c_void {
    let Some(wanted) = Memory::of_number(memory) else { return null_mut() };
    if object.is_null() {
        return s_malloc(memory, size);
    }
    if size == 0 {
        // SAFETY: the caller's promise.
        unsafe { nf_free(object) };
        return null_mut();
    }
    let has = nf_kind_of(object);
    let stays = kinds::memory_of(has) == Some(wanted);
    let Some(kind) = (if stays { Some(has) } else { interleave::kind(wanted) }) else {
        return null_mut();
    };
    // SAFETY: the caller's promise.
    unsafe { nf_realloc(kind, object, size) }
}

/// Allocates memory at a multiple of `alignment`. Returns 0, EINVAL (no such type; `alignment` is not a power of two or
/// not a multiple of a pointer's size; `result` is NULL) or ENOMEM; errno is preserved.
///
/// # Safety
/// `result` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s_posix_memalign(
    memory: smdk_memtype_t,
    result: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    let error = text::errno();
    let aligned = alignment.is_power_of_two() && alignment >= size_of::<*mut c_void>();
    let status = match Memory::of_number(memory) {
        Some(memory) if aligned && !result.is_null() => {
            let kind = interleave::kind(memory);
            let object = kind.map_or(null_mut(), |kind| nf_aligned_alloc(kind, alignment, size));
            if object.is_null() {
                libc::ENOMEM
            } else {
                // SAFETY: the caller's promise.
                unsafe { result.write(object) };
                0
            }
        }
        _ => libc::EINVAL,
    };
    text::set_errno(error);
    status
}

/// Frees memory of any type. NULL is allowed; errno is preserved.
///
/// # Safety
/// `object` is NULL or was allocated here and is no longer used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s_free(object: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { nf_free(object) };
}

/// As `s_free`, for any valid type, whether or not the memory is of it; an invalid type is EINVAL and frees nothing.
///
/// # Safety
/// As `s_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s_free_type(memory: smdk_memtype_t, object: *mut c_void) {
    if Memory::of_number(memory).is_some() {
        // SAFETY: the caller's promise.
        unsafe { nf_free(object) };
    }
}

fn bytes(amount: u64) -> usize {
    usize::try_from(amount).unwrap_or(usize::MAX)
}

/// Total memory of all nodes of a type in bytes; 0 if there is no such type.
#[unsafe(no_mangle)]
pub extern "C" fn s_get_memsize_total(memory: smdk_memtype_t) -> usize {
    Memory::of_number(memory).map_or(0, |memory| bytes(stats::total(memory)))
}

/// Bytes of a type that this process has allocated here and not freed; 0 if there is no such type.
#[unsafe(no_mangle)]
pub extern "C" fn s_get_memsize_used(memory: smdk_memtype_t) -> usize {
    Memory::of_number(memory).map_or(0, |memory| bytes(kinds::allocated(memory)))
}

/// Free memory of all nodes of a type in bytes; 0 if there is no such type.
#[unsafe(no_mangle)]
pub extern "C" fn s_get_memsize_available(memory: smdk_memtype_t) -> usize {
    Memory::of_number(memory).map_or(0, |memory| bytes(stats::available(memory)))
}

/// Looks up a node of a type; `None`, with a message on stderr that names the called function, if the node is not of
/// the type.
fn node_of(memory: smdk_memtype_t, node: c_int, function: &str) -> Option<nearfar::Node> {
    let memory = Memory::of_number(memory)?;
    let found = nodes::each_of(memory).find(|(number, _)| u32::try_from(node) == Ok(*number));
    if found.is_none() {
        let nodes = Nodes::from_numbers(nodes::each_of(memory).map(|(number, _)| number));
        let none = if nodes.is_empty() { "none" } else { "" };
        warn(
            function,
            format_args!("node {node} is not of type {memory}, which has {none}{nodes}"),
        );
        text::set_errno(libc::ENODEV);
    }
    found.map(|(_, about)| about)
}

fn warn(function: &str, what: fmt::Arguments<'_>) {
    text::say(format_args!("[Warning] {function}: {what}"));
}

/// Memory of a node in bytes; 0, with a message on stderr, if it is not of the type.
#[unsafe(no_mangle)]
pub extern "C" fn s_get_memsize_node_total(memory: smdk_memtype_t, node: c_int) -> usize {
    node_of(memory, node, "s_get_memsize_node_total").map_or(0, |node| bytes(node.size))
}

/// Free memory of a node in bytes; 0, with a message on stderr, if it is not of the type.
#[unsafe(no_mangle)]
pub extern "C" fn s_get_memsize_node_available(memory: smdk_memtype_t, node: c_int) -> usize {
    node_of(memory, node, "s_get_memsize_node_available").map_or(0, |node| bytes(node.free))
}

/// Prints total, used and free memory by type to stderr, in GB (`g`, `G`), MB (`m`, `M`), KB (`k`, `K`) or else bytes.
#[unsafe(no_mangle)]
pub extern "C" fn s_stats_print(unit: c_char) {
    stats::print(unit.to_ne_bytes()[0]);
}

/// Prints total and free memory by node, as `s_stats_print`.
#[unsafe(no_mangle)]
pub extern "C" fn s_stats_node_print(unit: c_char) {
    stats::print_nodes(unit.to_ne_bytes()[0]);
}

/// Interleaves the calling thread's memory over these nodes: its allocations here of types that have some of the nodes,
/// and all other memory that it touches first, unless that has a policy. An invalid set changes nothing and is reported
/// on stderr.
///
/// # Safety
/// `nodes` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s_enable_node_interleave(nodes: *mut c_char) {
    const NAME: &str = "s_enable_node_interleave";
    if nodes.is_null() {
        warn(NAME, format_args!("no nodes are named, nothing changes; write 0,2-3, or all"));
        return;
    }
    // SAFETY: the caller's promise.
    let set = unsafe { CStr::from_ptr(nodes) };
    let named = Quoted(set);
    match interleave::enable(set) {
        Ok(()) => {}
        Err(Refused::Nodes) => {
            let why = nearfar::error();
            warn(NAME, format_args!("invalid node(s) {named}, nothing changes: {why}"));
        }
        Err(Refused::Policy) => {
            let why = text::errno();
            warn(NAME, format_args!("{named}, nothing changes: set_mempolicy gave errno {why}"));
        }
    }
}

/// Undoes `s_enable_node_interleave` for the calling thread, whose policy becomes the kernel's default.
#[unsafe(no_mangle)]
pub extern "C" fn s_disable_node_interleave() {
    interleave::disable();
}

/// Allocates memory on one node, given as a number as strtol reads it with base 0. NULL with errno EINVAL (no such
/// type, no number), ENODEV (no such node, or not of the type) or ENOMEM. A set of nodes, as in SMDK 1, means those of
/// them that are of the type.
///
/// # Safety
/// `node` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s_malloc_node(
    memory: smdk_memtype_t,
    size: usize,
    node: *mut c_char,
) -> *mut c_void {
    let Some(memory) = Memory::of_number(memory) else { return null_mut() };
    if node.is_null() {
        text::set_errno(libc::EINVAL);
        return null_mut();
    }
    // SAFETY: the caller's promise.
    let words = unsafe { CStr::from_ptr(node) };
    let nodes = match nodes::number(words) {
        Some(number) => Some(Nodes::from_numbers([number])),
        None => nodes::named(words),
    };
    let kind = nodes.and_then(|nodes| kinds::of_nodes(memory, &nodes));
    kind.map_or(null_mut(), |kind| nf_malloc(kind, size))
}

/// As `s_free`; type and size are ignored.
///
/// # Safety
/// As `s_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn s_free_node(_: smdk_memtype_t, object: *mut c_void, _: usize) {
    // SAFETY: the caller's promise.
    unsafe { nf_free(object) };
}
