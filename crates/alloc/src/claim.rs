//! Lock-free claim of adjacent entries in a table of owners: all of them, or none.
//!
//! Rules: an entry changes from free in one atomic step, so two threads never own the same one. A thread that meets an
//! entry of another owner releases its own claims and continues behind that entry; so two threads with overlapping runs
//! may both move on, and neither waits. `tests/orders.rs` checks every interleaving of two and three threads.

use crate::sync::{AtomicU32, Ordering};

/// An entry without an owner.
pub(crate) const FREE: u32 = 0;

/// Claims `count` entries from `first` on, each for the owner that `owner` returns for its position in the run.
///
/// # Errors
/// The first entry that has another owner; nothing is claimed then.
pub(crate) fn claim<'a>(
    entry: impl Fn(usize) -> &'a AtomicU32,
    first: usize,
    count: usize,
    owner: impl Fn(usize) -> u32,
) -> Result<(), usize> {
    for at in 0..count {
        let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
        let claimed = entry(first + at).compare_exchange(FREE, owner(at), order, otherwise);
        if claimed.is_err() {
            (0..at).for_each(|at| entry(first + at).store(FREE, Ordering::Release));
            return Err(first + at);
        }
    }
    Ok(())
}
