//! A class from its policy's view: slots by number, their state and read counts.
#![expect(clippy::cast_possible_truncation, reason = "reads of an item are counted to three")]

use super::{Class, Space};
use crate::evict::{Items, Look};
use crate::item::{Header, Item, Stage};

/// A class from its policy's view.
pub(super) struct View<'a> {
    pub(super) space: &'a Space,
    pub(super) class: &'a Class,
    pub(super) slabs: &'a [Option<u32>],
}

impl View<'_> {
    fn header(&self, slot: u32) -> Option<(Item<'_>, Header)> {
        let at = self.space.word_of(self.class, self.slabs, slot)?;
        let item = self.space.item(at);
        Some((item, item.header()))
    }
}

impl Items for View<'_> {
    fn slots(&self) -> u32 {
        u32::try_from(self.slabs.len() * self.class.per_slab).unwrap_or(u32::MAX)
    }

    fn look(&self, slot: u32) -> Look {
        match self.header(slot) {
            Some((_, header)) if header.is_live() => Look::Item(header.reads() as u8),
            Some((_, header)) if header.stage() == Stage::Held => Look::Busy,
            _ => Look::Vacant,
        }
    }

    fn prefetch(&self, slot: u32) {
        if let Some(at) = self.space.word_of(self.class, self.slabs, slot) {
            self.space.arena.prefetch(at);
        }
    }

    fn set_reads(&self, slot: u32, reads: u8) {
        if let Some((item, header)) = self.header(slot) {
            item.change(header, |now| now.with_reads(u64::from(reads)));
        }
    }

    fn hash(&self, slot: u32) -> u32 {
        self.header(slot).map_or(0, |(item, header)| {
            item.hash(header, &mut Vec::new(), &self.space.hasher).low()
        })
    }
}
