//! The lock order, checked where debug assertions are enabled.
//!
//! A lock has a rank. A thread may wait for a lock only if its rank is above those of all locks it holds; a lock taken
//! by a try may have any rank. So threads can't wait for each other in a circle. Ranks in ascending order: stripes; for
//! each tier, the faster first, the emptying lock and the classes; a stock of slabs. In release builds locks keep their
//! ranks, but threads record nothing.

use core::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock's place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(usize);

impl Rank {
    pub(crate) const STRIPE: Self = Self(0);
    pub(crate) const STOCK: Self = Self(usize::MAX);

    /// Of the lock for emptying a slab in a tier.
    pub(crate) const fn emptying(tier: usize) -> Self {
        Self(1 + 2 * tier)
    }

    /// Of a class of a tier.
    pub(crate) const fn class(tier: usize) -> Self {
        Self(2 + 2 * tier)
    }

    /// Must be called before this thread waits for a lock of this rank.
    #[inline]
    pub(crate) fn wait(self) -> Taken {
        #[cfg(debug_assertions)]
        held::check(self);
        self.tried()
    }

    /// Must be called after a try has taken such a lock.
    #[inline]
    pub(crate) fn tried(self) -> Taken {
        #[cfg(debug_assertions)]
        held::push(self);
        Taken(self)
    }
}

/// Records that a thread holds a lock, until dropped.
#[derive(Debug)]
pub(crate) struct Taken(
    #[cfg_attr(not(debug_assertions), expect(dead_code, reason = "for checks"))] Rank,
);

impl Drop for Taken {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        held::pop(self.0);
    }
}

/// The locks held by this thread.
#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn check(rank: Rank) {
        HELD.with_borrow(|held| {
            let highest = held.iter().max();
            assert!(
                highest.is_none_or(|highest| *highest < rank),
                "a thread that holds {held:?} must not wait for a lock of {rank:?}: try it, or take it first"
            );
        });
    }

    pub(super) fn push(rank: Rank) {
        HELD.with_borrow_mut(|held| held.push(rank));
    }

    pub(super) fn pop(rank: Rank) {
        HELD.with_borrow_mut(|held| {
            if let Some(at) = held.iter().rposition(|one| *one == rank) {
                held.remove(at);
            }
        });
    }
}

/// A mutex with a rank. It ignores poisoning: it can be locked after its holder has panicked.
#[derive(Debug)]
pub(crate) struct Ordered<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

/// The guard of a locked [`Ordered`].
#[derive(Debug)]
pub(crate) struct Locked<'a, T> {
    guard: MutexGuard<'a, T>,
    _taken: Taken,
}

impl<T> Ordered<T> {
    pub(crate) const fn new(rank: Rank, what: T) -> Self {
        Self { rank, mutex: Mutex::new(what) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        let taken = self.rank.wait();
        Locked { guard: self.mutex.lock().unwrap_or_else(PoisonError::into_inner), _taken: taken }
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Whether `act` panics with a violation of the lock order.
    fn is_refused(act: impl FnOnce()) -> bool {
        let Err(panic) = catch_unwind(AssertUnwindSafe(act)) else { return false };
        panic.downcast_ref::<String>().is_some_and(|text| text.contains("must not wait for"))
    }

    #[test]
    fn locks_may_be_given_back_in_any_order() {
        let first = Rank::STRIPE.wait();
        let second = Rank::class(0).wait();
        drop(first);
        assert!(is_refused(|| drop(Rank::class(0).wait())));
        drop(second);
        assert!(!is_refused(|| drop(Rank::STRIPE.wait())));
    }
}
