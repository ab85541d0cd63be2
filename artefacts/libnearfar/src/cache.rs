//! The functions of `nearfar.h` that create, destroy and query caches. Items are in `cache/items.rs`.
//!
//! Functions may wait: for another thread that stores under the same key, and for the disk of a cache that has one.
#![expect(unsafe_code, reason = "functions that C calls")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use std::ffi::CString;

use nearfar_alloc::ffi::fail;
use nearfar_cache::local::{Failure, LocalCache};
use nearfar_cache::settings::Settings;

mod items;

pub use items::*;

/// A cache: items by key, over several tiers of memory and one on disk, behind one index (docs/cache-library.md). All
/// threads of the process may use it concurrently. In a child of fork all functions fail with EPERM; a child makes a
/// cache of its own.
///
/// A key is 1 to 250 bytes, a value any bytes; key and value together are limited by `nf_cache_item_max`. Items are
/// evicted when room is needed, so an item may be missing at any time, but a value that is read is complete and the
/// last one stored.
#[expect(non_camel_case_types, reason = "as C writes types")]
#[derive(Debug)]
pub struct nf_cache_t {
    _nothing: [u8; 0],
}

/// The settings of a cache: values by name, both as text. Not for concurrent use.
#[expect(non_camel_case_types, reason = "as C writes types")]
#[derive(Debug)]
pub struct nf_cache_config_t {
    _nothing: [u8; 0],
}

/// The cache behind a pointer; `None`, with errno set, if it is NULL or can't be used.
///
/// # Safety
/// `cache` is NULL, or a cache that lives as long as it is used.
unsafe fn behind<'a>(cache: *const nf_cache_t) -> Option<&'a LocalCache> {
    // SAFETY: the caller's promise; the pointer is from `nf_cache_create`.
    let found = unsafe { cache.cast::<LocalCache>().as_ref() };
    if found.is_none() {
        fail(libc::EINVAL, None);
    }
    found
}

/// Stores a failure in errno, and in `nf_error` if errno does not describe it fully.
fn failed(failure: Failure) {
    match failure {
        Failure::Absent | Failure::Exists => fail(failure.errno(), None),
        other => fail(other.errno(), Some(&other.to_string())),
    }
}

fn status(done: Result<(), Failure>) -> c_int {
    done.map_err(failed).map_or(-1, |()| 0)
}

/// Returns default settings: 64 MiB of memory of any kind.
#[unsafe(no_mangle)]
pub extern "C" fn nf_cache_config_create() -> *mut nf_cache_config_t {
    Box::into_raw(Box::<Settings>::default()).cast()
}

/// Sets one setting, with the names and values of the options of `nearfar cache serve`:
///
/// "memory", "near=4g": a tier of a kind of memory, or "64m" of any; once for each tier, the fastest first.
///
/// "eviction", "s3-fifo": the eviction policy of a full tier; or "sieve", "lru", "w-tinylfu".
///
/// "movers", "1": threads that make room in advance, up to 64; "0": the storing threads make it.
///
/// "copy", "cpu": the copier of items between memory tiers; or "dsa": Intel's Data Streaming Accelerator, with ENODEV from
/// `nf_cache_create` where no work queue can be used; or "auto": DSA where one can, otherwise the CPU.
///
/// "items", "1000000": the number of items that the index has room for; else one for each 100 bytes of memory.
///
/// "item-max", "1m": bytes of the largest item, 1k to 16m; else a quarter of the smallest tier, up to 16m.
///
/// "disk", "/var/cache/below=200g": a file, created if it does not exist, or a block device below memory, and its size.
///
/// "disk-small", "1g": the part of it for objects of at most 1 KiB; else a sixteenth.
///
/// "disk-writes", "500g": the maximum written to it in 24 hours; "0": there is no limit.
///
/// "disk-reads", "1": the number of reads, 0 to 3, after which an item may be written to it; else 0, or 1 with
/// "disk-writes".
///
/// "disk-format", "yes": a file or device with content may be overwritten if that is neither a cache nor data of
/// others.
///
/// "disk-after-crash", "discard": drop the objects on a disk that was not closed cleanly; or "keep": use them, but
/// values that were deleted or overwritten in the last moments may reappear.
///
/// Returns 0, or -1 with errno EINVAL and a message in `nf_error`; nothing is set then.
///
/// # Safety
/// `config` is NULL or settings; `name` and `value` are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_config_set(
    config: *mut nf_cache_config_t,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise; the pointer is from `nf_cache_config_create`, and one thread uses it.
    let settings = unsafe { config.cast::<Settings>().as_mut() };
    let (Some(settings), false, false) = (settings, name.is_null(), value.is_null()) else {
        fail(libc::EINVAL, Some("a setting is a name and a value, and neither may be NULL"));
        return -1;
    };
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    // SAFETY: the caller's promise.
    let value = unsafe { CStr::from_ptr(value) }.to_string_lossy();
    let done = settings.set(&name, &value);
    done.map_err(|error| fail(error.errno(), Some(&error.to_string()))).map_or(-1, |()| 0)
}

/// Frees settings; caches made from them stay. NULL is allowed.
///
/// # Safety
/// `config` is NULL or settings that were not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_config_destroy(config: *mut nf_cache_config_t) {
    if !config.is_null() {
        // SAFETY: the caller's promise: the pointer is from `Box::into_raw`, and is freed once.
        drop(unsafe { Box::from_raw(config.cast::<Settings>()) });
    }
}

/// Creates a cache from settings, which stay valid; NULL means the defaults of `nf_cache_config_create`. Memory is
/// allocated as items are stored. Items that an earlier cache has left on the disk are found again.
///
/// Returns NULL on failure, with a message in `nf_error` and errno EINVAL (contradictory sizes, or a disk that was
/// created with others), ENODEV (such nodes do not exist), ENOMEM (nodes have less memory), ENOSYS (the system does not
/// show its nodes), EBUSY (the disk is in use), EEXIST (the disk has other content), EPERM (other users may write to
/// it), ELOOP (it is a symbolic link), ENOSPC, EAGAIN (no more threads) or another of the system's errors.
///
/// # Safety
/// `config` is NULL or settings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_create(config: *const nf_cache_config_t) -> *mut nf_cache_t {
    // SAFETY: the caller's promise.
    let settings = unsafe { config.cast::<Settings>().as_ref() };
    let made = settings.map_or_else(|| Settings::default().open(), Settings::open);
    match made {
        Ok(cache) => Box::into_raw(Box::new(cache)).cast(),
        Err(error) => {
            fail(error.errno(), Some(&error.to_string()));
            null_mut()
        }
    }
}

/// Destroys a cache: stops its movers, writes pending items to the disk, and frees its memory. Returns 0, or -1 with
/// errno: EINVAL if `cache` is NULL, EIO or another if not all could be written, EPERM in a child of fork, which frees
/// nothing. The cache is invalid afterwards in each case.
///
/// # Safety
/// `cache` is NULL or was made here and not destroyed; no thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_destroy(cache: *mut nf_cache_t) -> c_int {
    if cache.is_null() {
        fail(libc::EINVAL, None);
        return -1;
    }
    // SAFETY: the caller's promise: the pointer is from `Box::into_raw`, and is freed once.
    let cache = unsafe { Box::from_raw(cache.cast::<LocalCache>()) };
    let closed = cache.close();
    let forked = !cache.is_closed();
    drop(cache);
    let Err(error) = closed else { return 0 };
    let errno = if forked { libc::EPERM } else { error.raw_os_error().unwrap_or(libc::EIO) };
    fail(errno, Some(&error.to_string()));
    -1
}

/// The maximum number of bytes of an item's key and value together; 0 for NULL.
///
/// # Safety
/// `cache` is NULL or a cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_item_max(cache: *const nf_cache_t) -> usize {
    // SAFETY: the caller's promise.
    unsafe { behind(cache) }.map_or(0, LocalCache::largest)
}

/// Removes all items. Returns 0, or -1 with errno EINVAL if `cache` is NULL.
///
/// # Safety
/// `cache` is NULL or a cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_flush(cache: *mut nf_cache_t) -> c_int {
    // SAFETY: the caller's promise.
    let Some(cache) = (unsafe { behind(cache) }) else { return -1 };
    status(cache.flush())
}

/// Calls `each` with the name and value of every statistic, by the names of memcached's `stats` ("get_hits",
/// "curr_items", "bytes") and of tiers ("tier_0_items"); `with` is passed on. `each` may use the cache, and must return
/// normally: it neither throws nor jumps out. Returns 0, or -1 with errno EINVAL if `cache` or `each` is NULL.
///
/// # Safety
/// `cache` is NULL or a cache; `each` is NULL or such a function, and `with` is valid for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_stats(
    cache: *const nf_cache_t,
    each: Option<unsafe extern "C" fn(with: *mut c_void, name: *const c_char, value: u64)>,
    with: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(cache) = (unsafe { behind(cache) }) else { return -1 };
    let Some(each) = each else {
        fail(libc::EINVAL, None);
        return -1;
    };
    let told = cache.stats().map(|figures| {
        for (name, value) in figures {
            let name = CString::new(name).unwrap_or_default();
            // SAFETY: the caller's promise; the name is a string, valid until the call returns.
            unsafe { each(with, name.as_ptr(), value) };
        }
    });
    status(told)
}
