//! Counters of a kind; discards idle pages when they show that the kind is almost empty.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::haste;
use crate::kind::Kind;

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

impl Kind {
    /// Records that objects have left an arena.
    pub(crate) fn went_out(&self, bytes: usize) {
        let out = self.counts.out.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if out > self.counts.high.load(Ordering::Relaxed) {
            self.counts.high.fetch_max(out, Ordering::Relaxed);
        }
    }

    /// Records that objects have returned to their arena. When almost nothing is left in use, discards idle pages at
    /// once: jemalloc's decay runs only with further allocator calls, which may not come for a long time.
    pub(crate) fn came_back(&self, bytes: usize) {
        let out = self.counts.out.fetch_sub(bytes, Ordering::Relaxed).saturating_sub(bytes);
        let high = self.counts.high.load(Ordering::Relaxed);
        if out <= LEFT && high >= IDLE_LEAST && haste::may(high) {
            self.counts.high.store(out, Ordering::Relaxed);
            for arena in self.arenas() {
                arena.purge();
            }
        }
    }

    /// Bytes that have left arenas: in use, or cached by threads and depots.
    pub(crate) fn out(&self) -> usize {
        let counts = &self.counts;
        counts.out.load(Ordering::Relaxed) + counts.objects.load(Ordering::Relaxed)
    }

    /// Counts calls of mbind; false if one failed.
    pub(crate) fn bound(&self, binds: Option<u64>) -> bool {
        self.counts.binds.fetch_add(binds.unwrap_or(0), Ordering::Relaxed);
        binds.is_some()
    }
}
