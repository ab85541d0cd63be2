//! Small objects: each belongs to one set, selected by its hash, with only one filter per set in memory.
//!
//! A set is written whole, so objects wait in memory until several belong to the same set; when that memory fills up, a
//! tick writes the sets with the most waiting bytes first (after Kangaroo: McAllister et al., SOSP 2021, whose log is
//! on the device; this one is in memory, and smaller). Waiting objects, and those being written, are found before the
//! device is read. A removal waits like an object. This file has the waiting objects and the state in memory. Writing
//! is in `flush.rs`, reading in `read.rs`.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex};

use crate::meta::Meta;

use super::admit::Admission;
use super::buffer::{Aligned, BLOCK};
use super::config::{Config, Geometry};
use super::device::{Device, Queue};
use super::error::Refused;
use super::locks::{all, lock};
use super::log::Object;
use super::set::{self, HEADER, Held, Small};
use super::stats::{Counters, add, one};
use super::words::wide;

const SHARDS: u32 = 64;
/// Sets written at once.
pub(super) const BATCH: usize = 64;
/// Bytes accounted for a set with waiting objects, besides those.
const OVERHEAD: usize = 96;
/// The filter of a set with unknown contents.
pub(super) const UNKNOWN: [u64; 2] = [u64::MAX; 2];

/// A set being written.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) waiting: Arc<Vec<u8>>,
    /// The new block of the set, once it is made.
    pub(super) block: Option<Arc<Aligned>>,
}

/// A shard of the sets' state, selected by the set's number.
#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) waiting: HashMap<u32, Vec<u8>>,
    pub(super) flying: HashMap<u32, Flight>,
    errors: HashMap<u32, u32>,
    pub(super) dead: HashSet<u32>,
}

/// The result of looking up a key in memory.
#[derive(Debug)]
pub(super) enum Known {
    /// The object.
    Hit(Meta, Vec<u8>),
    /// No object: it is absent or was removed.
    Nothing,
    /// No object, by the filter.
    Filtered,
    /// Read the device, for the block with this sum.
    Ask(u32),
}

/// The store of small objects.
#[derive(Debug)]
pub(super) struct Sets {
    pub(super) device: Arc<dyn Device>,
    pub(super) sets: u32,
    sets_at: u64,
    pub(super) epoch: AtomicU64,
    shards: Box<[Mutex<Shard>]>,
    filters: Box<[[AtomicU64; 2]]>,
    /// The checksum of the block that was written last, see `set::sum`.
    sums: Box<[AtomicU32]>,
    /// Waiting bytes.
    pub(super) waiting: AtomicUsize,
    pub(super) waiting_max: usize,
    pub(super) least: usize,
    largest: usize,
    pub(super) errors_max: u32,
    pub(super) queue: Mutex<Box<dyn Queue>>,
    /// The next token of a job.
    pub(super) tokens: AtomicU64,
    pub(super) counters: Arc<Counters>,
    pub(super) admission: Arc<Admission>,
}

impl Sets {
    pub(super) fn new(
        device: Arc<dyn Device>,
        geometry: &Geometry,
        config: &Config,
        (counters, admission): (Arc<Counters>, Arc<Admission>),
    ) -> io::Result<Self> {
        let queue = device.queue(u32::try_from(BATCH).unwrap_or(1))?;
        Ok(Self {
            device,
            sets: geometry.sets,
            sets_at: geometry.sets_at,
            epoch: AtomicU64::new(1),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            filters: (0..geometry.sets).map(|_| UNKNOWN.map(AtomicU64::new)).collect(),
            sums: (0..geometry.sets).map(|_| AtomicU32::new(set::UNKNOWN)).collect(),
            waiting: AtomicUsize::new(0),
            waiting_max: config.small_waiting,
            least: usize::from(config.small_least),
            largest: config.small_max,
            errors_max: config.errors_max,
            queue: Mutex::new(queue),
            tokens: AtomicU64::new(0),
            counters,
            admission,
        })
    }

    /// Maximum bytes of key and value of an object.
    pub(super) const fn largest(&self) -> usize {
        self.largest
    }

    pub(super) const fn at(&self, set: u32) -> u64 {
        self.sets_at + set as u64 * wide(BLOCK)
    }

    pub(super) fn shard(&self, set: u32) -> &Mutex<Shard> {
        &self.shards[(set % SHARDS) as usize]
    }

    pub(super) fn shards(&self) -> &[Mutex<Shard>] {
        &self.shards
    }

    pub(super) fn filter(&self, set: u32) -> [u64; 2] {
        let [low, high] = &self.filters[set as usize];
        [low.load(Acquire), high.load(Acquire)]
    }

    /// The shard of the set must be held.
    pub(super) fn set_filter(&self, set: u32, filter: [u64; 2]) {
        let [low, high] = &self.filters[set as usize];
        low.store(filter[0], Release);
        high.store(filter[1], Release);
    }

    pub(super) fn sum(&self, set: u32) -> u32 {
        self.sums[set as usize].load(Acquire)
    }

    /// Whether a set is being written, or was written since it had this sum.
    pub(super) fn is_written_since(&self, set: u32, sum: u32) -> bool {
        lock(self.shard(set)).flying.contains_key(&set) || self.sum(set) != sum
    }

    /// Records the block of a set that was written or read. The shard of the set must be held.
    pub(super) fn set_block(&self, set: u32, block: &[u8]) {
        let held = set::look(block, self.epoch.load(Relaxed), set);
        let used = if let Held::Objects(used) = held { used } else { HEADER };
        self.set_filter(set, set::filter(block, used));
        self.sums[set as usize].store(set::sum(block, held).unwrap_or(set::UNKNOWN), Release);
    }

    /// The contents of a block that was read. A valid block that is not the one written last counts as damaged.
    pub(super) fn held(&self, set: u32, block: &[u8]) -> Held {
        let held = set::look(block, self.epoch.load(Relaxed), set);
        let wanted = self.sum(set);
        if wanted != set::UNKNOWN && set::sum(block, held) != Some(wanted) {
            return Held::Corrupt;
        }
        held
    }

    /// Sums as stored in the table: those of retired sets say that they are empty.
    pub(super) fn sums(&self) -> impl Iterator<Item = u32> {
        (0..self.sets).map(|set| {
            let is_dead = lock(self.shard(set)).dead.contains(&set);
            if is_dead { set::EMPTY } else { self.sum(set) }
        })
    }

    /// Restores them from the table.
    pub(super) fn set_sums(&self, sums: impl Iterator<Item = u32>) {
        for (set, sum) in (0..self.sets).zip(sums) {
            self.sums[set as usize].store(sum, Release);
            if sum == set::EMPTY {
                self.set_filter(set, [0; 2]);
            }
        }
    }

    pub(super) fn may_have(&self, set: u32, key: &[u8]) -> bool {
        let (bits, filter) = (set::bits(key), self.filter(set));
        bits[0] & !filter[0] == 0 && bits[1] & !filter[1] == 0
    }

    /// Whether there may be an object of this key.
    pub(super) fn may_hold(&self, hash: u64, key: &[u8]) -> bool {
        let set = set::of(hash, self.sets);
        let shard = lock(self.shard(set));
        let waits = shard.waiting.get(&set).and_then(|waiting| last(waiting, key));
        match waits {
            Some(one) => !one.is_removal,
            None => shard.flying.contains_key(&set) || self.may_have(set, key),
        }
    }

    /// Stores an object.
    pub(super) fn append(&self, object: &Object<'_>, value: &[&[u8]]) -> Result<(), Refused> {
        let len: usize = value.iter().map(|part| part.len()).sum();
        let bytes = object.key.len() + len;
        let most = BLOCK - HEADER;
        if object.key.len() > set::KEY_MAX
            || bytes > self.largest
            || set::room(object.key.len(), len) > most
        {
            return Err(Refused::TooLarge { bytes, limit: self.largest });
        }
        if self.waiting.load(Relaxed) >= self.waiting_max {
            one(&self.counters.refused_busy);
            return Err(Refused::Busy);
        }
        let set = set::of(object.hash, self.sets);
        let mut shard = lock(self.shard(set));
        if shard.dead.contains(&set) {
            return Err(Refused::Unavailable);
        }
        self.wait(&mut shard, set, object.key, (Some(value), &object.meta));
        one(&self.counters.small_appended);
        add(&self.counters.small_bytes_users, bytes);
        Ok(())
    }

    /// Removes an object, if there may be one.
    pub(super) fn remove(&self, hash: u64, key: &[u8]) {
        let set = set::of(hash, self.sets);
        let mut shard = lock(self.shard(set));
        let waits = shard.waiting.get(&set).is_some_and(|waiting| last(waiting, key).is_some());
        let below = shard.flying.contains_key(&set) || self.may_have(set, key);
        if key.len() > set::KEY_MAX || !(waits || below) || shard.dead.contains(&set) {
            return;
        }
        let is_much = self.waiting.load(Relaxed) > 2 * self.waiting_max;
        if is_much && !shard.flying.contains_key(&set) {
            // A device that is slower than removals would have ever more of them wait: all of the set goes instead, as after a
            // clear.
            drop(self.take(&mut shard, set));
            self.sums[set as usize].store(set::EMPTY, Release);
            self.set_filter(set, [0; 2]);
            one(&self.counters.sets_emptied);
            return;
        }
        self.wait(&mut shard, set, key, (None, &Meta::default()));
    }

    /// Adds an object or a removal to the waiting ones, replacing any of the same key.
    fn wait(
        &self,
        shard: &mut Shard,
        set: u32,
        key: &[u8],
        (value, meta): (Option<&[&[u8]]>, &Meta),
    ) {
        let is_new = !shard.waiting.contains_key(&set);
        let waiting = shard.waiting.entry(set).or_default();
        let before = waiting.len();
        if let Some(one) = last(waiting, key) {
            waiting.drain(one.whole);
        }
        set::push(waiting, key, value, meta);
        let more = waiting.len() + if is_new { OVERHEAD } else { 0 };
        self.waiting.fetch_add(more, Relaxed);
        self.waiting.fetch_sub(before, Relaxed);
    }

    /// Takes the waiting objects of a set. The shard must be the set's.
    pub(super) fn take(&self, shard: &mut Shard, set: u32) -> Option<Vec<u8>> {
        let taken = shard.waiting.remove(&set)?;
        self.waiting.fetch_sub(taken.len() + OVERHEAD, Relaxed);
        Some(taken)
    }

    /// Looks up a key in memory.
    pub(super) fn known(&self, hash: u64, key: &[u8]) -> (u32, Known) {
        let set = set::of(hash, self.sets);
        let shard = lock(self.shard(set));
        if shard.dead.contains(&set) {
            return (set, Known::Nothing);
        }
        let hit = |bytes: &[u8], one: Small| {
            if one.is_removal {
                Known::Nothing
            } else {
                Known::Hit(one.meta, bytes[one.value].to_vec())
            }
        };
        if let Some(waiting) = shard.waiting.get(&set)
            && let Some(one) = last(waiting, key)
        {
            return (set, hit(waiting, one));
        }
        if let Some(flight) = shard.flying.get(&set) {
            if let Some(one) = last(&flight.waiting, key) {
                return (set, hit(&flight.waiting, one));
            }
            if let Some(block) = &flight.block {
                let Held::Objects(used) = set::look(block, self.epoch.load(Relaxed), set) else {
                    return (set, Known::Nothing);
                };
                let found = set::find(block, used, key);
                return (set, found.map_or(Known::Nothing, |one| hit(block, one)));
            }
        }
        (set, if self.may_have(set, key) { Known::Ask(self.sum(set)) } else { Known::Filtered })
    }

    /// Learns from a block that was read, if the contents of its set are unknown.
    pub(super) fn learn(&self, set: u32, block: &[u8]) {
        if self.filter(set) != UNKNOWN {
            return;
        }
        let shard = lock(self.shard(set));
        // The block read may be an old one: then another thread has written the set since, and its contents are known.
        let is_new = self.filter(set) == UNKNOWN && !shard.flying.contains_key(&set);
        if is_new && self.held(set, block) != Held::Corrupt {
            self.set_block(set, block);
        }
    }

    /// Counts an error of a set; after too many, it is retired.
    pub(super) fn error(&self, set: u32) {
        let mut shard = lock(self.shard(set));
        let errors = shard.errors.entry(set).or_default();
        *errors += 1;
        if *errors >= self.errors_max {
            self.retire(&mut shard, set);
        }
    }

    pub(super) fn retire(&self, shard: &mut Shard, set: u32) {
        drop(self.take(shard, set));
        if shard.dead.insert(set) {
            one(&self.counters.sets_retired);
        }
    }

    /// Marks all sets as empty: they were created or cleared in this epoch.
    pub(super) fn clear(&self, epoch: u64) {
        // Waits for a thread that writes sets.
        let _queue = lock(&self.queue);
        let mut shards = all(&self.shards);
        for shard in &mut shards {
            let sets: Vec<u32> = shard.waiting.keys().copied().collect();
            for set in sets {
                drop(self.take(shard, set));
            }
        }
        self.epoch.store(epoch, Release);
        self.set_sums(core::iter::repeat(set::EMPTY));
    }

    pub(super) fn table_bytes(&self) -> usize {
        size_of_val(&*self.filters) + size_of_val(&*self.sums)
    }
}

/// The last object of a key among waiting ones.
fn last(waiting: &[u8], key: &[u8]) -> Option<Small> {
    set::objects(waiting, 0..waiting.len()).filter(|one| &waiting[one.key.clone()] == key).last()
}
