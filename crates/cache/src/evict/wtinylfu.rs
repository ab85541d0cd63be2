//! W-TinyLFU: a new item is admitted only if its key is used more often than the eviction victim's.
//!
//! New items enter a window, a hundredth of all. An item at the end of the window is compared with the last item of the
//! main queue by the recent frequency of their keys, including accesses before they were stored; the less frequent one
//! is evicted. The main queue is LRU in two segments: items read there are protected, at most four fifths. Einziger et
//! al., TinyLFU, ACM TOS 2017.

use super::list::Lists;
use super::sketch::Sketch;
use super::{Evict, Items, Look};

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

#[derive(Debug, Default)]
pub(super) struct WTinyLfu {
    queues: Lists<3>,
    sketch: Sketch,
}

impl WTinyLfu {
    /// The oldest evictable item of a queue.
    fn last(&mut self, queue: usize, items: &dyn Items) -> Option<u32> {
        for _ in 0..=self.queues.len(queue) {
            let slot = self.queues.last(queue)?;
            match items.look(slot) {
                Look::Item(_) => return Some(slot),
                Look::Busy => self.queues.push(queue, slot),
                Look::Vacant => self.queues.take(slot),
            }
        }
        None
    }
}

impl Evict for WTinyLfu {
    fn stored(&mut self, slot: u32, hash: u32) {
        self.queues.push(WINDOW, slot);
        self.sketch.fit(self.queues.total());
        self.sketch.add(hash);
        while self.queues.len(WINDOW) > (self.queues.total() / 100).max(1) {
            let Some(last) = self.queues.last(WINDOW) else { break };
            self.queues.push(PROBATION, last);
        }
    }

    fn removed(&mut self, slot: u32) {
        self.queues.take(slot);
    }

    fn read(&mut self, slot: u32, hash: u32) {
        self.sketch.add(hash);
        match self.queues.list_of(slot) {
            Some(WINDOW) => self.queues.push(WINDOW, slot),
            Some(_) => {
                self.queues.push(PROTECTED, slot);
                let most = (self.queues.total() - self.queues.len(WINDOW)) * 4 / 5;
                while self.queues.len(PROTECTED) > most {
                    let Some(last) = self.queues.last(PROTECTED) else { break };
                    self.queues.push(PROBATION, last);
                }
            }
            None => {}
        }
    }

    fn wants_reads(&self) -> bool {
        true
    }

    fn victim(&mut self, items: &dyn Items) -> Option<u32> {
        let last =
            [PROBATION, PROTECTED, WINDOW].into_iter().find_map(|queue| self.last(queue, items))?;
        // The last item that left the window.
        let newcomer =
            self.queues.first(PROBATION).filter(|slot| matches!(items.look(*slot), Look::Item(_)));
        let seen = |slot: u32| self.sketch.count(items.hash(slot));
        let goes = newcomer.filter(|newcomer| seen(*newcomer) <= seen(last)).unwrap_or(last);
        self.queues.take(goes);
        Some(goes)
    }

    fn evicted(&mut self, slot: u32, _hash: u32) {
        self.queues.take(slot);
    }

    fn kept(&mut self, slot: u32) {
        self.queues.push(PROBATION, slot);
    }
}
