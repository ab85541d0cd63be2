//! Small objects: each belongs to one set, found by its hash, with nothing in memory but a filter a set.
//!
//! A set is written whole, so objects wait in memory until several go to the same set; when that memory gets full, a tick
//! writes those sets first for which most waits (after Kangaroo: McAllister et al., SOSP 2021, whose log in front is on the
//! device; this one is in memory, and smaller). What waits, and what is being written, is found before the device is asked.
//! A removal waits like an object. Here: who waits, and what memory knows. Writing is in `flush.rs`, reading in `read.rs`.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex};

use crate::store::Meta;

use super::admit::Admission;
use super::buffer::{Aligned, BLOCK};
use super::config::{Config, Geometry, SETS_AT};
use super::device::{Device, Queue};
use super::error::Refused;
use super::log::Object;
use super::set::{self, HEADER, Held, Small};
use super::stats::{Counters, add, one};
use super::words::{lock, wide};

const SHARDS: u32 = 64;
/// Sets written at once.
pub(super) const BATCH: usize = 64;
/// Bytes counted for a set with something waiting, besides what waits.
const OVERHEAD: usize = 96;
/// A filter of which nothing is known.
pub(super) const UNKNOWN: [u64; 2] = [u64::MAX; 2];

/// What is being written to a set.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) waiting: Arc<Vec<u8>>,
    /// The set as it will be, once that is known.
    pub(super) block: Option<Arc<Aligned>>,
}

/// Sets whose number leads here.
#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) waiting: HashMap<u32, Vec<u8>>,
    pub(super) flying: HashMap<u32, Flight>,
    errors: HashMap<u32, u32>,
    pub(super) dead: HashSet<u32>,
}

/// What memory knows of a key.
#[derive(Debug)]
pub(super) enum Known {
    /// It is there.
    Hit(Meta, Vec<u8>),
    /// It is not there, or was removed.
    Nothing,
    /// It can't be there, by the filter.
    Filtered,
    /// The device has to be asked.
    Ask,
}

/// The store of small objects.
#[derive(Debug)]
pub(super) struct Sets {
    pub(super) device: Arc<dyn Device>,
    pub(super) sets: u32,
    pub(super) epoch: AtomicU64,
    shards: Box<[Mutex<Shard>]>,
    filters: Box<[[AtomicU64; 2]]>,
    /// Bytes that wait.
    pub(super) waiting: AtomicUsize,
    pub(super) waiting_max: usize,
    pub(super) least: usize,
    largest: usize,
    pub(super) errors_max: u32,
    pub(super) queue: Mutex<Box<dyn Queue>>,
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
            epoch: AtomicU64::new(1),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            filters: (0..geometry.sets).map(|_| UNKNOWN.map(AtomicU64::new)).collect(),
            waiting: AtomicUsize::new(0),
            waiting_max: config.small_waiting,
            least: usize::from(config.small_least),
            largest: config.small_max,
            errors_max: config.errors_max,
            queue: Mutex::new(queue),
            counters,
            admission,
        })
    }

    /// Bytes of key and value an object may have.
    pub(super) const fn largest(&self) -> usize {
        self.largest
    }

    pub(super) const fn at(set: u32) -> u64 {
        SETS_AT + set as u64 * wide(BLOCK)
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
        if key.len() <= set::KEY_MAX && (waits || below) && !shard.dead.contains(&set) {
            self.wait(&mut shard, set, key, (None, &Meta::default()));
        }
    }

    /// Puts an object or a removal where it waits, in the place of what waits of its key.
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

    /// Takes what waits for a set. The shard must be the set's.
    pub(super) fn take(&self, shard: &mut Shard, set: u32) -> Option<Vec<u8>> {
        let taken = shard.waiting.remove(&set)?;
        self.waiting.fetch_sub(taken.len() + OVERHEAD, Relaxed);
        Some(taken)
    }

    /// What memory knows of a key.
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
        (set, if self.may_have(set, key) { Known::Ask } else { Known::Filtered })
    }

    /// Takes note of a block that was read, if nothing is known of its set.
    pub(super) fn learn(&self, set: u32, block: &[u8]) {
        if self.filter(set) != UNKNOWN {
            return;
        }
        let shard = lock(self.shard(set));
        // What was read may be what was there before: then somebody has written, and knows.
        if self.filter(set) == UNKNOWN && !shard.flying.contains_key(&set) {
            match set::look(block, self.epoch.load(Relaxed), set) {
                Held::Objects(used) => self.set_filter(set, set::filter(block, used)),
                Held::Nothing => self.set_filter(set, [0; 2]),
                Held::Corrupt => {}
            }
        }
    }

    /// Counts an error of a set; too many, and it is no longer used.
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

    /// Says that nothing is in any set: they were made, or forgotten, in this epoch.
    pub(super) fn clear(&self, epoch: u64) {
        // Whoever writes sets is waited for.
        let _queue = lock(&self.queue);
        let mut shards: Vec<_> = self.shards.iter().map(lock).collect();
        for shard in &mut shards {
            let sets: Vec<u32> = shard.waiting.keys().copied().collect();
            for set in sets {
                drop(self.take(shard, set));
            }
        }
        self.epoch.store(epoch, Release);
        (0..self.sets).for_each(|set| self.set_filter(set, [0; 2]));
    }

    pub(super) fn table_bytes(&self) -> usize {
        size_of_val(&*self.filters)
    }
}

/// The last object of a key among those that wait.
fn last(waiting: &[u8], key: &[u8]) -> Option<Small> {
    set::objects(waiting, 0..waiting.len()).filter(|one| &waiting[one.key.clone()] == key).last()
}
