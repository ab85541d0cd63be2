//! Allocating and freeing in a checked build: errors are reported and ignored, instead of being undefined behaviour.
//!
//! Wraps `heap`, call by call. Detects memory that is freed twice, freed at an interior pointer, never allocated here,
//! or of a destroyed kind; and calls with a destroyed kind. An error is one line on stderr, and the object is left
//! unchanged; with `wrong=abort` in `NEARFAR_CONF` the program aborts. Not detected: use after free, and writes beyond
//! an object's end.
//!
//! Only with the crate's feature `checked`; `heap` does not depend on it.
#![expect(unsafe_code, reason = "malloc and free")]

use core::fmt::Write as _;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};

use nearfar_kernel::environment;

use crate::kind::{self, DEFAULT};
use crate::line::Line;
use crate::machine::KindError;
use crate::shadow::{self, State};
use crate::space::{self, Role, SEGMENT};
use crate::{heap, sys};

pub(crate) use crate::heap::kind_of;

/// The handle that stands for no kind: a failure that the caller already knows of.
const NONE: u32 = u32::MAX;
/// How far before an address to search for an object that contains it, unless that has segments of its own.
const BEFORE: usize = SEGMENT;

/// As [`heap::allocate`].
pub(crate) fn allocate(handle: u32, size: usize) -> Option<NonNull<u8>> {
    if is_kind(handle) { noted(heap::allocate(handle, size)) } else { None }
}

/// Always `None`: every allocation takes the path that records it.
pub(crate) fn quickly(_handle: u32, _size: usize) -> Option<NonNull<u8>> {
    None
}

/// As [`heap::allocate_zeroed`].
pub(crate) fn allocate_zeroed(handle: u32, size: usize) -> Option<NonNull<u8>> {
    if is_kind(handle) { noted(heap::allocate_zeroed(handle, size)) } else { None }
}

/// As [`heap::allocate_aligned`].
pub(crate) fn allocate_aligned(handle: u32, alignment: usize, size: usize) -> Option<NonNull<u8>> {
    if is_kind(handle) { noted(heap::allocate_aligned(handle, alignment, size)) } else { None }
}

/// As [`heap::plain_aligned`].
pub(crate) fn plain_aligned(alignment: usize, size: usize) -> Option<NonNull<u8>> {
    noted(heap::plain_aligned(alignment, size))
}

/// As [`heap::allocate_placed`].
///
/// # Errors
/// [`KindError`], as there.
pub(crate) fn allocate_placed(text: &str, size: usize) -> Result<NonNull<u8>, KindError> {
    noted(Some(heap::allocate_placed(text, size)?)).ok_or(KindError::TooMany)
}

/// As [`heap::free`], for any pointer.
pub(crate) unsafe fn free(object: *mut u8) {
    if !object.is_null() && goes(object as usize, "free") {
        // SAFETY: an object that begins there, and that no other thread frees.
        unsafe { heap::free(object) };
    }
}

/// As [`heap::usable_size`], for any pointer; 0 if no object begins there.
pub(crate) unsafe fn usable_size(at: usize) -> usize {
    if at == 0 {
        return 0;
    }
    match shadow::get(at) {
        // SAFETY: an object begins there.
        State::Live => unsafe { heap::usable_size(at) },
        other => {
            tell_of(at, other, "usable_size");
            0
        }
    }
}

/// As [`heap::reallocate`], for any pointer; `None` with EINVAL if no object begins there.
pub(crate) unsafe fn reallocate(handle: u32, object: *mut u8, size: usize) -> Option<NonNull<u8>> {
    if object.is_null() {
        return allocate(handle, size);
    }
    if !is_kind(handle) {
        return None;
    }
    let at = object as usize;
    // Recorded before the call: as soon as it is done, another thread may get the address.
    if !goes(at, "realloc") {
        sys::set_errno(libc::EINVAL);
        return None;
    }
    // SAFETY: an object that begins there, and that no other thread frees.
    let moved = unsafe { heap::reallocate(handle, object, size) };
    if moved.is_none() {
        shadow::begins(at);
    }
    noted(moved)
}

/// Records an object; `None`, with the object freed, if there is no memory for the record.
fn noted(object: Option<NonNull<u8>>) -> Option<NonNull<u8>> {
    let object = object?;
    if shadow::begins(object.as_ptr() as usize) {
        return Some(object);
    }
    // SAFETY: allocated for the caller, which has not seen it.
    unsafe { heap::free(object.as_ptr()) };
    sys::set_errno(libc::ENOMEM);
    None
}

/// Plain jemalloc as the preload library uses it, with the same checks.
pub(crate) mod plain {
    use core::ffi::c_void;
    use core::ptr::null_mut;

    use tikv_jemalloc_sys as je;

    use super::{NonNull, goes, noted, shadow, sys};

    fn noted_raw(object: *mut c_void) -> *mut c_void {
        noted(NonNull::new(object.cast())).map_or(null_mut(), |object| object.as_ptr().cast())
    }

    pub(crate) unsafe fn malloc(size: usize) -> *mut c_void {
        // SAFETY: no preconditions.
        noted_raw(unsafe { je::malloc(size) })
    }

    pub(crate) unsafe fn calloc(count: usize, size: usize) -> *mut c_void {
        // SAFETY: no preconditions.
        noted_raw(unsafe { je::calloc(count, size) })
    }

    pub(crate) unsafe fn realloc(object: *mut c_void, size: usize) -> *mut c_void {
        let at = object as usize;
        if !goes(at, "realloc") {
            sys::set_errno(libc::EINVAL);
            return null_mut();
        }
        // SAFETY: an object that begins there, and that no other thread frees; the size is not zero.
        let moved = unsafe { je::realloc(object, size) };
        if moved.is_null() {
            shadow::begins(at);
        }
        noted_raw(moved)
    }

    pub(crate) unsafe fn free(object: *mut c_void) {
        if !object.is_null() && goes(object as usize, "free") {
            // SAFETY: an object that begins there, and that no other thread frees.
            unsafe { je::free(object) };
        }
    }
}

/// Whether the kind exists; if not, sets errno and reports it, unless the handle is the one that stands for no kind.
fn is_kind(handle: u32) -> bool {
    if handle == DEFAULT || kind::find(handle).is_some() {
        return true;
    }
    if handle != NONE {
        complain(format_args!(
            "kind {handle}: there is no such kind, or it has ended; nothing is allocated"
        ));
    }
    sys::set_errno(libc::EINVAL);
    false
}

/// Whether an object begins at an address; if so, records that it is freed.
fn goes(at: usize, call: &str) -> bool {
    shadow::goes(at).map_err(|state| tell_of(at, state, call)).is_ok()
}

/// How far before an address the object that contains it may begin.
fn before(at: usize) -> usize {
    let Some(offset) = space::offset_of(at) else { return BEFORE };
    let segments = (0..=offset / SEGMENT).rev().map(|segment| segment * SEGMENT);
    let first = segments.into_iter().find(|offset| space::owner_at(*offset).1 != Role::Rest);
    offset - first.unwrap_or(0)
}

/// Reports why there is no object at an address. Leaves errno unchanged.
#[cold]
fn tell_of(at: usize, state: State, call: &str) {
    let error = sys::errno();
    let within = shadow::last_before(at, before(at)).map(|start| {
        // SAFETY: an object begins there, or did a moment ago; then its page is still recorded as an arena's.
        (start, unsafe { heap::usable_size(start) })
    });
    match (within, state) {
        (Some((start, length)), _) if at - start < length => complain(format_args!(
            "{call} of {at:#x}: that is byte {} of the object of {length} bytes at {start:#x}; it is left as it is",
            at - start
        )),
        (_, State::Freed) => complain(format_args!("{call} of {at:#x}: it was freed before")),
        (_, State::Ended) => {
            complain(format_args!("{call} of {at:#x}: its kind has ended, and it with that"))
        }
        _ => complain(format_args!("{call} of {at:#x}: no object has begun there")),
    }
    sys::set_errno(error);
}

/// Reports an error in one line, without allocating; then aborts the program, if so configured.
fn complain(what: core::fmt::Arguments<'_>) {
    let mut line = Line::new();
    // A message that is too long is cut after its last complete part.
    let _ = write!(line, "nearfar: {what}");
    sys::say(line.text());
    sys::say("\n");
    if aborts() {
        sys::say("nearfar: the configuration has the program end then (wrong=abort)\n");
        std::process::abort();
    }
}

/// Whether `NEARFAR_CONF` requests an abort on errors; read once.
fn aborts() -> bool {
    const UNREAD: u8 = 0;
    const GOES_ON: u8 = 1;
    const ABORTS: u8 = 2;
    static READ: AtomicU8 = AtomicU8::new(UNREAD);
    if READ.load(Ordering::Relaxed) == UNREAD {
        let conf = environment::var("NEARFAR_CONF").unwrap_or_default();
        let mut words = conf.as_encoded_bytes().split(u8::is_ascii_whitespace);
        let is_there = words.any(|word| word == b"wrong=abort");
        READ.store(if is_there { ABORTS } else { GOES_ON }, Ordering::Relaxed);
    }
    READ.load(Ordering::Relaxed) == ABORTS
}
