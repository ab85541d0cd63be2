//! The part of `nearfar.h` that reads and stores items of caches.
#![expect(unsafe_code, reason = "functions that C calls")]

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

use nearfar_alloc::ffi::{NF_DEFAULT, fail, nf_malloc};
use nearfar_cache::local::{About, Failure, LocalCache, With};

use super::{behind, failed, nf_cache_t, status};

/// A buffer that is larger than this is not kept for the thread's next read.
const KEPT: usize = 1 << 20;

thread_local! {
    /// What values are read into before they are handed out: how long they are is known with the last byte.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What is told of an item besides its value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nf_cache_item_t {
    /// Bytes of its value.
    pub length: usize,
    /// Another number with each change of the item, never 0: for `nf_cache_cas`.
    pub cas: u64,
    /// What it was stored with.
    pub flags: u32,
    /// Seconds until it is gone; 0: it has no end.
    pub ttl: u32,
}

/// The bytes that C has at `at`; none if there can't be any.
///
/// # Safety
/// `at` has `length` bytes, which nobody writes while they are used; it may be NULL if that is 0.
unsafe fn bytes<'a>(at: *const c_void, length: usize) -> Option<&'a [u8]> {
    if length == 0 {
        return Some(&[]);
    }
    if at.is_null() || isize::try_from(length).is_err() {
        fail(libc::EINVAL, None);
        return None;
    }
    // SAFETY: the caller's promise; the length is one that memory can have.
    Some(unsafe { core::slice::from_raw_parts(at.cast(), length) })
}

/// Reads an item into the thread's buffer, and has `hand` do something with it; none if that fails, or there is no item.
fn read<R>(
    (cache, key): (&LocalCache, &[u8]),
    about: Option<&mut MaybeUninit<nf_cache_item_t>>,
    hand: impl FnOnce(&[u8]) -> Option<R>,
) -> Option<R> {
    // A thread that ends has no buffer any more.
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

/// Copies a value that was found to where there is room for it, and counts it as read. Returns 0, or -1 with errno ENOENT (there is
/// no such item), ERANGE (there is not enough room; nothing is copied, and `about` says how long the value is) or EINVAL.
///
/// # Safety
/// `cache` is NULL or a cache; `key` has `key_length` bytes; `into` has `room` bytes, or is NULL if that is 0; `about` is NULL or has
/// room for what is told of the item.
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
            // SAFETY: the caller's promise; the value is ours, and has no more bytes than there is room.
            unsafe { into.cast::<u8>().copy_from_nonoverlapping(value.as_ptr(), value.len()) };
        }
        Some(())
    });
    copied.map_or(-1, |()| 0)
}

/// A value that was found, in memory of its own with a zero behind it, and counts it as read; `nf_free` gives it back. NULL with errno
/// ENOENT (there is no such item), ENOMEM or EINVAL.
///
/// # Safety
/// `cache` is NULL or a cache; `key` has `key_length` bytes; `about` is NULL or has room for what is told of the item.
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
        // Where there is no memory, errno says so.
        let at = core::ptr::NonNull::new(nf_malloc(NF_DEFAULT, value.len() + 1).cast::<u8>())?;
        // SAFETY: what was allocated has as many bytes and one more, and is nobody else's.
        unsafe { at.as_ptr().copy_from_nonoverlapping(value.as_ptr(), value.len()) };
        // SAFETY: as above.
        let end = unsafe { at.add(value.len()) };
        // SAFETY: as above.
        unsafe { end.write(0) };
        Some(at.as_ptr().cast())
    });
    copied.unwrap_or(null_mut())
}

/// What an item is stored under, and its value.
type Pair<'a> = (&'a LocalCache, &'a [u8], &'a [u8]);

/// What C has said, if it can be.
///
/// # Safety
/// `cache` is NULL or a cache; `key` and `value` have as many bytes as they are said to.
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

/// Stores an item, whatever was there before, with 32 bits of the caller's and a time to live in seconds, 0 for ever.
///
/// Returns 0, or -1 with errno EMSGSIZE (it is too large), ENOMEM (no room could be made) or EINVAL (no such key). After EMSGSIZE and
/// ENOMEM there is no item under this key: what was there is outdated.
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

/// As `nf_cache_set`, if there is no item under this key; else -1 with errno EEXIST.
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

/// As `nf_cache_set`, if there is an item under this key, which stays if it can not be replaced; else -1 with errno ENOENT.
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

/// As `nf_cache_set`, if the item under this key still has the number `cas`, as it was told by `nf_cache_get`; else -1 with errno
/// EEXIST, or ENOENT if there is none. If it can not be stored, what was there stays.
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

/// Puts bytes behind the value of an item; its flags and its time to live stay. Returns 0, or -1 with errno ENOENT (there is none), or as
/// `nf_cache_set`; an item that would be too large stays as it is.
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

/// As `nf_cache_append`, before the value.
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

/// Numbers that C is not told.
const fn drop_number(_: u64) {}

/// Leaves a number where C wants it.
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

/// Adds to an item whose value is a number in decimal digits, and stores the sum so; after the largest of 64 bits it begins again at
/// 0. `sum` is told it. Returns 0, or -1 with errno ENOENT (there is none), EDOM (it is no number) or as `nf_cache_set`.
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

/// As `nf_cache_incr`, downwards; it ends at 0.
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

/// Whether something was found.
fn found(done: Result<bool, Failure>) -> c_int {
    status(done.and_then(|found| if found { Ok(()) } else { Err(Failure::Absent) }))
}

/// Gives an item another time to live, 0 for ever. Returns 0, or -1 with errno ENOENT (there is none) or as `nf_cache_set`.
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

/// Removes an item. Returns 0, or -1 with errno ENOENT (there is none) or EINVAL.
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
