//! The functions of `nearfar.h` for replicated regions.
//!
//! Unlike the other functions, read, write and sync may wait for another thread that writes the same granule, for as
//! long as the copy takes.
#![expect(unsafe_code, reason = "functions that C calls")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use std::sync::Arc;

use super::status;
use crate::region::Region;
use crate::regions::{self, ReplicatedError};
use crate::{sys, thread};

/// A replicated region: memory with a copy on each of several nodes, for data that is read far more often than written.
/// Threads may read and write it concurrently. It consists of granules, 4 KiB by default: each is read and written
/// atomically, and no thread reads an older version than it has read before. An access to several granules is split by
/// granule.
///
/// A written granule is read at home, the node that is written first, until it has not been written for a quiet time;
/// then the first reader on a node has it copied there. `nf_replicated_sync` copies everything at once.
///
/// A child of fork shares the memory, and parent and child each destroy the region for themselves. A process that is
/// killed during a write leaves the granule partly written, and other users of the region wait for it for ever.
#[expect(non_camel_case_types, reason = "as C writes types")]
#[derive(Debug)]
pub struct nf_replicated_t {
    _nothing: [u8; 0],
}

/// Statistics of a region since its creation, counted in granules.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nf_replicated_stats_t {
    /// Granules written, counting each granule that a write touches.
    pub writes: u64,
    /// Times that a write invalidated the copies of a granule.
    pub collapses: u64,
    /// Copies made.
    pub copies: u64,
    /// Granules that reached the maximum of collapses and are always read at home.
    pub settled: u64,
}

/// The region behind a pointer.
///
/// # Safety
/// `region` is NULL, or a region that lives as long as it is used.
unsafe fn behind<'a>(region: *const nf_replicated_t) -> Option<&'a Region> {
    // SAFETY: the caller's promise; what `nf_replicated_create` gave points to one.
    unsafe { region.cast::<Region>().as_ref() }
}

/// Creates a zeroed region of `size` bytes. `words` are nodes followed by options:
/// "0-3;home=2;granule=64k;quiet=1s;collapses=any". NULL, or no nodes, means all nodes that have CPUs; nodes without
/// CPUs only have copies if they are named. Nothing is resident before it is written or read.
///
/// `home=NODE` is the node written first (default: the first node); `granule=SIZE` is a power of two of 256 to 2m;
/// `quiet=TIME` is the time without a write after which a granule is copied again (100ms); after `collapses=N`
/// invalidations a granule is never copied again (16; "any": no maximum).
///
/// Returns NULL on failure, with errno EINVAL (invalid specification, or no bytes), ENODEV (such nodes do not exist, or
/// have no memory), EPERM (the process's cpuset does not allow all of them), ENOMEM (a node has less memory, or no
/// address space), ENOSYS (the system does not show its nodes), EFBIG (RLIMIT_FSIZE) or an errno of memfd_create(2),
/// and a message in `nf_error`.
///
/// # Safety
/// `words` is a string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_create(
    words: *const c_char,
    size: usize,
) -> *mut nf_replicated_t {
    let words = if words.is_null() {
        c""
    } else {
        // SAFETY: the caller's promise.
        unsafe { CStr::from_ptr(words) }
    };
    let made = regions::create(&words.to_string_lossy(), size).inspect_err(failed);
    made.map_or(null_mut(), |region| Arc::into_raw(region).cast_mut().cast())
}

/// Destroys a region, with all views of it. Returns 0, or -1 with errno EINVAL if `region` is NULL.
///
/// # Safety
/// `region` is NULL or was created here and not destroyed; no thread accesses it, or a view of it, any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_destroy(region: *mut nf_replicated_t) -> c_int {
    if region.is_null() {
        return status(Err(libc::EINVAL));
    }
    // SAFETY: the caller's promise: it is what `Arc::into_raw` gave, and given back once.
    drop(unsafe { Arc::from_raw(region.cast::<Region>()) });
    status(Ok(()))
}

/// Reads `length` bytes from `offset` on, from the copy of the calling thread's node. Returns 0, or -1 with errno
/// EINVAL if they are not all within the region, or `region` is NULL. Not from a signal handler.
///
/// # Safety
/// `region` is NULL or a region; `into` has room, and does not overlap the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_read(
    region: *const nf_replicated_t,
    offset: usize,
    into: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(region) = (unsafe { behind(region) }) else { return status(Err(libc::EINVAL)) };
    // SAFETY: as above.
    let done = unsafe { region.read(offset, into as usize, length) };
    status(done.map_err(|_| libc::EINVAL))
}

/// Writes `length` bytes from `offset` on. Afterwards no thread that is synchronised with the caller reads the previous
/// content. Returns 0, or -1 with errno as `nf_replicated_read`, and nothing is written. Not from a signal handler.
///
/// # Safety
/// `region` is NULL or a region; `from` has that many bytes, and does not overlap the region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_write(
    region: *mut nf_replicated_t,
    offset: usize,
    from: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(region) = (unsafe { behind(region) }) else { return status(Err(libc::EINVAL)) };
    // SAFETY: as above.
    let done = unsafe { region.write(offset, from as usize, length) };
    status(done.map_err(|_| libc::EINVAL))
}

/// Waits until every copy contains all writes before the call. Returns 0, or -1 with errno EINVAL if `region` is NULL.
///
/// # Safety
/// `region` is NULL or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_sync(region: *mut nf_replicated_t) -> c_int {
    // SAFETY: the caller's promise.
    let region = unsafe { behind(region) };
    status(region.map(Region::sync).ok_or(libc::EINVAL))
}

/// The address of the copy of the calling thread's node, for reading without copying: it is read-only. It shows all
/// writes before the last `nf_replicated_sync` that has returned, and any part or none of later writes until the next.
/// So write, sync, and let threads read the view while there are no writes. It stays valid until the region is
/// destroyed, on whichever node a thread runs: only its distance changes. NULL with errno EINVAL if `region` is NULL.
///
/// # Safety
/// `region` is NULL or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_view(region: *const nf_replicated_t) -> *const c_void {
    // SAFETY: the caller's promise.
    let region = unsafe { behind(region) };
    region.map_or_else(
        || {
            sys::set_errno(libc::EINVAL);
            null()
        },
        |region| region.view().cast(),
    )
}

/// The size of a region in bytes, as passed at its creation; 0 for NULL.
///
/// # Safety
/// `region` is NULL or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_size(region: *const nf_replicated_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { behind(region) }.map_or(0, |region| region.size)
}

/// The nodes of the copies, home first: returns their number and writes the first `room` of them. -1 with errno EINVAL
/// if `region` is NULL.
///
/// # Safety
/// `region` is NULL or a region; `into` has room for `room` numbers and may be NULL if that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_nodes(
    region: *const nf_replicated_t,
    into: *mut u32,
    room: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(region) = (unsafe { behind(region) }) else { return status(Err(libc::EINVAL)) };
    let nodes: Vec<u32> = region.nodes.iter().map(|node| u32::from(node.0)).collect();
    if !into.is_null() {
        // SAFETY: the caller's promise.
        unsafe { into.copy_from_nonoverlapping(nodes.as_ptr(), nodes.len().min(room)) };
    }
    c_int::try_from(nodes.len()).unwrap_or(c_int::MAX)
}

/// Reads the statistics of a region; `nf_stats_text` for `NF_NONE` includes those of all, with residency. Returns 0, or
/// -1 with errno EINVAL if either is NULL.
///
/// # Safety
/// `region` is NULL or a region; `into` is NULL or has room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_stats(
    region: *const nf_replicated_t,
    into: *mut nf_replicated_stats_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(region) = (unsafe { behind(region) }).filter(|_| !into.is_null()) else {
        return status(Err(libc::EINVAL));
    };
    let found = region.stats();
    let figures = nf_replicated_stats_t {
        writes: found.writes,
        collapses: found.collapses,
        copies: found.copies,
        settled: found.settled,
    };
    // SAFETY: the caller's promise.
    unsafe { into.write(figures) };
    0
}

/// Reports an error through `nf_error` and errno.
fn failed(error: &ReplicatedError) {
    thread::set_error(&error.to_string());
    sys::set_errno(error.errno());
}
