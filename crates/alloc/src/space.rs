//! The address range shared by all kinds, and the metadata of each of its pages.
//!
//! One range is mapped when the first kind is made: addresses, no memory. It is cut into *segments* of 64 MiB, each of
//! which belongs to one kind: as memory for its arenas, or for an object that has segments of its own. So a subtraction
//! and a shift give a pointer's kind, and one comparison detects a pointer that is not ours.
//!
//! Each page has a *code* of two bytes: the kind and the size class of the objects on it, or zero. It is written when
//! objects of the page move to a thread's cache, so `free` needs no other look-up for those objects. A page holds
//! objects of one class only, and an outdated code is overwritten before an object of the page is handed out again.
//!
//! Rules: the range is never unmapped. Only the thread that claimed a segment changes its owner. No thread waits here,
//! so a child that was forked at any moment can go on.
#![expect(unsafe_code, reason = "tables of atomics in memory of our own")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicUsize, Ordering};

use crate::claim::{self, FREE};
use crate::classes::CLASSES;
use crate::sys;

/// Bytes in a segment.
pub(crate) const SEGMENT: usize = 64 << 20;
/// The most kinds there can be at a time, the default among them.
pub(crate) const KINDS: usize = 1 << KIND_BITS;
const KIND_BITS: u32 = 10;
const CLASS_BITS: u32 = 6;
const PAGE_SHIFT: u32 = 12;
const _: () = assert!(CLASSES <= 1 << CLASS_BITS && KIND_BITS + CLASS_BITS == 16);
const _: () = assert!(1 << PAGE_SHIFT == sys::PAGE);

/// Lengths to try: a limit on address space may forbid the first.
const LENGTHS: [usize; 4] = [16 << 40, 1 << 40, 128 << 30, 4 << 30];
/// The range begins at a multiple of this, so that segments aligned in the range are aligned in memory.
const ALIGNED: usize = 1 << 30;

static BASE: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);
static CODES: AtomicPtr<AtomicU16> = AtomicPtr::new(core::ptr::null_mut());
static SEGMENTS: AtomicPtr<Segment> = AtomicPtr::new(core::ptr::null_mut());
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// Segments from here on were never claimed.
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// The use of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing.
    Free,
    /// Memory for a kind's arenas.
    Arena,
    /// The first of an object with segments of its own, and the object's size.
    Object(usize),
    /// Another segment of such an object.
    Rest,
}

/// A segment's owner and, for the first of an object, the object's size. All zeroes is free.
#[derive(Debug)]
struct Segment {
    /// The kind in the upper bits, the role in the lower two.
    owner: AtomicU32,
    bytes: AtomicUsize,
}

const ARENA: u32 = 1;
const OBJECT: u32 = 2;
const REST: u32 = 3;
const ROLE_BITS: u32 = 2;

/// Kind and class of a page, in two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(u16);

impl Code {
    pub(crate) const NONE: Self = Self(0);

    #[expect(clippy::cast_possible_truncation, reason = "they have 16 bits together")]
    pub(crate) const fn new(kind: usize, class: usize) -> Self {
        Self((kind as u16) << CLASS_BITS | class as u16)
    }

    #[inline(always)]
    pub(crate) const fn kind(self) -> usize {
        (self.0 >> CLASS_BITS) as usize
    }

    #[inline(always)]
    pub(crate) const fn class(self) -> usize {
        (self.0 & ((1 << CLASS_BITS) - 1)) as usize
    }
}

/// A pointer's offset in the range; `None` for a pointer that is not ours.
#[inline(always)]
pub(crate) fn offset_of(at: usize) -> Option<usize> {
    // The base is written before the length.
    let length = LENGTH.load(Ordering::Acquire);
    let offset = at.wrapping_sub(BASE.load(Ordering::Relaxed));
    (offset < length).then_some(offset)
}

/// The address at an offset.
pub(crate) fn address_of(offset: usize) -> usize {
    BASE.load(Ordering::Relaxed) + offset
}

/// The code of the page at an offset that [`offset_of`] gave.
#[inline(always)]
pub(crate) fn code_at(offset: usize) -> Code {
    // SAFETY: there is a code for each page of the range, and the offset is within it.
    let code = unsafe { CODES.load(Ordering::Relaxed).add(offset >> PAGE_SHIFT) };
    // SAFETY: as above; all zeroes is a code.
    Code(unsafe { &*code }.load(Ordering::Relaxed))
}

/// Sets the code of the page at an offset.
pub(crate) fn set_code(offset: usize, code: Code) {
    // SAFETY: as for reading.
    let at = unsafe { CODES.load(Ordering::Relaxed).add(offset >> PAGE_SHIFT) };
    // SAFETY: as for reading.
    let at = unsafe { &*at };
    if at.load(Ordering::Relaxed) != code.0 {
        at.store(code.0, Ordering::Relaxed);
    }
}

/// A range and its tables.
struct Made {
    base: usize,
    length: usize,
    codes: *mut AtomicU16,
    segments: *mut Segment,
}

/// The range in use: the first that a thread published.
static MADE: AtomicPtr<Made> = AtomicPtr::new(core::ptr::null_mut());

/// Makes the range, unless it exists. False if not even a small one can be mapped.
pub(crate) fn ensure() -> bool {
    if LENGTH.load(Ordering::Acquire) > 0 {
        return true;
    }
    if MADE.load(Ordering::Acquire).is_null() {
        let Some(made) = LENGTHS.iter().find_map(|length| make(*length)) else { return false };
        // A thread that loses this race wastes some addresses, once.
        let nobody = core::ptr::null_mut();
        let _ = MADE.compare_exchange(nobody, made.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
    }
    // SAFETY: complete when it was published, and never unmapped.
    let made = unsafe { &*MADE.load(Ordering::Acquire) };
    // All threads that come here write the same values.
    CODES.store(made.codes, Ordering::Relaxed);
    SEGMENTS.store(made.segments, Ordering::Relaxed);
    BASE.store(made.base, Ordering::Relaxed);
    LENGTH.store(made.length, Ordering::Release);
    true
}

const fn codes_length(length: usize) -> usize {
    (length >> PAGE_SHIFT) * size_of::<AtomicU16>()
}

const fn segments_length(length: usize) -> usize {
    (length / SEGMENT * size_of::<Segment>()).next_multiple_of(sys::PAGE)
}

fn make(length: usize) -> Option<NonNull<Made>> {
    let mapped = sys::map(length + ALIGNED)?.as_ptr() as usize;
    // The tables lie one behind the other, after a page for `Made`.
    let tables_length = sys::PAGE + segments_length(length) + codes_length(length);
    let Some(tables) = sys::map(tables_length) else {
        // SAFETY: mapped above and known to no other code.
        unsafe { sys::unmap(mapped, length + ALIGNED) };
        return None;
    };
    // SAFETY: within the tables' mapping, as is the next.
    let segments = unsafe { tables.add(sys::PAGE) };
    // SAFETY: as above.
    let codes = unsafe { segments.add(segments_length(length)) };
    let made = tables.cast::<Made>();
    let base = mapped.next_multiple_of(ALIGNED);
    let value =
        Made { base, length, codes: codes.as_ptr().cast(), segments: segments.as_ptr().cast() };
    // SAFETY: a page of its own, aligned, that no other code knows.
    unsafe { made.write(value) };
    Some(made)
}

fn segments() -> usize {
    LENGTH.load(Ordering::Acquire) / SEGMENT
}

fn segment(index: usize) -> &'static Segment {
    debug_assert!(index < segments());
    // SAFETY: there is an entry for each segment.
    let at = unsafe { SEGMENTS.load(Ordering::Acquire).add(index) };
    // SAFETY: entries are never unmapped; all zeroes is one.
    unsafe { &*at }
}

/// The kind that owns the segment at an offset, and the segment's role.
pub(crate) fn owner_at(offset: usize) -> (usize, Role) {
    let segment = segment(offset / SEGMENT);
    let owner = segment.owner.load(Ordering::Acquire);
    let role = match owner & ((1 << ROLE_BITS) - 1) {
        FREE => Role::Free,
        ARENA => Role::Arena,
        OBJECT => Role::Object(segment.bytes.load(Ordering::Relaxed)),
        _ => Role::Rest,
    };
    ((owner >> ROLE_BITS) as usize, role)
}

/// Sets the size of the object that begins at an offset.
pub(crate) fn set_bytes(offset: usize, bytes: usize) {
    segment(offset / SEGMENT).bytes.store(bytes, Ordering::Relaxed);
}

/// Claims a segment for a kind's arenas; its offset.
pub(crate) fn take_segment(kind: usize) -> Option<usize> {
    take(1, 1, |_| owner(kind, ARENA))
}

/// Claims segments for an object of a kind; the offset of the first, a multiple of `alignment` in memory.
pub(crate) fn take_object(kind: usize, bytes: usize, alignment: usize) -> Option<usize> {
    let count = bytes.checked_add(SEGMENT - 1)? / SEGMENT;
    let apart = alignment.div_ceil(SEGMENT).max(1);
    let offset = take(count.max(1), apart, of_object(kind))?;
    set_bytes(offset, bytes);
    Some(offset)
}

/// Releases segments from an offset on. Their content was discarded before.
pub(crate) fn give(offset: usize, bytes: usize) {
    // An object that begins here next has no size at first.
    set_bytes(offset, 0);
    set_owner(offset, bytes, |_| FREE);
}

/// Retires the segments of an object, because the mapping there may not be ours any more: they have no owner, and are
/// not free.
pub(crate) fn lose(offset: usize, bytes: usize) {
    set_owner(offset, bytes, |_| owner(0, REST));
    (offset..offset + bytes).step_by(sys::PAGE).for_each(|page| set_code(page, Code::NONE));
}

/// Undoes [`lose`]: the mapping is the object's.
pub(crate) fn find_again(kind: usize, offset: usize, bytes: usize) {
    set_owner(offset, bytes, of_object(kind));
}

/// The owner and role of each segment of an object, counted from its first.
fn of_object(kind: usize) -> impl Fn(usize) -> u32 {
    move |at| owner(kind, if at == 0 { OBJECT } else { REST })
}

fn set_owner(offset: usize, bytes: usize, role: impl Fn(usize) -> u32) {
    for at in 0..bytes.div_ceil(SEGMENT).max(1) {
        segment(offset / SEGMENT + at).owner.store(role(at), Ordering::Release);
    }
}

/// Offsets of a kind's segments, with the role of each.
pub(crate) fn of_kind(kind: usize) -> impl Iterator<Item = (usize, Role)> {
    let offsets = (0..HIGH.load(Ordering::Acquire)).map(|index| index * SEGMENT);
    offsets.map(|offset| (offset, owner_at(offset))).filter_map(move |(offset, (owner, role))| {
        (owner == kind && role != Role::Free).then_some((offset, role))
    })
}

#[expect(clippy::cast_possible_truncation, reason = "kinds have few bits")]
const fn owner(kind: usize, role: u32) -> u32 {
    (kind as u32) << ROLE_BITS | role
}

fn take(count: usize, apart: usize, role: impl Fn(usize) -> u32) -> Option<usize> {
    let all = segments();
    let start = NEXT.load(Ordering::Relaxed).min(all);
    let first_in = |from: usize, to: usize| {
        let mut at = aligned(from, apart);
        while at.checked_add(count).is_some_and(|end| end <= to) {
            match claim(at, count, &role) {
                Ok(()) => return Some(at),
                Err(taken) => at = aligned(taken + 1, apart),
            }
        }
        None
    };
    let at = first_in(start, all).or_else(|| first_in(0, all.min(start.saturating_add(count))))?;
    NEXT.store(at + count, Ordering::Relaxed);
    HIGH.fetch_max(at + count, Ordering::AcqRel);
    Some(at * SEGMENT)
}

/// The first segment from `from` on whose address is a multiple of `apart` segments.
fn aligned(from: usize, apart: usize) -> usize {
    let base = BASE.load(Ordering::Relaxed) / SEGMENT;
    (base + from).next_multiple_of(apart) - base
}

fn claim(first: usize, count: usize, role: impl Fn(usize) -> u32) -> Result<(), usize> {
    claim::claim(|index| &segment(index).owner, first, count, role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_objects_get_their_own_aligned_segments() {
        assert!(ensure());
        for (bytes, alignment) in
            [(1, 1), (SEGMENT, 4096), (3 * SEGMENT + 1, 1 << 30), (1, 4 << 30)]
        {
            let offset = take_object(7, bytes, alignment).unwrap();
            assert_eq!(address_of(offset) % alignment, 0, "{bytes} at {alignment}");
            assert_eq!(offset_of(address_of(offset)), Some(offset));
            assert_eq!(owner_at(offset + 5), (7, Role::Object(bytes)));
            let last = offset + bytes - 1;
            let role = if bytes > SEGMENT { Role::Rest } else { Role::Object(bytes) };
            assert_eq!(owner_at(last), (7, role));
            give(offset, bytes);
            assert_eq!(owner_at(last).1, Role::Free);
            let again = claim(offset / SEGMENT, 1, |_| owner(8, OBJECT));
            assert!(again.is_ok() && owner_at(offset) == (8, Role::Object(0)), "no size of before");
            give(offset, 1);
        }
    }

    #[test]
    fn lost_segments_have_no_owner_and_are_not_reused() {
        assert!(ensure());
        let offset = take_object(7, 2 * SEGMENT, 1).unwrap();
        lose(offset, 2 * SEGMENT);
        assert_eq!(owner_at(offset), (0, Role::Rest));
        assert!(of_kind(7).all(|(at, _)| at != offset && at != offset + SEGMENT));
        find_again(7, offset, 2 * SEGMENT);
        assert_eq!(owner_at(offset), (7, Role::Object(2 * SEGMENT)));
        assert_eq!(owner_at(offset + SEGMENT), (7, Role::Rest));
        lose(offset, 2 * SEGMENT);
        assert_eq!(claim(offset / SEGMENT, 1, |_| owner(7, ARENA)), Err(offset / SEGMENT));
    }

    #[test]
    fn foreign_addresses_have_no_offset() {
        assert!(ensure());
        let local = 5_u8;
        assert_eq!(offset_of(&raw const local as usize), None);
        assert_eq!(offset_of(0), None);
        assert_eq!(offset_of(usize::MAX), None);
    }

    #[test]
    fn requests_larger_than_the_address_space_fail() {
        assert!(ensure());
        assert_eq!(take_object(7, usize::MAX, 1), None);
        assert_eq!(take_object(7, 1 << 46, 1), None);
    }

    #[test]
    fn threads_never_get_the_same_segment() {
        assert!(ensure());
        let take = || (0..200).map(|_| take_segment(9).unwrap()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(take)).collect();
        let mut taken: Vec<_> = threads.into_iter().flat_map(|one| one.join().unwrap()).collect();
        taken.sort_unstable();
        let all = taken.len();
        taken.dedup();
        assert_eq!(taken.len(), all);
        taken.iter().for_each(|offset| give(*offset, 1));
    }

    #[test]
    fn a_page_code_round_trips_its_kind_and_class() {
        let code = Code::new(KINDS - 1, CLASSES - 1);
        assert_eq!((code.kind(), code.class()), (KINDS - 1, CLASSES - 1));
        assert_eq!(Code::new(0, 0), Code::NONE);
    }
}
