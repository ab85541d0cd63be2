//! For tests: two arenas, one with sources of known words, one with targets and gaps between them.

use core::sync::atomic::Ordering::Relaxed;

use nearfar_kernel::mempolicy::Policy;

use super::{Copier, Job, Outcome};
use crate::arena::{Arena, PageSize, WORD};

const GAP: usize = 9;
const UNTOUCHED: u64 = 0xeeee;

/// Sources and targets.
pub(crate) struct Memory {
    sources: Arena,
    targets: Arena,
    /// Length in words of each item, and its index in both arenas.
    spans: Vec<(usize, usize)>,
}

fn content(item: usize, at: usize) -> u64 {
    ((item as u64) << 32) | (at as u64 + 1)
}

impl Memory {
    /// Items of these lengths in words.
    pub(crate) fn new(lengths: &[usize]) -> Self {
        let total: usize = lengths.iter().map(|length| length + GAP).sum::<usize>() + GAP;
        let arena = || Arena::new(total * WORD, PageSize::Base, &Policy::Default).unwrap();
        let (sources, targets) = (arena(), arena());
        (0..total).for_each(|at| targets.word(at).store(UNTOUCHED, Relaxed));
        let (mut at, mut spans) = (GAP, Vec::new());
        for (item, length) in lengths.iter().enumerate() {
            spans.push((*length, at));
            for word in 0..*length {
                sources.word(at + word).store(content(item, word), Relaxed);
            }
            at += length + GAP;
        }
        Self { sources, targets, spans }
    }

    /// Marks the targets as bound to a node.
    pub(crate) fn on_node(mut self, node: u32) -> Self {
        self.targets.set_node(node);
        self
    }

    pub(crate) fn jobs(&self) -> Vec<Job<'_>> {
        let job = |(length, at): &(usize, usize)| {
            Job::new((&self.targets, *at), (&self.sources, *at), *length)
        };
        self.spans.iter().map(job).collect()
    }

    pub(crate) fn copy(&self, copier: &dyn Copier) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::Unfinished; 3];
        copier.copy(&self.jobs(), &mut outcomes);
        outcomes
    }

    /// Asserts that completed jobs are copied completely, and that nothing outside targets was written.
    pub(crate) fn assert_copied(&self, outcomes: &[Outcome]) {
        assert_eq!(outcomes.len(), self.spans.len(), "an outcome for each job");
        let mut next = 0;
        for (item, (length, at)) in self.spans.iter().enumerate() {
            assert!((next..*at).all(|at| self.target(at) == UNTOUCHED), "before item {item}");
            next = at + length;
            if outcomes[item] == Outcome::Done {
                let is_whole = |word| self.target(at + word) == content(item, word);
                assert!((0..*length).all(is_whole), "item {item} of {length} words");
            }
        }
        assert!((next..next + GAP).all(|at| self.target(at) == UNTOUCHED), "behind all items");
    }

    /// Whether no word of an item's target was written.
    pub(crate) fn is_untouched(&self, item: usize) -> bool {
        let (length, at) = self.spans[item];
        (at..at + length).all(|at| self.target(at) == UNTOUCHED)
    }

    fn target(&self, at: usize) -> u64 {
        self.targets.word(at).load(Relaxed)
    }
}
