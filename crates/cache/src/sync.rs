//! Synchronisation primitives of index, items and chains: the language's atomics. `tests/orders.rs` compiles the same
//! files with loom's, which explore every interleaving of threads, with a smaller index.

pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, fence};

/// Slots of a bucket.
pub(crate) const SLOTS: usize = 8;
/// Locks of an index; tags are distributed over them.
pub(crate) const STRIPES: usize = 1024;

/// Yields to other threads, depending on the number of earlier waits.
#[inline]
pub(crate) fn wait(spins: u32) {
    if spins.is_multiple_of(64) { std::thread::yield_now() } else { core::hint::spin_loop() }
}
