//! S3-FIFO: what is not read again soon after it came goes soon.
//!
//! New items stand in a small queue, a tenth of all. At its end they go, unless read meanwhile; then they stay. Of those that
//! stay, a hand goes round in order of their slots (CLOCK, which for this is as good as a queue and needs no memory): who was
//! read since is passed over, once for each read up to three. Who left the small queue and comes back stays at once. Yang et
//! al., FIFO queues are all you need, SOSP 2023.

use std::collections::VecDeque;

use super::ghosts::Ghosts;
use super::{Bits, Evict, Items, Look};

/// One item in this many is in the small queue.
const YOUNG: usize = 10;

#[derive(Debug, Default)]
pub(super) struct S3Fifo {
    /// Slots in the order they came; those that are not young any more are passed over.
    young: VecDeque<u32>,
    is_young: Bits,
    ghosts: Ghosts,
    hand: u32,
    live: usize,
}

impl S3Fifo {
    fn next_young(&mut self, items: &dyn Items) -> Option<u32> {
        let slot = self.young.pop_front()?;
        if !self.is_young.get(slot) {
            return None;
        }
        match items.look(slot) {
            Look::Busy => self.young.push_back(slot),
            Look::Vacant => self.is_young.clear(slot),
            // It stays young until it has gone, or is kept.
            Look::Item(0) => return Some(slot),
            Look::Item(_) => {
                self.is_young.clear(slot);
                items.set_reads(slot, 0);
            }
        }
        None
    }

    fn next_of_all(&mut self, items: &dyn Items) -> Option<u32> {
        let slot = self.hand;
        self.hand = if slot + 1 < items.slots() { slot + 1 } else { 0 };
        if self.is_young.get(slot) {
            return None;
        }
        match items.look(slot) {
            Look::Item(0) => Some(slot),
            Look::Item(reads) => {
                items.set_reads(slot, reads - 1);
                None
            }
            Look::Vacant | Look::Busy => None,
        }
    }
}

impl Evict for S3Fifo {
    fn stored(&mut self, slot: u32, hash: u32) {
        self.live += 1;
        if !self.ghosts.take(hash) {
            self.is_young.set(slot);
            self.young.push_back(slot);
        }
    }

    fn removed(&mut self, slot: u32) {
        self.live = self.live.saturating_sub(1);
        self.is_young.clear(slot);
    }

    fn victim(&mut self, items: &dyn Items) -> Option<u32> {
        self.ghosts.fit(self.live);
        for _ in 0..8 * u64::from(items.slots()) + 64 {
            let is_long = self.young.len() * YOUNG >= self.live;
            let found = if is_long { self.next_young(items) } else { self.next_of_all(items) };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn evicted(&mut self, slot: u32, hash: u32) {
        if self.is_young.get(slot) {
            self.ghosts.put(hash);
        }
        self.removed(slot);
    }

    fn kept(&mut self, slot: u32) {
        self.is_young.clear(slot);
    }
}
