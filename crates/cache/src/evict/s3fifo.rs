//! S3-FIFO: items that are not read again soon after they are stored are evicted early.
//!
//! New items enter a small queue, a tenth of all. At its end they are evicted, unless they were read meanwhile; then
//! they join the main items. Among those a hand moves round in the order of their slots (CLOCK, which here equals a
//! queue and needs no memory): an item is skipped once for each read since the last pass, up to three. A key that was
//! evicted from the small queue recently and is stored again joins the main items at once (ghost queue). Yang et al.,
//! FIFO queues are all you need, SOSP 2023.

use std::collections::VecDeque;

use super::ghosts::Ghosts;
use super::{Bits, Evict, Items, Look};

/// One item in this many is in the small queue.
const YOUNG: usize = 10;
/// Places ahead in the small queue whose items are prefetched: they are anywhere in memory.
const AHEAD: usize = 8;

#[derive(Debug, Default)]
pub(super) struct S3Fifo {
    /// Slots in order of arrival, each once; those that are no longer young are skipped.
    young: VecDeque<u32>,
    is_queued: Bits,
    /// Slots with an item that is newer than their place in the queue.
    is_renewed: Bits,
    is_young: Bits,
    /// The number of young ones.
    count: usize,
    ghosts: Ghosts,
    hand: u32,
    live: usize,
}

impl S3Fifo {
    fn next_young(&mut self, items: &dyn Items) -> Option<u32> {
        let slot = self.young.pop_front()?;
        if let Some(ahead) = self.young.get(AHEAD) {
            items.prefetch(*ahead);
        }
        self.is_queued.clear(slot);
        let is_renewed = self.is_renewed.get(slot);
        self.is_renewed.clear(slot);
        if !self.is_young.get(slot) {
            return None;
        }
        match items.look(slot) {
            Look::Vacant => self.leaves_young(slot),
            Look::Busy => self.queue(slot),
            _ if is_renewed => self.queue(slot),
            // It stays young until it is evicted or kept.
            Look::Item(0) => return Some(slot),
            Look::Item(_) => {
                self.leaves_young(slot);
                items.set_reads(slot, 0);
            }
        }
        None
    }

    /// Adds a slot at the end of the queue. One that is still in it, from an item that was removed, stays and is renewed: an
    /// item that is written again and again must not make the queue longer each time.
    fn queue(&mut self, slot: u32) {
        if self.is_queued.get(slot) {
            self.is_renewed.set(slot);
        } else {
            self.is_queued.set(slot);
            self.young.push_back(slot);
        }
    }

    fn leaves_young(&mut self, slot: u32) {
        if self.is_young.get(slot) {
            self.is_young.clear(slot);
            self.count -= 1;
        }
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
            self.count += 1;
            self.queue(slot);
        }
    }

    fn removed(&mut self, slot: u32) {
        self.live = self.live.saturating_sub(1);
        self.leaves_young(slot);
    }

    fn victim(&mut self, items: &dyn Items) -> Option<u32> {
        self.ghosts.fit(self.live);
        for _ in 0..8 * u64::from(items.slots()) + 64 {
            let is_long = self.count * YOUNG >= self.live;
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
        self.leaves_young(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_stored_repeatedly_has_one_queue_entry() {
        let mut policy = S3Fifo::default();
        policy.stored(0, 7);
        for step in 0..100_000 {
            policy.stored((step + 1) % 2, 7);
            policy.removed(step % 2);
        }
        assert_eq!((policy.young.len(), policy.count, policy.live), (2, 1, 1));
    }
}
