//! A memory kind at run time: its placement, its limit, its arenas and its segments.
//!
//! Kinds are numbered from 1; number 0 is the default, memory placed by the process's policy. It has a [`Kind`] as
//! well, made at first use, which is in no list and is returned by [`of_default`] only; its objects count as belonging
//! to no kind. A *handle* is the number with a generation, so that the handle of a destroyed kind differs from that of
//! the next kind with its number. Kinds are never freed: a destroyed one is cleared and reused.
//!
//! Rules: the fields set at creation (placing, spill) are written before the handle is published, and read only through
//! a handle. The caller that destroys a kind promises that neither the kind nor anything allocated from it is used any
//! more.
#![expect(
    unsafe_code,
    reason = "kinds live in memory that has no owner, and jemalloc finds them by address"
)]

use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::boxed::Box;
use std::string::String;

use tikv_jemalloc_sys::extent_hooks_t;

use crate::arena::Arena;
use crate::classes::CLASSES;
use crate::counts::Counts;
use crate::depot::Depot;
use crate::kept::Kept;
use crate::nursery::Nursery;
use crate::placing::Placing;
use crate::room::{Bound, Room};
use crate::space::{self, KINDS, Role, SEGMENT};
use crate::visitors::Visitors;
use crate::{own, record, sys};

/// The default kind: plain memory, placed by the process's policy.
pub(crate) const DEFAULT: u32 = 0;
/// The most arenas a kind has; threads share them.
pub(crate) const SHARDS: usize = 8;
/// The most kinds at a time. The last number stays free: its handle stands for no kind.
pub(crate) const KINDS_MOST: usize = KINDS - 2;
/// With this many kinds or more, a new kind has one arena: jemalloc has some four thousand in all.
const KINDS_WITH_SHARDS: usize = 256;

const INDEX_BITS: u32 = KINDS.trailing_zeros();
/// A handle that is being created or destroyed.
const BUSY: u32 = (1 << INDEX_BITS) - 1;

static TABLE: [AtomicPtr<Kind>; KINDS] = [const { AtomicPtr::new(null_mut()) }; KINDS];
static NUMBERS: AtomicUsize = AtomicUsize::new(1);
/// The plan of each kind. Not in the kinds themselves: leak checkers look for pointers in a library's static memory,
/// not in memory it has mapped.
static PLANS: [AtomicPtr<Plan>; KINDS] = [const { AtomicPtr::new(null_mut()) }; KINDS];

/// The properties of a kind.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Its placement, as written in its text.
    pub(crate) text: String,
    /// Where its pages are.
    pub(crate) placing: Placing,
    /// The most bytes set aside for it; `None` is unlimited.
    pub(crate) limit: Option<usize>,
    /// The kind that serves requests this one can't.
    pub(crate) spill: Option<u32>,
    /// Whether the spill belongs to this kind only, and is destroyed with it.
    pub(crate) owns_spill: bool,
    /// Whether to request huge pages or forbid them; `None` leaves that to the system.
    pub(crate) huge: Option<bool>,
    /// The nodes to which its pages are restricted.
    pub(crate) bound: Bound,
}

/// A kind.
#[repr(C)]
pub(crate) struct Kind {
    /// The first field, so that jemalloc's pointer to the hooks is a pointer to the kind.
    hooks: UnsafeCell<extent_hooks_t>,
    /// 0: none.
    handle: AtomicU32,
    index: AtomicU32,
    generation: AtomicU32,
    pub(crate) visitors: Visitors,
    /// The most bytes that may be set aside.
    limit: AtomicUsize,
    /// Address space set aside for arenas and objects.
    pub(crate) aside: AtomicUsize,
    /// The next free address for arenas, in a segment that ends at the next multiple of its size.
    pub(crate) cursor: AtomicUsize,
    /// Each arena's number plus one, or zero.
    arenas: [AtomicU32; SHARDS],
    pub(crate) counts: Counts,
    pub(crate) kept: Kept,
    pub(crate) room: Room,
    pub(crate) nursery: Nursery,
    /// Classes whose depot may hold objects, one bit each: a depot that was never used is not touched.
    pub(crate) stocked: AtomicU64,
    pub(crate) depots: [Depot; CLASSES],
    /// Objects of each class that went back to arenas and have not been allocated again.
    pub(crate) returned: [AtomicUsize; CLASSES],
}

// SAFETY: see the rules above for the cell; jemalloc reads hooks only.
unsafe impl Sync for Kind {}

/// A kind that exists at least as long as this does.
#[derive(Debug)]
pub(crate) struct Visit(&'static Kind);

impl core::ops::Deref for Visit {
    type Target = Kind;

    fn deref(&self) -> &Kind {
        self.0
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.visitors.leave();
    }
}

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

/// The kind of a handle; `None` for the default and for a destroyed kind.
pub(crate) fn find(handle: u32) -> Option<&'static Kind> {
    let listed = at(index_of(handle)).filter(|_| index_of(handle) > 0)?;
    (listed.handle.load(Ordering::Acquire) == handle).then_some(listed)
}

/// The default's kind; `None` if there is no memory for it, or another thread is making it. These hooks are for a new one:
/// as for [`create`].
pub(crate) fn of_default(hooks: &extent_hooks_t) -> Option<&'static Kind> {
    at(0).or_else(|| {
        let kind = space::ensure().then(|| reserve(0, hooks))??;
        kind.limit.store(usize::MAX, Ordering::Relaxed);
        PLANS[0].store(Box::into_raw(Box::default()), Ordering::Release);
        kind.handle.store(1 << INDEX_BITS, Ordering::Release);
        Some(kind)
    })
}

/// The kind with a number, if it currently exists.
pub(crate) fn at(index: usize) -> Option<&'static Kind> {
    let kind = TABLE.get(index)?.load(Ordering::Acquire);
    // SAFETY: kinds are never freed.
    let kind = unsafe { kind.as_ref() }?;
    (kind.handle() > BUSY).then_some(kind)
}

/// Visits the kind with a number, if it exists.
pub(crate) fn visit(index: usize) -> Option<Visit> {
    let kind = at(index)?;
    kind.visitors.enter();
    let visit = Visit(kind);
    // It may have ended before the visitor was counted: then the visit ends here.
    at(index).is_some().then_some(visit)
}

/// All existing kinds, except the default's.
pub(crate) fn all() -> impl Iterator<Item = Visit> {
    (1..numbers()).filter_map(visit)
}

/// All kinds that ever were, with the default's, whether they exist or not.
pub(crate) fn made() -> impl Iterator<Item = &'static Kind> {
    let kinds = TABLE[..numbers()].iter().map(|place| place.load(Ordering::Acquire));
    // SAFETY: kinds are never freed.
    kinds.filter_map(|kind| unsafe { kind.as_ref() })
}

/// Upper bound of all kind numbers ever used.
pub(crate) fn numbers() -> usize {
    NUMBERS.load(Ordering::Acquire)
}

/// Creates a kind; `None` if there are too many, or no memory. Its arenas get address space by these hooks, those of
/// `growth`.
pub(crate) fn create(plan: Plan, hooks: &extent_hooks_t) -> Option<u32> {
    if !space::ensure() {
        return None;
    }
    let kind = (1..=KINDS_MOST).find_map(|index| reserve(index, hooks))?;
    kind.limit.store(plan.limit.unwrap_or(usize::MAX), Ordering::Relaxed);
    kind.room.reset();
    PLANS[kind.index()].store(Box::into_raw(Box::new(plan)), Ordering::Release);
    let generation = kind.generation.load(Ordering::Relaxed) % (u32::MAX >> INDEX_BITS) + 1;
    kind.generation.store(generation, Ordering::Relaxed);
    let handle = generation << INDEX_BITS | kind.index.load(Ordering::Relaxed);
    kind.handle.store(handle, Ordering::Release);
    Some(handle)
}

/// As [`create`], with its own kind to spill to.
pub(crate) fn create_with_spill(
    plan: Plan,
    spill: Option<Plan>,
    hooks: &extent_hooks_t,
) -> Option<u32> {
    let Some(spill) = spill else { return create(plan, hooks) };
    let spill = create(spill, hooks)?;
    let made = create(Plan { spill: Some(spill), owns_spill: true, ..plan }, hooks);
    if made.is_none() {
        // SAFETY: nothing was allocated from it, and it is not published.
        unsafe { destroy(spill) };
    }
    made
}

/// Reserves the kind with this number, to be filled in, if it is free.
fn reserve(index: usize, hooks: &extent_hooks_t) -> Option<&'static Kind> {
    let place = &TABLE[index];
    if place.load(Ordering::Acquire).is_null() {
        let made = own::zeroed::<Kind>()?;
        // SAFETY: memory of our own; all zeroes is a kind that does not exist.
        let kind = unsafe { made.as_ref() };
        // SAFETY: no other thread knows it yet.
        unsafe { *kind.hooks.get() = *hooks };
        kind.index.store(u32::try_from(index).ok()?, Ordering::Relaxed);
        // A thread that loses this race wastes some memory, once.
        let _ =
            place.compare_exchange(null_mut(), made.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
    }
    // SAFETY: kinds are never freed.
    let kind = unsafe { &*place.load(Ordering::Acquire) };
    kind.handle.compare_exchange(0, BUSY, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    NUMBERS.fetch_max(index + 1, Ordering::AcqRel);
    Some(kind)
}

/// Destroys a kind with everything allocated from it; false if there is none with this handle.
///
/// # Safety
/// Neither the kind nor anything allocated from it is used any more.
pub(crate) unsafe fn destroy(handle: u32) -> bool {
    let Some(kind) = find(handle) else { return false };
    let busy = kind.handle.compare_exchange(handle, BUSY, Ordering::AcqRel, Ordering::Relaxed);
    if handle == DEFAULT || busy.is_err() {
        return false;
    }
    kind.visitors.wait();
    let index = index_of(handle);
    // SAFETY: the caller's promise, here and below.
    unsafe { record::forget_kind(index) };
    // SAFETY: as above. Its segments are given back with all others.
    unsafe { kind.kept.reset() };
    for depot in kind.stocked_depots() {
        // SAFETY: as above.
        unsafe { depot.reset() };
    }
    kind.stocked.store(0, Ordering::Relaxed);
    kind.returned.iter().for_each(|returned| returned.store(0, Ordering::Relaxed));
    for arena in &kind.arenas {
        if let Some(number) = arena.swap(0, Ordering::AcqRel).checked_sub(1) {
            // SAFETY: as above.
            unsafe { Arena(number).destroy() };
        }
    }
    for (offset, role) in space::of_kind(index) {
        #[cfg(feature = "checked")]
        crate::shadow::end(
            space::address_of(offset),
            if role == Role::Arena { SEGMENT } else { 1 },
        );
        let bytes = if let Role::Object(bytes) = role { bytes } else { SEGMENT };
        let length = bytes.div_ceil(SEGMENT).max(1) * SEGMENT;
        // SAFETY: as above; the rest of an object is unmapped together with its first segment.
        if role != Role::Rest && unsafe { sys::renew(space::address_of(offset), length) } {
            space::give(offset, length);
        }
    }
    kind.nursery.reset();
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
    // SAFETY: a box that was leaked when the kind was made, to which no other pointer is left.
    let plan = (!plan.is_null()).then(|| unsafe { Box::from_raw(plan) });
    kind.handle.store(0, Ordering::Release);
    if let Some(spill) = plan.filter(|plan| plan.owns_spill).and_then(|plan| plan.spill) {
        // SAFETY: as above: spilled objects were allocated from this kind.
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

    /// Depots that have been used.
    pub(crate) fn stocked_depots(&self) -> impl Iterator<Item = &Depot> {
        let stocked = self.stocked.load(Ordering::Relaxed);
        let used = move |(class, _): &(usize, &Depot)| stocked & 1 << class != 0;
        self.depots.iter().enumerate().filter(used).map(|(_, depot)| depot)
    }

    /// The kind that hooks belong to.
    ///
    /// # Safety
    /// They are those of a kind.
    pub(crate) unsafe fn of_hooks(hooks: *mut extent_hooks_t) -> &'static Self {
        // SAFETY: hooks are a kind's first field, and kinds are never freed.
        unsafe { &*hooks.cast::<Self>() }
    }

    pub(crate) fn plan(&self) -> Option<&Plan> {
        // SAFETY: written before the handle that our caller has, and not changed while that is in use.
        unsafe { PLANS[self.index()].load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn spill(&self) -> Option<u32> {
        self.plan()?.spill
    }

    pub(crate) fn limit(&self) -> Option<usize> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit < usize::MAX)
    }

    /// Raises its limit by the original limit.
    pub(crate) fn raise_limit(&self) {
        let more = self.plan().and_then(|plan| plan.limit).unwrap_or(0);
        let raise = |limit: usize| Some(limit.saturating_add(more));
        let _ = self.limit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    }

    /// The text that it was made from.
    pub(crate) fn text(&self) -> &str {
        self.plan().map_or("", |plan| &plan.text)
    }

    /// Where its pages are.
    pub(crate) fn placing(&self) -> Option<&Placing> {
        Some(&self.plan()?.placing)
    }

    /// Whether each of its objects is placed separately.
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
        // SAFETY: complete before another thread knows the kind, which is never freed.
        let made = unsafe { Arena::create(self.hooks.get()) }?;
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

    /// Records that objects have returned to their arena. When almost nothing is left in use, discards idle pages at
    /// once: jemalloc's decay runs only with further allocator calls, which may not come for a long time.
    pub(crate) fn came_back(&self, bytes: usize) {
        if self.counts.came_back(bytes) {
            for arena in self.arenas() {
                arena.purge();
            }
        }
    }

    /// Sets `bytes` aside, if the limit allows it.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        let most = self.limit.load(Ordering::Relaxed);
        let more = |aside: usize| aside.checked_add(bytes).filter(|aside| *aside <= most);
        self.aside.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}
