//! Atomics and cells for `depot`, `claim`, `granule` and `visitors`: the language's in the library; in `tests/orders.rs`
//! and `tests/granules.rs`, which include the same files, loom's, which explores every interleaving of the threads.
#![expect(unsafe_code, reason = "a cell that others guard")]

pub(crate) use core::hint::spin_loop;
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use std::time::Duration;

use nearfar_kernel::clock;

/// The most batches in a depot: enough that a few thousand objects freed together need no arena. loom explores fewer.
pub(crate) const PLACES: usize = 64;

/// Attempts after which the thread yields its CPU: the thread it waits for may have none.
const TURNS: u32 = 32;

/// A longer pause, for when it takes long.
const REST: Duration = Duration::from_micros(200);

/// Pauses between two attempts; `turn` counts them.
pub(crate) fn pause(turn: u32) {
    if turn < TURNS { spin_loop() } else { std::thread::yield_now() }
}

/// As [`pause`], for something that may take milliseconds.
pub(crate) fn rest(turn: u32) {
    if turn < 2 * TURNS { pause(turn) } else { clock::sleep(REST) }
}

/// A cell whose users ensure that one thread accesses it at a time.
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

// SAFETY: the code that shares a cell ensures that one thread accesses it at a time.
unsafe impl<T: Send> Sync for UnsafeCell<T> {}

impl<T> UnsafeCell<T> {
    #[cfg(test)]
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Calls `act` with a pointer to the content.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, act: impl FnOnce(*mut T) -> R) -> R {
        act(self.0.get())
    }
}
