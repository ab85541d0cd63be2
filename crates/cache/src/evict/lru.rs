//! Segmented LRU: least recently used, in three queues.
//!
//! New items enter a cold queue and are evicted at its end, unless they were read there: then they move to the warm
//! queue. Items at the end of the hot queue move to the warm queue, read or not; items read while warm move to the hot
//! queue. Hot and warm hold at most a third of all items each, so that a single scan does not evict frequently read
//! items. After 2Q (Johnson and Shasha, VLDB 1994), as in CacheLib and memcached's segmented LRU.

use super::list::Lists;
use super::{Evict, Items, Look};

const HOT: usize = 0;
const WARM: usize = 1;
const COLD: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Lru {
    queues: Lists<3>,
}

impl Lru {
    /// Limits the hot and warm queues to a third of all items each.
    fn even_out(&mut self) {
        let most = self.queues.total() / 3;
        for (queue, below) in [(HOT, WARM), (WARM, COLD)] {
            while self.queues.len(queue) > most {
                let Some(slot) = self.queues.last(queue) else { break };
                self.queues.push(below, slot);
            }
        }
    }
}

impl Evict for Lru {
    fn stored(&mut self, slot: u32, _hash: u32) {
        self.queues.push(COLD, slot);
    }

    fn removed(&mut self, slot: u32) {
        self.queues.take(slot);
    }

    fn read(&mut self, slot: u32, _hash: u32) {
        match self.queues.list_of(slot) {
            Some(COLD) => self.queues.push(WARM, slot),
            Some(_) => self.queues.push(HOT, slot),
            None => {}
        }
    }

    fn wants_reads(&self) -> bool {
        true
    }

    fn victim(&mut self, items: &dyn Items) -> Option<u32> {
        self.even_out();
        for _ in 0..=self.queues.total() {
            let slot = [COLD, WARM, HOT].into_iter().find_map(|queue| self.queues.last(queue))?;
            match items.look(slot) {
                Look::Item(_) => {
                    self.queues.take(slot);
                    return Some(slot);
                }
                Look::Busy => self.kept(slot),
                Look::Vacant => self.removed(slot),
            }
        }
        None
    }

    fn evicted(&mut self, slot: u32, _hash: u32) {
        self.queues.take(slot);
    }

    fn kept(&mut self, slot: u32) {
        self.queues.push(COLD, slot);
    }
}
