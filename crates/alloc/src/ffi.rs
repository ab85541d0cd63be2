//! The C interface, `nearfar.h`: each function a line or two over `heap` and its neighbours.
//!
//! No function here panics, waits for another thread or writes anywhere but to what it is given. After a failure errno says
//! what, and `nf_error` in words where there are any. Replicated regions are in `ffi/replicated.rs`.
#![expect(unsafe_code, reason = "functions that C calls")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{NonNull, null_mut};

use nearfar_topology::MemoryKind;

#[cfg(feature = "checked")]
use crate::checked as heap;
#[cfg(not(feature = "checked"))]
use crate::heap;
use crate::machine::{self, KindError};
use crate::{kind, map, nodes, stats, sys, thread};

mod replicated;

pub use replicated::*;

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
/// Returns `NF_NONE` on failure, with errno EINVAL (not written as kinds are), ENODEV (such nodes are not here), EPERM (the
/// process's cpuset does not allow all of them), ENOSYS (the kernel lacks what it takes, or does not show its nodes) or ENOMEM
/// (no more kinds), and `nf_error` in words.
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
    machine::create(&text).inspect_err(failed).unwrap_or(NF_NONE)
}

/// Ends a kind with all that was allocated from it. Returns 0, or -1 with errno EINVAL if there is no such kind. Its number may
/// soon be in use again: only a checked build tells allocations from a kind that has ended from those of the next.
///
/// # Safety
/// No thread uses the kind, or memory of it, any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_kind_destroy(kind: nf_kind_t) -> c_int {
    let own = kind::find(kind).is_some_and(|kind| !kind.is_apart());
    // SAFETY: the caller's promise.
    let done = own && unsafe { kind::destroy(kind) };
    status(if done { Ok(()) } else { Err(libc::EINVAL) })
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

/// Gives memory back, of any kind. NULL is allowed; errno stays as it is. Memory that was given back before, that lies in an
/// object, or that is not from here is undefined behaviour; a checked build (feature `checked`) says so on stderr and leaves it
/// as it is, or ends the program if `NEARFAR_CONF` has `wrong=abort`.
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

/// For `nf_stats_text`: a line for each kind.
pub const NF_TEXT: c_int = 0;
/// For `nf_stats_text`: JSON, `"schema": "nearfar.alloc/1"`.
pub const NF_JSON: c_int = 1;

/// Figures of a kind, or of all if it is `NF_NONE`, as text or JSON, with what is resident on each node; that is asked page by
/// page, some 0.1 ms a MiB. Writes as much as there is room for, ended by a zero, and returns the length of all without it, like
/// snprintf. 0 with errno EINVAL if there is no such kind or format.
///
/// # Safety
/// `into` has `room` bytes; it may be NULL if that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_stats_text(
    kind: nf_kind_t,
    format: c_int,
    into: *mut c_char,
    room: usize,
) -> usize {
    let only = kind::find(kind);
    let known = only.is_some() || kind == NF_NONE;
    let text = match format {
        NF_TEXT if known => stats::text(only),
        NF_JSON if known => stats::json(only),
        _ => Err(libc::EINVAL),
    };
    let text = text.unwrap_or_else(|error| {
        sys::set_errno(error);
        String::new()
    });
    if let Some(most) = room.checked_sub(1).filter(|_| !into.is_null()) {
        let length = text.len().min(most);
        // SAFETY: the caller's promise; what is written is shorter than the room.
        unsafe { into.copy_from_nonoverlapping(text.as_ptr().cast(), length) };
        // SAFETY: as above: there is room for one more.
        let end = unsafe { into.add(length) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    text.len()
}

/// What the memory of a node is.
pub const NF_MEMORY_UNKNOWN: u32 = 0;
/// Memory on the processor's own channels.
pub const NF_MEMORY_DRAM: u32 = 1;
/// Memory behind a CXL link.
pub const NF_MEMORY_CXL: u32 = 2;
/// High-bandwidth memory on the package.
pub const NF_MEMORY_HBM: u32 = 3;
/// Persistent memory.
pub const NF_MEMORY_PMEM: u32 = 4;

/// A memory node.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nf_node_t {
    /// What its memory is: `NF_MEMORY_DRAM` and so on.
    pub memory: u32,
    /// Its tier; 0 is the fastest, `UINT32_MAX` unknown.
    pub tier: u32,
    /// How many CPUs it has.
    pub cpus: u32,
    /// Always 0.
    pub reserved: u32,
    /// Its memory in bytes.
    pub size: u64,
    /// Bytes of it that are free.
    pub free: u64,
}

/// What a node is like. Returns 0, or -1 with errno ENODEV if there is no such node.
///
/// # Safety
/// `into` has room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_node(node: u32, into: *mut nf_node_t) -> c_int {
    let (Some(about), false) = (nodes::about(node), into.is_null()) else {
        sys::set_errno(if into.is_null() { libc::EINVAL } else { libc::ENODEV });
        return -1;
    };
    let memory = match about.memory {
        MemoryKind::Dram => NF_MEMORY_DRAM,
        MemoryKind::Cxl => NF_MEMORY_CXL,
        MemoryKind::Hbm => NF_MEMORY_HBM,
        MemoryKind::Pmem => NF_MEMORY_PMEM,
        _ => NF_MEMORY_UNKNOWN,
    };
    let nodes::About { tier, cpus, size, free, .. } = about;
    // SAFETY: the caller's promise.
    unsafe { into.write(nf_node_t { memory, tier, cpus, reserved: 0, size, free }) };
    0
}

/// The nodes of a set ("far", "cxl", "0,2-3", "all"): how many, the first `room` of them written in order. -1 with errno EINVAL
/// (not written as sets are) or ENODEV (such nodes are not here), and `nf_error` in words.
///
/// # Safety
/// `set` is a string; `into` has room for `room` numbers and may be NULL if that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_nodes(set: *const c_char, into: *mut u32, room: usize) -> c_int {
    if set.is_null() {
        sys::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's promise.
    let set = unsafe { CStr::from_ptr(set) }.to_string_lossy();
    let nodes = match nodes::of_set(&set) {
        Ok(nodes) => nodes,
        Err(error) => {
            failed(&error);
            return -1;
        }
    };
    if !into.is_null() {
        // SAFETY: the caller's promise.
        unsafe { into.copy_from_nonoverlapping(nodes.as_ptr(), nodes.len().min(room)) };
    }
    c_int::try_from(nodes.len()).unwrap_or(c_int::MAX)
}

/// Adds to `bytes[n]` what is resident on node n of the `length` bytes at `memory`, which may be any of the program's; what is on
/// nodes beyond `nodes` is left out. Asked page by page, some 0.1 ms a MiB. Returns 0, or -1 with errno.
///
/// # Safety
/// `bytes` has room for `nodes` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_residency(
    memory: *const c_void,
    length: usize,
    bytes: *mut u64,
    nodes: usize,
) -> c_int {
    if bytes.is_null() {
        sys::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { core::slice::from_raw_parts_mut(bytes, nodes) };
    status(nodes::residency(memory as usize, length, bytes))
}

/// Has pages of the program's own mappings go where the kind's are, as they are touched for the first time. `memory` is on a page
/// boundary. Returns 0, or -1 with errno EINVAL (no such kind, or no page boundary), EFAULT (not mapped) or what mbind(2) says.
#[unsafe(no_mangle)]
pub extern "C" fn nf_bind(kind: nf_kind_t, memory: *mut c_void, length: usize) -> c_int {
    status(map::bind(kind, memory as usize, length))
}

/// As mmap(2), with pages that go where the kind's are. `MAP_FAILED` with errno as mmap(2) and `nf_bind`; nothing is mapped then.
/// The mapping is the program's: munmap(2) ends it, and it is not in the kind's figures.
///
/// # Safety
/// As mmap(2): with MAP_FIXED, what is at the address is not needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_mmap(
    kind: nf_kind_t,
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let address = address as usize;
    let wanted = map::Mapping { address, length, protection, flags, file, offset };
    // SAFETY: the caller's promise.
    match unsafe { map::map(kind, wanted) } {
        Ok(at) => at as *mut c_void,
        Err(error) => {
            sys::set_errno(error);
            libc::MAP_FAILED
        }
    }
}

/// One object in a place of its own, written as a kind's is, without options: "weighted:0=3,1=1". It has segments of its own
/// (64 MiB of addresses each), so it is for large objects; weights hold over it alone. Given back by `nf_free`; `nf_realloc` makes
/// it smaller in its place, or moves it to another kind. NULL with errno as `nf_kind_create` and `nf_malloc`.
///
/// # Safety
/// `place` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_malloc_placed(place: *const c_char, size: usize) -> *mut c_void {
    if place.is_null() {
        sys::set_errno(libc::EINVAL);
        return null_mut();
    }
    // SAFETY: the caller's promise.
    let place = unsafe { CStr::from_ptr(place) }.to_string_lossy();
    let object = machine::allocate_placed(&place, size);
    pointer(object.inspect_err(failed).ok())
}

/// Leaves an error to errno, and its words, if there are any, to `nf_error`: for what `nearfar.h` has of other crates.
pub fn fail(errno: i32, words: Option<&str>) {
    if let Some(words) = words {
        thread::set_error(words);
    }
    sys::set_errno(errno);
}

/// Leaves an error to `nf_error` and errno.
fn failed(error: &KindError) {
    thread::set_error(&error.to_string());
    sys::set_errno(error.errno());
}

fn status(done: Result<(), i32>) -> c_int {
    done.map_or_else(
        |error| {
            sys::set_errno(error);
            -1
        },
        |()| 0,
    )
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
