//! The part of `nearfar.h` that is about caches: made from settings, ended, asked for figures. Items are in `cache/items.rs`.
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

/// A cache: items by key, over several tiers of memory and one on disk, behind one index (docs/cache-library.md). All threads of
/// the process may use it at once. A child of fork may not: all functions fail there with EPERM, and it makes its own.
///
/// A key is 1 to 250 bytes, a value any bytes; key and value together are limited by `nf_cache_item_max`. Items leave when room is
/// needed, so what was stored may be gone at any time, but what is read is whole and what was stored last.
#[expect(non_camel_case_types, reason = "as C writes types")]
#[derive(Debug)]
pub struct nf_cache_t {
    _nothing: [u8; 0],
}

/// How a cache is to be: settings by name, each with a value in words. For one thread at a time.
#[expect(non_camel_case_types, reason = "as C writes types")]
#[derive(Debug)]
pub struct nf_cache_config_t {
    _nothing: [u8; 0],
}

/// The cache behind a pointer, or errno says that there is none.
///
/// # Safety
/// `cache` is NULL, or a cache that lives as long as it is used.
unsafe fn behind<'a>(cache: *const nf_cache_t) -> Option<&'a LocalCache> {
    // SAFETY: the caller's promise; what `nf_cache_create` gave points to one.
    let found = unsafe { cache.cast::<LocalCache>().as_ref() };
    if found.is_none() {
        fail(libc::EINVAL, None);
    }
    found
}

/// Leaves a failure to errno, with words where its errno does not say it all.
fn failed(failure: Failure) {
    match failure {
        Failure::Absent | Failure::Exists => fail(failure.errno(), None),
        other => fail(other.errno(), Some(&other.to_string())),
    }
}

fn status(done: Result<(), Failure>) -> c_int {
    done.map_err(failed).map_or(-1, |()| 0)
}

/// Settings as they are where nothing is set: 64 MiB of memory of any kind.
#[unsafe(no_mangle)]
pub extern "C" fn nf_cache_config_create() -> *mut nf_cache_config_t {
    Box::into_raw(Box::<Settings>::default()).cast()
}

/// Sets one, by the names and in the words of the options of `nearfar cache serve`:
///
/// "memory", "near=4g": a tier of a kind of memory, or "64m" of any; once for each tier, the fastest first.
///
/// "eviction", "s3-fifo": what leaves a full tier first; or "sieve", "lru", "w-tinylfu".
///
/// "movers", "1": threads that make room ahead of need, up to 64; "0": whoever stores makes it.
///
/// "items", "1000000": items the index has room for; else one for each 100 bytes of memory.
///
/// "item-max", "1m": bytes of the largest item, 1k to 16m; else a quarter of the smallest tier, up to 16m.
///
/// "disk", "/var/cache/below=200g": a file, made if there is none, or a block device below memory, and its size.
///
/// "disk-small", "1g": what of it is for objects of at most 1 KiB; else a sixteenth.
///
/// "disk-writes", "500g": no more than that is written to it in 24 hours; "0": there is no limit.
///
/// "disk-reads", "1": what goes there must have been read so often, 0 to 3; else 0, or 1 with "disk-writes".
///
/// "disk-after-crash", "written": what is taken over after a crash; or "nothing".
///
/// Returns 0, or -1 with errno EINVAL and `nf_error` in words, and nothing is set.
///
/// # Safety
/// `config` is NULL or settings; `name` and `value` are NULL or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_config_set(
    config: *mut nf_cache_config_t,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise; what `nf_cache_config_create` gave points to some, and one thread uses it.
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

/// Gives settings back; caches made from them stay. NULL is allowed.
///
/// # Safety
/// `config` is NULL or settings that were not given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_config_destroy(config: *mut nf_cache_config_t) {
    if !config.is_null() {
        // SAFETY: the caller's promise: it is what `Box::into_raw` gave, and given back once.
        drop(unsafe { Box::from_raw(config.cast::<Settings>()) });
    }
}

/// Makes a cache from settings, which stay; NULL is as `nf_cache_config_create` gives them. Memory is taken as items come. What a
/// cache has left on disk is found again.
///
/// Returns NULL on failure, with `nf_error` in words and errno EINVAL (sizes that do not go together, or a disk that was made with
/// others), ENODEV (such nodes are not here), ENOMEM (nodes have less memory), ENOSYS (the system does not show its nodes), EBUSY
/// (the disk is another process's), EEXIST (the disk has something else on it), ENOSPC, EAGAIN (no more threads) or what the
/// system says.
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

/// Ends a cache: its movers stop, what waits for the disk is written, and its memory goes back. Returns 0, or -1 with errno: EINVAL
/// if `cache` is NULL, EIO or another if not all could be written, EPERM in a child of fork, which gives nothing back. In each
/// case there is no such cache any more.
///
/// # Safety
/// `cache` is NULL or was made here and not ended; no thread uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_destroy(cache: *mut nf_cache_t) -> c_int {
    if cache.is_null() {
        fail(libc::EINVAL, None);
        return -1;
    }
    // SAFETY: the caller's promise: it is what `Box::into_raw` gave, and given back once.
    let cache = unsafe { Box::from_raw(cache.cast::<LocalCache>()) };
    let closed = cache.close();
    let forked = !cache.is_closed();
    drop(cache);
    let Err(error) = closed else { return 0 };
    let errno = if forked { libc::EPERM } else { error.raw_os_error().unwrap_or(libc::EIO) };
    fail(errno, Some(&error.to_string()));
    -1
}

/// The most bytes that key and value of an item may have together; 0 for NULL.
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

/// Tells `each` all figures, by the names that `stats` of memcached's protocol has ("get_hits", "curr_items", "bytes") and of
/// tiers ("tier_0_items"); `with` is handed on. `each` may use the cache, and returns as usual: it neither throws nor jumps out.
/// Returns 0, or -1 with errno EINVAL if `cache` or `each` is NULL.
///
/// # Safety
/// `cache` is NULL or a cache; `each` is NULL or such a function, and `with` what it wants.
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
            // SAFETY: the caller's promise; the name is a string, and stays until it returns.
            unsafe { each(with, name.as_ptr(), value) };
        }
    });
    status(told)
}
