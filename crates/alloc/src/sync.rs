//! Atomics and cells as `depot`, `claim` and `granule` use them: in the library those of the language; in `tests/orders.rs` and
//! `tests/granules.rs`, which have the same files, loom's, which go through every order in which threads may meet.
#![expect(unsafe_code, reason = "a cell that others guard")]

pub(crate) use core::hint::spin_loop;
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Turns after which another thread is given the CPU: the one that is waited for may have none.
const TURNS: u32 = 32;

/// Waits a moment, for the `turn`th time.
pub(crate) fn pause(turn: u32) {
    if turn < TURNS { spin_loop() } else { std::thread::yield_now() }
}

/// A cell whose users see to it that one has it at a time.
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

// SAFETY: who shares one sees to it that it is used by one at a time.
unsafe impl<T: Send> Sync for UnsafeCell<T> {}

impl<T> UnsafeCell<T> {
    #[cfg(test)]
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Does `act` with a pointer to what is in it.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, act: impl FnOnce(*mut T) -> R) -> R {
        act(self.0.get())
    }
}
