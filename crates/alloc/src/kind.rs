//! A memory kind at work: its place, its limit, its arenas and its segments.
//!
//! Kinds are numbered from 1; number 0 is the default, plain memory, which has no [`Kind`]. A *handle* is the number with a
//! generation, so that the handle of a kind that is gone is told from that of the next with its number. Kinds are never
//! freed: one that ends is cleared and used again.
//!
//! Rules: what is written when a kind is made (its placing, its spill) is written before its handle is, and read by who has
//! the handle. Who ends a kind promises that nobody uses it or anything allocated from it any more.
#![expect(
    unsafe_code,
    reason = "kinds live in memory that has no owner, and jemalloc finds them by address"
)]

use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::boxed::Box;
use std::string::String;

use tikv_jemalloc_sys::extent_hooks_t;

use crate::arena::{Arena, HOOKS};
use crate::classes::CLASSES;
use crate::counts::Counts;
use crate::depot::Depot;
use crate::placing::Placing;
use crate::space::{self, Code, KINDS, Role, SEGMENT};
use crate::{own, sys, thread};

/// The default kind: plain memory, placed as the process's policy says.
pub(crate) const DEFAULT: u32 = 0;
/// The most arenas a kind has; threads share them.
pub(crate) const SHARDS: usize = 8;
/// The most kinds there are at a time. The last number stays free: it is that of the handle that stands for none.
pub(crate) const KINDS_MOST: usize = KINDS - 2;
/// From this many kinds on a kind has one arena: jemalloc has some four thousand in all.
const KINDS_WITH_SHARDS: usize = 256;

const INDEX_BITS: u32 = KINDS.trailing_zeros();
/// A handle that is being made or ended.
const BUSY: u32 = (1 << INDEX_BITS) - 1;

static TABLE: [AtomicPtr<Kind>; KINDS] = [const { AtomicPtr::new(null_mut()) }; KINDS];
/// What each kind is to be like. Not in the kinds themselves: leak checkers look for pointers in a library's static memory, not
/// in what it has mapped.
static PLANS: [AtomicPtr<Plan>; KINDS] = [const { AtomicPtr::new(null_mut()) }; KINDS];

/// What a kind is to be like.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Its place in words.
    pub(crate) text: String,
    /// Where its pages are.
    pub(crate) placing: Placing,
    /// The most bytes set aside for it; none is as many as there are.
    pub(crate) limit: Option<usize>,
    /// The kind that gives what this one can't.
    pub(crate) spill: Option<u32>,
    /// Whether that kind is this one's alone, and ends with it.
    pub(crate) owns_spill: bool,
    /// Whether to ask for huge pages, or for none.
    pub(crate) huge: Option<bool>,
}

/// A kind.
#[repr(C)]
pub(crate) struct Kind {
    /// First, so that jemalloc, which has its address, has the kind's.
    hooks: UnsafeCell<extent_hooks_t>,
    /// 0: none.
    handle: AtomicU32,
    index: AtomicU32,
    generation: AtomicU32,
    /// The most that may be set aside.
    limit: AtomicUsize,
    /// Address space set aside for arenas and objects.
    aside: AtomicUsize,
    /// The next free address for arenas, in a segment that ends at the next multiple of its size.
    cursor: AtomicUsize,
    /// Each arena's number and one, or zero.
    arenas: [AtomicU32; SHARDS],
    pub(crate) counts: Counts,
    pub(crate) depots: [Depot; CLASSES],
    /// Objects of each class that went back to arenas and have not been allocated again.
    pub(crate) returned: [AtomicUsize; CLASSES],
}

// SAFETY: see the rules above for the cell; jemalloc reads hooks only.
unsafe impl Sync for Kind {}

impl core::fmt::Debug for Kind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Kind").field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// The number in a handle.
#[inline(always)]
pub(crate) const fn index_of(handle: u32) -> usize {
    handle as usize & (KINDS - 1)
}

/// The kind of a handle; none for the default and for one that is gone.
pub(crate) fn find(handle: u32) -> Option<&'static Kind> {
    at(index_of(handle)).filter(|kind| kind.handle.load(Ordering::Acquire) == handle)
}

/// The kind with a number, if there is one now.
pub(crate) fn at(index: usize) -> Option<&'static Kind> {
    let kind = TABLE.get(index)?.load(Ordering::Acquire);
    // SAFETY: kinds are never freed.
    let kind = unsafe { kind.as_ref() }?;
    (kind.handle() > BUSY).then_some(kind)
}

/// Handles of all kinds there are.
pub(crate) fn all() -> impl Iterator<Item = &'static Kind> {
    (1..KINDS).filter_map(at)
}

/// Makes a kind. None if there are as many as there can be, or no memory.
pub(crate) fn create(plan: Plan) -> Option<u32> {
    if !space::ensure() {
        return None;
    }
    let kind = (1..=KINDS_MOST).find_map(reserve)?;
    kind.limit.store(plan.limit.unwrap_or(usize::MAX), Ordering::Relaxed);
    PLANS[kind.index()].store(Box::into_raw(Box::new(plan)), Ordering::Release);
    let generation = kind.generation.load(Ordering::Relaxed) % (u32::MAX >> INDEX_BITS) + 1;
    kind.generation.store(generation, Ordering::Relaxed);
    let handle = generation << INDEX_BITS | kind.index.load(Ordering::Relaxed);
    kind.handle.store(handle, Ordering::Release);
    Some(handle)
}

/// Makes a kind with a kind of its own for what it can't give.
pub(crate) fn create_with_spill(plan: Plan, spill: Option<Plan>) -> Option<u32> {
    let Some(spill) = spill else { return create(plan) };
    let spill = create(spill)?;
    let made = create(Plan { spill: Some(spill), owns_spill: true, ..plan });
    if made.is_none() {
        // SAFETY: nothing was allocated from it, and nobody knows it.
        unsafe { destroy(spill) };
    }
    made
}

/// Makes the kind with this number ours to fill in, if it is free.
fn reserve(index: usize) -> Option<&'static Kind> {
    let place = &TABLE[index];
    if place.load(Ordering::Acquire).is_null() {
        let made = own::zeroed::<Kind>()?;
        // SAFETY: memory of our own, in which all zeroes is a kind that is not there.
        let kind = unsafe { made.as_ref() };
        // SAFETY: nobody else knows it yet.
        unsafe { *kind.hooks.get() = HOOKS };
        kind.index.store(u32::try_from(index).ok()?, Ordering::Relaxed);
        // Who comes second has wasted some memory, once.
        let _ =
            place.compare_exchange(null_mut(), made.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
    }
    // SAFETY: kinds are never freed.
    let kind = unsafe { &*place.load(Ordering::Acquire) };
    kind.handle.compare_exchange(0, BUSY, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    Some(kind)
}

/// Ends a kind with all that was allocated from it. False if there is none with this handle.
///
/// # Safety
/// Nobody uses the kind or what was allocated from it any more.
pub(crate) unsafe fn destroy(handle: u32) -> bool {
    let Some(kind) = find(handle) else { return false };
    let busy = kind.handle.compare_exchange(handle, BUSY, Ordering::AcqRel, Ordering::Relaxed);
    if handle == DEFAULT || busy.is_err() {
        return false;
    }
    let index = index_of(handle);
    // SAFETY: the caller's promise, here and below.
    unsafe { thread::forget_kind(index) };
    for (depot, returned) in kind.depots.iter().zip(&kind.returned) {
        // SAFETY: as above.
        unsafe { depot.reset() };
        returned.store(0, Ordering::Relaxed);
    }
    for arena in &kind.arenas {
        if let Some(number) = arena.swap(0, Ordering::AcqRel).checked_sub(1) {
            // SAFETY: as above.
            unsafe { Arena(number).destroy() };
        }
    }
    for (offset, role) in space::of_kind(index) {
        #[cfg(feature = "checked")]
        crate::checked::ends(offset, role);
        let bytes = if let Role::Object(bytes) = role { bytes } else { SEGMENT };
        let length = bytes.div_ceil(SEGMENT).max(1) * SEGMENT;
        // SAFETY: as above; the parts of an object are done with its first.
        if role != Role::Rest && unsafe { sys::renew(space::address_of(offset), length) } {
            space::give(offset, length);
        }
    }
    kind.cursor.store(0, Ordering::Relaxed);
    kind.aside.store(0, Ordering::Relaxed);
    let counts = &kind.counts;
    for count in [&counts.out, &counts.high, &counts.objects] {
        count.store(0, Ordering::Relaxed);
    }
    for count in [&counts.binds, &counts.spilled, &counts.failed] {
        count.store(0, Ordering::Relaxed);
    }
    let plan = PLANS[index].swap(null_mut(), Ordering::AcqRel);
    // SAFETY: a box that was given away when the kind was made, and that nobody has any more.
    let plan = (!plan.is_null()).then(|| unsafe { Box::from_raw(plan) });
    kind.handle.store(0, Ordering::Release);
    if let Some(spill) = plan.filter(|plan| plan.owns_spill).and_then(|plan| plan.spill) {
        // SAFETY: as above: what was spilled was allocated from this kind.
        unsafe { destroy(spill) };
    }
    true
}

impl Kind {
    pub(crate) fn handle(&self) -> u32 {
        self.handle.load(Ordering::Acquire)
    }

    pub(crate) fn index(&self) -> usize {
        self.index.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn hooks(&'static self) -> *const extent_hooks_t {
        self.hooks.get()
    }

    /// The kind that hooks belong to.
    ///
    /// # Safety
    /// They are those of a kind.
    pub(crate) unsafe fn of_hooks(hooks: *mut extent_hooks_t) -> &'static Self {
        // SAFETY: hooks are a kind's first field, and kinds are never freed.
        unsafe { &*hooks.cast::<Self>() }
    }

    fn plan(&self) -> Option<&Plan> {
        // SAFETY: written before the handle that our caller has, and not changed while that is in use.
        unsafe { PLANS[self.index()].load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn spill(&self) -> Option<u32> {
        self.plan()?.spill
    }

    pub(crate) fn limit(&self) -> Option<usize> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit < usize::MAX)
    }

    /// Allows it as much again as it was allowed at first.
    pub(crate) fn raise_limit(&self) {
        let more = self.plan().and_then(|plan| plan.limit).unwrap_or(0);
        let raise = |limit: usize| Some(limit.saturating_add(more));
        let _ = self.limit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    }

    /// What it was made of, in words.
    pub(crate) fn text(&self) -> &str {
        self.plan().map_or("", |plan| &plan.text)
    }

    /// Where its pages are.
    pub(crate) fn placing(&self) -> Option<&Placing> {
        Some(&self.plan()?.placing)
    }

    /// Whether each of its objects has a place of its own.
    pub(crate) fn is_apart(&self) -> bool {
        matches!(self.placing(), Some(Placing::Apart))
    }

    /// Bytes of address space set aside.
    pub(crate) fn set_aside(&self) -> usize {
        self.aside.load(Ordering::Relaxed)
    }

    /// The arena for threads of this shard.
    pub(crate) fn arena(&'static self, shard: usize) -> Option<Arena> {
        let shards = if self.index() < KINDS_WITH_SHARDS { SHARDS } else { 1 };
        let place = &self.arenas[shard % shards];
        let known = || place.load(Ordering::Acquire).checked_sub(1).map(Arena);
        if let Some(arena) = known() {
            return Some(arena);
        }
        let made = Arena::create(self)?;
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
        if place.compare_exchange(0, made.0 + 1, order, otherwise).is_err() {
            // SAFETY: ours alone, and nothing was allocated from it.
            unsafe { made.destroy() };
        }
        known()
    }

    /// Its arenas.
    pub(crate) fn arenas(&self) -> impl Iterator<Item = Arena> {
        self.arenas
            .iter()
            .filter_map(|arena| arena.load(Ordering::Acquire).checked_sub(1))
            .map(Arena)
    }

    /// Sets `bytes` aside, if the limit allows it.
    fn reserve(&self, bytes: usize) -> bool {
        let most = self.limit.load(Ordering::Relaxed);
        let more = |aside: usize| aside.checked_add(bytes).filter(|aside| *aside <= most);
        self.aside.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Address space for an arena. Its pages are fresh.
    pub(crate) fn extend(&self, size: usize, alignment: usize) -> Option<usize> {
        if size > SEGMENT || alignment > SEGMENT || !self.reserve(size) {
            return None;
        }
        let extended = self.advance(size, alignment);
        if extended.is_none() {
            self.aside.fetch_sub(size, Ordering::Relaxed);
        }
        extended
    }

    fn advance(&self, size: usize, alignment: usize) -> Option<usize> {
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
        loop {
            let cursor = self.cursor.load(Ordering::Acquire);
            let at = cursor.next_multiple_of(alignment);
            if at + size <= cursor.next_multiple_of(SEGMENT) {
                if self.cursor.compare_exchange(cursor, at + size, order, otherwise).is_ok() {
                    return Some(at);
                }
                continue;
            }
            let offset = space::take_segment(self.index())?;
            let at = space::address_of(offset);
            let won = self.place(at, SEGMENT)
                && self.cursor.compare_exchange(cursor, at + size, order, otherwise).is_ok();
            if won {
                return Some(at);
            }
            // SAFETY: nobody has had anything of the segment.
            if unsafe { sys::renew(at, SEGMENT) } {
                space::give(offset, SEGMENT);
            }
            if self.cursor.load(Ordering::Acquire) == cursor {
                return None;
            }
        }
    }

    /// Has pages of a range go where the kind's are.
    pub(crate) fn place(&self, at: usize, length: usize) -> bool {
        let Some(plan) = self.plan() else { return false };
        if let Some(huge) = plan.huge {
            sys::advise_huge(at, length, huge);
        }
        self.bound(plan.placing.apply(at, length))
    }

    /// An object with segments of its own, of zeroes.
    pub(crate) fn object(&self, size: usize, alignment: usize) -> Option<usize> {
        self.object_placed(size, alignment, None)
    }

    /// As [`Self::object`], in a place of its own if there is one.
    pub(crate) fn object_placed(
        &self,
        size: usize,
        alignment: usize,
        own: Option<&Placing>,
    ) -> Option<usize> {
        let length = size.checked_next_multiple_of(sys::PAGE)?;
        if !self.reserve(length) {
            return None;
        }
        let taken = space::take_object(self.index(), length, alignment);
        let placed = taken.filter(|offset| {
            let at = space::address_of(*offset);
            own.map_or_else(
                || self.place(at, length),
                |own| self.bound(own.apply_finely(at, length)),
            )
        });
        let Some(offset) = placed else {
            self.aside.fetch_sub(length, Ordering::Relaxed);
            if let Some(offset) = taken {
                // SAFETY: nobody has had it.
                unsafe { self.clear(offset, length) };
            }
            return None;
        };
        // The page may have been of a class, before.
        space::set_code(offset, Code::NONE);
        self.counts.objects.fetch_add(length, Ordering::Relaxed);
        Some(space::address_of(offset))
    }

    /// # Safety
    /// The segments are this kind's, and nobody uses what is in them.
    unsafe fn clear(&self, offset: usize, length: usize) {
        // SAFETY: the caller's promise.
        if unsafe { sys::renew(space::address_of(offset), length) } {
            space::give(offset, length);
        }
    }

    /// Gives back an object with segments of its own.
    ///
    /// # Safety
    /// It is one of this kind's, `length` bytes long, and nobody uses it.
    pub(crate) unsafe fn end_object(&self, offset: usize, length: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.clear(offset, length) };
        self.counts.objects.fetch_sub(length, Ordering::Relaxed);
        self.aside.fetch_sub(length, Ordering::Relaxed);
    }

    /// As [`Self::end_object`], where something else may be mapped now: the addresses are never used again.
    pub(crate) fn lose_object(&self, offset: usize, length: usize) {
        space::lose(offset, length);
        self.counts.objects.fetch_sub(length, Ordering::Relaxed);
        self.aside.fetch_sub(length, Ordering::Relaxed);
    }

    /// Makes an object with segments of its own longer or shorter in its place; false if it can't be.
    ///
    /// # Safety
    /// As [`Self::end_object`], but for its use.
    pub(crate) unsafe fn resize_object(&self, offset: usize, length: usize, size: usize) -> bool {
        let Some(new) = size.checked_next_multiple_of(sys::PAGE) else { return false };
        if new.div_ceil(SEGMENT) != length.div_ceil(SEGMENT) {
            return false;
        }
        let at = space::address_of(offset);
        if new > length {
            if !self.reserve(new - length) {
                return false;
            }
            if !self.place(at + length, new - length) {
                self.aside.fetch_sub(new - length, Ordering::Relaxed);
                return false;
            }
            self.counts.objects.fetch_add(new - length, Ordering::Relaxed);
        } else if new < length {
            // SAFETY: what is beyond the new length is not needed any more.
            if !unsafe { sys::renew(at + new, length - new) } {
                return false;
            }
            self.aside.fetch_sub(length - new, Ordering::Relaxed);
            self.counts.objects.fetch_sub(length - new, Ordering::Relaxed);
        }
        space::set_bytes(offset, new);
        true
    }
}
