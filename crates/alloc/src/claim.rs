//! Claiming neighbouring entries of a table of owners without a lock: all of them, or none.
//!
//! Rules: an entry is changed from free by one step, so two threads never have the same. Who meets another's lets go of what it
//! has claimed and goes on behind it; so two that want overlapping runs may both go on, and neither waits. `tests/orders.rs`
//! goes through every order of two and three threads.

use crate::sync::{AtomicU32, Ordering};

/// An entry that nobody owns.
pub(crate) const FREE: u32 = 0;

/// Claims `count` entries from `first` on, each for the owner that `owner` names by its place in the run.
///
/// # Errors
/// The first entry that is another's; nothing is claimed then.
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
