//! Reads of items in memory, without a lock.

use crate::contents::Contents;
use crate::index::{At, Entry};
use crate::promotions::Promotions;
use crate::stats::Reads;
use crate::store::Meta;

/// The result of reading an item without a lock.
pub(crate) enum Tried {
    Read(Meta),
    Expired,
    /// The item changed during the read: retry.
    Again,
}

/// The parts of a cache that a read needs.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    contents: &'a Contents,
    promotions: &'a Promotions,
    reads: &'a Reads,
}

impl<'a> Reading<'a> {
    #[inline]
    pub(crate) const fn new(
        contents: &'a Contents,
        promotions: &'a Promotions,
        reads: &'a Reads,
    ) -> Self {
        Self { contents, promotions, reads }
    }

    /// Reads the item of an entry, if it is this key's.
    #[inline]
    pub(crate) fn try_read<H>(
        self,
        key: &[u8],
        (entry, at): (Entry, At),
        out: &mut Vec<u8>,
        head: &mut H,
    ) -> Option<Tried>
    where
        H: FnMut(&Meta, usize, &mut Vec<u8>) + ?Sized,
    {
        let Self { contents, promotions, reads } = self;
        let (tier, space, word) = contents.in_memory(entry.place())?;
        let item = space.item(word);
        let header = item.header();
        if !header.may_be(key.len()) || !item.has_key(header, key) {
            // A different key with the same tag, unless the item is just being removed.
            let same =
                header.is_live() && item.is_still(header) && contents.index().is_there(at, entry);
            return (!same).then_some(Tried::Again);
        }
        let meta = item.meta(header);
        let now = contents.now();
        let expired = meta.is_over(now);
        if !expired {
            head(&meta, header.value(), out);
            item.read_value(header, out);
        }
        if !item.is_still(header) || !contents.index().is_there(at, entry) {
            return Some(Tried::Again);
        }
        if expired {
            return Some(Tried::Expired);
        }
        if header.has_extra() {
            item.note_access(header, now);
        }
        let counted = item.count_read(header);
        if reads.is_noted() {
            space.warm(word);
        }
        if tier > 0 && counted && header.reads() == 1 {
            promotions.request(entry.place());
        }
        promotions.note(entry.place());
        Some(Tried::Read(meta))
    }
}
