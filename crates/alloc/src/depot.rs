//! What threads have too much of, for threads that have too little: free objects of one class of one kind.
//!
//! A thread that frees what another allocates would give each object back to its arena, which takes a lock each time. Here it
//! leaves half of what it keeps at once, and the other takes as much at once (the depot of J. Bonwick and J. Adams,
//! "Magazines and Vmem", USENIX 2001, section 3).
//!
//! Rules: nobody waits. Who finds a depot locked for longer than a few turns goes to the arena instead, so a depot whose holder
//! was not copied by fork(2) costs time and objects, never more. What nobody has needed for a while goes back to the arena.
//! `tests/orders.rs` goes through every order in which threads meet here.
#![expect(unsafe_code, reason = "a cell that its lock guards")]

use crate::classes::size_of_class;
use crate::sync::{AtomicBool, Ordering, UnsafeCell, spin_loop};

/// Objects a depot has room for.
pub(crate) const ROOM: usize = 512;
/// Bytes in objects a depot may hold.
pub(crate) const BYTES: usize = 512 << 10;
/// Turns that a locked depot is waited for.
const TURNS: usize = 32;
/// Visits after which what was not needed meanwhile is surplus.
pub(crate) const VISITS: u32 = 64;

/// A depot. All zeroes is an empty one.
pub(crate) struct Depot {
    locked: AtomicBool,
    inner: UnsafeCell<Inner>,
}

pub(crate) struct Inner {
    count: usize,
    /// The least that was in it since it was last asked for its surplus.
    least: usize,
    visits: u32,
    objects: [usize; ROOM],
}

/// The most objects of a class that a depot holds; `batch` is what is brought and taken at once.
fn most(class: usize, batch: usize) -> usize {
    (BYTES / size_of_class(class).max(1)).clamp(2 * batch, ROOM)
}

impl Depot {
    /// An empty one, for tests: those of kinds are zeroes.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        let inner = Inner { count: 0, least: 0, visits: 0, objects: [0; ROOM] };
        Self { locked: AtomicBool::new(false), inner: UnsafeCell::new(inner) }
    }

    /// Does `act` with what is in the depot; none if it is locked.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> Option<T> {
        let free = |_: &usize| {
            let (taken, order) = (Ordering::Acquire, Ordering::Relaxed);
            self.locked.compare_exchange_weak(false, true, taken, order).is_ok()
        };
        let turns = (0..TURNS).inspect(|turn| {
            if *turn > 0 {
                spin_loop();
            }
        });
        turns.into_iter().find(free)?;
        // SAFETY: we have the lock.
        let done = self.inner.with_mut(|inner| act(unsafe { &mut *inner }));
        self.locked.store(false, Ordering::Release);
        Some(done)
    }

    /// Takes up to as many objects as `into` has room for; how many.
    pub(crate) fn take(&self, into: &mut [usize]) -> usize {
        let taken = self.with(|inner| {
            let count = inner.count.min(into.len());
            let rest = inner.count - count;
            into[..count].copy_from_slice(&inner.objects[rest..inner.count]);
            inner.count = rest;
            inner.least = inner.least.min(rest);
            inner.visits += 1;
            count
        });
        taken.unwrap_or(0)
    }

    /// Brings objects of `class`; how many there was room for, the first of them.
    pub(crate) fn bring(&self, class: usize, objects: &[usize]) -> usize {
        let brought = self.with(|inner| {
            let count = most(class, objects.len()).saturating_sub(inner.count).min(objects.len());
            inner.objects[inner.count..inner.count + count].copy_from_slice(&objects[..count]);
            inner.count += count;
            inner.visits += 1;
            count
        });
        brought.unwrap_or(0)
    }

    /// Takes what was not needed of late, if it is time to ask; how many.
    pub(crate) fn surplus(&self, into: &mut [usize]) -> usize {
        let taken = self.with(|inner| {
            if inner.visits < VISITS {
                return 0;
            }
            let count = inner.least.min(into.len());
            // The oldest, which lie at the front.
            into[..count].copy_from_slice(&inner.objects[..count]);
            inner.objects.copy_within(count..inner.count, 0);
            inner.count -= count;
            (inner.least, inner.visits) = (inner.count, 0);
            count
        });
        taken.unwrap_or(0)
    }

    /// Objects in it.
    pub(crate) fn count(&self) -> usize {
        self.with(|inner| inner.count).unwrap_or(0)
    }

    /// Forgets what is in it, whoever has the lock.
    ///
    /// # Safety
    /// Nobody uses the depot: its kind is gone, or this is a child with one thread.
    pub(crate) unsafe fn reset(&self) {
        self.inner.with_mut(|inner| {
            // SAFETY: the caller's promise.
            let inner = unsafe { &mut *inner };
            (inner.count, inner.least, inner.visits) = (0, 0, 0);
        });
        self.locked.store(false, Ordering::Release);
    }

    /// As [`Self::reset`], where a fork came between; what is whole stays.
    ///
    /// # Safety
    /// As [`Self::reset`].
    pub(crate) unsafe fn reset_if_locked(&self) {
        if self.locked.load(Ordering::Acquire) {
            // SAFETY: the caller's promise.
            unsafe { self.reset() };
        }
    }
}
