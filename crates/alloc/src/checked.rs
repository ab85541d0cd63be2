//! Allocating and freeing in a checked build: what is wrong is said and passed over, instead of being undefined.
//!
//! Stands before `heap`, call by call: memory given back twice, in the middle, that was never allocated here, or whose kind has
//! ended; kinds that are no more. What is wrong is one line on stderr, and the object stays as it is; with `wrong=abort` in
//! `NEARFAR_CONF` the program ends. Not found: memory that is used after it was given back, and bytes written beyond its end.
//!
//! Only with the crate's feature `checked`; `heap` knows nothing of it.
#![expect(unsafe_code, reason = "malloc and free")]

use core::ffi::CStr;
use core::fmt::Write as _;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::kind::{self, DEFAULT};
use crate::shadow::{self, State};
use crate::space::{self, Role, SEGMENT};
use crate::{heap, sys};

pub(crate) use crate::heap::kind_of;

/// The handle that stands for no kind: a failure that the program knows of.
const NONE: u32 = u32::MAX;
/// How far before an address the object that it may be within is looked for, unless that has segments of its own.
const BEFORE: usize = SEGMENT;
/// The longest line.
const LINE: usize = 256;

/// As [`heap::allocate`].
pub(crate) fn allocate(handle: u32, size: usize) -> Option<NonNull<u8>> {
    if is_kind(handle) { noted(heap::allocate(handle, size)) } else { None }
}

/// Nothing: all is noted.
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

/// As [`heap::free`], of anything.
pub(crate) unsafe fn free(object: *mut u8) {
    if !object.is_null() && goes(object as usize, "free") {
        // SAFETY: an object that begins there, and that nobody else gives back.
        unsafe { heap::free(object) };
    }
}

/// As [`heap::usable_size`], of anything; 0 for what is no object.
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

/// As [`heap::reallocate`], of anything; none, with EINVAL, for what is no object.
pub(crate) unsafe fn reallocate(handle: u32, object: *mut u8, size: usize) -> Option<NonNull<u8>> {
    if object.is_null() {
        return allocate(handle, size);
    }
    if !is_kind(handle) {
        return None;
    }
    let at = object as usize;
    // Noted before it is done: as soon as it is, the address may be another thread's.
    if !goes(at, "realloc") {
        sys::set_errno(libc::EINVAL);
        return None;
    }
    // SAFETY: an object that begins there, and that nobody else gives back.
    let moved = unsafe { heap::reallocate(handle, object, size) };
    if moved.is_none() {
        shadow::begins(at);
    }
    noted(moved)
}

/// An object, once it is noted; none if there is no memory for that.
pub(crate) fn noted(object: Option<NonNull<u8>>) -> Option<NonNull<u8>> {
    let object = object?;
    if shadow::begins(object.as_ptr() as usize) {
        return Some(object);
    }
    // SAFETY: allocated for the caller, who has not seen it.
    unsafe { heap::free(object.as_ptr()) };
    sys::set_errno(libc::ENOMEM);
    None
}

/// Notes that a segment's kind ends.
pub(crate) fn ends(offset: usize, role: Role) {
    let length = if role == Role::Arena { SEGMENT } else { 1 };
    shadow::end(space::address_of(offset), length);
}

/// jemalloc as the preload library has it, checked alike.
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
        // SAFETY: an object that begins there, and that nobody else gives back; the size is not zero.
        let moved = unsafe { je::realloc(object, size) };
        if moved.is_null() {
            shadow::begins(at);
        }
        noted_raw(moved)
    }

    pub(crate) unsafe fn free(object: *mut c_void) {
        if !object.is_null() && goes(object as usize, "free") {
            // SAFETY: an object that begins there, and that nobody else gives back.
            unsafe { je::free(object) };
        }
    }
}

/// Whether there is such a kind; if not, errno is set and it is said, unless it is the one that stands for none.
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

/// Whether an object begins at an address, which is given back by that.
fn goes(at: usize, call: &str) -> bool {
    shadow::goes(at).map_err(|state| tell_of(at, state, call)).is_ok()
}

/// How far before an address the object may begin that it is within.
fn before(at: usize) -> usize {
    let Some(offset) = space::offset_of(at) else { return BEFORE };
    let segments = (0..=offset / SEGMENT).rev().map(|segment| segment * SEGMENT);
    let first = segments.into_iter().find(|offset| space::owner_at(*offset).1 != Role::Rest);
    offset - first.unwrap_or(0)
}

/// Says why an address is no object. Errno stays as it is.
#[cold]
fn tell_of(at: usize, state: State, call: &str) {
    let error = sys::errno();
    let within = shadow::last_before(at, before(at)).map(|start| {
        // SAFETY: an object begins there, or did a moment ago; then its page is still known to be of an arena.
        (start, unsafe { heap::usable_size(start) })
    });
    match (within, state) {
        (Some((start, length)), _) if at - start < length => complain(format_args!(
            "{call} of {at:#x}: that is byte {} of the object of {length} bytes at {start:#x}; it is left as it is",
            at - start
        )),
        (_, State::Freed) => complain(format_args!("{call} of {at:#x}: it was given back before")),
        (_, State::Ended) => {
            complain(format_args!("{call} of {at:#x}: its kind has ended, and it with that"))
        }
        _ => complain(format_args!("{call} of {at:#x}: no object has begun there")),
    }
    sys::set_errno(error);
}

/// Says what is wrong, in one line, without memory from anywhere; then the program ends, if that is configured.
fn complain(what: core::fmt::Arguments<'_>) {
    struct Line([u8; LINE], usize);
    impl core::fmt::Write for Line {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            // The last byte is the line's end.
            let place =
                self.0.get_mut(self.1..self.1 + text.len()).filter(|_| self.1 + text.len() < LINE);
            place.ok_or(core::fmt::Error)?.copy_from_slice(text.as_bytes());
            self.1 += text.len();
            Ok(())
        }
    }
    let mut line = Line([b'\n'; LINE], 0);
    // What is too long ends at its last whole part.
    let _ = write!(line, "nearfar: {what}");
    sys::say(
        core::str::from_utf8(&line.0[..=line.1])
            .unwrap_or("nearfar: memory was given back wrongly\n"),
    );
    if aborts() {
        sys::say("nearfar: the configuration has the program end then (wrong=abort)\n");
        std::process::abort();
    }
}

/// Whether `NEARFAR_CONF` has the program end; read once.
fn aborts() -> bool {
    const UNREAD: u8 = 0;
    const GOES_ON: u8 = 1;
    const ABORTS: u8 = 2;
    static READ: AtomicU8 = AtomicU8::new(UNREAD);
    if READ.load(Ordering::Relaxed) == UNREAD {
        // SAFETY: a name; as for all C code, nobody changes the environment meanwhile.
        let conf = unsafe { libc::getenv(c"NEARFAR_CONF".as_ptr()) };
        let is_there = NonNull::new(conf).is_some_and(|conf| {
            // SAFETY: a string, as above.
            let text = unsafe { CStr::from_ptr(conf.as_ptr()) }.to_bytes();
            text.split(u8::is_ascii_whitespace).any(|word| word == b"wrong=abort")
        });
        READ.store(if is_there { ABORTS } else { GOES_ON }, Ordering::Relaxed);
    }
    READ.load(Ordering::Relaxed) == ABORTS
}
