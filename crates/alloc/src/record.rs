//! A thread's record: for each kind and class a magazine of free objects, and the thread's last error message.
//!
//! A record is made by a thread's first call that needs one, is in a list that is never cut, and is reused by a later
//! thread after the first has ended. Reading the list is safe at any time. `thread` fills and empties the magazines.
//!
//! Rules: only its own thread changes a magazine, with two exceptions: when the kind is destroyed (its users have
//! promised not to use it), and in the child of a fork, where the other threads do not exist. So that a thread may be
//! stopped anywhere, an object is stored before the count includes it, and the count is reduced before the object is
//! taken. Counts and slots are atomics so that other threads may read them; all accesses are relaxed.
#![expect(unsafe_code, reason = "records that outlive their threads")]

use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, compiler_fence};

use crate::classes::{CLASSES, room_of_class};
use crate::depot::BATCH;
use crate::own;
use crate::space::KINDS;

mod tls;

/// Objects a magazine has room for.
pub(crate) const SLOTS: usize = 2 * BATCH;
/// The longest error message kept.
const TEXT: usize = 512;

/// Free objects of one class of one kind.
#[repr(C)]
pub(crate) struct Magazine {
    count: AtomicU32,
    room: AtomicU32,
    slots: [AtomicUsize; SLOTS],
}

/// A thread's magazines of one kind.
#[repr(C)]
pub(crate) struct Magazines {
    bins: [Magazine; CLASSES],
}

/// Stands for the magazines of a kind that a thread has not used: empty and without room.
static NOTHING: Magazines = Magazines { bins: [const { Magazine::nothing() }; CLASSES] };

/// A thread's record.
#[repr(C)]
pub(crate) struct Thread {
    /// The magazines of each kind, as their distance from [`NOTHING`]: so a zeroed record has none.
    magazines: [AtomicUsize; KINDS],
    next: AtomicPtr<Thread>,
    taken: AtomicBool,
    /// Where [`tls`] has it.
    key: AtomicUsize,
    shard: AtomicU32,
    error: UnsafeCell<[u8; TEXT]>,
}

// SAFETY: the error text is its thread's alone; all else is atomics.
unsafe impl Sync for Thread {}

static THREADS: AtomicPtr<Thread> = AtomicPtr::new(null_mut());
static MADE: AtomicU32 = AtomicU32::new(0);

impl Magazine {
    const fn nothing() -> Self {
        Self {
            count: AtomicU32::new(0),
            room: AtomicU32::new(0),
            slots: [const { AtomicUsize::new(0) }; SLOTS],
        }
    }

    /// Objects in it.
    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed) as usize
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "at most as many as there are slots")]
    fn set_count(&self, count: usize) {
        self.count.store(count as u32, Ordering::Relaxed);
    }

    /// Takes an object.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<usize> {
        let count = self.count().checked_sub(1)?;
        self.set_count(count);
        compiler_fence(Ordering::Release);
        // The count is at most the number of slots.
        Some(self.slots[count & (SLOTS - 1)].load(Ordering::Relaxed))
    }

    /// Puts an object in; false if it is full.
    #[inline(always)]
    pub(crate) fn push(&self, object: usize) -> bool {
        let count = self.count();
        if count >= self.room() {
            return false;
        }
        self.slots[count & (SLOTS - 1)].store(object, Ordering::Relaxed);
        compiler_fence(Ordering::Release);
        self.set_count(count + 1);
        true
    }

    /// Objects it has room for.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed) as usize
    }

    /// Takes the oldest half of its objects, or all; returns how many.
    pub(crate) fn take_oldest(&self, all: bool, into: &mut [usize; SLOTS]) -> usize {
        let count = self.count();
        let taken = if all { count } else { count.min(self.room() / 2) };
        for (object, slot) in into.iter_mut().zip(&self.slots[..taken]) {
            *object = slot.load(Ordering::Relaxed);
        }
        self.set_count(0);
        compiler_fence(Ordering::Release);
        for at in taken..count {
            self.slots[at - taken].store(self.slots[at].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        compiler_fence(Ordering::Release);
        self.set_count(count - taken);
        taken
    }
}

impl Thread {
    /// The magazine of a kind and class, below [`KINDS`] and [`CLASSES`]; one without room if the thread has none of
    /// that kind.
    #[inline(always)]
    pub(crate) fn magazine(&self, kind: usize, class: usize) -> &Magazine {
        let distance = self.magazines[kind & (KINDS - 1)].load(Ordering::Relaxed);
        let magazines = (&raw const NOTHING).wrapping_byte_add(distance);
        debug_assert!(class < CLASSES);
        // SAFETY: the pointer is to a thread's magazines, which are never freed, or to `NOTHING`.
        let bins = unsafe { &(*magazines).bins };
        // SAFETY: a class.
        unsafe { bins.get_unchecked(class) }
    }

    /// Whether the thread has magazines of a kind.
    pub(crate) fn has(&self, kind: usize) -> bool {
        self.magazines[kind].load(Ordering::Relaxed) != 0
    }

    /// Makes magazines of a kind, if there is memory for them.
    pub(crate) fn ensure(&self, kind: usize) -> bool {
        if self.has(kind) {
            return true;
        }
        let Some(made) = own::zeroed::<Magazines>() else { return false };
        for class in 1..CLASSES {
            // SAFETY: all zeroes are magazines; no other thread knows them yet.
            unsafe { &(*made.as_ptr()).bins[class].room }
                .store(room_of_class(class), Ordering::Relaxed);
        }
        let distance = (made.as_ptr() as usize).wrapping_sub(&raw const NOTHING as usize);
        self.magazines[kind].store(distance, Ordering::Release);
        true
    }

    /// The index of the kind's arena that it uses.
    pub(crate) fn shard(&self) -> usize {
        self.shard.load(Ordering::Relaxed) as usize
    }

    /// Ends its use by the calling thread, whose record it is: another thread may have it.
    pub(crate) fn end(&self) {
        tls::set(null_mut());
        self.taken.store(false, Ordering::Release);
    }

    /// Saves an error message.
    ///
    /// # Safety
    /// The record is the calling thread's.
    pub(crate) unsafe fn set_error(&self, text: &str) {
        let length = text.floor_char_boundary(TEXT - 1);
        // SAFETY: the caller's promise, and there is no reference into it.
        let place = unsafe { &mut *self.error.get() };
        place[..length].copy_from_slice(&text.as_bytes()[..length]);
        place[length] = 0;
    }

    /// The last error message, ended by a zero; valid until the next.
    pub(crate) const fn error(&self) -> *const u8 {
        self.error.get().cast_const().cast()
    }
}

/// The calling thread's record, if a glance finds it: not that of a few threads that have one.
#[inline(always)]
pub(crate) fn glance() -> Option<&'static Thread> {
    // SAFETY: records are never freed.
    unsafe { tls::glance().as_ref() }
}

/// The calling thread's record, if it has one.
pub(crate) fn get() -> Option<&'static Thread> {
    // SAFETY: records are never freed.
    unsafe { tls::get().as_ref() }
}

/// Gives the calling thread, which has no record, that of an ended thread or a new one. `None` if there is no memory or
/// no place for it.
pub(crate) fn begin() -> Option<&'static Thread> {
    let thread = all().find(|thread| {
        let free = thread.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed);
        free.is_ok()
    });
    let thread = thread.or_else(make)?;
    if !tls::set(core::ptr::from_ref(thread).cast_mut()) {
        thread.taken.store(false, Ordering::Release);
        return None;
    }
    thread.key.store(tls::key(), Ordering::Relaxed);
    // SAFETY: the calling thread's own, and there is no reference into it.
    unsafe { (*thread.error.get())[0] = 0 };
    Some(thread)
}

fn make() -> Option<&'static Thread> {
    let made: NonNull<Thread> = own::zeroed()?;
    // SAFETY: all zeroes is a record.
    let thread = unsafe { made.as_ref() };
    thread.taken.store(true, Ordering::Relaxed);
    thread.shard.store(MADE.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    let mut first = THREADS.load(Ordering::Acquire);
    loop {
        thread.next.store(first, Ordering::Relaxed);
        let shown =
            THREADS.compare_exchange(first, made.as_ptr(), Ordering::AcqRel, Ordering::Acquire);
        match shown {
            Ok(_) => return Some(thread),
            Err(other) => first = other,
        }
    }
}

/// All records, of running and ended threads.
fn all() -> impl Iterator<Item = &'static Thread> {
    let follow = |at: *mut Thread| {
        // SAFETY: records are never freed.
        unsafe { at.as_ref() }
    };
    let first = follow(THREADS.load(Ordering::Acquire));
    core::iter::successors(first, move |thread| follow(thread.next.load(Ordering::Acquire)))
}

/// Number of objects of a class of a kind in all threads' caches; approximate while they run.
pub(crate) fn kept(index: usize, class: usize) -> usize {
    all().map(|thread| thread.magazine(index, class).count()).sum()
}

/// Empties the magazines of a kind in all threads, without freeing the objects.
///
/// # Safety
/// No thread uses the kind or anything of it any more.
pub(crate) unsafe fn forget_kind(index: usize) {
    for thread in all().filter(|thread| thread.has(index)) {
        (1..CLASSES).for_each(|class| thread.magazine(index, class).set_count(0));
    }
}

/// In the child of a fork: frees the records of threads that do not exist here. A new thread may have the thread pointer
/// of one of those, and must not find its record.
pub(crate) fn forget_others() {
    let own = tls::get().cast_const();
    for thread in all().filter(|thread| !core::ptr::eq(*thread, own)) {
        tls::forget(thread.key.load(Ordering::Relaxed), thread);
        thread.taken.store(false, Ordering::Release);
    }
}
