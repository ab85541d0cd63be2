//! Slot lengths of size classes, and the cut of items longer than any slot into pieces.
//!
//! Sizes grow by an eighth from class to class, up to a quarter of a slab. A longer item is cut into pieces for slots
//! of one class: of the few largest classes, which have four to eight slots per slab, the one that wastes least. So a
//! head and its chunks are of the same class, are allocated and freed under one lock, and a slab has chunks of at most
//! eight items.

use crate::arena::WORD;
use crate::item::{Header, Shape, size};

/// Sizes grow by an eighth from class to class.
const GROWTH: usize = 8;
/// Bytes of the smallest slot.
const SMALLEST: usize = 24;
/// Slots per slab of the largest class.
const LARGEST_IN_SLAB: usize = 4;
/// Words of a chunk before its part of the value: header, its head's word, its head's hash.
pub(crate) const CHUNK: usize = 3;

/// The cut of an item that is longer than any slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The class of all its slots.
    pub(crate) class: usize,
    /// Words of each slot.
    pub(crate) slot: usize,
    /// Number of slots.
    pub(crate) pieces: usize,
}

/// Slot lengths in words, ascending; the same in all tiers.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    words: Vec<usize>,
    /// The class for each number of words, where that is small.
    small: Vec<u16>,
}

impl Sizes {
    /// Slot lengths for slabs of this many words.
    pub(crate) fn new(slab: usize) -> Self {
        let largest = slab / LARGEST_IN_SLAB;
        let mut words = vec![SMALLEST / WORD];
        while let Some(last) = words.last().copied().filter(|last| *last < largest) {
            let next = (last + (last / GROWTH).max(1)).min(largest);
            // As long as possible for this number of slots, so that the slab's end is not wasted.
            words.push((slab / (slab / next)).min(largest));
        }
        words.dedup();
        let class = |need: usize| {
            u16::try_from(words.partition_point(|words| *words < need)).unwrap_or(u16::MAX)
        };
        let small = (0..=1024.min(largest)).map(class).collect();
        Self { words, small }
    }

    /// The class of the smallest slots that have this many words; [`Self::count`] if there is none.
    #[inline]
    pub(crate) fn class(&self, words: usize) -> usize {
        match self.small.get(words) {
            Some(class) => usize::from(*class),
            None => self.words.partition_point(|slot| *slot < words),
        }
    }

    /// The class of an item with metadata, by the bytes of its key and value; the last one if it does not fit.
    pub(crate) fn class_of_item(&self, key: usize, value: usize) -> usize {
        let class = self.class(size(key, value, true).div_ceil(WORD));
        if class < self.count() {
            return class;
        }
        let shape = Shape { key, value, extra: true, copy: false, chained: true };
        let before = Header::new(Header::ZERO, shape).before_slots() + 1;
        self.cut(before, value).map_or(self.count() - 1, |cut| cut.class)
    }

    pub(crate) const fn count(&self) -> usize {
        self.words.len()
    }

    pub(crate) fn words(&self, class: usize) -> usize {
        self.words[class]
    }

    /// Words of the largest slot.
    pub(crate) fn largest(&self) -> usize {
        self.words.last().copied().unwrap_or(0)
    }
}

impl Sizes {
    /// The cut of an item whose head has `before` words before the places of its chunks, and then its part of the value
    /// of `value` bytes. `None` if those places do not fit into its head.
    pub(crate) fn cut(&self, before: usize, value: usize) -> Option<Cut> {
        let (least, value) = (self.largest() / 2, value.div_ceil(WORD));
        let cuts = self.words.iter().enumerate().rev().take_while(|(_, slot)| **slot >= least);
        let cut = |(class, slot): (usize, &usize)| {
            let slot = *slot;
            // Each chunk takes a word in the head besides its own.
            let each = slot.checked_sub(CHUNK + 1).filter(|each| *each > 0)?;
            let pieces = 1 + value.saturating_sub(slot.checked_sub(before)?).div_ceil(each);
            (before + pieces - 1 <= slot).then_some(Cut { class, slot, pieces })
        };
        cuts.filter_map(cut).min_by_key(|cut| (cut.slot * cut.pieces, cut.pieces))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_size_plan_fits_the_value_with_little_waste(
            slab in 16..=26_u32, before in 2..40_usize, value in 0..1_usize << 24,
        ) {
            let sizes = Sizes::new((1 << slab) / WORD);
            let cut = sizes.cut(before, value).expect("what 24 bits can say can be cut");
            let Cut { class, slot, pieces } = cut;
            prop_assert_eq!(sizes.words(class), slot);
            prop_assert!(before + pieces - 1 <= slot);
            let room = slot - before - (pieces - 1) + (pieces - 1) * (slot - CHUNK);
            prop_assert!(room * WORD >= value);
            // One slot less of the largest class would not suffice.
            let needed = before + value.div_ceil(WORD) + (pieces - 1) * (CHUNK + 1);
            let spare = slot * pieces - needed;
            prop_assert!(spare < sizes.largest(), "{spare} words to spare of {needed}");
            if needed > 3 * sizes.largest() {
                prop_assert!(spare * 6 < needed, "{spare} words to spare of {needed}");
            }
        }
    }
}
