//! Chains: items longer than any slot, as a head and chunks that only the head leads to.
//!
//! The head is an ordinary item: it is in the index and in its policy's queue. All slots are of one class of one tier
//! (`sizes.rs`), so they are allocated, moved and freed together, under that class's lock. A chunk begins with a header
//! that marks it as one, the index of its head's first word, and the hash of its head's key, so that a thread that
//! empties the chunk's slab finds the item. Both are written before the class's lock is released, and stay valid as
//! long as the chunk is in use.
//!
//! Readers take no lock here either. They copy the places of the chunks from the head, then the chunks, then check that
//! the head's header is unchanged. This suffices although the chunks' headers are not checked:
//! - a thread that frees a chain changes the head's header first, and puts the chunks into the free list afterwards,
//!   under the lock;
//! - a thread that allocates such a slot takes that lock later, then makes a release fence ([`Item::begin`]), then
//!   writes;
//! - a reader that copied a word written then makes an acquire fence ([`Item::is_still`]), and therefore sees the
//!   changed header of the head, or a later one.
//!
//! A reader's supposed head may be none (the slab was reassigned to other sizes, and the words are part of some value).
//! So nothing read here is trusted beyond the bounds of the arena; the reader discards such a copy, because the entry
//! that led here has changed.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use crate::arena::{Arena, WORD};
use crate::copy::Job;
use crate::index::Hash;
use crate::item::{Header, Item, REACH};
use crate::sizes::{CHUNK, Cut};
use crate::space::{Space, State};

/// Words of the longest possible slot.
const SLOT_MAX: usize = (16 << 20) / WORD;

// A slot of any length may begin at an arena's last word, and is read to its end and one word further.
const _: () = assert!(REACH >= (SLOT_MAX + 1) * WORD, "words beyond an arena for the longest slot");

/// The slots of a chain, according to its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// Number of slots, the head's included.
    pub(crate) pieces: usize,
    /// Words of each slot.
    pub(crate) slot: usize,
    /// Words of the head before the places of its chunks.
    before: usize,
}

impl Chain {
    /// Words of the head before its part of the value.
    const fn head(self) -> usize {
        self.before + self.pieces - 1
    }

    /// Bytes of the value that fit into a piece.
    const fn room(self, number: usize) -> usize {
        (self.slot - if number == 0 { self.head() } else { CHUNK }) * WORD
    }
}

impl Item<'_> {
    /// The slots of a chain; `None` if they are implausible.
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

    /// The word at which a chunk begins, by its number from 1.
    fn chunk(&self, chain: Chain, number: usize) -> Option<usize> {
        let at = self.arena.word(self.at + chain.before + number - 1).load(Relaxed);
        usize::try_from(at).ok().filter(|at| self.arena.has(*at, chain.slot))
    }

    /// The words at which its chunks begin. No other thread may be changing it.
    pub(crate) fn chunks(&self, header: Header) -> Vec<usize> {
        let Some(chain) = self.chain(header) else { return Vec::new() };
        (1..chain.pieces).filter_map(|number| self.chunk(chain, number)).collect()
    }

    /// Calls `each` with the word at which a part of the value begins, and that part's range of bytes.
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

    /// Appends the value of a chain, or an incomplete one if it changes concurrently.
    #[cold]
    pub(crate) fn read_chain(&self, header: Header, out: &mut Vec<u8>) {
        let Some(chain) = self.chain(header) else { return };
        out.reserve(header.value() + WORD);
        self.parts(header, chain, |from, part| self.arena.read(from, 0, part.len(), out));
    }

    /// Copies the value of a chain to `out`, which has its length; an incomplete one if it changes concurrently.
    #[cold]
    pub(crate) fn copy_chain(&self, header: Header, out: &mut [u8]) {
        let Some(chain) = self.chain(header) else { return };
        self.parts(header, chain, |from, part| self.arena.read_to(from, 0, &mut out[part]));
    }

    /// Writes the slots of a chain, of which this will be the header, into its head; the first of them is the head's
    /// own.
    pub(crate) fn set_chain(&self, header: Header, slot: usize, slots: &[usize]) {
        let at = self.at + header.before_slots();
        self.arena.word(at).store((slots.len() as u64) << 32 | slot as u64, Relaxed);
        for (number, chunk) in slots.iter().enumerate().skip(1) {
            self.arena.word(at + number).store(*chunk as u64, Relaxed);
        }
    }

    /// Writes key and value of a chain whose slots are already set.
    #[cold]
    pub(crate) fn write_chain(&self, header: Header, key: &[u8], value: &[u8]) {
        self.arena.write(self.at + header.before_key(), &[key]);
        let chain = self.chain(header).expect("its slots were said, and nobody else writes here");
        self.parts(header, chain, |from, part| self.arena.write(from, &[&value[part]]));
    }
}

impl<'a> Item<'a> {
    /// Adds the jobs that copy a chain, whose header was `old`, to this one, which has as many slots of the same length. The copy is
    /// whole only if the header is the same afterwards. False if it can't be the same by now.
    #[cold]
    pub(crate) fn chain_jobs(
        &self,
        new: Header,
        other: &Self,
        old: Header,
        jobs: &mut Vec<Job<'a>>,
    ) -> bool {
        let (Some(to), Some(from)) = (self.chain(new), other.chain(old)) else { return false };
        let is_alike = (to.pieces, to.slot, to.before) == (from.pieces, from.slot, from.before);
        if !is_alike || new.value() != old.value() {
            return false;
        }
        let mut add = |at, source, words| {
            jobs.push(Job::new((self.arena, at), (other.arena, source), words));
        };
        add(self.at + 1, other.at + 1, to.before - 2);
        let mut sources = Vec::with_capacity(from.pieces);
        other.parts(old, from, |at, _| sources.push(at));
        let mut sources = sources.into_iter();
        let mut is_whole = true;
        self.parts(new, to, |at, part| match sources.next() {
            Some(source) => add(at, source, part.len().div_ceil(WORD)),
            None => is_whole = false,
        });
        is_whole
    }
}

/// The word at which the head of a chunk begins; the chunk is in use and its class locked.
fn head_of(arena: &Arena, chunk: usize) -> usize {
    usize::try_from(arena.word(chunk + 1).load(Relaxed)).unwrap_or(usize::MAX)
}

/// The hash of its head's key, under the same conditions.
fn hash_of(arena: &Arena, chunk: usize) -> Hash {
    Hash(arena.word(chunk + 2).load(Relaxed))
}

impl Space {
    /// Allocates the slots of a chain: all or none, the first for its head, with slabs of the stock if necessary.
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

    /// Frees the chunks of a chain whose head is already free.
    pub(crate) fn give_chunks_back(&self, state: &mut State, chunks: &[usize]) {
        for at in chunks {
            state.chunks -= 1;
            self.give_slot_back(state, *at);
        }
    }

    /// The item to which a slot belongs, whose class is locked: its first word, its header, and its hash. `None` if the
    /// slot is free or still being written.
    pub(crate) fn owner(&self, at: usize, key: &mut Vec<u8>) -> Option<(usize, Header, Hash)> {
        let (item, header) = (self.item(at), self.item(at).header());
        if header.is_chunk() {
            let head = head_of(&self.arena, at);
            let header = self.item(head).header();
            return header.is_live().then(|| (head, header, hash_of(&self.arena, at)));
        }
        header.is_live().then(|| (at, header, item.hash(header, key, &self.hasher)))
    }
}
