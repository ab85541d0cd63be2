//! The layout of an item in memory.
//!
//! ```text
//! word 0     version 16 | state 8 | key length 8 | value length 24 | uses 6, reads 2
//! words 1-3  only if the state says so: expires 32, flags 32 | cas 64 | marks 16, version 16, accessed 32
//! then       key and value, without a gap; the rest of the last word is 0
//! last word  only if the state says so: the place of the same item on disk
//! ```
//! The state also marks a *chain*, an item longer than any slot (`chain.rs`), of which this is the head. Then the
//! length is that of the whole value, and after the key follow
//!
//! ```text
//! a word     only if the state says so: the place of the same item on disk
//! a word     number of slots 32, words per slot 32
//! a word     for each slot but the first: the start of the chunk, in the same arena
//! then       the first part of the value, up to the slot's end
//! ```
//! An item is immutable except for hints (`reads`, `uses`, `accessed` and the marks); any other change makes a new
//! version. A reader without a lock compares the header before and after (without `reads` and `uses`); if it is equal,
//! the data read belongs to one item.
//!
//! A version has 16 bits, so it recurs after 32,768 uses of a slot. To detect this, the arena has an *epoch* of 64
//! bits, incremented after a header with version 0 was stored and before the slot is live again, and when a slab is cut
//! into new slots. The epoch is read before the header, and again after it: headers are equal only in the same epoch.
#![expect(clippy::cast_possible_truncation, reason = "fields of a word have fewer bits")]

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::arena::{Arena, WORD};
use crate::index::{Hash, Hasher};
use crate::store::Meta;
use crate::sync::{AtomicU64, fence};

/// Bytes of a header.
pub(crate) const HEADER: usize = WORD;
/// Bytes of the metadata, where it is stored.
pub(crate) const EXTRA: usize = 3 * WORD;
/// Longest key.
pub(crate) const KEY_MAX: usize = 250;
/// Longest value.
pub(crate) const VALUE_MAX: usize = 0xff_ffff;
/// Maximum bytes from a header that any header, even an invalid one, can refer to: a reader without a lock may read an
/// arbitrary word as a header, and detects that afterwards.
pub(crate) const REACH: usize = size(0xff, VALUE_MAX, true) + 3 * WORD;
/// Maximum of the read count; policies lower it when they examine an item.
pub(crate) const READS_MAX: u64 = 3;
/// Maximum of the count of reads since the item was stored.
pub(crate) const USES_MAX: u64 = 63;
const USE: u64 = READS_MAX + 1;
/// Reads and uses.
const HINTS: u64 = 0xff;

const FETCHED: u64 = 1;
const STALE: u64 = 2;
const WON: u64 = 4;

/// An item as it goes.
pub(crate) struct Last {
    pub(crate) meta: Meta,
    /// Whether it has expired.
    pub(crate) is_over: bool,
}

/// State of a slot; in the low two bits of a header's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Free; it is, or will be, in a list of free slots.
    Free,
    /// An item that is being written.
    Held,
    /// An item in the index.
    Live,
}

/// A header, unpacked on demand: its word, and the arena's epoch in which it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header(pub(crate) u64, u64);

/// Properties of a new item's header.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    pub(crate) key: usize,
    pub(crate) value: usize,
    /// It has room for [`Meta`].
    pub(crate) extra: bool,
    /// It has room for its place on disk.
    pub(crate) copy: bool,
    /// It is a chain of several slots.
    pub(crate) chained: bool,
}

impl Header {
    /// The header of unused memory.
    pub(crate) const ZERO: Self = Self(0, 0);
    const EXTRA: u64 = 1 << 43;
    const COPY: u64 = 1 << 44;
    const CHAINED: u64 = 1 << 45;
    const CHUNK: u64 = 1 << 46;

    /// The header of an item of this shape that follows `before`, while it is being written.
    pub(crate) fn new(before: Self, shape: Shape) -> Self {
        debug_assert!(shape.key <= 255 && shape.value < 1 << 24, "lengths fit");
        let extra = if shape.extra { Self::EXTRA } else { 0 };
        let copy = if shape.copy { Self::COPY } else { 0 };
        let chained = if shape.chained { Self::CHAINED } else { 0 };
        Self(
            (before.0 >> 48).wrapping_add(1) << 48
                | (Stage::Held as u64) << 40
                | extra
                | copy
                | chained
                | (shape.key as u64) << 32
                | (shape.value as u64) << 8,
            before.1,
        )
    }

    pub(crate) const fn stage(self) -> Stage {
        match (self.0 >> 40) & 3 {
            0 => Stage::Free,
            1 => Stage::Held,
            _ => Stage::Live,
        }
    }

    pub(crate) const fn is_live(self) -> bool {
        (self.0 >> 40) & 3 == Stage::Live as u64
    }

    /// Whether it is live, with a key of this length.
    #[inline]
    pub(crate) const fn may_be(self, key: usize) -> bool {
        self.is_live() && (self.0 >> 32) & 0xff == key as u64
    }

    pub(crate) const fn version(self) -> u64 {
        self.0 >> 48
    }

    /// The arena's epoch in which it was read.
    #[cfg(test)]
    pub(crate) const fn epoch(self) -> u64 {
        self.1
    }

    pub(crate) const fn has_extra(self) -> bool {
        self.0 & Self::EXTRA != 0
    }

    pub(crate) const fn key(self) -> usize {
        (self.0 >> 32) as usize & 0xff
    }

    /// Whether the item is a chain.
    #[inline]
    pub(crate) const fn is_chained(self) -> bool {
        self.0 & Self::CHAINED != 0
    }

    /// Whether it is a chunk of a chain. It counts as being written, as only its head leads to it.
    pub(crate) const fn is_chunk(self) -> bool {
        self.0 & Self::CHUNK != 0
    }

    /// A chunk's header, in the slot that has this one.
    pub(crate) fn of_chunk(self) -> Self {
        Self(self.at(Stage::Held).0 & !0xff_ffff_ffff | Self::CHUNK, self.1)
    }

    pub(crate) const fn has_copy(self) -> bool {
        self.0 & Self::COPY != 0
    }

    pub(crate) const fn shape(self) -> Shape {
        Shape {
            key: self.key(),
            value: self.value(),
            extra: self.has_extra(),
            copy: self.has_copy(),
            chained: self.is_chained(),
        }
    }

    /// Bytes of the value stored in this slot.
    pub(crate) const fn value(self) -> usize {
        (self.0 >> 8) as usize & 0xff_ffff
    }

    pub(crate) const fn reads(self) -> u64 {
        self.0 & READS_MAX
    }

    /// Number of counted reads since it was stored.
    pub(crate) const fn uses(self) -> u64 {
        (self.0 & HINTS) / USE
    }

    /// Whether it is the same item, ignoring read counts.
    #[inline]
    pub(crate) const fn is_same(self, other: Self) -> bool {
        self.has_word_of(other) && self.1 == other.1
    }

    /// Whether its word is the same, whether read or not. Of an item that was there in another epoch it may be the same by chance.
    pub(crate) const fn has_word_of(self, other: Self) -> bool {
        (self.0 ^ other.0) >> 8 == 0
    }

    pub(crate) const fn with_reads(self, reads: u64) -> Self {
        Self(self.0 & !READS_MAX | reads, self.1)
    }

    /// With the read counts of `other`.
    pub(crate) const fn with_hints_of(self, other: Self) -> Self {
        Self(self.0 & !HINTS | other.0 & HINTS, self.1)
    }

    /// With one use and no reads since.
    pub(crate) const fn with_one_use(self) -> Self {
        Self(self.0 & !HINTS | USE, self.1)
    }

    /// With the uses of `other` and no reads since.
    pub(crate) const fn with_uses_of(self, other: Self) -> Self {
        self.with_hints_of(other).with_reads(0)
    }

    /// At another stage; where it leaves the index, with a new version and without the marks of chain and chunk.
    pub(crate) fn at(self, stage: Stage) -> Self {
        let is_free = stage == Stage::Free;
        let version = (self.0 >> 48).wrapping_add(u64::from(is_free)) << 48;
        let gone = if is_free { Self::CHAINED | Self::CHUNK } else { 0 };
        Self(version | self.0 & 0x0000_fcff_ffff_ffff & !gone | (stage as u64) << 40, self.1)
    }

    /// Words before the key.
    #[inline]
    pub(crate) const fn before_key(self) -> usize {
        size(0, 0, self.has_extra()) / WORD
    }

    /// Words of the whole item, unless it is a chain.
    pub(crate) const fn words(self) -> usize {
        self.copy_at() + self.has_copy() as usize
    }

    /// Words before the place on disk.
    const fn copy_at(self) -> usize {
        let value = if self.is_chained() { 0 } else { self.value() };
        self.before_key() + (self.key() + value).div_ceil(WORD)
    }

    /// For a chain, words before the number of its slots.
    pub(crate) const fn before_slots(self) -> usize {
        self.copy_at() + self.has_copy() as usize
    }
}

/// Bytes an item takes.
pub(crate) const fn size(key: usize, value: usize, extra: bool) -> usize {
    HEADER + if extra { EXTRA } else { 0 } + key + value
}

/// The location of an item in an arena; its contents are unverified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) at: usize,
}

impl Item<'_> {
    #[inline]
    fn head(&self) -> &AtomicU64 {
        self.arena.word(self.at)
    }

    #[inline]
    pub(crate) fn header(&self) -> Header {
        let epoch = self.arena.epoch();
        Header(self.head().load(Acquire), epoch)
    }

    /// Whether its header is still `seen`, after all reads of the item.
    #[inline]
    pub(crate) fn is_still(&self, seen: Header) -> bool {
        fence(Acquire);
        let now = self.head().load(Acquire);
        Header(now, self.arena.epoch()).is_same(seen)
    }

    /// Invalidates the contents until [`Self::publish`].
    pub(crate) fn begin(&self, header: Header) {
        self.head().store(header.0, Relaxed);
        fence(Release);
        if header.version() == 0 {
            self.arena.next_epoch();
        }
    }

    /// Publishes all that was written.
    pub(crate) fn publish(&self, header: Header) {
        self.head().store(header.0, Release);
    }

    /// Replaces the header by `to` of it, if it still is `from`; the read counts may have changed in between.
    pub(crate) fn change(&self, from: Header, to: impl Fn(Header) -> Header) -> Option<Header> {
        let mut now = self.header();
        while now.is_same(from) {
            match self.head().compare_exchange_weak(now.0, to(now).0, Release, Acquire) {
                Ok(_) => return Some(to(now)),
                Err(other) => now = Header(other, now.1),
            }
        }
        None
    }

    /// Counts a read, unless the count is at its maximum or another thread interferes.
    #[inline]
    pub(crate) fn count_read(&self, seen: Header) -> bool {
        let one = if seen.uses() < USES_MAX { USE + 1 } else { 1 };
        seen.reads() < READS_MAX
            && self.head().compare_exchange(seen.0, seen.0 + one, Relaxed, Relaxed).is_ok()
    }

    #[inline]
    pub(crate) fn has_key(&self, header: Header, key: &[u8]) -> bool {
        self.arena.is_equal(self.at + header.before_key(), key)
    }

    /// Appends the key.
    pub(crate) fn read_key(&self, header: Header, out: &mut Vec<u8>) {
        self.arena.read(self.at + header.before_key(), 0, header.key(), out);
    }

    /// The hash of its key.
    pub(crate) fn hash(&self, header: Header, scratch: &mut Vec<u8>, hasher: &Hasher) -> Hash {
        scratch.clear();
        self.read_key(header, scratch);
        hasher.hash(scratch)
    }

    /// Appends the value stored in this slot.
    #[inline]
    pub(crate) fn read_value(&self, header: Header, out: &mut Vec<u8>) {
        if header.is_chained() {
            return self.read_chain(header, out);
        }
        self.arena.read(self.at + header.before_key(), header.key(), header.value(), out);
    }

    /// Copies the value to `out`, which has its length.
    pub(crate) fn copy_value(&self, header: Header, out: &mut [u8]) {
        if header.is_chained() {
            return self.copy_chain(header, out);
        }
        self.arena.read_to(self.at + header.before_key(), header.key(), out);
    }

    /// The place of the item on disk, if it has one.
    pub(crate) fn copy(&self, header: Header) -> Option<u64> {
        header.has_copy().then(|| self.arena.word(self.at + header.copy_at()).load(Relaxed))
    }

    /// Writes the place on disk of an item of which this will be the header.
    pub(crate) fn set_copy(&self, header: Header, copy: u64) {
        self.arena.word(self.at + header.copy_at()).store(copy, Relaxed);
    }

    /// Writes key and value; for a chain, its chunks must be set.
    pub(crate) fn write(&self, header: Header, key: &[u8], value: &[u8]) {
        if header.is_chained() {
            return self.write_chain(header, key, value);
        }
        self.arena.write(self.at + header.before_key(), &[key, value]);
    }

    /// The metadata.
    #[inline]
    pub(crate) fn meta(&self, header: Header) -> Meta {
        if !header.has_extra() {
            return Meta { fetched: header.uses() > 0, ..Meta::default() };
        }
        let word = |n: usize| self.arena.word(self.at + n).load(Relaxed);
        let (first, marks) = (word(1), word(3));
        let marked = |mark: u64| marks & mark != 0;
        Meta {
            flags: (first >> 32) as u32,
            expires: first as u32,
            cas: word(2),
            accessed: (marks >> 32) as u32,
            fetched: marked(FETCHED),
            stale: marked(STALE),
            won: marked(WON),
        }
    }

    /// Writes the metadata of an item of which this is, or will be, the header.
    pub(crate) fn set_meta(&self, header: Header, meta: &Meta) {
        let mark = |mark: u64, set: bool| if set { mark } else { 0 };
        let marks = mark(FETCHED, meta.fetched) | mark(STALE, meta.stale) | mark(WON, meta.won);
        let words = [
            u64::from(meta.flags) << 32 | u64::from(meta.expires),
            meta.cas,
            u64::from(meta.accessed) << 32 | header.version() << 16 | marks,
        ];
        words
            .iter()
            .enumerate()
            .for_each(|(n, word)| self.arena.word(self.at + 1 + n).store(*word, Relaxed));
    }

    /// Records a read in second `now`; one of several concurrent records is enough.
    #[inline]
    pub(crate) fn note_access(&self, header: Header, now: u32) {
        let word = self.arena.word(self.at + 3);
        let old = word.load(Relaxed);
        let new = u64::from(now) << 32 | old & 0xffff_ffff | FETCHED;
        // The word contains the version, so that another item's is not mistaken for this one's.
        let is_its = (old >> 16) & 0xffff == header.version() && self.arena.epoch() == header.1;
        if old != new && is_its {
            let _ = word.compare_exchange(old, new, Relaxed, Relaxed);
        }
    }
}
