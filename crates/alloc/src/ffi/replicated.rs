//! The part of `nearfar.h` that is about replicated regions.
//!
//! Unlike other calls, those that read, write and sync may wait for another thread that writes the same granule, for as long as
//! that takes to copy it.
#![expect(unsafe_code, reason = "functions that C calls")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use std::sync::Arc;

use super::status;
use crate::region::Region;
use crate::regions::{self, ReplicatedError};
use crate::{sys, thread};

/// A replicated region: bytes that each of some nodes has a copy of, for what is read far more often than written. Threads read
/// and write it at once as they like. It is cut into granules, 4 KiB unless said otherwise: each is read and written whole, and
/// no thread sees an older one than it has seen. What goes over several is read and written granule by granule.
///
/// A granule that is written is read at home, on the node that is written first, until nobody has written it for a quiet time;
/// then the first reader of a node has it copied there. `nf_replicated_sync` has all copied at once.
///
/// In a child of fork it is the same memory, not a copy, and each of the two destroys it for itself. A process that is killed
/// while it writes leaves the granule written in part, and whoever shares it waiting.
#[expect(non_camel_case_types, reason = "as C writes types")]
#[derive(Debug)]
pub struct nf_replicated_t {
    _nothing: [u8; 0],
}

/// Figures of a region since it was made, counted by granules.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nf_replicated_stats_t {
    /// Granules written, one for each that a write touches.
    pub writes: u64,
    /// Times that copies of a granule went out of use as it was written.
    pub collapses: u64,
    /// Copies made.
    pub copies: u64,
    /// Granules that have collapsed so often that they are read at home for good.
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

/// Makes a region of `size` zeroes. `words` are nodes, with options behind: "0-3;home=2;granule=64k;quiet=1s;collapses=any".
/// NULL, or no nodes, are all nodes that have CPUs; of others it has copies if they are named. Nothing is resident before it is
/// written or read.
///
/// `home=NODE` is written first (the first of the nodes); `granule=SIZE` is a power of two of 256 to 2m; `quiet=TIME` how long
/// nobody must have written a granule before it is copied again (100ms); after `collapses=N` times that copies went out of use a
/// granule is never copied again (16; "any": there is no such end).
///
/// Returns NULL on failure, with errno EINVAL (not written so, or no bytes), ENODEV (such nodes are not here, or have no memory),
/// EPERM (the process's cpuset does not allow all of them), ENOMEM (a node has less memory, or there are no addresses), ENOSYS
/// (the system does not show its nodes), EFBIG (RLIMIT_FSIZE) or what memfd_create(2) says, and `nf_error` in words.
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

/// Ends a region; what views of it pointed to is gone. Returns 0, or -1 with errno EINVAL if `region` is NULL.
///
/// # Safety
/// `region` is NULL or was made here and not ended; no thread reads or writes it, or looks at a view of it, any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_destroy(region: *mut nf_replicated_t) -> c_int {
    if region.is_null() {
        return status(Err(libc::EINVAL));
    }
    // SAFETY: the caller's promise: it is what `Arc::into_raw` gave, and given back once.
    drop(unsafe { Arc::from_raw(region.cast::<Region>()) });
    status(Ok(()))
}

/// Reads `length` bytes from `offset` on, from the copy of the calling thread's node. Returns 0, or -1 with errno EINVAL if they
/// are not all within the region, or `region` is NULL. Not from a signal handler.
///
/// # Safety
/// `region` is NULL or a region; `into` has room, and is not of the region.
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

/// Writes `length` bytes from `offset` on. From then on no thread that comes to know of it reads what was there before. Returns
/// 0, or -1 with errno as `nf_replicated_read`, and nothing is written. Not from a signal handler.
///
/// # Safety
/// `region` is NULL or a region; `from` has as many bytes, and is not of the region.
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

/// Waits until every copy is what was written before the call. Returns 0, or -1 with errno EINVAL if `region` is NULL.
///
/// # Safety
/// `region` is NULL or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_sync(region: *mut nf_replicated_t) -> c_int {
    // SAFETY: the caller's promise.
    let region = unsafe { behind(region) };
    status(region.map(Region::sync).ok_or(libc::EINVAL))
}

/// Where the copy of the calling thread's node is, to be looked at without copying: it can't be written there. It shows what was
/// written before the last `nf_replicated_sync` that has returned; of what was written since, any part or none, until the next.
/// So: write, sync, and then let threads look while nobody writes. It stays until the region ends, whichever node a thread runs
/// on: only its distance changes. NULL with errno EINVAL if `region` is NULL.
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

/// Bytes of a region, as it was made; 0 for NULL.
///
/// # Safety
/// `region` is NULL or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_replicated_size(region: *const nf_replicated_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { behind(region) }.map_or(0, |region| region.size)
}

/// The nodes that have a copy, home first: how many, the first `room` of them written. -1 with errno EINVAL if `region` is NULL.
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

/// Figures of a region; `nf_stats_text` of `NF_NONE` has those of all, with what is resident. Returns 0, or -1 with errno EINVAL
/// if either is NULL.
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

/// Leaves an error to `nf_error` and errno.
fn failed(error: &ReplicatedError) {
    thread::set_error(&error.to_string());
    sys::set_errno(error.errno());
}
