//! Caches as tags only: which lines a CPU has near it, not what is in them.
//!
//! The first level belongs to one vCPU and goes by virtual addresses, so that a hit costs one comparison; it is
//! emptied whenever the guest changes its translations. The last level is shared by the CPUs of a node and goes by
//! physical addresses; several threads use it at once without locks, and where two of them meet in one set a line may
//! be forgotten or kept twice, which costs a miss, never more. Lines are 64 bytes. Between nodes no coherence is
//! modelled.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bytes in a cache line, as a shift.
pub(crate) const LINE_SHIFT: u32 = 6;

/// One vCPU's first-level cache: direct-mapped, virtual tags. The higher bits of a line have a part in its place, so that a
/// program's stack, heap and data, which begin alike on pages, do not meet in a few places of the cache.
///
/// A tag is `generation << 52 | line << 1 | written`; a new generation empties the cache without touching it.
#[derive(Debug)]
pub struct FirstLevel {
    tags: Box<[u64]>,
    places_bits: u32,
    generation: u64,
}

/// Virtual addresses have at most 57 bits that say something, so lines have 51.
const LINE_BITS: u32 = 51;
const LINE_MASK: u64 = (1 << LINE_BITS) - 1;
const GENERATION_SHIFT: u32 = LINE_BITS + 1;
const NO_LINE: u64 = u64::MAX;

impl FirstLevel {
    /// An empty cache of `kib` KiB, a power of two.
    #[must_use]
    pub fn new(kib: u64) -> Self {
        let lines = usize::try_from(kib << 10 >> LINE_SHIFT).unwrap_or(1).max(1);
        let places_bits = lines.ilog2();
        Self { tags: vec![NO_LINE; lines].into_boxed_slice(), places_bits, generation: 0 }
    }

    #[inline]
    fn key_and_place(&self, address: u64) -> (u64, usize) {
        let line = (address >> LINE_SHIFT) & LINE_MASK;
        let folded = line ^ line >> self.places_bits ^ line >> (2 * self.places_bits);
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let place = folded as usize & (self.tags.len() - 1);
        (self.generation << GENERATION_SHIFT | line << 1, place)
    }

    /// Whether a load of `address` hits.
    #[inline]
    #[must_use]
    pub fn can_load(&self, address: u64) -> bool {
        let (key, place) = self.key_and_place(address);
        self.tags[place] ^ key <= 1
    }

    /// Whether a store to `address` hits a line already written to.
    #[inline]
    #[must_use]
    pub fn can_store(&self, address: u64) -> bool {
        let (key, place) = self.key_and_place(address);
        self.tags[place] == key | 1
    }

    /// Brings the line of `address` in. True if it was there already (clean, and now written to).
    #[inline]
    pub(crate) fn fill(&mut self, address: u64, written: bool) -> bool {
        let (key, place) = self.key_and_place(address);
        let there = self.tags[place] ^ key <= 1;
        self.tags[place] = key | u64::from(written);
        there
    }

    /// Drops the line of `address`.
    pub(crate) fn drop_line(&mut self, address: u64) {
        let (key, place) = self.key_and_place(address);
        if self.tags[place] ^ key <= 1 {
            self.tags[place] = NO_LINE;
        }
    }

    /// Empties the cache.
    pub fn clear(&mut self) {
        self.generation += 1;
        if self.generation == (1 << (64 - GENERATION_SHIFT)) - 1 {
            self.generation = 0;
            self.tags.fill(NO_LINE);
        }
    }
}

const WAYS: usize = 16;

/// One set, most recently used first; an entry is `tag << 1 | written`.
#[derive(Debug)]
#[repr(align(64))]
struct Set([AtomicU32; WAYS]);

/// The last-level cache of a CPU node: 16 ways, least recently used goes.
#[derive(Debug)]
pub(crate) struct LastLevel {
    sets: Box<[Set]>,
    set_bits: u32,
}

const NO_TAG: u32 = u32::MAX;

/// What became of a line that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// It was there.
    Hit,
    /// It was not, and now is.
    Miss {
        /// The line that had to go for it, if that one had been written to.
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

    /// The set a line belongs to, spread over all sets by the tag, and its tag shifted into place.
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

    /// The line whose entry `entry` stands in the set that `line` belongs to.
    fn line_of(&self, entry: u32, line: u64) -> u64 {
        let mask = (1 << self.set_bits) - 1;
        let set = (line ^ line >> self.set_bits) & mask;
        let tag = u64::from(entry >> 1);
        tag << self.set_bits | ((set ^ tag) & mask)
    }

    /// Looks for `line` (a physical address over 64), brings it in if need be, and makes it the most recently used.
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

    /// Forgets `line` without writing it back: a store past the caches has replaced it.
    pub(crate) fn forget(&self, line: u64) {
        let (ways, key) = self.place(line);
        if let Some(way) = ways.iter().find(|way| way.load(Relaxed) ^ key <= 1) {
            way.store(NO_TAG, Relaxed);
        }
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
    fn a_store_hits_only_where_one_went_before() {
        let mut cache = FirstLevel::new(64);
        cache.fill(0xffff_8880_0000_1000, false);
        assert!(!cache.can_store(0xffff_8880_0000_1000));
        assert!(cache.fill(0xffff_8880_0000_1000, true));
        assert!(cache.can_store(0xffff_8880_0000_1008) && cache.can_load(0xffff_8880_0000_1008));
        cache.drop_line(0xffff_8880_0000_1010);
        assert!(!cache.can_load(0xffff_8880_0000_1008));
    }

    #[test]
    fn clearing_empties_however_often_it_is_done() {
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
        fn what_fits_stays(start in 0u64..1 << 30) {
            let cache = LastLevel::new(64);
            for line in start..start + 16 {
                cache.touch(line, false);
            }
            for line in start..start + 16 {
                prop_assert_eq!(cache.touch(line, false), Lookup::Hit);
            }
        }

        #[test]
        fn every_line_written_is_written_back_once_and_as_itself(
            lines in proptest::collection::btree_set(0u64..1 << 34, 1..3000),
        ) {
            let cache = LastLevel::new(16);
            let mut back = std::collections::BTreeSet::new();
            // Whatever a set holds has gone once 16 further lines of that set have come; clean ones far away do that.
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
