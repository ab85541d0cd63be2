//! Allocating and freeing: the fast paths through a thread's magazines, and the slow paths behind them.
//!
//! | size | from |
//! |---|---|
//! | up to 32 KiB | the thread's magazine, then the kind's depot, then an arena |
//! | below 4 MiB | an arena |
//! | larger, or aligned beyond 2 MiB | segments of its own, which are kept for a while when it is freed (`kept`) |
//!
//! The default kind is served the same way; where it can't be made, by unmodified jemalloc.
#![expect(unsafe_code, reason = "malloc and free")]

use core::ptr::{NonNull, copy_nonoverlapping};
use core::sync::atomic::Ordering;

use tikv_jemalloc_sys as je;

use crate::classes::{CACHED_MOST, class_of, fine_class, size_of_class};
use crate::growth::HOOKS;
use crate::kind::{self, DEFAULT, Kind};
use crate::record::{self, Thread};
use crate::space::{self, Code, Role};
use crate::{adapt, arena, sys, thread};

pub(crate) use crate::machine::allocate_placed;

/// Objects of at least this size have segments of their own.
const OWN_LEAST: usize = 4 << 20;
/// So do objects with a larger alignment than this.
const ARENA_ALIGNMENT: usize = 2 << 20;
/// Objects of a class are aligned to the largest power of two that divides the class, up to this.
const CLASS_ALIGNMENT: usize = 4096;
/// The alignment of every object, except of those smaller than it.
const ALIGNMENT: usize = 16;
/// Longest chain of spills for a request.
const SPILLS: usize = 8;

/// An allocation request.
#[derive(Clone, Copy, Debug)]
struct Request {
    size: usize,
    /// A power of two.
    alignment: usize,
    zeroed: bool,
}

/// Allocates memory of a kind; `None`, with errno set, on failure.
#[inline(always)]
pub(crate) fn allocate(handle: u32, size: usize) -> Option<NonNull<u8>> {
    // Not `or_else`: this way the slow path is a tail call with its arguments in registers.
    match quickly(handle, size) {
        Some(object) => Some(object),
        None => allocate_otherwise(handle, size),
    }
}

/// Allocates from the calling thread's cache, if it has an object of that size.
#[inline(always)]
pub(crate) fn quickly(handle: u32, size: usize) -> Option<NonNull<u8>> {
    let class = fine_class(size)?;
    let object = record::glance()?.magazine(kind::index_of(handle), class).pop()?;
    NonNull::new(object as *mut u8)
}

/// The slow paths, in a call of their own, so that the fast path need not save registers.
#[cold]
#[inline(never)]
fn allocate_otherwise(handle: u32, size: usize) -> Option<NonNull<u8>> {
    // The thread's record may exist though `record::glance` did not find it.
    if let Some((thread, class)) = record::get().zip(fine_class(size))
        && let Some(object) = thread.magazine(kind::index_of(handle), class).pop()
    {
        return NonNull::new(object as *mut u8);
    }
    allocate_slowly(handle, Request { size, alignment: 1, zeroed: false })
}

/// Memory of zeroes.
#[inline(always)]
pub(crate) fn allocate_zeroed(handle: u32, size: usize) -> Option<NonNull<u8>> {
    if let Some(object) = quickly(handle, size) {
        // SAFETY: the object is ours and at least that large.
        unsafe { object.write_bytes(0, size) };
        return Some(object);
    }
    allocate_slowly(handle, Request { size, alignment: 1, zeroed: true })
}

/// Memory at a multiple of `alignment`, a power of two.
pub(crate) fn allocate_aligned(handle: u32, alignment: usize, size: usize) -> Option<NonNull<u8>> {
    allocate_slowly(handle, Request { size, alignment, zeroed: false })
}

#[cold]
#[inline(never)]
fn allocate_slowly(handle: u32, request: Request) -> Option<NonNull<u8>> {
    if handle != DEFAULT {
        adapt::turn();
    }
    let mut at = handle;
    for _ in 0..SPILLS {
        if at == DEFAULT {
            let object = kind::of_default(&HOOKS).and_then(|kind| of_kind(kind, request));
            return object.or_else(|| plain(request));
        }
        // A kind whose objects are placed one by one can't serve requests without a place.
        let Some(kind) = kind::find(at).filter(|kind| !kind.is_apart()) else {
            sys::set_errno(libc::EINVAL);
            return None;
        };
        if let Some(object) = of_kind(kind, request) {
            return Some(object);
        }
        let Some(spill) = kind.spill() else {
            kind.counts.failed.fetch_add(1, Ordering::Relaxed);
            break;
        };
        kind.counts.spilled.fetch_add(1, Ordering::Relaxed);
        at = spill;
    }
    sys::set_errno(libc::ENOMEM);
    None
}

/// Memory of unmodified jemalloc, at a multiple of `alignment`.
pub(crate) fn plain_aligned(alignment: usize, size: usize) -> Option<NonNull<u8>> {
    plain(Request { size, alignment, zeroed: false })
}

fn plain(request: Request) -> Option<NonNull<u8>> {
    if !arena::wake() {
        sys::set_errno(libc::ENOMEM);
        return None;
    }
    let zero = if request.zeroed { je::MALLOCX_ZERO } else { 0 };
    let flags = je::MALLOCX_ALIGN(request.alignment) | zero;
    // SAFETY: the size is not zero, the alignment a power of two.
    let object = NonNull::new(unsafe { je::mallocx(request.size.max(1), flags) }.cast());
    if object.is_none() {
        sys::set_errno(libc::ENOMEM);
    }
    object
}

/// The class that serves a request, if threads cache objects of it.
fn class_for(request: Request) -> Option<usize> {
    if request.alignment <= ALIGNMENT && request.size >= request.alignment {
        return class_of(request.size);
    }
    if request.alignment > CLASS_ALIGNMENT {
        return None;
    }
    class_of(request.size.max(1).checked_next_multiple_of(request.alignment)?)
}

fn of_kind(kind: &'static Kind, request: Request) -> Option<NonNull<u8>> {
    let Request { size, alignment, zeroed } = request;
    if size > isize::MAX.cast_unsigned() {
        return None;
    }
    if size >= OWN_LEAST || alignment > ARENA_ALIGNMENT {
        return NonNull::new(kind.object(size.max(1), alignment, zeroed)? as *mut u8);
    }
    let thread = thread::current().filter(|thread| thread.ensure(kind.index()));
    let (Some(class), Some(thread)) = (class_for(request), thread) else {
        return from_arena(kind, request, thread.map_or(0, Thread::shard));
    };
    let magazine = thread.magazine(kind.index(), class);
    let object = magazine.pop().or_else(|| {
        thread::refill(magazine, kind, class, thread.shard());
        magazine.pop()
    })?;
    let object = NonNull::new(object as *mut u8)?;
    if zeroed {
        // SAFETY: the object is ours and as large as its class.
        unsafe { object.write_bytes(0, size) };
    }
    Some(object)
}

fn from_arena(kind: &'static Kind, request: Request, shard: usize) -> Option<NonNull<u8>> {
    let object = kind.arena(shard)?.one(request.size, request.alignment, request.zeroed)?;
    let at = object.as_ptr() as usize;
    // The page may have belonged to a class before.
    space::set_code(space::offset_of(at)?, Code::NONE);
    // SAFETY: just allocated.
    let size = unsafe { arena::size_of_object(at) };
    kind.counts.went_out(size);
    Some(object)
}

/// Frees an object of any kind.
///
/// # Safety
/// `object` is null, or was allocated here and is not used any more.
#[inline(always)]
pub(crate) unsafe fn free(object: *mut u8) {
    let at = object as usize;
    if let Some(offset) = space::offset_of(at) {
        let code = space::code_at(offset);
        let thread = record::glance();
        if code != Code::NONE
            && let Some(thread) = thread
            && thread.magazine(code.kind(), code.class()).push(at)
        {
            return;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { free_slowly(at) };
}

#[cold]
#[inline(never)]
unsafe fn free_slowly(at: usize) {
    let error = sys::errno();
    if at != 0 {
        match space::offset_of(at) {
            // SAFETY: the caller's promise: not ours, so jemalloc's.
            None => unsafe { je::free(at as *mut libc::c_void) },
            // SAFETY: the caller's promise.
            Some(offset) => unsafe { free_ours(at, offset) },
        }
    }
    sys::set_errno(error);
}

unsafe fn free_ours(at: usize, offset: usize) {
    let code = space::code_at(offset);
    let (index, role) = space::owner_at(offset);
    if role == Role::Rest {
        // Nothing of ours begins there, so this is a place that was lost.
        // SAFETY: the caller's promise: not ours, so jemalloc's.
        unsafe { je::free(at as *mut libc::c_void) };
        return;
    }
    let Some(kind) = kind::at(index) else { return };
    if let Role::Object(length) = role {
        // SAFETY: the caller's promise; objects with segments of their own are found by their first segment.
        unsafe { kind.end_object(offset, length) };
        return;
    }
    if code == Code::NONE {
        // SAFETY: the caller's promise.
        let size = unsafe { arena::size_of_object(at) };
        // SAFETY: as above.
        unsafe { arena::give_back(at) };
        kind.came_back(size);
        return;
    }
    let class = code.class();
    match thread::current().filter(|thread| thread.ensure(index)) {
        Some(thread) => {
            let magazine = thread.magazine(index, class);
            if !magazine.push(at) {
                thread::make_room(magazine, kind, class);
                magazine.push(at);
            }
        }
        None => thread::bring(kind, class, &[at]),
    }
}

/// The kind of an object; the default for pointers that are not ours.
pub(crate) fn kind_of(at: usize) -> u32 {
    let index = space::offset_of(at).map_or(0, |offset| space::owner_at(offset).0);
    kind::at(index).filter(|_| index > 0).map_or(DEFAULT, Kind::handle)
}

/// Usable bytes, at least as many as were requested.
///
/// # Safety
/// `at` is null or was allocated here and not freed.
pub(crate) unsafe fn usable_size(at: usize) -> usize {
    let Some(offset) = space::offset_of(at) else {
        // SAFETY: the caller's promise: jemalloc's, or null.
        return unsafe { je::malloc_usable_size(at as *const libc::c_void) };
    };
    // Pages of objects with segments of their own have no code.
    match space::code_at(offset) {
        Code::NONE => match space::owner_at(offset) {
            (_, Role::Object(length)) => length,
            // SAFETY: as above.
            (_, Role::Rest) => unsafe { je::malloc_usable_size(at as *const libc::c_void) },
            // SAFETY: the caller's promise.
            _ => unsafe { arena::size_of_object(at) },
        },
        code => size_of_class(code.class()),
    }
}

/// Returns memory of a kind with the content of `object`, which is freed unless the result is `None`. A null is like
/// [`allocate`].
///
/// # Safety
/// As [`free`].
pub(crate) unsafe fn reallocate(handle: u32, object: *mut u8, size: usize) -> Option<NonNull<u8>> {
    let Some(old) = NonNull::new(object) else { return allocate(handle, size) };
    let at = object as usize;
    let stays = kind_of(at) == handle;
    if stays && space::offset_of(at).is_none() {
        // SAFETY: the caller's promise; the size is not zero.
        let new = unsafe { je::realloc(object.cast(), size.max(1)) };
        return NonNull::new(new.cast());
    }
    // SAFETY: the caller's promise.
    if stays && unsafe { resize(handle, at, size) } {
        return Some(old);
    }
    let new = allocate(handle, size)?;
    if stays {
        // SAFETY: the caller's promise.
        match unsafe { shift(at, new.as_ptr() as usize) } {
            Shifted::Whole => return Some(new),
            Shifted::Not => {}
            Shifted::Lost => {
                sys::set_errno(libc::ENOMEM);
                return None;
            }
        }
    }
    // SAFETY: the caller's promise.
    let length = unsafe { usable_size(at) }.min(size);
    // SAFETY: both have that many bytes, and they are two objects.
    unsafe { copy_nonoverlapping(object, new.as_ptr(), length) };
    // SAFETY: the caller's promise.
    unsafe { free(object) };
    Some(new)
}

/// Result of [`shift`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shifted {
    /// The second has all of the first's content, and the first is freed.
    Whole,
    /// Both are unchanged.
    Not,
    /// The first is unchanged, and the second is lost.
    Lost,
}

/// Moves the pages of an object with segments of its own to another such object of the same kind, if both qualify and
/// the kernel supports it: not where parts of an object have memory policies of their own.
unsafe fn shift(from: usize, to: usize) -> Shifted {
    let Some((from_offset, to_offset)) = space::offset_of(from).zip(space::offset_of(to)) else {
        return Shifted::Not;
    };
    let (index, from_role) = space::owner_at(from_offset);
    let (to_index, to_role) = space::owner_at(to_offset);
    let (Role::Object(length), Role::Object(room), Some(kind)) =
        (from_role, to_role, kind::at(index))
    else {
        return Shifted::Not;
    };
    let length_moved = length.min(room);
    // The pages keep their memory policy, which is wrong for another kind: that of a spill.
    if to_index != index || !sys::may_shift(from, length_moved) {
        return Shifted::Not;
    }
    // As long as parts of them are not mapped, the kernel may map another thread's memory there.
    space::lose(from_offset, length);
    space::lose(to_offset, room);
    // SAFETY: the caller's promise: an object that becomes the other, to which no other pointer exists.
    if unsafe { sys::shift(from, length_moved, to, room) } {
        space::find_again(index, to_offset, room);
        if sys::fill(from, length_moved) {
            // SAFETY: as above.
            // The mapping there now has no memory policy yet.
            unsafe { kind.end_object_now(from_offset, length) };
        } else {
            kind.lose_object(from_offset, length);
        }
        return Shifted::Whole;
    }
    space::find_again(index, from_offset, length);
    if sys::fill(to, room) && kind.place(to, room) {
        space::find_again(index, to_offset, room);
        return Shifted::Not;
    }
    kind.lose_object(to_offset, room);
    Shifted::Lost
}

/// Resizes an object of a kind in place; false if it can't, or if the object would waste too much.
unsafe fn resize(handle: u32, at: usize, size: usize) -> bool {
    let Some((kind, offset)) = kind::at(kind::index_of(handle)).zip(space::offset_of(at)) else {
        return false;
    };
    if let (_, Role::Object(length)) = space::owner_at(offset) {
        let may = if kind.is_apart() { size <= length } else { size >= OWN_LEAST };
        // SAFETY: the caller's promise: an object of this kind.
        return may && unsafe { kind.resize_object(offset, length, size.max(1)) };
    }
    match space::code_at(offset) {
        Code::NONE if size > CACHED_MOST && size < OWN_LEAST => {
            // SAFETY: the caller's promise.
            let before = unsafe { arena::size_of_object(at) };
            // SAFETY: as above.
            let resized = unsafe { arena::resize_in_place(at, size) };
            // SAFETY: as above.
            let after = unsafe { arena::size_of_object(at) };
            kind.counts.out.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            // An object that should be much smaller and did not shrink is moved.
            resized && after / 2 <= size
        }
        Code::NONE => false,
        code => class_of(size) == Some(code.class()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::SEGMENT;

    #[test]
    fn jemallocs_memory_in_a_lost_segment_is_freed_to_its_arena() {
        let kind = kind::find(kind::create(kind::Plan::default(), &HOOKS).unwrap()).unwrap();
        let arena = kind.arena(0).unwrap();
        let object = arena.one(1 << 20, 1, false).unwrap();
        let offset = space::offset_of(object.as_ptr() as usize).unwrap();
        space::lose(offset / SEGMENT * SEGMENT, SEGMENT);
        // SAFETY: an object of jemalloc's.
        assert!(unsafe { usable_size(object.as_ptr() as usize) } >= 1 << 20);
        // SAFETY: as above, and it is not used any more.
        unsafe { free(object.as_ptr()) };
        assert_eq!(arena.one(1 << 20, 1, false), Some(object));
    }
}
