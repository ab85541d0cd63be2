//! A job: words to copy from one arena to another.

use core::sync::atomic::Ordering::Relaxed;

use crate::arena::{Arena, WORD};

/// Words to copy. Other threads may be using both places (see [`copy`](super)).
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    target: &'a Arena,
    to: usize,
    source: &'a Arena,
    from: usize,
    words: usize,
}

impl<'a> Job<'a> {
    /// A copy of `words` words from an index in `source` to an index in `target`.
    pub(crate) fn new(
        (target, to): (&'a Arena, usize),
        (source, from): (&'a Arena, usize),
        words: usize,
    ) -> Self {
        let job = Self { target, to, source, from, words };
        // Panics if the words exceed an arena.
        let _ = (job.destination(), job.source());
        job
    }

    /// Bytes to copy.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.words * WORD
    }

    /// Copies one atomic word after another: slow, but correct everywhere.
    pub fn by_words(&self) {
        for at in 0..self.words {
            let word = self.source.word(self.from + at).load(Relaxed);
            self.target.word(self.to + at).store(word, Relaxed);
        }
    }

    /// Splits it into its first `words` words and the rest.
    pub(super) fn split(&self, words: usize) -> (Self, Self) {
        let words = words.min(self.words);
        let (to, from) = (self.to + words, self.from + words);
        (Self { words, ..*self }, Self { to, from, words: self.words - words, ..*self })
    }

    pub(super) fn source(&self) -> *mut u8 {
        self.source.address(self.from, self.words)
    }

    pub(super) fn destination(&self) -> *mut u8 {
        self.target.address(self.to, self.words)
    }

    /// The NUMA node to which the target is bound, if it is a single one.
    pub(super) fn node(&self) -> Option<u32> {
        self.target.node()
    }

    /// Ensures that both arenas are never unmapped, for a device that may read the source and write the target at any
    /// time.
    pub(super) fn keep_mapped(&self) {
        self.source.keep_mapped();
        self.target.keep_mapped();
    }
}
