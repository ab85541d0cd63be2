//! Locks that ignore poisoning, with a check of their order where debug assertions are on.
//!
//! The check is that of Linux's lockdep (Documentation/locking/lockdep-design.rst): locks of values of one type are a class. A
//! thread that waits for a lock of class B while it holds one of class A states that B comes after A, for all threads of the
//! process. A wait in the opposite order panics, whether or not it would have been a deadlock this time; so does a wait for a second lock of a class, except by [`all`]. Release builds record nothing.

use core::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A guard, and its class while it is held.
#[derive(Debug)]
pub(super) struct Held<G> {
    guard: G,
    _class: Class,
}

impl<G: Deref> Deref for Held<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Held<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> Held<MutexGuard<'_, T>> {
    let class = Class::wait::<T>();
    Held { guard: mutex.lock().unwrap_or_else(PoisonError::into_inner), _class: class }
}

/// All of these, in their order: the only way to hold several locks of a class.
pub(super) fn all<T>(mutexes: &[Mutex<T>]) -> Vec<Held<MutexGuard<'_, T>>> {
    let mut held = Vec::with_capacity(mutexes.len());
    for mutex in mutexes {
        let class = if held.is_empty() { Class::wait::<T>() } else { Class::again::<T>() };
        let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        held.push(Held { guard, _class: class });
    }
    held
}

pub(super) fn read<T>(lock: &RwLock<T>) -> Held<RwLockReadGuard<'_, T>> {
    let class = Class::wait::<T>();
    Held { guard: lock.read().unwrap_or_else(PoisonError::into_inner), _class: class }
}

pub(super) fn write<T>(lock: &RwLock<T>) -> Held<RwLockWriteGuard<'_, T>> {
    let class = Class::wait::<T>();
    Held { guard: lock.write().unwrap_or_else(PoisonError::into_inner), _class: class }
}

#[cfg(not(debug_assertions))]
use unchecked::Class;

#[cfg(not(debug_assertions))]
mod unchecked {
    /// Nothing is recorded.
    #[derive(Debug)]
    pub(super) struct Class;

    impl Class {
        #[inline]
        pub(super) const fn wait<T>() -> Self {
            Self
        }

        #[inline]
        pub(super) const fn again<T>() -> Self {
            Self
        }
    }
}

#[cfg(debug_assertions)]
use checked::Class;

#[cfg(debug_assertions)]
mod checked {
    use std::any::type_name;
    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Mutex, PoisonError};

    /// The classes that come after each, as stated so far.
    static AFTER: Mutex<BTreeMap<&str, BTreeSet<&str>>> = Mutex::new(BTreeMap::new());

    thread_local! {
        /// The classes of the locks that this thread holds.
        static HELD: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    /// The class of a lock that this thread holds.
    #[derive(Debug)]
    pub(crate) struct Class(&'static str);

    impl Class {
        /// Must be called before this thread waits for a lock of a `T`.
        pub(crate) fn wait<T>() -> Self {
            let class = type_name::<T>();
            HELD.with_borrow_mut(|held| {
                for earlier in held.iter() {
                    state(earlier, class);
                }
                held.push(class);
            });
            Self(class)
        }

        /// Must be called before this thread waits for a further lock of a class with a fixed order.
        pub(crate) fn again<T>() -> Self {
            let class = type_name::<T>();
            HELD.with_borrow_mut(|held| held.push(class));
            Self(class)
        }
    }

    impl Drop for Class {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                if let Some(at) = held.iter().rposition(|class| *class == self.0) {
                    held.remove(at);
                }
            });
        }
    }

    /// States that `later` comes after `earlier`.
    fn state(earlier: &'static str, later: &'static str) {
        let mut after = AFTER.lock().unwrap_or_else(PoisonError::into_inner);
        if after.get(earlier).is_some_and(|known| known.contains(later)) {
            return;
        }
        let is_contradicted = follows(&after, later, earlier);
        if !is_contradicted {
            after.entry(earlier).or_default().insert(later);
        }
        // The lock is given back first: a panic must not be the end of all other checks.
        drop(after);
        assert!(
            !is_contradicted,
            "a lock of {later} may not be waited for by a thread that holds one of {earlier}: others wait in the opposite order"
        );
    }

    /// Whether `later` is `earlier`, or comes after it.
    fn follows(after: &BTreeMap<&str, BTreeSet<&str>>, earlier: &str, later: &str) -> bool {
        let next = || after.get(earlier).into_iter().flatten();
        earlier == later || next().any(|one| follows(after, one, later))
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    struct First;
    struct Second;
    struct Third;

    /// Whether `act` panics with a violation of the lock order.
    fn is_refused(act: impl FnOnce()) -> bool {
        let Err(panic) = catch_unwind(AssertUnwindSafe(act)) else { return false };
        panic.downcast_ref::<String>().is_some_and(|text| text.contains("may not be waited for"))
    }

    #[test]
    fn a_lock_order_inversion_across_several_locks_panics() {
        let (first, second, third) = (Mutex::new(First), RwLock::new(Second), Mutex::new(Third));
        {
            let _first = lock(&first);
            drop(read(&second));
        }
        {
            let _second = write(&second);
            drop(lock(&third));
        }
        let reversed = || {
            let _third = lock(&third);
            drop(lock(&first));
        };
        assert!(is_refused(reversed));
        // A refused lock is not held, and permitted orders stay permitted.
        let _first = lock(&first);
        assert!(!is_refused(|| drop(lock(&third))));
    }

    #[test]
    fn two_locks_of_a_class_may_be_held_in_turn_but_not_together() {
        struct Alone;
        let (one, other) = (Mutex::new(Alone), Mutex::new(Alone));
        drop(lock(&one));
        drop(lock(&other));
        let both = || {
            let _one = lock(&one);
            drop(lock(&other));
        };
        assert!(is_refused(both));
        assert!(!is_refused(|| drop(all(&[Mutex::new(Alone), Mutex::new(Alone)]))));
    }
}
