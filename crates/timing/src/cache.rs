//! Cache models with tags only: they record which lines are cached, not their content.
//!
//! The first level belongs to one vCPU and uses virtual addresses, so that a hit costs one comparison; it is emptied
//! whenever the guest changes its translations. The last level is shared by the CPUs of a node and uses physical
//! addresses; several threads access it without locks, and a race in one set may drop or duplicate a line, which costs
//! a miss and nothing else. Lines are 64 bytes.
//!
//! Other vCPUs take lines from a first-level cache through its [`Tags`]. Its own vCPU does not synchronise with them: a
//! line that is filled at the same moment may stay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes in a cache line, as a shift.
pub(crate) const LINE_SHIFT: u32 = 6;

/// One vCPU's first-level cache: direct-mapped, virtual tags. The index also depends on the higher bits of a line, so
/// that a program's stack, heap and data, which begin at similar page offsets, do not collide in a few places.
///
/// A tag is `generation << 52 | line << 1 | written`; a new generation empties the cache without touching it.
#[derive(Debug)]
pub struct FirstLevel {
    tags: Tags,
    generation: u64,
}

/// The tags of a first-level cache, which all vCPUs may change.
#[derive(Clone, Debug)]
pub(crate) struct Tags(Arc<[AtomicU64]>);

/// Virtual addresses have at most 57 significant bits, so lines have 51.
const LINE_BITS: u32 = 51;
const LINE_MASK: u64 = (1 << LINE_BITS) - 1;
const GENERATION_SHIFT: u32 = LINE_BITS + 1;
const NO_LINE: u64 = u64::MAX;

impl Tags {
    /// Of an empty cache of `kib` KiB, a power of two.
    pub(crate) fn new(kib: u64) -> Self {
        let lines = usize::try_from(kib << 10 >> LINE_SHIFT).unwrap_or(1).max(1);
        Self((0..lines).map(|_| AtomicU64::new(NO_LINE)).collect())
    }

    #[inline]
    fn tag(&self, line: u64) -> &AtomicU64 {
        let bits = self.0.len().ilog2();
        let folded = line ^ line >> bits ^ line >> (2 * bits);
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let place = folded as usize & (self.0.len() - 1);
        &self.0[place]
    }

    fn empty(&self) {
        self.0.iter().for_each(|tag| tag.store(NO_LINE, Relaxed));
    }

    /// Drops the line of a virtual address, or makes it clean if it is to be kept; returns whether it was present. A
    /// cache that has been emptied since may still count as having it.
    pub(crate) fn give_up(&self, address: u64, keep: bool) -> bool {
        let line = (address >> LINE_SHIFT) & LINE_MASK;
        let tag = self.tag(line);
        let found = tag.load(Relaxed);
        if found == NO_LINE || found >> 1 & LINE_MASK != line {
            return false;
        }
        let new = if keep { found & !1 } else { NO_LINE };
        // If its vCPU has changed it meanwhile, it is another line's.
        new == found || tag.compare_exchange(found, new, Relaxed, Relaxed).is_ok()
    }
}

impl FirstLevel {
    /// An empty cache of `kib` KiB, a power of two.
    #[must_use]
    pub fn new(kib: u64) -> Self {
        Self::with(Tags::new(kib))
    }

    /// An empty cache with tags that others may change.
    pub(crate) fn with(tags: Tags) -> Self {
        tags.empty();
        Self { tags, generation: 0 }
    }

    #[inline]
    fn key_and_tag(&self, address: u64) -> (u64, &AtomicU64) {
        let line = (address >> LINE_SHIFT) & LINE_MASK;
        (self.generation << GENERATION_SHIFT | line << 1, self.tags.tag(line))
    }

    /// Whether a load of `address` hits.
    #[inline]
    #[must_use]
    pub fn can_load(&self, address: u64) -> bool {
        let (key, tag) = self.key_and_tag(address);
        tag.load(Relaxed) ^ key <= 1
    }

    /// Whether a store to `address` hits a dirty line.
    #[inline]
    #[must_use]
    pub fn can_store(&self, address: u64) -> bool {
        let (key, tag) = self.key_and_tag(address);
        tag.load(Relaxed) == key | 1
    }

    /// Fills the line of `address`. Returns true if it was present (clean, and now dirty).
    #[inline]
    pub(crate) fn fill(&mut self, address: u64, written: bool) -> bool {
        let (key, tag) = self.key_and_tag(address);
        let there = tag.load(Relaxed) ^ key <= 1;
        tag.store(key | u64::from(written), Relaxed);
        there
    }

    /// Drops the line of `address`.
    pub(crate) fn drop_line(&mut self, address: u64) {
        let (key, tag) = self.key_and_tag(address);
        if tag.load(Relaxed) ^ key <= 1 {
            tag.store(NO_LINE, Relaxed);
        }
    }

    /// Empties the cache.
    pub fn clear(&mut self) {
        self.generation += 1;
        if self.generation == (1 << (64 - GENERATION_SHIFT)) - 1 {
            self.generation = 0;
            self.tags.empty();
        }
    }
}

const WAYS: usize = 16;

/// One set, most recently used first; an entry is `tag << 1 | written`.
#[derive(Debug)]
#[repr(align(64))]
struct Set([AtomicU32; WAYS]);

/// The last-level cache of a CPU node: 16 ways, least recently used replacement.
#[derive(Debug)]
pub(crate) struct LastLevel {
    sets: Box<[Set]>,
    set_bits: u32,
}

const NO_TAG: u32 = u32::MAX;

/// Result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The line was present.
    Hit,
    /// It was not, and now is.
    Miss {
        /// The evicted line, if it was dirty.
        write_back: Option<u64>,
    },
}

impl LastLevel {
    /// An empty cache of `kib` KiB, a power of two of at least 16.
    pub(crate) fn new(kib: u64) -> Self {
        let sets = (kib << 10 >> LINE_SHIFT) / WAYS as u64;
        let set = || Set(std::array::from_fn(|_| AtomicU32::new(NO_TAG)));
        Self { sets: (0..sets).map(|_| set()).collect(), set_bits: sets.ilog2() }
    }

    /// The set of a line, which depends on its tag too, and the tag shifted into place.
    #[inline]
    fn place(&self, line: u64) -> (&[AtomicU32; WAYS], u32) {
        let tag = line >> self.set_bits;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "masked; tags have 31 bits: 2 TiB at the least size"
        )]
        let (place, key) = ((line ^ tag) as usize & (self.sets.len() - 1), (tag as u32) << 1);
        (&self.sets[place].0, key)
    }

    /// The line of `entry`, which is in the set that `line` belongs to.
    fn line_of(&self, entry: u32, line: u64) -> u64 {
        let mask = (1 << self.set_bits) - 1;
        let set = (line ^ line >> self.set_bits) & mask;
        let tag = u64::from(entry >> 1);
        tag << self.set_bits | ((set ^ tag) & mask)
    }

    /// Looks up `line` (a physical address over 64), fills it on a miss, and makes it the most recently used.
    pub(crate) fn touch(&self, line: u64, written: bool) -> Lookup {
        let (ways, key) = self.place(line);
        let written = u32::from(written);
        let mut carried = ways[0].load(Relaxed);
        if carried ^ key <= 1 {
            ways[0].store(carried | written, Relaxed);
            return Lookup::Hit;
        }
        for way in &ways[1..] {
            let entry = way.load(Relaxed);
            way.store(carried, Relaxed);
            if entry ^ key <= 1 {
                ways[0].store(entry | written, Relaxed);
                return Lookup::Hit;
            }
            carried = entry;
        }
        ways[0].store(key | written, Relaxed);
        let goes = carried != NO_TAG && carried & 1 == 1;
        Lookup::Miss { write_back: goes.then(|| self.line_of(carried, line)) }
    }

    /// Drops `line` without a write-back: a non-temporal store has replaced it, or another node's cache takes it.
    /// Returns whether it was present.
    pub(crate) fn forget(&self, line: u64) -> bool {
        let way = self.way(line);
        way.inspect(|way| way.store(NO_TAG, Relaxed)).is_some()
    }

    /// Makes `line` clean, if it is present and dirty; returns whether it was.
    pub(crate) fn clean(&self, line: u64) -> bool {
        let Some(way) = self.way(line) else { return false };
        let entry = way.load(Relaxed);
        way.store(entry & !1, Relaxed);
        entry & 1 == 1
    }

    fn way(&self, line: u64) -> Option<&AtomicU32> {
        let (ways, key) = self.place(line);
        ways.iter().find(|way| way.load(Relaxed) ^ key <= 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_hits_until_another_takes_its_place() {
        let mut cache = FirstLevel::new(64);
        assert!(!cache.can_load(0x1000));
        assert!(!cache.fill(0x1000, false));
        assert!(cache.can_load(0x103f) && !cache.can_load(0x1040));
        assert!(!cache.fill(0x1000 + (64 << 10), false));
        assert!(cache.can_load(0x1000), "as far apart as the cache is large, they do not meet");
        assert!(!cache.fill(0x1040 + (64 << 10), false));
        assert!(!cache.can_load(0x1000));
    }

    #[test]
    fn a_store_hits_only_a_line_stored_before() {
        let mut cache = FirstLevel::new(64);
        cache.fill(0xffff_8880_0000_1000, false);
        assert!(!cache.can_store(0xffff_8880_0000_1000));
        assert!(cache.fill(0xffff_8880_0000_1000, true));
        assert!(cache.can_store(0xffff_8880_0000_1008) && cache.can_load(0xffff_8880_0000_1008));
        cache.drop_line(0xffff_8880_0000_1010);
        assert!(!cache.can_load(0xffff_8880_0000_1008));
    }

    #[test]
    fn clearing_empties_the_cache_each_time() {
        let mut cache = FirstLevel::new(64);
        for _ in 0..10_000 {
            cache.fill(0x7000, true);
            cache.clear();
            assert!(!cache.can_load(0x7000) && !cache.can_store(0x7000));
        }
    }

    #[test]
    fn a_scan_larger_than_the_cache_never_hits() {
        let cache = LastLevel::new(64);
        for _ in 0..3 {
            for line in 0..2048 {
                assert_ne!(cache.touch(line, false), Lookup::Hit);
            }
        }
    }

    #[test]
    fn a_forgotten_line_is_not_written_back() {
        let cache = LastLevel::new(16);
        cache.touch(5, true);
        cache.forget(5);
        for line in 0..4096 {
            assert_ne!(cache.touch(line, false), Lookup::Miss { write_back: Some(5) });
        }
    }

    proptest! {
        #[test]
        fn data_that_fits_stays_cached(start in 0u64..1 << 30) {
            let cache = LastLevel::new(64);
            for line in start..start + 16 {
                cache.touch(line, false);
            }
            for line in start..start + 16 {
                prop_assert_eq!(cache.touch(line, false), Lookup::Hit);
            }
        }

        #[test]
        fn every_written_line_is_written_back_exactly_once(
            lines in proptest::collection::btree_set(0u64..1 << 34, 1..3000),
        ) {
            let cache = LastLevel::new(16);
            let mut back = std::collections::BTreeSet::new();
            // 16 further lines of a set evict all its earlier lines; clean ones far away do that.
            let flush = (1u64 << 40..).take(1 << 12);
            for (line, written) in lines.iter().map(|l| (*l, true)).chain(flush.map(|l| (l, false))) {
                if let Lookup::Miss { write_back: Some(line) } = cache.touch(line & ((1 << 35) - 1), written) {
                    prop_assert!(back.insert(line), "line {} twice", line);
                }
            }
            prop_assert_eq!(back, lines);
        }
    }
}
