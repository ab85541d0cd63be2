//! SIEVE: one queue, and a hand that moves from its old end to its new one.
//!
//! An item read since the last pass of the hand is skipped and keeps its position; the first unread one is evicted. New
//! items enter at the head, which the hand reaches last. Zhang et al., SIEVE is simpler than LRU, NSDI 2024. Not
//! resistant to scans.

use super::list::Lists;
use super::{Evict, Items, Look};

#[derive(Debug, Default)]
pub(super) struct Sieve {
    queue: Lists<1>,
    hand: Option<u32>,
}

impl Evict for Sieve {
    fn stored(&mut self, slot: u32, _hash: u32) {
        self.queue.push(0, slot);
    }

    fn removed(&mut self, slot: u32) {
        if self.hand == Some(slot) {
            self.hand = self.queue.newer(slot);
        }
        self.queue.take(slot);
    }

    fn victim(&mut self, items: &dyn Items) -> Option<u32> {
        for _ in 0..2 * self.queue.total() + 1 {
            let slot = self.hand.or_else(|| self.queue.last(0))?;
            self.hand = self.queue.newer(slot);
            match items.look(slot) {
                Look::Item(0) => {
                    self.queue.take(slot);
                    return Some(slot);
                }
                Look::Item(_) => items.set_reads(slot, 0),
                Look::Busy => {}
                Look::Vacant => self.removed(slot),
            }
        }
        None
    }

    fn evicted(&mut self, slot: u32, _hash: u32) {
        self.removed(slot);
    }

    fn kept(&mut self, slot: u32) {
        self.queue.push(0, slot);
    }
}
