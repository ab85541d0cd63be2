//! How readers and writers of a granule meet: a piece of a replicated region that each of some nodes may have a copy of.
//!
//! Each copy has a word beside it, so that who reads one looks at memory of its own node alone. The home copy's word is its
//! version: even while it stands, odd while it is written. The word of another copy is 0 if nothing can be said of it, and else
//! tells of which version it is: one more than that if it may be read ([`READ_HERE`]), two more if readers go home all the same
//! ([`HELD`]). Beside the home copy is a third word, the granule's life: who writes, how often it collapsed, when it was last
//! written.
//!
//! A *write* takes the granule, has the words of all other copies say nothing (the granule *collapses*: all go home), makes the
//! home copy's version odd, writes, and publishes the next version. So who has seen a version, or has heard of it from someone
//! who has, finds no older one anywhere. A *reader* takes what is there and looks at the word again (a seqlock; H.-J. Boehm, "Can
//! Seqlocks Get Along With Programming Language Memory Models?", MSPC 2012): what changed meanwhile is taken anew, from home, and
//! after some turns it waits in line like a writer. A copy is made again by a reader of its node once nobody has written for a
//! *quiet* time, or by *sync* at once; but after so many collapses never again (Carrefour's rule), and then sync brings copies
//! for those alone who look at them directly.
//!
//! Rules: memory is only written by who has taken the granule; who copies memory does so in a way that others may write it
//! meanwhile (`bytes`). Nobody who has taken a granule waits for anything. `tests/granules.rs` goes through the orders in which
//! threads meet.

use crate::sync::{AtomicU64, Ordering, fence, pause};

/// The copy that is written first.
pub(crate) const HOME: usize = 0;

/// What a copy's word has above the version it is of, if it may be read.
const READ_HERE: u64 = 1;
/// As above, if readers go home.
const HELD: u64 = 2;

/// Times that a reader tries the home copy before it waits in line.
const TURNS: u32 = 64;

/// The words of a granule.
pub(crate) trait Words {
    /// How many copies there can be, home included.
    fn copies(&self) -> usize;
    /// The word of a copy.
    fn version(&self, copy: usize) -> &AtomicU64;
    /// The granule's life.
    fn life(&self) -> &AtomicU64;
}

/// When copies are made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// How long nobody must have written.
    pub(crate) quiet_ms: u64,
    /// After so many collapses, never.
    pub(crate) collapses_most: u64,
}

/// What a granule has been through: the word has a bit for who has taken it, 16 for its collapses, the rest for the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Life {
    collapses: u64,
    written_ms: u64,
}

const TAKEN: u64 = 1;
const COLLAPSES_BITS: u32 = 16;
/// The most collapses that are counted.
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

/// Takes a granule, as soon as nobody else has it.
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

/// Takes a granule whose life is as it was seen.
fn try_take(words: &impl Words, life: u64) -> bool {
    let (order, otherwise) = (Ordering::Acquire, Ordering::Relaxed);
    words.life().compare_exchange(life, life | TAKEN, order, otherwise).is_ok()
}

fn leave(words: &impl Words, life: Life) {
    words.life().store(life.word(), Ordering::Release);
}

/// What a write has done to a granule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wrote {
    /// Copies that were read are so no more.
    pub(crate) is_collapse: bool,
    /// It was the last collapse: from now on all go home.
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
    // Who sees something of what is put sees that the version is odd, and that the other copies say nothing.
    fence(Ordering::Release);
    put();
    home.store(version + 2, Ordering::Release);
    leave(words, life);
    Wrote { is_collapse, is_settled: is_collapse && life.collapses == rule.collapses_most }
}

const fn is_readable(copy: usize, word: u64) -> bool {
    // Home's is even while it stands, others' are odd.
    (copy == HOME) == (word & 1 == 0)
}

/// One try at a copy: `get` takes what is there. Whether that was whole.
fn try_read(words: &impl Words, copy: usize, get: &mut impl FnMut(usize)) -> bool {
    let word = words.version(copy);
    let before = word.load(Ordering::Acquire);
    if !is_readable(copy, before) {
        return false;
    }
    get(copy);
    // What was taken was taken before the word is looked at again.
    fence(Ordering::Acquire);
    word.load(Ordering::Relaxed) == before
}

/// What a reader may do to a granule of whose copy it may not read.
pub(crate) struct Quiet<'a, F> {
    /// The time, asked for if there is need of it.
    pub(crate) now_ms: fn() -> u64,
    /// When copies are made.
    pub(crate) rule: &'a Rule,
    /// Copies home to a copy.
    pub(crate) bring: F,
}

/// Reads a granule from a copy if it may be read, else from home: `get` takes what is in a copy, and what it took last is whole.
/// Whether the copy was made for that.
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

/// Makes a copy if it is time to and nobody has the granule. Whether it did.
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

/// Makes a copy of the home copy, by who has taken the granule. Whether there was need to.
fn make(words: &impl Words, copy: usize, what: u64, mut bring: impl FnMut(usize)) -> bool {
    let version = words.version(HOME).load(Ordering::Relaxed);
    let word = words.version(copy);
    if word.load(Ordering::Relaxed) == version + what {
        return false;
    }
    // Who sees something of what is brought sees that the word says nothing, as the last writer has left it.
    fence(Ordering::Release);
    bring(copy);
    word.store(version + what, Ordering::Release);
    true
}

/// Has every copy be what was written before this began; how many had to be made.
pub(crate) fn sync(words: &impl Words, rule: &Rule, mut bring: impl FnMut(usize)) -> u64 {
    let version = words.version(HOME).load(Ordering::Acquire);
    let is_of = |word: u64| word == version + READ_HERE || word == version + HELD;
    let mut copies = HOME + 1..words.copies();
    // What was never written is zeroes in every copy.
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
    fn a_life_is_a_word() {
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
    fn homes_word_is_even_where_others_are_odd() {
        assert!(is_readable(HOME, 0) && is_readable(HOME, 4) && !is_readable(HOME, 5));
        assert!(!is_readable(1, 0) && !is_readable(1, 4 + HELD) && is_readable(1, 4 + READ_HERE));
    }
}
