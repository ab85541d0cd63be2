//! How much of a kind is in use, kept and set aside.

use core::sync::atomic::Ordering;

use crate::classes::{CLASSES, size_of_class};
use crate::kind::Kind;
use crate::thread;

/// Figures of a kind at a time. Other threads run meanwhile, so they need not fit each other to the byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// Bytes in objects that are in use, as large as their classes.
    pub(crate) allocated: usize,
    /// Bytes in free objects that threads and depots keep.
    pub(crate) kept: usize,
    /// Bytes of address space set aside.
    pub(crate) set_aside: usize,
    /// The most that may be set aside.
    pub(crate) limit: Option<usize>,
    /// Calls of mbind.
    pub(crate) binds: u64,
    /// Allocations that went to the spill.
    pub(crate) spilled: u64,
    /// Allocations that failed.
    pub(crate) failed: u64,
}

pub(crate) fn of(kind: &Kind) -> Stats {
    let kept = |class: usize| {
        (thread::kept(kind.index(), class) + kind.depots[class].count()) * size_of_class(class)
    };
    let kept: usize = (1..CLASSES).map(kept).sum();
    let out = kind.counts.out.load(Ordering::Relaxed);
    Stats {
        allocated: out.saturating_sub(kept) + kind.counts.objects.load(Ordering::Relaxed),
        kept,
        set_aside: kind.set_aside(),
        limit: kind.limit(),
        binds: kind.counts.binds.load(Ordering::Relaxed),
        spilled: kind.counts.spilled.load(Ordering::Relaxed),
        failed: kind.counts.failed.load(Ordering::Relaxed),
    }
}
