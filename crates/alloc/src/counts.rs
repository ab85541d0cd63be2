//! What a kind counts, and what it does when a count says that it is all but empty.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::haste;
use crate::kind::Kind;

/// What may be left when idle pages are discarded, and what must have been there.
const LEFT: usize = 4 << 20;
const IDLE_LEAST: usize = 8 << 20;

/// Counts that a kind keeps.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Bytes that have left arenas less those given back: in use, or kept by threads and depots.
    pub(crate) out: AtomicUsize,
    /// The most that was out since idle pages were last discarded at once.
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
    /// Notes that objects have left an arena.
    pub(crate) fn went_out(&self, bytes: usize) {
        let out = self.counts.out.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if out > self.counts.high.load(Ordering::Relaxed) {
            self.counts.high.fetch_max(out, Ordering::Relaxed);
        }
    }

    /// Notes that objects have gone back to their arena. When all but nothing is left, idle pages are discarded at once: nothing
    /// may happen for a long time now, and jemalloc discards them only as something does.
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

    /// Bytes that have left it: in use, or kept by threads and depots.
    pub(crate) fn out(&self) -> usize {
        let counts = &self.counts;
        counts.out.load(Ordering::Relaxed) + counts.objects.load(Ordering::Relaxed)
    }

    /// Counts calls of mbind; false if one was refused.
    pub(crate) fn bound(&self, binds: Option<u64>) -> bool {
        self.counts.binds.fetch_add(binds.unwrap_or(0), Ordering::Relaxed);
        binds.is_some()
    }
}
