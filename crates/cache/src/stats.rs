//! Counters of a cache.
//!
//! Hits and misses are counted without a lock, by each thread in its own cell while cells are available, and summed
//! when read.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};

use crate::disk;
use crate::item::Last;
use crate::slab_balance::READS_PER_NOTE;
use crate::store::Meta;

const CELLS: usize = 64;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Counted {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Counters of reads.
#[derive(Debug)]
pub(crate) struct Reads {
    cells: Vec<Counted>,
}

impl Default for Reads {
    fn default() -> Self {
        Self { cells: (0..CELLS).map(|_| Counted::default()).collect() }
    }
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's cell; the last one is shared by all threads without their own.
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

#[inline]
fn mine() -> usize {
    let mine = MINE.get();
    if mine != usize::MAX {
        return mine;
    }
    let number = NEXT.fetch_add(1, Relaxed).min(CELLS - 1);
    MINE.set(number);
    number
}

#[inline]
fn add(cell: &AtomicU64, is_shared: bool) {
    if is_shared {
        cell.fetch_add(1, Relaxed);
    } else {
        // Only one thread writes it.
        cell.store(cell.load(Relaxed) + 1, Relaxed);
    }
}

impl Reads {
    /// Whether the read that this thread is about to count is sampled for recency and heat.
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        self.cells[mine()].hits.load(Relaxed).is_multiple_of(READS_PER_NOTE)
    }

    #[inline]
    pub(crate) fn hit(&self) {
        let mine = mine();
        add(&self.cells[mine].hits, mine == CELLS - 1);
    }

    #[inline]
    pub(crate) fn miss(&self) {
        let mine = mine();
        add(&self.cells[mine].misses, mine == CELLS - 1);
    }

    /// Hits and misses of all threads.
    pub(crate) fn sum(&self) -> (u64, u64) {
        let sum = |of: fn(&Counted) -> &AtomicU64| {
            self.cells.iter().map(|cell| of(cell).load(Relaxed)).sum()
        };
        (sum(|cell| &cell.hits), sum(|cell| &cell.misses))
    }
}

/// Events of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items stored by callers.
    pub stored: u64,
    /// Items evicted for others,
    pub evicted: u64,
    /// those of them never read,
    pub evicted_unfetched: u64,
    /// and those that would have expired later.
    pub evicted_expiring: u64,
    /// Items demoted to a slower tier.
    pub demoted: u64,
    /// Items promoted from a slower tier.
    pub promoted: u64,
    /// Expired items removed before they were read, flushed ones included.
    pub expired: u64,
    /// Those of them removed in the background,
    pub reaped: u64,
    /// and those never read.
    pub unfetched: u64,
    /// Items in use elsewhere when they were chosen as victims.
    pub contended: u64,
}

/// Contents of a size class of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStats {
    /// Bytes of a slot.
    pub slot: usize,
    /// Slots in use.
    pub used: usize,
    /// Items in them; one larger than any slot has several.
    pub items: usize,
    /// Available slots.
    pub free: usize,
    /// Events.
    pub counts: Counts,
}

/// Contents of a tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Bytes it may use.
    pub bytes: u64,
    /// Bytes in used slots.
    pub used: u64,
    /// Number of items.
    pub items: u64,
    /// Its classes with slots, small ones first.
    pub classes: Vec<ClassStats>,
    /// Events of all classes.
    pub counts: Counts,
    /// Slabs reassigned from one class to another.
    pub dealt: u64,
}

/// Counters of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads that found an item.
    pub hits: u64,
    /// Reads that found none.
    pub misses: u64,
    /// Items evicted because their buckets in the index were full.
    pub crowded: u64,
    /// Tiers of memory, fastest first.
    pub tiers: Vec<TierStats>,
    /// The disk, if there is one.
    pub disk: Option<DiskStats>,
    /// Slots examined for expired items.
    pub checked: u64,
}

/// Contents of the disk tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Bytes it may use.
    pub bytes: u64,
    /// Bytes of regions with large objects, and of all sets for small ones.
    pub used: u64,
    /// Large objects in the index. Small ones are not counted individually.
    pub items: u64,
    /// Items demoted from memory and written.
    pub written: u64,
    /// Items demoted from memory that were already on disk unchanged.
    pub unwritten: u64,
    /// Items not admitted, or without a free buffer.
    pub refused: u64,
    /// Objects promoted to memory.
    pub promoted: u64,
    /// Large objects lost because their region was reused or can't be read.
    pub evicted: u64,
    /// Large objects recovered when it was opened.
    pub recovered: u64,
    /// Whether the objects on it were discarded because it had not been closed cleanly.
    pub discarded: bool,
    /// The disk's own counters.
    pub own: disk::Stats,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.stored += other.stored;
        self.evicted += other.evicted;
        self.evicted_unfetched += other.evicted_unfetched;
        self.evicted_expiring += other.evicted_expiring;
        self.demoted += other.demoted;
        self.promoted += other.promoted;
        self.expired += other.expired;
        self.reaped += other.reaped;
        self.unfetched += other.unfetched;
        self.contended += other.contended;
    }

    /// Counts an item that was evicted or, if it had expired before, removed.
    pub(crate) fn lost(&mut self, last: &Last) {
        if last.is_over {
            return self.over(&last.meta);
        }
        self.evicted += 1;
        self.evicted_unfetched += u64::from(!last.meta.fetched);
        self.evicted_expiring += u64::from(last.meta.expires != 0);
    }

    /// Counts an expired item.
    pub(crate) fn over(&mut self, meta: &Meta) {
        self.expired += 1;
        self.unfetched += u64::from(!meta.fetched);
    }
}

impl DiskStats {
    /// Calls `each` with every counter that memory does not have; names begin with `disk_`.
    pub fn each(&self, each: &mut dyn FnMut(&str, u64)) {
        each("disk_written", self.written);
        each("disk_unwritten", self.unwritten);
        each("disk_refused", self.refused);
        each("disk_recovered", self.recovered);
        each("disk_discarded", u64::from(self.discarded));
        self.own.each(&mut |name, number| each(&format!("disk_{name}"), number));
    }
}
