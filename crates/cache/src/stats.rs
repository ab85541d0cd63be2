//! What a cache counts.
//!
//! Hits and misses are counted without a lock, by each thread in a cell of its own while there are cells, and added up when
//! asked for.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};

use crate::arena::WORD;
use crate::balance::READS_PER_NOTE;
use crate::below::Below;
use crate::cache::Cache;
use crate::disk;
use crate::space::Space;
use crate::store::Class;

const CELLS: usize = 64;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Counted {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Reads, counted.
#[derive(Debug)]
pub(crate) struct Reads {
    cells: Vec<Counted>,
    crowded: AtomicU64,
}

impl Default for Reads {
    fn default() -> Self {
        Self { cells: (0..CELLS).map(|_| Counted::default()).collect(), crowded: AtomicU64::new(0) }
    }
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's cell; the last one is shared by all that find no other.
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
        // One thread alone writes it.
        cell.store(cell.load(Relaxed) + 1, Relaxed);
    }
}

impl Reads {
    /// Whether the read that this thread is about to count is one of those that are noted for what was read.
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

    /// An item had to go as its buckets were full.
    pub(crate) fn crowded(&self) {
        self.crowded.fetch_add(1, Relaxed);
    }
}

/// What happened in a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items that came from callers.
    pub stored: u64,
    /// Items that went for others' sake, and are gone.
    pub evicted: u64,
    /// Items that went to a slower tier.
    pub demoted: u64,
    /// Items that came from a slower tier.
    pub promoted: u64,
    /// Items whose time was up, and that went before somebody asked for them: also all that were flushed.
    pub expired: u64,
    /// Those of them that went in the background,
    pub reaped: u64,
    /// and those that nobody had read.
    pub unfetched: u64,
    /// Items that were in use elsewhere just when they should have gone.
    pub contended: u64,
}

/// What is in a size class of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStats {
    /// Bytes of a slot.
    pub slot: usize,
    /// Slots in use.
    pub used: usize,
    /// Items in them; one that is larger than any slot has several.
    pub items: usize,
    /// Slots to be had.
    pub free: usize,
    /// What happened.
    pub counts: Counts,
}

/// What is in a tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Bytes it may use.
    pub bytes: u64,
    /// Bytes in slots that are in use.
    pub used: u64,
    /// Items.
    pub items: u64,
    /// Its classes that have slots, small ones first.
    pub classes: Vec<ClassStats>,
    /// What happened, over all classes.
    pub counts: Counts,
    /// Slabs that one class gave to another as they are worth more there.
    pub dealt: u64,
}

/// What a cache counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads that found something.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Items that went as the index had no room where they belonged.
    pub crowded: u64,
    /// Tiers of memory, fastest first.
    pub tiers: Vec<TierStats>,
    /// The disk, if there is one.
    pub disk: Option<DiskStats>,
    /// Slots that were looked at for items whose time is up.
    pub checked: u64,
}

/// What is in the tier on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Bytes it may use.
    pub bytes: u64,
    /// Bytes of regions with large objects, and of all sets for small ones.
    pub used: u64,
    /// Large objects that entries lead to. Small ones are not counted one by one.
    pub items: u64,
    /// Items that came from memory and were written.
    pub written: u64,
    /// Items that came from memory, and lay there unchanged still.
    pub unwritten: u64,
    /// Items that were not let in, or found no buffer.
    pub refused: u64,
    /// Objects that went to memory.
    pub promoted: u64,
    /// Large objects that are gone, as their region was used anew or can't be read.
    pub evicted: u64,
    /// Large objects that were there when it was opened.
    pub recovered: u64,
    /// The disk's own figures.
    pub own: disk::Stats,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.stored += other.stored;
        self.evicted += other.evicted;
        self.demoted += other.demoted;
        self.promoted += other.promoted;
        self.expired += other.expired;
        self.reaped += other.reaped;
        self.unfetched += other.unfetched;
        self.contended += other.contended;
    }
}

fn tier(space: &Space) -> TierStats {
    let bytes = space.slab_count() * space.slab_words() * WORD;
    let dealt = space.dealt.load(Relaxed);
    let mut stats = TierStats { bytes: bytes as u64, dealt, ..TierStats::default() };
    for class in space.classes() {
        let state = class.lock();
        let one = ClassStats {
            slot: class.words() * WORD,
            used: state.used,
            items: state.used - state.chunks,
            free: state.free,
            counts: state.counts,
        };
        drop(state);
        stats.used += (one.slot * one.used) as u64;
        stats.items += one.items as u64;
        stats.counts.add(&one.counts);
        if one.used + one.free > 0 {
            stats.classes.push(one);
        }
    }
    stats
}

fn on_disk(below: &Below) -> DiskStats {
    let (counted, own) = (&below.counted, below.disk.stats());
    let read = |counter: &AtomicU64| counter.load(Relaxed);
    DiskStats {
        bytes: below.bytes,
        used: below.disk.used_bytes(),
        items: read(&counted.items),
        written: read(&counted.written),
        unwritten: read(&counted.unwritten),
        refused: read(&counted.refused),
        promoted: read(&counted.promoted),
        evicted: read(&counted.evicted),
        recovered: below.opened.objects,
        own,
    }
}

impl DiskStats {
    /// Calls `each` with every figure but those that memory has, too; with names that begin with `disk_`.
    pub fn each(&self, each: &mut dyn FnMut(&str, u64)) {
        each("disk_written", self.written);
        each("disk_unwritten", self.unwritten);
        each("disk_refused", self.refused);
        each("disk_recovered", self.recovered);
        self.own.each(&mut |name, number| each(&format!("disk_{name}"), number));
    }
}

/// Items of a class and tier that are looked at for how large they are.
const LOOKED_AT: usize = 1024;

/// Bytes of the items of a class.
fn item_bytes(space: &Space, number: usize, items: usize) -> u64 {
    let slabs: Vec<_> = space.class(number).lock().slabs().collect();
    let slots = slabs.into_iter().flat_map(|(_, slab)| space.slots_of(number, slab));
    let headers = slots.map(|at| space.item(at).header()).filter(|header| header.is_live());
    let (looked, bytes) = headers.take(LOOKED_AT).fold((0u64, 0u64), |(count, bytes), header| {
        let chunks = if header.is_chained() { header.value() / WORD } else { 0 };
        (count + 1, bytes + ((header.words() + chunks) * WORD) as u64)
    });
    bytes * (items as u64).max(looked) / looked.max(1)
}

impl Cache {
    /// A size class, over all tiers.
    pub(crate) fn class(&self, number: usize) -> Class {
        let mut sum = Class::default();
        for space in &self.spaces {
            let class = space.class(number);
            let state = class.lock();
            sum.slot_bytes = (class.words() * WORD) as u64;
            sum.slots_per_slab = class.per_slab() as u64;
            sum.slabs += state.slabs().count() as u64;
            let items = state.used - state.chunks;
            sum.used += state.used as u64;
            sum.items += items as u64;
            sum.stored += state.counts.stored;
            sum.evicted += state.counts.evicted;
            sum.expired += state.counts.expired;
            sum.reaped += state.counts.reaped;
            sum.unfetched += state.counts.unfetched;
            drop(state);
            sum.item_bytes += item_bytes(space, number, items);
        }
        sum
    }

    /// What was counted.
    #[must_use]
    pub fn counted(&self) -> Stats {
        let sum = |of: fn(&Counted) -> &AtomicU64| {
            self.reads.cells.iter().map(|cell| of(cell).load(Relaxed)).sum()
        };
        Stats {
            hits: sum(|cell| &cell.hits),
            misses: sum(|cell| &cell.misses),
            crowded: self.reads.crowded.load(Relaxed),
            tiers: self.spaces.iter().map(tier).collect(),
            disk: self.below.as_deref().map(on_disk),
            checked: self.reaper.checked.load(Relaxed),
        }
    }
}
