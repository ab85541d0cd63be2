//! An item that is longer than any slot: a head, and chunks that nobody but the head leads to.
//!
//! The head is an item as others are: in the index, and in its policy's queue. All slots are of one class of one tier
//! (`sizes.rs`), so they are had, moved and given back together, under that class's lock. A chunk begins with a header that says
//! so, the word its head begins at, and the hash of its head's key: who wants a chunk's slab finds out whose it is. Both are
//! written before the class's lock is given back, and hold as long as the chunk is one.
//!
//! Readers take no lock here either. They copy the places of the chunks from the head, then the chunks, then look whether the
//! head's header is the same still. This is enough, although nobody looks at the chunks' headers:
//! - who frees a chain changes the head's header first, and puts chunks in the list of free slots afterwards, under the lock;
//! - who takes such a slot has that lock after him, then makes a release fence ([`Item::begin`]), then writes;
//! - a reader that copied a word written then makes an acquire fence ([`Item::is_still`]), and therefore sees the head's header
//!   as it was changed, or later.
//!
//! What a reader takes for a head may be none (a slab has gone to other sizes, and these are bytes of somebody's value). So
//! nothing that is read here is believed further than the arena goes; what was copied then is thrown away by the reader, as the
//! entry that led here leads elsewhere.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use crate::arena::{Arena, WORD};
use crate::index::Hash;
use crate::item::{Header, Item};
use crate::sizes::{CHUNK, Cut};
use crate::space::{Space, State};

/// Words of the longest slot there can be.
const SLOT_MAX: usize = (16 << 20) / WORD;

/// The slots of a chain, as its head says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// How many, the head's included.
    pub(crate) pieces: usize,
    /// Words of each.
    pub(crate) slot: usize,
    /// Words of the head before the places of its chunks.
    before: usize,
}

impl Chain {
    /// Words of the head before its part of the value.
    const fn head(self) -> usize {
        self.before + self.pieces - 1
    }

    /// Bytes of the value that a piece has room for.
    const fn room(self, number: usize) -> usize {
        (self.slot - if number == 0 { self.head() } else { CHUNK }) * WORD
    }
}

impl Item<'_> {
    /// The slots of a chain, if they can be some.
    pub(crate) fn chain(&self, header: Header) -> Option<Chain> {
        let before = header.before_slots() + 1;
        let said = self.arena.word(self.at + before - 1).load(Relaxed);
        let half = |half: u64| usize::try_from(half & 0xffff_ffff).ok();
        let chain = Chain { pieces: half(said >> 32)?, slot: half(said)?, before };
        let can_be = (2..=SLOT_MAX).contains(&chain.pieces) && chain.slot <= SLOT_MAX;
        let fits = can_be && chain.head() <= chain.slot && chain.slot > CHUNK;
        let has_room = fits && chain.room(0) + (chain.pieces - 1) * chain.room(1) >= header.value();
        has_room.then_some(chain)
    }

    /// The word a chunk begins at, by its number from 1.
    fn chunk(&self, chain: Chain, number: usize) -> Option<usize> {
        let at = self.arena.word(self.at + chain.before + number - 1).load(Relaxed);
        usize::try_from(at).ok().filter(|at| self.arena.has(*at, chain.slot))
    }

    /// The words its chunks begin at. Nobody may be changing it.
    pub(crate) fn chunks(&self, header: Header) -> Vec<usize> {
        let Some(chain) = self.chain(header) else { return Vec::new() };
        (1..chain.pieces).filter_map(|number| self.chunk(chain, number)).collect()
    }

    /// Calls `each` with the word at which a part of the value begins, and which of its bytes these are.
    fn parts(&self, header: Header, chain: Chain, mut each: impl FnMut(usize, Range<usize>)) {
        let mut done = 0;
        for number in 0..chain.pieces {
            let from = match number {
                0 => Some(self.at + chain.head()),
                _ => self.chunk(chain, number).map(|at| at + CHUNK),
            };
            let Some(from) = from else { return };
            let end = header.value().min(done + chain.room(number));
            each(from, done..end);
            done = end;
        }
    }

    /// Appends the value of a chain; part of it where somebody changes it meanwhile.
    #[cold]
    pub(crate) fn read_chain(&self, header: Header, out: &mut Vec<u8>) {
        let Some(chain) = self.chain(header) else { return };
        out.reserve(header.value() + WORD);
        self.parts(header, chain, |from, part| self.arena.read(from, 0, part.len(), out));
    }

    /// Copies the value of a chain to `out`, which has its length; part of it where somebody changes it meanwhile.
    #[cold]
    pub(crate) fn copy_chain(&self, header: Header, out: &mut [u8]) {
        let Some(chain) = self.chain(header) else { return };
        self.parts(header, chain, |from, part| self.arena.read_to(from, 0, &mut out[part]));
    }

    /// Says which slots a chain has, of which this will be the header: these, the first of which is its own.
    pub(crate) fn set_chain(&self, header: Header, slot: usize, slots: &[usize]) {
        let at = self.at + header.before_slots();
        self.arena.word(at).store((slots.len() as u64) << 32 | slot as u64, Relaxed);
        for (number, chunk) in slots.iter().enumerate().skip(1) {
            self.arena.word(at + number).store(*chunk as u64, Relaxed);
        }
    }

    /// Writes key and value of a chain whose slots are known.
    #[cold]
    pub(crate) fn write_chain(&self, header: Header, key: &[u8], value: &[u8]) {
        self.arena.write(self.at + header.before_key(), &[key]);
        let chain = self.chain(header).expect("its slots were said, and nobody else writes here");
        self.parts(header, chain, |from, part| self.arena.write(from, &[&value[part]]));
    }

    /// Copies what a chain holds from one with as many slots of the same length. What that is counts only if its header, `old`,
    /// is the same afterwards. False if it can't be the same by now.
    #[cold]
    pub(crate) fn copy_chain_from(&self, new: Header, other: &Item<'_>, old: Header) -> bool {
        let (Some(to), Some(from)) = (self.chain(new), other.chain(old)) else { return false };
        let is_alike = (to.pieces, to.slot, to.before) == (from.pieces, from.slot, from.before);
        if !is_alike || new.value() != old.value() {
            return false;
        }
        self.arena.copy_from(self.at + 1, other.arena, other.at + 1, to.before - 2);
        let mut sources = Vec::with_capacity(from.pieces);
        other.parts(old, from, |at, _| sources.push(at));
        let mut sources = sources.into_iter();
        let mut is_whole = true;
        self.parts(new, to, |at, part| match sources.next() {
            Some(source) => {
                self.arena.copy_from(at, other.arena, source, part.len().div_ceil(WORD))
            }
            None => is_whole = false,
        });
        is_whole
    }
}

/// The word the head of a chunk begins at, which is in use, and whose class is locked.
fn head_of(arena: &Arena, chunk: usize) -> usize {
    usize::try_from(arena.word(chunk + 1).load(Relaxed)).unwrap_or(usize::MAX)
}

/// The hash of its head's key, likewise.
fn hash_of(arena: &Arena, chunk: usize) -> Hash {
    Hash(arena.word(chunk + 2).load(Relaxed))
}

impl Space {
    /// Slots for a chain, or none: all held, the first one for its head, with slabs of the stock if need be.
    pub(crate) fn take_chain(&self, cut: Cut, state: &mut State, hash: Hash) -> Option<Vec<usize>> {
        while state.free < cut.pieces && self.grow(cut.class, state) {}
        if state.free < cut.pieces {
            return None;
        }
        let head = self.take(cut.class, state, hash.low())?;
        let mut slots = vec![head];
        while slots.len() < cut.pieces {
            let at = self.take_slot(cut.class, state).expect("as many are free");
            let chunk = self.item(at);
            chunk.begin(chunk.header().of_chunk());
            self.arena.word(at + 1).store(head as u64, Relaxed);
            self.arena.word(at + 2).store(hash.0, Relaxed);
            state.chunks += 1;
            slots.push(at);
        }
        Some(slots)
    }

    /// Puts the chunks of a chain back, whose head is free by now.
    pub(crate) fn give_chunks_back(&self, state: &mut State, chunks: &[usize]) {
        for at in chunks {
            state.chunks -= 1;
            self.give_slot_back(state, *at);
        }
    }

    /// The item that a slot is of, whose class is locked: the word it begins at, its header, and its hash. `None` if there is none, or
    /// none yet.
    pub(crate) fn owner(&self, at: usize, key: &mut Vec<u8>) -> Option<(usize, Header, Hash)> {
        let (item, header) = (self.item(at), self.item(at).header());
        if header.is_chunk() {
            let head = head_of(&self.arena, at);
            let header = self.item(head).header();
            return header.is_live().then(|| (head, header, hash_of(&self.arena, at)));
        }
        header.is_live().then(|| (at, header, item.hash(header, key)))
    }
}
