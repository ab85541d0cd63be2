//! The tier's public interface: open, append, read, tick and close.
//!
//! It has no index of large objects: the caller keeps the [`Place`] returned by an append in its own, and finds nothing
//! without it. Small objects are found by key alone. One [`Disk`] is shared by all threads; a [`Reader`] is one
//! thread's.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::meta::Meta;

use super::admit::{Admission, Offer};
use super::buffer::BLOCK;
use super::config::{AfterCrash, Config, Geometry};
use super::device::Device;
use super::error::{Error, Refused};
use super::evict::Keeper;
use super::file::BlockFile;
use super::locks::lock;
use super::log::{Flushed, Log, Object};
use super::open::{look, prepare};
use super::outcome::{Outcome, Where};
use super::place::Place;
use super::reader::Reader;
use super::recover::{Opened, Recovered};
use super::sets::Sets;
use super::shared::Core;
use super::stats::{Counters, Stats};
use super::superblock::Superblock;
use super::table::{self, Table};
use super::words::wide;

/// Maximum number of regions evicted by one tick.
const EVICT_MAX: usize = 64;
/// Maximum number of batches of sets written by one tick.
const BATCHES_MAX: usize = 32;

/// A cache on a file or block device. A clone is another handle to the same cache.
#[derive(Clone, Debug)]
pub struct Disk {
    core: Arc<Core>,
}

/// Results of a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// Regions evicted.
    pub evicted: usize,
    /// Fewer regions are free than configured: tick again soon.
    pub is_behind: bool,
}

impl Disk {
    /// Opens a file or block device, or creates a file, and calls `found` for each large object on it, the newest per
    /// hash.
    ///
    /// # Errors
    /// An invalid configuration; a file that holds foreign data or a tier of other sizes, or is in use; errors of the
    /// system.
    pub fn open(
        path: &Path,
        config: &Config,
        found: &mut dyn FnMut(&Recovered),
    ) -> Result<(Self, Opened), Error> {
        Geometry::new(config)?;
        let file = BlockFile::open(path, config.access)?;
        let held = prepare(&file, path, config).inspect_err(|_| file.undo())?;
        let device: Arc<dyn Device> = Arc::new(file.with_least_alignment());
        Self::start(&device, path, (config, held), found)
    }

    /// The same on any device; `path` is its name in errors.
    ///
    /// # Errors
    /// As [`Disk::open`].
    pub fn open_on(
        device: &Arc<dyn Device>,
        path: &Path,
        config: &Config,
        found: &mut dyn FnMut(&Recovered),
    ) -> Result<(Self, Opened), Error> {
        let held = prepare(&**device, path, config)?;
        Self::start(device, path, (config, held), found)
    }

    /// Checks whether [`Disk::open`] would succeed, without changing anything.
    ///
    /// # Errors
    /// As [`Disk::open`].
    pub fn check(path: &Path, config: &Config) -> Result<(), Error> {
        Geometry::new(config)?;
        let file = BlockFile::to_look_at(path, config)?;
        file.map_or(Ok(()), |file| look(&file, path, config).map(drop))
    }

    fn start(
        device: &Arc<dyn Device>,
        path: &Path,
        (config, held): (&Config, (Superblock, bool)),
        found: &mut dyn FnMut(&Recovered),
    ) -> Result<(Self, Opened), Error> {
        let fail = |call, source| Error::Io { path: path.into(), call, source };
        let geometry = Geometry::new(config)?;
        let (mut superblock, is_new) = held;
        let table =
            superblock.closed.then(|| Table::read(&**device, &geometry, superblock.table_sum));
        let discarded = match &table {
            Some(table) => table.is_none(),
            None => !is_new && config.after_crash == AfterCrash::Discard,
        };
        if discarded {
            superblock.epoch = device.unique();
            superblock.seed = device.unique();
        }
        let counters = Arc::new(Counters::default());
        let admission = Arc::new(Admission::new(config, Arc::clone(&counters)));
        let shared = || (Arc::clone(&counters), Arc::clone(&admission));
        let log = Log::new(Arc::clone(device), geometry, config, shared())
            .map_err(|source| fail("queue", source))?;
        let sets = if geometry.sets > 0 {
            let sets = Sets::new(Arc::clone(device), &geometry, config, shared());
            Some(sets.map_err(|source| fail("queue", source))?)
        } else {
            None
        };
        log.epoch.store(superblock.epoch, Release);
        log.next_seq.store(superblock.next_seq, Relaxed);
        let is_empty = is_new || discarded;
        let table = table.flatten();
        let mut opened = match &table {
            _ if is_empty => log.begin_anew(),
            Some(table) => log.take_over_all(table, found),
            None => log.recover(found),
        };
        if let Some(sets) = &sets {
            sets.epoch.store(superblock.epoch, Release);
            match &table {
                _ if is_empty => sets.clear(superblock.epoch),
                Some(table) => sets.set_sums(table.sets()),
                None => {}
            }
        }
        opened.is_new = is_new;
        opened.was_closed = superblock.closed;
        opened.discarded = discarded;
        opened.seed = superblock.seed;
        superblock.closed = false;
        superblock.next_seq = log.next_seq.load(Relaxed);
        superblock.store(&**device).map_err(|source| fail("write", source))?;
        let core = Core {
            log,
            sets,
            admission,
            counters,
            superblock: Mutex::new(superblock),
            free_regions: config.free_regions,
            now: AtomicU32::new(0),
            closed: AtomicBool::new(false),
        };
        Ok((Self { core: Arc::new(core) }, opened))
    }

    /// The kind of access, for messages: such as "io_uring, direct, in steps of 512 bytes".
    #[must_use]
    pub fn how(&self) -> String {
        self.core.log.device.how()
    }

    /// Maximum bytes of key and value of a large object; the caller splits longer values.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.core.log.largest()
    }

    /// Maximum bytes of key and value of a small object; 0 if there are no sets.
    #[must_use]
    #[inline]
    pub fn largest_small(&self) -> usize {
        self.core.sets.as_ref().map_or(0, Sets::largest)
    }

    /// Whether an object is worth writing, by use and budget. Each call counts as an offer: a refused object is
    /// remembered.
    #[must_use]
    pub fn admit(&self, offer: &Offer) -> bool {
        self.core.admission.admit(offer)
    }

    /// Stores a large object, its value in parts. Readable at its place at once.
    ///
    /// # Errors
    /// It is too large, or no buffer is available at present.
    pub fn append(&self, object: &Object<'_>, value: &[&[u8]]) -> Result<Place, Refused> {
        let len = value.iter().map(|part| part.len()).sum();
        self.append_with(object, len, &mut |mut to| {
            for part in value {
                let (here, rest) = to.split_at_mut(part.len());
                here.copy_from_slice(part);
                to = rest;
            }
            true
        })
    }

    /// Stores a large object whose value of `len` bytes `fill` writes directly into the buffer that goes to the device.
    /// If `fill` returns false (the item changed while it was copied), nothing is stored. A lock is held meanwhile, so
    /// `fill` must only copy.
    ///
    /// # Errors
    /// It is too large, no buffer is available at present, or `fill` gave up.
    pub fn append_with(
        &self,
        object: &Object<'_>,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<Place, Refused> {
        if self.core.closed.load(Acquire) {
            return Err(Refused::Closed);
        }
        self.core.log.append(object, len, fill)
    }

    /// Reads an object of this key for `take`. Waits for the device.
    pub fn read<R>(&self, at: Where, key: &[u8], take: impl FnOnce(Outcome<'_>) -> R) -> R {
        match (at, &self.core.sets) {
            (Where::Large(place), _) => self.core.log.get(place, key, take),
            (Where::Small(hash), Some(sets)) => sets.get(hash, key, take),
            (Where::Small(_), None) => take(Outcome::Nothing),
        }
    }

    /// Reads the large object of this key at this place and appends its value to `out`. Waits for the device.
    #[must_use]
    pub fn get(&self, place: Place, key: &[u8], out: &mut Vec<u8>) -> Option<Meta> {
        self.read(Where::Large(place), key, |outcome| outcome.append_to(out))
    }

    /// Records that the object at this place was removed or replaced, so that it does not reappear when the tier is
    /// opened again. Must be called when the index drops or overwrites a place for any reason except [`Keeper`]'s
    /// calls. The record is written with the region being filled: a crash before that loses it.
    #[inline]
    pub fn forget(&self, place: Place) {
        self.core.log.forget(place);
    }

    /// A number that changes when the region of a place is reused. `None` if there can be no object.
    #[must_use]
    #[inline]
    pub fn stamp(&self, place: Place) -> Option<u64> {
        self.core.log.stamp(place)
    }

    /// Stores a small object. Readable at once.
    ///
    /// # Errors
    /// It is too large, too many bytes wait for a tick, or its set is retired.
    pub fn append_small(&self, object: &Object<'_>, value: &[&[u8]]) -> Result<(), Refused> {
        let Some(sets) = &self.core.sets else { return Err(Refused::Unavailable) };
        if self.core.closed.load(Acquire) {
            return Err(Refused::Closed);
        }
        sets.append(object, value)
    }

    /// Reads the small object of this key and appends its value to `out`. Waits for the device.
    #[must_use]
    pub fn get_small(&self, hash: u64, key: &[u8], out: &mut Vec<u8>) -> Option<Meta> {
        self.read(Where::Small(hash), key, |outcome| outcome.append_to(out))
    }

    /// Whether there may be a small object of this key, without I/O.
    #[must_use]
    #[inline]
    pub fn may_hold_small(&self, hash: u64, key: &[u8]) -> bool {
        self.core.sets.as_ref().is_some_and(|sets| sets.may_hold(hash, key))
    }

    /// Removes the small object of this key. Must be called whenever a key is stored or removed anywhere above: no
    /// entry in the index would hide it. Costs one filter lookup if there is none.
    #[inline]
    pub fn remove_small(&self, hash: u64, key: &[u8]) {
        if let Some(sets) = &self.core.sets {
            sets.remove(hash, key);
        }
    }

    /// A reader with up to `depth` reads in flight.
    ///
    /// # Errors
    /// If the system has no more queues.
    pub fn reader(&self, depth: usize) -> io::Result<Reader> {
        Reader::new(Arc::clone(&self.core), depth)
    }

    /// Does periodic work: processes completed writes, reports failed ones, evicts until enough regions are free,
    /// writes sets when many bytes wait. `now` is in seconds of the cache's clock. Waits for the device; meant for a
    /// background thread.
    pub fn tick(&self, now: u32, keeper: &dyn Keeper) -> Ticked {
        let Core { log, sets, admission, .. } = &*self.core;
        self.core.now.store(now, Relaxed);
        admission.refill(now);
        log.reap();
        log.wait_for_buffer();
        log.drop_failed(keeper);
        let mut ticked = Ticked::default();
        let short = || log.free_regions() < self.core.free_regions;
        while ticked.evicted < EVICT_MAX && (short() || log.has_worn()) {
            if !log.evict(keeper) {
                break;
            }
            ticked.evicted += 1;
        }
        if let Some(sets) = sets
            && sets.waiting.load(Relaxed) > sets.waiting_max / 4 * 3
        {
            sets.flush(sets.waiting_max / 2, sets.least, now, BATCHES_MAX);
        }
        ticked.is_behind = short();
        ticked
    }

    /// Waits until a buffer is available, or for a short time, if all are in flight to the device.
    pub fn wait_for_buffer(&self) {
        self.core.log.wait_for_buffer();
    }

    /// Whether a tick has urgent work: regions to be freed, or sets to be written.
    #[must_use]
    #[inline]
    pub fn is_due(&self) -> bool {
        let Core { log, sets, .. } = &*self.core;
        let is_much = |sets: &Sets| sets.waiting.load(Relaxed) > sets.waiting_max / 4 * 3;
        log.free_regions() < self.core.free_regions || sets.as_ref().is_some_and(is_much)
    }

    /// Writes everything in memory, including partly filled regions, and waits for it. Returns whether all of it was
    /// written.
    pub fn flush(&self) -> bool {
        if let Some(sets) = &self.core.sets {
            sets.flush(0, 0, self.core.now.load(Relaxed), usize::MAX);
        }
        self.core.log.flush() == Flushed::All
    }

    /// Removes all objects permanently: they do not reappear after a crash either.
    ///
    /// # Errors
    /// The removal can't be recorded on the device. The objects are removed nevertheless, until the tier is opened
    /// again.
    pub fn clear(&self) -> io::Result<()> {
        let Core { log, sets, superblock, .. } = &*self.core;
        let mut superblock = lock(superblock);
        superblock.epoch = log.device.unique();
        superblock.next_seq = log.next_seq.load(Relaxed);
        log.clear(superblock.epoch);
        if let Some(sets) = sets {
            sets.clear(superblock.epoch);
        }
        superblock.store(&*log.device)
    }

    /// Writes everything, including all removals, and marks the tier as cleanly closed. It refuses further objects;
    /// reads continue. Removals after this are not recorded. Waits for buffers, and evicts the oldest regions if
    /// removals have no other space.
    ///
    /// # Errors
    /// A failed write: the tier then counts as not closed, continues, and can be closed again.
    pub fn close(&self) -> io::Result<()> {
        let mut superblock = lock(&self.core.superblock);
        self.core.closed.store(true, Release);
        let closed = self.close_in_order(&mut superblock);
        let device = &*self.core.log.device;
        if closed.is_err() && core::mem::take(&mut superblock.closed) {
            // One of the superblocks may be marked as closed. If that can't be undone, the tier stays closed.
            if superblock.store(device).is_err() {
                return closed;
            }
        }
        self.core.closed.store(closed.is_ok(), Release);
        closed
    }

    fn close_in_order(&self, superblock: &mut Superblock) -> io::Result<()> {
        let Core { log, sets, now, .. } = &*self.core;
        if let Some(sets) = sets {
            sets.flush(0, 0, now.load(Relaxed), usize::MAX);
        }
        if !log.flush_to_close() {
            return Err(io::Error::other("some objects or removals could not be written"));
        }
        superblock.table_sum = table::write(log, sets.as_ref())?;
        // Otherwise a power failure could leave a closed tier with regions that do not match the table; they would be ignored now
        // and be used again after the next crash.
        log.device.sync()?;
        superblock.closed = true;
        superblock.next_seq = log.next_seq.load(Relaxed);
        superblock.store(&*log.device)
    }

    /// Bytes of used and partly filled regions, and of the sets.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let Core { log, sets, .. } = &*self.core;
        let regions = lock(&log.order).len() + log.in_memory_count();
        let sets = sets.as_ref().map_or(0, |sets| u64::from(sets.sets));
        wide(regions * log.geometry.region_bytes) + sets * wide(BLOCK)
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Core { log, sets, admission, counters, .. } = &*self.core;
        let mut stats = counters.read();
        let in_memory = log.in_memory_count();
        stats.regions_total = u64::from(log.geometry.regions);
        stats.regions_free = wide(log.free_regions());
        stats.regions_used = wide(lock(&log.order).len());
        let known = stats.regions_free + stats.regions_used + wide(in_memory);
        stats.regions_retired = stats.regions_total.saturating_sub(known);
        stats.budget_left = admission.left();
        let tables = size_of_val(&*log.regions) + admission.table_bytes();
        stats.table_bytes = wide(tables + sets.as_ref().map_or(0, Sets::table_bytes));
        stats.small_waiting_bytes =
            sets.as_ref().map_or(0, |sets| wide(sets.waiting.load(Relaxed)));
        stats
    }
}
