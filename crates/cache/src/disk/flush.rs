//! Writes sets: reads what is there, merges what waits, writes what comes of it, many sets at once.
//!
//! While a set is written, what will be in it is found in memory, so that nobody sees half of it. A set that can't be read is
//! written anew from what waits. One that can't be written is no longer used: what it holds may be outdated.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::buffer::{Aligned, BLOCK};
use super::device::{Done, Job, Queue, Wait};
use super::set::{self, HEADER, Held, Merged};
use super::sets::{BATCH, Flight, Sets};
use super::stats::{add, one};
use super::words::{lock, size, wide};

/// Refusals of the system to say what is done, one after another, after which it is given up.
const REFUSED_MAX: u32 = 100;

/// A set being written.
#[derive(Debug)]
struct Turn {
    set: u32,
    waiting: Arc<Vec<u8>>,
    block: Option<Arc<Aligned>>,
    errors: u32,
    over: bool,
}

impl Sets {
    /// Writes sets until no more than `rest` bytes wait. Sets for which fewer than `least` objects wait are not written, and
    /// what waits for them is dropped.
    pub(super) fn flush(&self, rest: usize, least: usize, now: u32) {
        let mut queue = lock(&self.queue);
        while self.waiting.load(Relaxed) > rest {
            let sets = self.fullest(self.waiting.load(Relaxed) - rest);
            if sets.is_empty() {
                return;
            }
            for batch in sets.chunks(BATCH) {
                let turns = batch.iter().filter_map(|set| self.begin(*set, least));
                self.write(queue.as_mut(), turns.collect(), now);
            }
        }
    }

    /// Sets with most waiting, so many bytes together.
    fn fullest(&self, mut bytes: usize) -> Vec<u32> {
        let mut sets: Vec<(usize, u32)> = Vec::new();
        for shard in self.shards() {
            let shard = lock(shard);
            sets.extend(shard.waiting.iter().map(|(set, waiting)| (waiting.len(), *set)));
        }
        sets.sort_unstable_by_key(|(len, set)| (core::cmp::Reverse(*len), *set));
        let enough = sets.into_iter().take_while(|(len, _)| {
            let take = bytes > 0;
            bytes = bytes.saturating_sub(*len);
            take
        });
        enough.map(|(_, set)| set).collect()
    }

    /// Takes what waits for a set to write it, if that is worth it.
    fn begin(&self, set: u32, least: usize) -> Option<Turn> {
        let mut shard = lock(self.shard(set));
        let waiting = self.take(&mut shard, set)?;
        // What is dropped must not bring back what it replaced, nor may a removal be dropped.
        let must =
            |one: &set::Small| one.is_removal || self.may_have(set, &waiting[one.key.clone()]);
        let all = || set::objects(&waiting, 0..waiting.len());
        let count = all().count();
        if count < least && !all().any(|one| must(&one)) {
            add(&self.counters.small_dropped, count);
            return None;
        }
        let waiting = Arc::new(waiting);
        let flight = Flight { waiting: Arc::clone(&waiting), block: None };
        shard.flying.insert(set, flight);
        Some(Turn { set, waiting, block: None, errors: 0, over: false })
    }

    fn write(&self, queue: &mut dyn Queue, mut turns: Vec<Turn>, now: u32) {
        let mut done = Vec::new();
        for (index, turn) in turns.iter_mut().enumerate() {
            // Of a set known to be empty nothing has to be read.
            let known = self.filter(turn.set) == [0; 2];
            let block = Aligned::new(BLOCK);
            match block.filter(|_| !known) {
                Some(into) => {
                    let job = Job::Read { into, part: 0..BLOCK, at: Self::at(turn.set) };
                    if queue.push(wide(index), job).is_err() {
                        self.merge(turn, None, now);
                    }
                }
                None => self.merge(turn, None, now),
            }
        }
        drain(queue, &mut done, |_, Done { token, job, result }| {
            let turn = &mut turns[size(token)];
            let Job::Read { into, .. } = job else { return };
            let whole = result.is_ok_and(|read| read == BLOCK);
            if !whole {
                one(&self.counters.read_errors);
            }
            self.merge(turn, whole.then_some(&into), now);
        });
        for (index, turn) in turns.iter().enumerate() {
            self.push(queue, index, turn);
        }
        drain(queue, &mut done, |queue, Done { token, result, .. }| {
            let turn = &mut turns[size(token)];
            let whole = result.is_ok_and(|wrote| wrote == BLOCK);
            if !whole {
                one(&self.counters.write_errors);
                turn.errors += 1;
                if turn.errors < self.errors_max {
                    self.push(queue, size(token), turn);
                }
                return;
            }
            add(&self.counters.small_bytes_device, BLOCK);
            one(&self.counters.sets_written);
            self.end(turn);
        });
        // Those that failed, or of which nothing was heard.
        turns.iter_mut().filter(|turn| !turn.over).for_each(|turn| self.end_failed(turn));
    }

    fn push(&self, queue: &mut dyn Queue, index: usize, turn: &Turn) {
        if let Some(block) = &turn.block {
            self.admission.spend(BLOCK);
            let job =
                Job::Write { from: Arc::clone(block), part: 0..BLOCK, at: Self::at(turn.set) };
            // The queue is as long as a batch; what does not fit all the same counts as failed.
            let _ = queue.push(wide(index), job);
        }
    }

    /// Makes the new block of a set; without one to be written, that was it.
    fn merge(&self, turn: &mut Turn, old: Option<&Aligned>, now: u32) {
        let epoch = self.epoch.load(Relaxed);
        let held = old.map_or(Held::Nothing, |old| set::look(old, epoch, turn.set));
        if held == Held::Corrupt {
            one(&self.counters.checksum_errors);
        }
        let used = if let Held::Objects(used) = held { used } else { HEADER };
        let old = old.map_or(&[][..], |old| old);
        let Some(mut to) = Aligned::new(BLOCK) else {
            // Without memory for a block: as if it could not be written.
            self.end_failed(turn);
            return;
        };
        let Merged { changed, evicted } =
            set::merge(&mut to, (old, used), &turn.waiting, (epoch, turn.set, now));
        add(&self.counters.small_evicted, evicted);
        let to = Arc::new(to);
        turn.block = Some(Arc::clone(&to));
        if !changed && held != Held::Corrupt {
            self.end(turn);
            return;
        }
        if let Some(flight) = lock(self.shard(turn.set)).flying.get_mut(&turn.set) {
            flight.block = Some(to);
        }
    }

    /// The set is written, or need not be.
    fn end(&self, turn: &mut Turn) {
        let Some(block) = turn.block.take() else { return };
        turn.over = true;
        let mut shard = lock(self.shard(turn.set));
        let used = match set::look(&block, self.epoch.load(Relaxed), turn.set) {
            Held::Objects(used) => used,
            Held::Nothing | Held::Corrupt => HEADER,
        };
        self.set_filter(turn.set, set::filter(&block, used));
        shard.flying.remove(&turn.set);
    }

    fn end_failed(&self, turn: &mut Turn) {
        turn.over = true;
        turn.block = None;
        let mut shard = lock(self.shard(turn.set));
        shard.flying.remove(&turn.set);
        self.retire(&mut shard, turn.set);
    }
}

/// Waits for all jobs, each given to `each`, which may push more.
fn drain(queue: &mut dyn Queue, done: &mut Vec<Done>, mut each: impl FnMut(&mut dyn Queue, Done)) {
    let mut refused = 0;
    while queue.under_way() > 0 && refused < REFUSED_MAX {
        match queue.reap(Wait::ForOne, done) {
            Ok(()) => refused = 0,
            Err(_) => refused += 1,
        }
        done.drain(..).for_each(|one| each(queue, one));
    }
}
