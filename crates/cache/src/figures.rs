//! Figures of a cache's contents, collected for its statistics.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::arena::WORD;
use crate::below::Below;
use crate::contents::Contents;
use crate::space::Space;
use crate::stats::{ClassStats, DiskStats, TierStats};
use crate::store::Class;

/// Of a tier of memory.
pub(crate) fn tier(space: &Space) -> TierStats {
    let bytes = space.slab_limit() * space.slab_words() * WORD;
    let dealt = space.dealt();
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

/// Of the disk tier.
pub(crate) fn on_disk(below: &Below) -> DiskStats {
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
        discarded: below.opened.discarded,
        own,
    }
}

/// Items per class and tier whose sizes are sampled.
const LOOKED_AT: usize = 1024;

/// Estimated bytes of the items of a class.
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

/// A size class, over all tiers.
pub(crate) fn class(contents: &Contents, number: usize) -> Class {
    let mut sum = Class::default();
    for space in contents.spaces() {
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
        sum.evicted_unfetched += state.counts.evicted_unfetched;
        sum.evicted_expiring += state.counts.evicted_expiring;
        sum.expired += state.counts.expired;
        sum.reaped += state.counts.reaped;
        sum.unfetched += state.counts.unfetched;
        drop(state);
        sum.item_bytes += item_bytes(space, number, items);
    }
    sum
}
