//! Synchronisation of readers and writers of a granule: a piece of a replicated region with a copy on each of several
//! nodes.
//!
//! Each copy has a version word beside it, so that a reader accesses memory of its own node only. The home copy's word
//! is its version: even while it is stable, odd while it is written. The word of another copy is 0 if the copy is not
//! valid; else it is the version the copy was made from, plus one if it may be read ([`READ_HERE`]) or plus two if
//! readers use home nevertheless ([`HELD`]). Beside the home copy is a third word, the granule's life: its lock bit,
//! its number of collapses and the time of its last write.
//!
//! A *write* locks the granule, invalidates all other copies (the granule *collapses*: all readers go home), makes the
//! home copy's version odd, writes, and publishes the next version. So a thread that has seen a version, or was
//! synchronised with one that has, finds no older one anywhere. A *reader* copies the bytes and checks the word again
//! (a seqlock; H.-J. Boehm, "Can Seqlocks Get Along With Programming Language Memory Models?", MSPC 2012): on a change
//! it retries from home, and after [`TURNS`] attempts it takes the lock as a writer does. A reader makes its node's
//! copy again once the granule has not been written for a *quiet* time; *sync* makes all copies at once. After a limit
//! on collapses the granule is never copied again by readers (Carrefour's rule), and sync then serves only direct
//! views.
//!
//! Rules: only the thread that holds the lock writes memory; memory is copied by `bytes`, which tolerates concurrent
//! writes. A thread that holds a granule's lock waits for nothing. `tests/granules.rs` checks the interleavings of
//! threads.

use crate::sync::{AtomicU64, Ordering, fence, pause};

/// The copy that is written first.
pub(crate) const HOME: usize = 0;

/// Offset of a copy's word above its version, if the copy may be read.
const READ_HERE: u64 = 1;
/// As above, if readers use home.
const HELD: u64 = 2;

/// Attempts at the home copy before a reader takes the lock.
const TURNS: u32 = 64;

/// The words of a granule.
pub(crate) trait Words {
    /// Number of copies, home included.
    fn copies(&self) -> usize;
    /// The word of a copy.
    fn version(&self, copy: usize) -> &AtomicU64;
    /// The granule's life word.
    fn life(&self) -> &AtomicU64;
}

/// When copies are made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Least time since the last write.
    pub(crate) quiet_ms: u64,
    /// Most collapses; beyond, the granule is never copied again.
    pub(crate) collapses_most: u64,
}

/// A granule's history in one word: a lock bit, 16 bits for its collapses, the rest for the time of the last write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Life {
    collapses: u64,
    written_ms: u64,
}

const TAKEN: u64 = 1;
const COLLAPSES_BITS: u32 = 16;
/// Maximum of the collapse counter.
pub(crate) const COLLAPSES_MOST: u64 = (1 << COLLAPSES_BITS) - 1;

impl Life {
    const fn of(word: u64) -> Self {
        let collapses = word >> 1 & COLLAPSES_MOST;
        Self { collapses, written_ms: word >> (1 + COLLAPSES_BITS) }
    }

    const fn word(self) -> u64 {
        self.collapses << 1 | self.written_ms << (1 + COLLAPSES_BITS)
    }

    const fn is_settled(self, rule: &Rule) -> bool {
        self.collapses >= rule.collapses_most
    }

    const fn is_quiet(self, now_ms: u64, rule: &Rule) -> bool {
        now_ms >= self.written_ms + rule.quiet_ms
    }
}

/// Locks a granule; waits while another thread holds it.
fn take(words: &impl Words) -> Life {
    let mut turn = 0;
    loop {
        let life = words.life().load(Ordering::Relaxed);
        if life & TAKEN == 0 && try_take(words, life) {
            return Life::of(life);
        }
        pause(turn);
        turn = turn.saturating_add(1);
    }
}

/// Locks a granule if its life word is unchanged.
fn try_take(words: &impl Words, life: u64) -> bool {
    let (order, otherwise) = (Ordering::Acquire, Ordering::Relaxed);
    words.life().compare_exchange(life, life | TAKEN, order, otherwise).is_ok()
}

fn leave(words: &impl Words, life: Life) {
    words.life().store(life.word(), Ordering::Release);
}

/// The effect of a write on a granule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wrote {
    /// Copies that could be read were invalidated.
    pub(crate) is_collapse: bool,
    /// It was the last collapse: from now on all readers use home.
    pub(crate) is_settled: bool,
}

/// Writes a granule: `put` changes the home copy.
pub(crate) fn write(words: &impl Words, now_ms: u64, rule: &Rule, put: impl FnOnce()) -> Wrote {
    let mut life = take(words);
    let mut is_collapse = false;
    for copy in HOME + 1..words.copies() {
        let word = words.version(copy);
        let version = word.load(Ordering::Relaxed);
        is_collapse |= is_readable(copy, version);
        if version != 0 {
            word.store(0, Ordering::Relaxed);
        }
    }
    life.written_ms = now_ms;
    if is_collapse {
        life.collapses = (life.collapses + 1).min(COLLAPSES_MOST);
    }
    let home = words.version(HOME);
    let version = home.load(Ordering::Relaxed);
    home.store(version + 1, Ordering::Relaxed);
    // A thread that sees any byte of this write also sees the odd version and the invalid copies.
    fence(Ordering::Release);
    put();
    home.store(version + 2, Ordering::Release);
    leave(words, life);
    Wrote { is_collapse, is_settled: is_collapse && life.collapses == rule.collapses_most }
}

const fn is_readable(copy: usize, word: u64) -> bool {
    // A stable word is even for home and odd for other copies.
    (copy == HOME) == (word & 1 == 0)
}

/// Tries once to read a copy with `get`; returns whether the read was consistent.
fn try_read(words: &impl Words, copy: usize, get: &mut impl FnMut(usize)) -> bool {
    let word = words.version(copy);
    let before = word.load(Ordering::Acquire);
    if !is_readable(copy, before) {
        return false;
    }
    get(copy);
    // The bytes are read before the word is checked again.
    fence(Ordering::Acquire);
    word.load(Ordering::Relaxed) == before
}

/// What a reader may do with a granule whose copy it may not read.
pub(crate) struct Quiet<'a, F> {
    /// Returns the time; called only if needed.
    pub(crate) now_ms: fn() -> u64,
    /// When copies are made.
    pub(crate) rule: &'a Rule,
    /// Copies home to a copy.
    pub(crate) bring: F,
}

/// Reads a granule from a copy if it may be read, else from home. `get` may run several times; the last read is
/// consistent. Returns whether the copy was made on this occasion.
pub(crate) fn read<F: FnMut(usize)>(
    words: &impl Words,
    copy: usize,
    mut get: impl FnMut(usize),
    quiet: Quiet<'_, F>,
) -> bool {
    if try_read(words, copy, &mut get) {
        return false;
    }
    let is_made = copy != HOME && renew(words, copy, quiet);
    if is_made && try_read(words, copy, &mut get) {
        return true;
    }
    for turn in 0..TURNS {
        if try_read(words, HOME, &mut get) {
            return is_made;
        }
        pause(turn);
    }
    let life = take(words);
    get(HOME);
    leave(words, life);
    is_made
}

/// Makes a copy if one is due and the lock is free; returns whether it did.
fn renew<F: FnMut(usize)>(words: &impl Words, copy: usize, quiet: Quiet<'_, F>) -> bool {
    let Quiet { now_ms, rule, bring } = quiet;
    let seen = words.life().load(Ordering::Relaxed);
    let life = Life::of(seen);
    let may = seen & TAKEN == 0 && !life.is_settled(rule) && life.is_quiet(now_ms(), rule);
    if !may || !try_take(words, seen) {
        return false;
    }
    let is_made = make(words, copy, READ_HERE, bring);
    leave(words, life);
    is_made
}

/// Copies home to a copy; the caller holds the lock. Returns whether that was necessary.
fn make(words: &impl Words, copy: usize, what: u64, mut bring: impl FnMut(usize)) -> bool {
    let version = words.version(HOME).load(Ordering::Relaxed);
    let word = words.version(copy);
    if word.load(Ordering::Relaxed) == version + what {
        return false;
    }
    // A thread that sees any byte of the new copy also sees that its word is invalid, as the last writer left it.
    fence(Ordering::Release);
    bring(copy);
    word.store(version + what, Ordering::Release);
    true
}

/// Brings every copy up to the state before this call; returns the number of copies made.
pub(crate) fn sync(words: &impl Words, rule: &Rule, mut bring: impl FnMut(usize)) -> u64 {
    let version = words.version(HOME).load(Ordering::Acquire);
    let is_of = |word: u64| word == version + READ_HERE || word == version + HELD;
    let mut copies = HOME + 1..words.copies();
    // A granule that was never written is zeroes in every copy.
    if version == 0 || copies.all(|copy| is_of(words.version(copy).load(Ordering::Acquire))) {
        return 0;
    }
    let life = take(words);
    let what = if life.is_settled(rule) { HELD } else { READ_HERE };
    let mut made = 0;
    for copy in HOME + 1..words.copies() {
        made += u64::from(make(words, copy, what, &mut bring));
    }
    leave(words, life);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn life_packs_into_a_word() {
        for life in [
            Life::default(),
            Life { collapses: 3, written_ms: 5 },
            Life { collapses: COLLAPSES_MOST, written_ms: (1 << 47) - 1 },
        ] {
            assert_eq!(Life::of(life.word()), life);
            assert_eq!(Life::of(life.word() | TAKEN), life);
            assert_eq!(life.word() & TAKEN, 0);
        }
    }

    #[test]
    fn stable_state_words_are_even_for_home_and_odd_for_copies() {
        assert!(is_readable(HOME, 0) && is_readable(HOME, 4) && !is_readable(HOME, 5));
        assert!(!is_readable(1, 0) && !is_readable(1, 4 + HELD) && is_readable(1, 4 + READ_HERE));
    }
}
