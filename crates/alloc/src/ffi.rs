//! The C interface, `nearfar.h`: each function is a line or two over `heap` and its neighbours.
//!
//! No function here panics or writes outside of the memory passed to it, and only `nf_kind_destroy` waits for another
//! thread. After a failure errno has the code, and `nf_error` the message where there is one. Replicated regions are in
//! `ffi/replicated.rs`.
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

/// A memory kind: returned by `nf_kind_create`, or `NF_DEFAULT`.
#[expect(non_camel_case_types, reason = "as C writes types")]
pub type nf_kind_t = u32;

/// Plain memory, placed by the process's memory policy.
pub const NF_DEFAULT: nf_kind_t = 0;
const _: () = assert!(NF_DEFAULT == kind::DEFAULT);

/// The invalid kind: `nf_kind_create` returns it on failure, and allocations from it fail.
pub const NF_NONE: nf_kind_t = 0xffff_ffff;

fn pointer(memory: Option<NonNull<u8>>) -> *mut c_void {
    memory.map_or(null_mut(), |memory| memory.as_ptr().cast())
}

/// Creates a memory kind: "far", "bind:0,2-3", "prefer:cxl", "interleave:all", "weighted:0=3,1=1", "capacity",
/// "latency" or "bandwidth", with options like ";limit=4g;spill=near;huge=yes".
///
/// Returns `NF_NONE` on failure, with errno EINVAL (invalid specification), ENODEV (such nodes do not exist), EPERM
/// (the process's cpuset does not allow all of them), ENOSYS (the kernel lacks the policy, or does not show its nodes)
/// or ENOMEM (no more kinds), and a message in `nf_error`.
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

/// Destroys a kind with all that was allocated from it. Returns 0, or -1 with errno EINVAL if there is no such kind.
/// Its number may be reused soon: only a checked build distinguishes allocations of a destroyed kind from those of the
/// next. Threads that used the kind may be ending, and others may be in `nf_stats_text`, for which this waits.
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

/// Allocates `size` bytes of a kind; size 0 returns a unique address. NULL with errno ENOMEM if there is no memory (the
/// kind's limit is reached and it has no spill), EINVAL if there is no such kind.
#[unsafe(no_mangle)]
pub extern "C" fn nf_malloc(kind: nf_kind_t, size: usize) -> *mut c_void {
    pointer(heap::allocate(kind, size))
}

/// Allocates zeroed memory for `count` elements of `size` bytes. As `nf_malloc`; a product that overflows is ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn nf_calloc(kind: nf_kind_t, count: usize, size: usize) -> *mut c_void {
    let Some(size) = count.checked_mul(size) else {
        sys::set_errno(libc::ENOMEM);
        return null_mut();
    };
    pointer(heap::allocate_zeroed(kind, size))
}

/// Allocates memory at a multiple of `alignment`, a power of two (else EINVAL), which may exceed 1 GiB. `size` need not
/// be a multiple.
#[unsafe(no_mangle)]
pub extern "C" fn nf_aligned_alloc(kind: nf_kind_t, alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() {
        sys::set_errno(libc::EINVAL);
        return null_mut();
    }
    pointer(heap::allocate_aligned(kind, alignment, size))
}

/// Reallocates `memory`, which may be of another kind, in a kind, preserving its content. On failure `memory` stays
/// valid, with NULL returned and errno as `nf_malloc`. A NULL `memory` is like `nf_malloc`; size 0 is like size 1.
///
/// # Safety
/// `memory` is NULL or was allocated here, and is not used any more if another address is returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_realloc(
    kind: nf_kind_t,
    memory: *mut c_void,
    size: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    pointer(unsafe { heap::reallocate(kind, memory.cast(), size) })
}

/// Frees memory of any kind. NULL is allowed; errno is preserved. Double frees, interior pointers and foreign memory
/// are undefined behaviour; a checked build (feature `checked`) reports them on stderr and ignores them, or ends the
/// program if `NEARFAR_CONF` has `wrong=abort`.
///
/// # Safety
/// `memory` is NULL or was allocated here, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_free(memory: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { heap::free(memory.cast()) };
}

/// The usable size of `memory`, at least the requested size. 0 for NULL.
///
/// # Safety
/// `memory` is NULL or was allocated here and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_usable_size(memory: *const c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { heap::usable_size(memory as usize) }
}

/// The kind that memory belongs to; `NF_DEFAULT` for other memory. The pointer is not dereferenced.
#[unsafe(no_mangle)]
pub extern "C" fn nf_kind_of(memory: *const c_void) -> nf_kind_t {
    heap::kind_of(memory as usize)
}

/// Statistics of a kind since its creation, in bytes and counts; not an atomic snapshot while other threads allocate.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nf_stats_t {
    /// Bytes in use, with objects rounded up to their size classes.
    pub allocated: u64,
    /// Bytes in free objects that are cached for later allocations.
    pub kept: u64,
    /// Bytes of reserved address space; unused parts need not be resident.
    pub set_aside: u64,
    /// The maximum of `set_aside`; `UINT64_MAX`: no limit.
    pub limit: u64,
    /// Calls of mbind(2).
    pub binds: u64,
    /// Allocations that the kind's spill served.
    pub spilled: u64,
    /// Allocations that failed.
    pub failed: u64,
}

/// Reads the statistics of a kind. Returns 0, or -1 with errno EINVAL if there is no such kind; the default has none.
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

/// Formats the statistics of a kind, or of all for `NF_NONE`, as text or JSON, with the resident bytes on each node.
/// Residency is queried page by page, some 0.1 ms per MiB. Writes as much as fits, terminated by a zero, and returns
/// the full length without the zero, like snprintf. 0 with errno EINVAL if there is no such kind or format.
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
        // SAFETY: the caller's promise; the copied part is shorter than the room.
        unsafe { into.copy_from_nonoverlapping(text.as_ptr().cast(), length) };
        // SAFETY: as above: there is room for one more.
        let end = unsafe { into.add(length) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    text.len()
}

/// The kind of a node's memory.
pub const NF_MEMORY_UNKNOWN: u32 = 0;
/// Memory on the processor's own channels.
pub const NF_MEMORY_DRAM: u32 = 1;
/// Memory behind a CXL link.
pub const NF_MEMORY_CXL: u32 = 2;
/// High-bandwidth memory on the package.
pub const NF_MEMORY_HBM: u32 = 3;
/// Persistent memory.
pub const NF_MEMORY_PMEM: u32 = 4;
/// Memory of a GPU, which no set but `gpu` names.
pub const NF_MEMORY_GPU: u32 = 5;

/// A memory node.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nf_node_t {
    /// The kind of its memory: `NF_MEMORY_DRAM` and so on.
    pub memory: u32,
    /// Its tier; 0 is the fastest, `UINT32_MAX` unknown.
    pub tier: u32,
    /// Number of its CPUs.
    pub cpus: u32,
    /// Always 0.
    pub reserved: u32,
    /// Its memory in bytes.
    pub size: u64,
    /// Its free memory in bytes.
    pub free: u64,
}

/// Describes a node. Returns 0, or -1 with errno ENODEV if there is no such node.
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
        MemoryKind::Gpu => NF_MEMORY_GPU,
        _ => NF_MEMORY_UNKNOWN,
    };
    let nodes::About { tier, cpus, size, free, .. } = about;
    // SAFETY: the caller's promise.
    unsafe { into.write(nf_node_t { memory, tier, cpus, reserved: 0, size, free }) };
    0
}

/// Resolves a node set ("far", "cxl", "0,2-3", "all"): returns the number of nodes and writes the first `room` of them
/// in order. -1 with errno EINVAL (invalid expression) or ENODEV (such nodes do not exist), and a message in
/// `nf_error`.
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

/// Adds to `bytes[n]` the resident bytes on node n of the `length` bytes at `memory`, which may be any of the program's
/// memory; nodes from `nodes` on are omitted. Queried page by page, some 0.1 ms per MiB. Returns 0, or -1 with errno.
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

/// Places the pages of the program's own mappings as the kind's, when they are touched for the first time. `memory` is
/// on a page boundary. Returns 0, or -1 with errno EINVAL (no such kind, or no page boundary), EFAULT (not mapped) or
/// an errno of mbind(2).
#[unsafe(no_mangle)]
pub extern "C" fn nf_bind(kind: nf_kind_t, memory: *mut c_void, length: usize) -> c_int {
    status(map::bind(kind, memory as usize, length))
}

/// As mmap(2), with pages that are placed as the kind's. `MAP_FAILED` with errno as mmap(2) and `nf_bind`; nothing is
/// mapped then. The mapping is the program's: it is unmapped by munmap(2), and is not in the kind's statistics.
///
/// # Safety
/// As mmap(2): with MAP_FIXED, existing content at the address is not needed.
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

/// Allocates one object with a placement of its own, a specification of a kind without options: "weighted:0=3,1=1". It
/// has segments of its own (64 MiB of addresses each), so it is for large objects; weights apply to it alone. `nf_free`
/// frees it; `nf_realloc` shrinks it in place, or moves it to another kind. NULL with errno as `nf_kind_create` and
/// `nf_malloc`.
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
    let object = heap::allocate_placed(&place, size);
    pointer(object.inspect_err(failed).ok())
}

/// Sets errno and, if there is one, the message of `nf_error`: for functions that other crates add to `nearfar.h`.
pub fn fail(errno: i32, words: Option<&str>) {
    if let Some(words) = words {
        thread::set_error(words);
    }
    sys::set_errno(errno);
}

/// Reports an error through `nf_error` and errno.
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

/// The number of the binary interface, which is part of the library's soname.
#[unsafe(no_mangle)]
pub extern "C" fn nf_abi_version() -> u32 {
    0
}

/// The message of the calling thread's last error that had one; "" if none. It stays valid until the next such error.
#[unsafe(no_mangle)]
pub extern "C" fn nf_error() -> *const c_char {
    thread::error().cast()
}
