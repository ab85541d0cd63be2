//! The part of `nearfar.h` that reads and stores items of caches.
//!
//! Functions check their arguments, forward to [`LocalCache`], and report errors by errno. Values are read into a buffer of
//! the calling thread, as their length is only known at the end. Not here: creating and destroying caches, statistics.
#![expect(unsafe_code, reason = "functions that C calls")]

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

use nearfar_alloc::ffi::{NF_DEFAULT, fail, nf_malloc};
use nearfar_cache::local::{About, Failure, LocalCache, With};

use super::{behind, failed, nf_cache_t, status};

/// A larger buffer is freed instead of being kept for the thread's next read.
const KEPT: usize = 1 << 20;

thread_local! {
    /// The buffer that values are read into before they are copied to the caller: the length is only known after the
    /// last byte.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Attributes of an item.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nf_cache_item_t {
    /// Length of its value in bytes.
    pub length: usize,
    /// A number that changes with each change of the item, never 0: for `nf_cache_cas`.
    pub cas: u64,
    /// The flags that were stored with it.
    pub flags: u32,
    /// Remaining time to live in seconds; 0: no expiry.
    pub ttl: u32,
}

/// The caller's bytes at `at`; `None` if the arguments are invalid.
///
/// # Safety
/// `at` has `length` bytes, which no thread writes while they are used; it may be NULL if `length` is 0.
unsafe fn bytes<'a>(at: *const c_void, length: usize) -> Option<&'a [u8]> {
    if length == 0 {
        return Some(&[]);
    }
    if at.is_null() || isize::try_from(length).is_err() {
        fail(libc::EINVAL, None);
        return None;
    }
    // SAFETY: the caller's promise; the length is at most that of the address space.
    Some(unsafe { core::slice::from_raw_parts(at.cast(), length) })
}

/// Reads an item into the thread's buffer, and calls `hand` with it; `None` if that fails or the item is missing.
fn read<R>(
    (cache, key): (&LocalCache, &[u8]),
    about: Option<&mut MaybeUninit<nf_cache_item_t>>,
    hand: impl FnOnce(&[u8]) -> Option<R>,
) -> Option<R> {
    // A thread that is ending has no buffer any more.
    let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
    buffer.clear();
    let found = cache.get(key, &mut buffer).and_then(|found| found.ok_or(Failure::Absent));
    let handed = match found {
        Err(failure) => {
            failed(failure);
            None
        }
        Ok(About { length, flags, ttl, cas }) => {
            if let Some(about) = about {
                about.write(nf_cache_item_t { length, cas, flags, ttl });
            }
            hand(&buffer)
        }
    };
    if buffer.capacity() <= KEPT {
        let _ = BUFFER.try_with(|kept| kept.set(buffer));
    }
    handed
}

/// Copies a value to a buffer, and counts the item as read. Returns 0, or -1 with errno ENOENT (the key is missing),
/// ERANGE (the buffer is too small; nothing is copied, and `about` has the value's length) or EINVAL.
///
/// # Safety
/// `cache` is NULL or a cache; `key` has `key_length` bytes; `into` has `room` bytes, or is NULL if that is 0; `about`
/// is NULL or has room for the item's attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_get(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
    into: *mut c_void,
    room: usize,
    about: *mut nf_cache_item_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(cache) = (unsafe { behind(cache) }) else { return -1 };
    // SAFETY: the caller's promise.
    let Some(key) = (unsafe { bytes(key, key_length) }) else { return -1 };
    // SAFETY: the caller's promise.
    let about = unsafe { about.cast::<MaybeUninit<nf_cache_item_t>>().as_mut() };
    let copied = read((cache, key), about, |value| {
        if value.len() > room || (into.is_null() && !value.is_empty()) {
            fail(libc::ERANGE, None);
            return None;
        }
        if !value.is_empty() {
            // SAFETY: the caller's promise; the value is in our buffer and fits.
            unsafe { into.cast::<u8>().copy_from_nonoverlapping(value.as_ptr(), value.len()) };
        }
        Some(())
    });
    copied.map_or(-1, |()| 0)
}

/// Returns a copy of a value in newly allocated memory, followed by a zero byte, and counts the item as read; free it
/// with `nf_free`. NULL with errno ENOENT (the key is missing), ENOMEM or EINVAL.
///
/// # Safety
/// `cache` is NULL or a cache; `key` has `key_length` bytes; `about` is NULL or has room for the item's attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_get_copy(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
    about: *mut nf_cache_item_t,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    let Some(cache) = (unsafe { behind(cache) }) else { return null_mut() };
    // SAFETY: the caller's promise.
    let Some(key) = (unsafe { bytes(key, key_length) }) else { return null_mut() };
    // SAFETY: the caller's promise.
    let about = unsafe { about.cast::<MaybeUninit<nf_cache_item_t>>().as_mut() };
    let copied = read((cache, key), about, |value| {
        // On failure errno is set.
        let at = core::ptr::NonNull::new(nf_malloc(NF_DEFAULT, value.len() + 1).cast::<u8>())?;
        // SAFETY: the allocation has that many bytes plus one, and is not shared.
        unsafe { at.as_ptr().copy_from_nonoverlapping(value.as_ptr(), value.len()) };
        // SAFETY: as above.
        let end = unsafe { at.add(value.len()) };
        // SAFETY: as above.
        unsafe { end.write(0) };
        Some(at.as_ptr().cast())
    });
    copied.unwrap_or(null_mut())
}

/// A cache, a key and a value.
type Pair<'a> = (&'a LocalCache, &'a [u8], &'a [u8]);

/// The caller's arguments, checked.
///
/// # Safety
/// `cache` is NULL or a cache; `key` and `value` have the lengths passed with them.
unsafe fn pair<'a>(
    cache: *const nf_cache_t,
    (key, key_length): (*const c_void, usize),
    (value, length): (*const c_void, usize),
) -> Option<Pair<'a>> {
    // SAFETY: the caller's promise.
    let cache = unsafe { behind(cache) }?;
    // SAFETY: the caller's promise.
    let key = unsafe { bytes(key, key_length) }?;
    // SAFETY: the caller's promise.
    let value = unsafe { bytes(value, length) }?;
    Some((cache, key, value))
}

/// Stores an item unconditionally, with 32 bits of flags and a time to live in seconds; 0 is no expiry.
///
/// Returns 0, or -1 with errno EMSGSIZE (it is too large), ENOMEM (no room could be made) or EINVAL (invalid key).
/// After EMSGSIZE and ENOMEM the key is missing, since a previous value would be outdated.
///
/// # Safety
/// `cache` is NULL or a cache; `key` has `key_length` bytes and `value` `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_set(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    length: usize,
    flags: u32,
    ttl: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let pair = unsafe { pair(cache, (key, key_length), (value, length)) };
    let Some((cache, key, value)) = pair else { return -1 };
    status(cache.set(key, value, With { flags, ttl }).map(drop_number))
}

/// As `nf_cache_set`, if the key is missing; else -1 with errno EEXIST.
///
/// # Safety
/// As `nf_cache_set`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_add(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    length: usize,
    flags: u32,
    ttl: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let pair = unsafe { pair(cache, (key, key_length), (value, length)) };
    let Some((cache, key, value)) = pair else { return -1 };
    status(cache.add(key, value, With { flags, ttl }).map(drop_number))
}

/// As `nf_cache_set`, if the key exists; else -1 with errno ENOENT. On other errors the previous item stays.
///
/// # Safety
/// As `nf_cache_set`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_replace(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    length: usize,
    flags: u32,
    ttl: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let pair = unsafe { pair(cache, (key, key_length), (value, length)) };
    let Some((cache, key, value)) = pair else { return -1 };
    status(cache.replace(key, value, With { flags, ttl }).map(drop_number))
}

/// As `nf_cache_set`, if the item's number, as `nf_cache_get` returned it, is still `cas`; else -1 with errno EEXIST,
/// or ENOENT if the key is missing. On errors the previous item stays.
///
/// # Safety
/// As `nf_cache_set`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_cas(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    length: usize,
    flags: u32,
    ttl: u32,
    cas: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let pair = unsafe { pair(cache, (key, key_length), (value, length)) };
    let Some((cache, key, value)) = pair else { return -1 };
    status(cache.cas(key, value, With { flags, ttl }, cas).map(drop_number))
}

/// Appends bytes to the value of an item, which keeps its flags and its time to live. Returns 0, or -1 with errno
/// ENOENT (the key is missing) or as `nf_cache_set`; an item that would become too large stays unchanged.
///
/// # Safety
/// As `nf_cache_set`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_append(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let pair = unsafe { pair(cache, (key, key_length), (value, length)) };
    let Some((cache, key, value)) = pair else { return -1 };
    status(cache.append(key, value).map(drop_number))
}

/// As `nf_cache_append`, but prepends.
///
/// # Safety
/// As `nf_cache_set`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_prepend(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let pair = unsafe { pair(cache, (key, key_length), (value, length)) };
    let Some((cache, key, value)) = pair else { return -1 };
    status(cache.prepend(key, value).map(drop_number))
}

/// Discards a CAS number, which the C functions do not return.
const fn drop_number(_: u64) {}

/// Stores a number at `into`.
///
/// # Safety
/// `into` is NULL or has room for it.
unsafe fn tell(found: Result<u64, Failure>, into: *mut u64) -> c_int {
    if let (Ok(number), false) = (found, into.is_null()) {
        // SAFETY: the caller's promise.
        unsafe { into.write(number) };
    }
    status(found.map(drop_number))
}

/// Adds to an item whose value is a number in decimal digits, and stores the sum in decimal; it wraps to 0 after the
/// largest number of 64 bits. `sum` receives it. Returns 0, or -1 with errno ENOENT (the key is missing), EDOM (the
/// value is not a number) or as `nf_cache_set`.
///
/// # Safety
/// `cache` is NULL or a cache; `key` has `key_length` bytes; `sum` is NULL or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_incr(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
    by: u64,
    sum: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let pair = unsafe { pair(cache, (key, key_length), (core::ptr::null(), 0)) };
    let Some((cache, key, _)) = pair else { return -1 };
    // SAFETY: the caller's promise.
    unsafe { tell(cache.incr(key, by), sum) }
}

/// As `nf_cache_incr`, but subtracts, saturating at 0.
///
/// # Safety
/// As `nf_cache_incr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_decr(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
    by: u64,
    sum: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let pair = unsafe { pair(cache, (key, key_length), (core::ptr::null(), 0)) };
    let Some((cache, key, _)) = pair else { return -1 };
    // SAFETY: the caller's promise.
    unsafe { tell(cache.decr(key, by), sum) }
}

/// Converts the result of an operation that requires the key to exist.
fn found(done: Result<bool, Failure>) -> c_int {
    status(done.and_then(|found| if found { Ok(()) } else { Err(Failure::Absent) }))
}

/// Sets the time to live of an item in seconds; 0 is no expiry. Returns 0, or -1 with errno ENOENT (the key is missing)
/// or as `nf_cache_set`.
///
/// # Safety
/// `cache` is NULL or a cache; `key` has `key_length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_touch(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
    ttl: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    let pair = unsafe { pair(cache, (key, key_length), (core::ptr::null(), 0)) };
    let Some((cache, key, _)) = pair else { return -1 };
    found(cache.touch(key, ttl))
}

/// Removes an item. Returns 0, or -1 with errno ENOENT (the key is missing) or EINVAL.
///
/// # Safety
/// `cache` is NULL or a cache; `key` has `key_length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nf_cache_delete(
    cache: *mut nf_cache_t,
    key: *const c_void,
    key_length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let pair = unsafe { pair(cache, (key, key_length), (core::ptr::null(), 0)) };
    let Some((cache, key, _)) = pair else { return -1 };
    found(cache.delete(key))
}
