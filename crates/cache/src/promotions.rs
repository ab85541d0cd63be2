//! Reads that matter for the place of items: candidates for promotion, and reads that policies want reported.
//!
//! Readers note them without a lock ([`Hints`]); movers, or readers where a buffer is full, use them later.

use crate::contents::Contents;
use crate::hints::Hints;
use crate::item::KEY_MAX;
use crate::placement::{BATCH, Placement};
use crate::space::{Space, Victim};

/// Maximum number of hints that an item should be promoted.
const REQUESTS: usize = 1024;
/// Number of buffered reads, for policies that want reads reported.
const READ_NOTES: usize = 64;

/// Hints about reads.
#[derive(Debug)]
pub(crate) struct Promotions {
    /// Items of slower tiers that were read, as candidates for promotion.
    requests: Hints,
    /// Recent reads, for policies that want reads reported.
    reads: Hints,
    wants_reads: bool,
}

impl Promotions {
    /// `wants_reads`: whether a policy wants reads reported.
    pub(crate) fn new(wants_reads: bool) -> Self {
        Self { requests: Hints::new(REQUESTS), reads: Hints::new(READ_NOTES), wants_reads }
    }

    /// Notes that the item at a place should be promoted.
    #[inline]
    pub(crate) fn request(&self, place: u64) {
        self.requests.add(place);
    }

    /// Notes a read, where a policy wants that.
    #[inline]
    pub(crate) fn note(&self, place: u64) {
        if self.wants_reads {
            self.reads.add(place);
        }
    }

    /// Reports buffered reads to the policies that want them, once the buffer is full.
    #[inline]
    pub(crate) fn report_if_many(&self, contents: &Contents) {
        if self.wants_reads && self.reads.is_full() {
            self.report(contents);
        }
    }

    /// Reports buffered reads to policies.
    fn report(&self, contents: &Contents) {
        let mut key = Vec::with_capacity(KEY_MAX);
        for place in self.reads.take() {
            let (_, space, at) = contents.locate(place);
            let item = space.item(at);
            let header = item.header();
            if !header.is_live() {
                continue;
            }
            let hash = item.hash(header, &mut key, contents.hasher());
            // The item may go, and its slab to another class, until the lock is had.
            let Some(class) = space.class_of(at) else { continue };
            let mut state = space.class(class).lock();
            if space.class_of(at) == Some(class) && item.is_still(header) {
                state.policy.read(space.slot_of(at), hash.low());
            }
        }
    }

    /// Promotes candidates to the next faster tier, where there is room; returns how many.
    pub(crate) fn promote(&self, placement: &Placement) -> usize {
        let (mut key, mut count) = (Vec::with_capacity(KEY_MAX), 0);
        let contents = placement.contents();
        let requests: Vec<u64> = self.requests.take().collect();
        for places in requests.chunks(BATCH) {
            for tier in 1..contents.spaces().len() {
                let in_tier = places.iter().map(|place| contents.locate(*place));
                let in_tier = in_tier.filter(|(found, ..)| *found == tier);
                let found: Vec<_> = in_tier
                    .filter_map(|(_, space, at)| candidate(contents, (space, at), &mut key))
                    .collect();
                count += placement.promote(tier, &found, &mut key);
            }
        }
        count
    }
}

/// The item at a word, if there is still one.
fn candidate(
    contents: &Contents,
    (space, at): (&Space, usize),
    key: &mut Vec<u8>,
) -> Option<Victim> {
    let item = space.item(at);
    let header = item.header();
    if !header.is_live() {
        return None;
    }
    let hash = item.hash(header, key, contents.hasher());
    let words = match item.chain(header).filter(|_| header.is_chained()) {
        Some(chain) => chain.slot,
        None => header.words(),
    };
    let class = contents.sizes().class(words);
    let is_item = class < contents.sizes().count() && item.is_still(header);
    is_item.then_some(Victim { at, slot: 0, class, header, hash })
}
