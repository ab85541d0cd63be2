//! Writes sets: reads the old block, merges waiting objects, writes the new block, for many sets at once.
//!
//! While a set is written, its future contents are found in memory, so that no reader sees a partial write. A set that
//! can't be read is rewritten from waiting objects alone. One that can't be written is retired: its contents may be
//! outdated.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::buffer::{Aligned, BLOCK};
use super::device::{Done, Job, Queue, Wait};
use super::locks::lock;
use super::set::{self, HEADER, Held, Merged};
use super::sets::{BATCH, Flight, Sets};
use super::stats::{add, one};
use super::words::{size, wide};

/// Consecutive failures to report completions after which the queue is given up.
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
    /// Writes sets until at most `rest` bytes wait, or `batches` are written: others wait for the queue, and so does the
    /// eviction of regions. Sets with fewer than `least` waiting objects are not written, and those objects are dropped.
    pub(super) fn flush(&self, rest: usize, least: usize, now: u32, mut batches: usize) {
        loop {
            let excess = self.waiting.load(Relaxed).saturating_sub(rest);
            let sets = if excess > 0 { self.fullest(excess) } else { Vec::new() };
            if sets.is_empty() {
                return;
            }
            for batch in sets.chunks(BATCH) {
                let Some(left) = batches.checked_sub(1) else { return };
                batches = left;
                let mut queue = lock(&self.queue);
                let turns = batch.iter().filter_map(|set| self.begin(*set, least));
                self.write(queue.as_mut(), turns.collect(), now);
            }
        }
    }

    /// The sets with the most waiting bytes, `bytes` in total.
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

    /// Takes the waiting objects of a set to write it, if that is worthwhile.
    fn begin(&self, set: u32, least: usize) -> Option<Turn> {
        let mut shard = lock(self.shard(set));
        let waiting = self.take(&mut shard, set)?;
        // Dropping an object must not revive the one it replaced, and removals must not be dropped.
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
        // A queue that was given up may still complete jobs of earlier calls.
        let base = self.tokens.fetch_add(wide(turns.len()), Relaxed);
        for (index, turn) in turns.iter_mut().enumerate() {
            // A set known to be empty need not be read.
            let known = self.filter(turn.set) == [0; 2];
            let block = Aligned::new(BLOCK);
            match block.filter(|_| !known) {
                Some(into) => {
                    let job = Job::Read { into, part: 0..BLOCK, at: self.at(turn.set) };
                    if queue.push(base + wide(index), job).is_err() {
                        self.merge(turn, (Held::Corrupt, &[]), now);
                    }
                }
                None if known => self.merge(turn, (Held::Nothing, &[]), now),
                None => self.merge(turn, (Held::Corrupt, &[]), now),
            }
        }
        drain(queue, &mut done, |_, Done { token, job, result }| {
            let turn = token.checked_sub(base).and_then(|index| turns.get_mut(size(index)));
            let (Some(turn), Job::Read { into, .. }) = (turn, job) else { return };
            let whole = result.is_ok_and(|read| read == BLOCK);
            let held = if whole { self.held(turn.set, &into) } else { Held::Corrupt };
            if held == Held::Corrupt {
                let counters = &self.counters;
                one(if whole { &counters.checksum_errors } else { &counters.read_errors });
            }
            self.merge(turn, (held, &into), now);
        });
        for (index, turn) in turns.iter().enumerate() {
            self.push(queue, base + wide(index), turn);
        }
        drain(queue, &mut done, |queue, Done { token, result, .. }| {
            let turn = token.checked_sub(base).and_then(|index| turns.get_mut(size(index)));
            let Some(turn) = turn.filter(|turn| !turn.over) else { return };
            let whole = result.is_ok_and(|wrote| wrote == BLOCK);
            if !whole {
                one(&self.counters.write_errors);
                turn.errors += 1;
                if turn.errors < self.errors_max {
                    self.push(queue, token, turn);
                }
                return;
            }
            add(&self.counters.small_bytes_device, BLOCK);
            one(&self.counters.sets_written);
            self.end(turn);
        });
        // Failed ones, and those without a completion.
        turns.iter_mut().filter(|turn| !turn.over).for_each(|turn| self.end_failed(turn));
    }

    fn push(&self, queue: &mut dyn Queue, token: u64, turn: &Turn) {
        if let Some(block) = &turn.block {
            self.admission.spend(BLOCK);
            let job = Job::Write { from: Arc::clone(block), part: 0..BLOCK, at: self.at(turn.set) };
            // The queue is as long as a batch; a job that does not fit nevertheless counts as failed.
            let _ = queue.push(token, job);
        }
    }

    /// Makes the new block of a set; if it need not be written, the turn ends. An unreadable set is rewritten from
    /// waiting objects alone.
    fn merge(&self, turn: &mut Turn, (held, old): (Held, &[u8]), now: u32) {
        let epoch = self.epoch.load(Relaxed);
        let used = if let Held::Objects(used) = held { used } else { HEADER };
        let Some(mut to) = Aligned::new(BLOCK) else {
            // Without memory for a block, it counts as a failed write.
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

    /// Ends a turn: the set is written, or need not be.
    fn end(&self, turn: &mut Turn) {
        let Some(block) = turn.block.take() else { return };
        turn.over = true;
        let mut shard = lock(self.shard(turn.set));
        self.set_block(turn.set, &block);
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

/// Waits for all jobs, passing each to `each`, which may push more.
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
