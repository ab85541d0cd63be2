//! Counters of a kind; they show when the kind is almost empty, so that its idle pages can be discarded.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::haste;

/// Idle pages are discarded when at most this many bytes are in use, after a peak of at least the next.
const LEFT: usize = 4 << 20;
const IDLE_LEAST: usize = 8 << 20;

/// Counters of a kind.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Bytes allocated from arenas and not returned to them: in use, or cached by threads and depots.
    pub(crate) out: AtomicUsize,
    /// Highest value of `out` since idle pages were last discarded at once.
    pub(crate) high: AtomicUsize,
    /// Bytes in objects with segments of their own.
    pub(crate) objects: AtomicUsize,
    /// Calls of mbind.
    pub(crate) binds: AtomicU64,
    /// Allocations that went to the kind's spill.
    pub(crate) spilled: AtomicU64,
    /// Allocations that failed.
    pub(crate) failed: AtomicU64,
}

impl Counts {
    /// Records that objects have left an arena.
    pub(crate) fn went_out(&self, bytes: usize) {
        let out = self.out.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if out > self.high.load(Ordering::Relaxed) {
            self.high.fetch_max(out, Ordering::Relaxed);
        }
    }

    /// Records that objects have returned to their arena. Returns whether idle pages are to be discarded now, as almost
    /// nothing is left in use.
    pub(crate) fn came_back(&self, bytes: usize) -> bool {
        let out = self.out.fetch_sub(bytes, Ordering::Relaxed).saturating_sub(bytes);
        let high = self.high.load(Ordering::Relaxed);
        let is_idle = out <= LEFT && high >= IDLE_LEAST && haste::may(high);
        if is_idle {
            self.high.store(out, Ordering::Relaxed);
        }
        is_idle
    }

    /// Bytes that have left arenas or are in objects with segments of their own: in use, or cached by threads and
    /// depots.
    pub(crate) fn all_out(&self) -> usize {
        self.out.load(Ordering::Relaxed) + self.objects.load(Ordering::Relaxed)
    }

    /// Counts calls of mbind; false if one failed.
    pub(crate) fn bound(&self, binds: Option<u64>) -> bool {
        self.binds.fetch_add(binds.unwrap_or(0), Ordering::Relaxed);
        binds.is_some()
    }
}
