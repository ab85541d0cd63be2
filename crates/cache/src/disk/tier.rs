//! The tier as its callers see it: opened, appended to, read, ticked and closed.
//!
//! It holds no index of large objects: the caller keeps the [`Place`] it is given in its own, and finds nothing without. Small
//! objects are found by key alone. One value is shared by all threads; a [`Reader`] is one thread's.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::store::Meta;

use super::admit::{Admission, Offer};
use super::buffer::BLOCK;
use super::config::{Config, Geometry, Recover};
use super::device::Device;
use super::error::{Error, Refused};
use super::evict::Keeper;
use super::file::BlockFile;
use super::log::{Log, Object};
use super::place::Place;
use super::reader::{Outcome, Reader, Where};
use super::recover::{Opened, Recovered};
use super::sets::Sets;
use super::stats::{Counters, Stats};
use super::superblock::{Held, Superblock, load, refuse};
use super::words::{lock, wide};

/// Regions evicted by one tick, at most.
const EVICT_MAX: usize = 64;

/// Everything that is shared.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) log: Log,
    pub(super) sets: Option<Sets>,
    admission: Arc<Admission>,
    counters: Arc<Counters>,
    superblock: Mutex<Superblock>,
    free_regions: usize,
    now: AtomicU32,
    closed: AtomicBool,
}

/// A cache on a file or block device. Cloning it gives another handle to the same.
#[derive(Clone, Debug)]
pub struct Disk {
    core: Arc<Core>,
}

/// What a tick did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// Regions evicted.
    pub evicted: usize,
    /// Fewer regions are free than there should be: tick again soon.
    pub is_behind: bool,
}

impl Disk {
    /// Opens a file or block device, or makes it, and tells `found` each large object that is there, newest of its hash only.
    ///
    /// # Errors
    /// If the configuration can't be, the file holds something else or a tier of other sizes, is in use, or the system refuses.
    pub fn open(
        path: &Path,
        config: &Config,
        found: &mut dyn FnMut(&Recovered),
    ) -> Result<(Self, Opened), Error> {
        Geometry::new(config)?;
        let file = BlockFile::open(path, config.access)?;
        let held = prepare(&file, path, config)?;
        let device: Arc<dyn Device> = Arc::new(file.with_least_alignment());
        Self::start(&device, path, (config, held), found)
    }

    /// The same on any device; `path` is what errors call it.
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

    fn start(
        device: &Arc<dyn Device>,
        path: &Path,
        (config, held): (&Config, Option<Superblock>),
        found: &mut dyn FnMut(&Recovered),
    ) -> Result<(Self, Opened), Error> {
        let fail = |call, source| Error::Io { path: path.into(), call, source };
        let geometry = Geometry::new(config)?;
        let mut superblock = held.unwrap_or_else(|| Superblock::new(&geometry));
        let discarded = held.is_some() && !superblock.closed && config.recover == Recover::Closed;
        superblock.epoch += u64::from(discarded);
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
        let is_empty = held.is_none() || discarded;
        let mut opened = if is_empty { Opened::default() } else { log.recover(found) };
        if is_empty {
            log.begin_anew();
        }
        if let Some(sets) = &sets {
            sets.epoch.store(superblock.epoch, Release);
            if is_empty {
                sets.clear(superblock.epoch);
            }
        }
        opened.is_new = held.is_none();
        opened.was_closed = superblock.closed;
        opened.discarded = discarded;
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

    /// How the device is asked, for people: such as "io_uring, direct, in steps of 512 bytes".
    #[must_use]
    pub fn how(&self) -> String {
        self.core.log.device.how()
    }

    /// Bytes of key and value that a large object may have; longer values are for the caller to cut.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.core.log.largest()
    }

    /// Bytes of key and value that a small object may have; 0 if there are no sets.
    #[must_use]
    pub fn largest_small(&self) -> usize {
        self.core.sets.as_ref().map_or(0, Sets::largest)
    }

    /// Whether an object is worth writing, by use and budget. Asking counts: an object refused now is remembered.
    #[must_use]
    pub fn admit(&self, offer: &Offer) -> bool {
        self.core.admission.admit(offer)
    }

    /// Stores a large object, its value in parts. Readable at its place at once.
    ///
    /// # Errors
    /// If it is too large, or there is no buffer at the moment.
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

    /// Stores a large object whose value of `len` bytes `fill` writes straight into the buffer that goes to the device. If it
    /// says false (the item changed while it was copied), nothing is stored. A lock is held meanwhile: `fill` only copies.
    ///
    /// # Errors
    /// If it is too large, there is no buffer at the moment, or `fill` gave up.
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

    /// Reads the large object of this key at this place: its value is added to `out`. Waits for the device.
    #[must_use]
    pub fn get(&self, place: Place, key: &[u8], out: &mut Vec<u8>) -> Option<Meta> {
        self.read(Where::Large(place), key, |outcome| outcome.append_to(out))
    }

    /// Notes that the object at this place was removed, or replaced, so that it does not come back when the tier is opened
    /// again. To be called when the index drops or overwrites a place for any reason but [`Keeper`]'s. The note is written
    /// with the region being filled: until then a crash forgets it.
    pub fn forget(&self, place: Place) {
        self.core.log.forget(place);
    }

    /// A number that changes when the region around a place is used anew. `None` if nothing can be there.
    #[must_use]
    pub fn stamp(&self, place: Place) -> Option<u64> {
        self.core.log.stamp(place)
    }

    /// Stores a small object. Readable at once.
    ///
    /// # Errors
    /// If it is too large, too much waits for a tick, or its set does not work.
    pub fn append_small(&self, object: &Object<'_>, value: &[&[u8]]) -> Result<(), Refused> {
        let Some(sets) = &self.core.sets else { return Err(Refused::Unavailable) };
        if self.core.closed.load(Acquire) {
            return Err(Refused::Closed);
        }
        sets.append(object, value)
    }

    /// Reads the small object of this key: its value is added to `out`. Waits for the device.
    #[must_use]
    pub fn get_small(&self, hash: u64, key: &[u8], out: &mut Vec<u8>) -> Option<Meta> {
        self.read(Where::Small(hash), key, |outcome| outcome.append_to(out))
    }

    /// Whether there may be a small object of this key: no input or output.
    #[must_use]
    pub fn may_hold_small(&self, hash: u64, key: &[u8]) -> bool {
        self.core.sets.as_ref().is_some_and(|sets| sets.may_hold(hash, key))
    }

    /// Removes the small object of this key. To be called whenever a key is stored or removed anywhere above: there is no entry
    /// in the index that would hide it. Costs a look at a filter if there is none.
    pub fn remove_small(&self, hash: u64, key: &[u8]) {
        if let Some(sets) = &self.core.sets {
            sets.remove(hash, key);
        }
    }

    /// A reader of up to `depth` objects at once.
    ///
    /// # Errors
    /// If the system has no more queues.
    pub fn reader(&self, depth: usize) -> io::Result<Reader> {
        Reader::new(Arc::clone(&self.core), depth)
    }

    /// Does what is due: takes note of what was written, tells of what failed, evicts until enough regions are free, writes sets
    /// when much waits. `now` is seconds of the cache's clock. Waits for the device; made for a thread in the background.
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
            sets.flush(sets.waiting_max / 2, sets.least, now);
        }
        ticked.is_behind = short();
        ticked
    }

    /// Waits until there is a buffer to append to, or a moment, if all are on their way to the device.
    pub fn wait_for_buffer(&self) {
        self.core.log.wait_for_buffer();
    }

    /// Whether there is something for a tick to do that should not wait: regions to be freed, or sets to be written.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let Core { log, sets, .. } = &*self.core;
        let is_much = |sets: &Sets| sets.waiting.load(Relaxed) > sets.waiting_max / 4 * 3;
        log.free_regions() < self.core.free_regions || sets.as_ref().is_some_and(is_much)
    }

    /// Writes everything that is in memory, regions as full as they are, and waits for it. Says whether all of it is written.
    pub fn flush(&self) -> bool {
        if let Some(sets) = &self.core.sets {
            sets.flush(0, 0, self.core.now.load(Relaxed));
        }
        self.core.log.flush()
    }

    /// Forgets all objects, for good: they do not come back after a crash either.
    ///
    /// # Errors
    /// If that can't be noted on the device. They are forgotten all the same, until the tier is opened again.
    pub fn clear(&self) -> io::Result<()> {
        let Core { log, sets, superblock, .. } = &*self.core;
        let mut superblock = lock(superblock);
        log.flush();
        superblock.epoch += 1;
        superblock.next_seq = log.next_seq.load(Relaxed);
        log.clear(superblock.epoch);
        if let Some(sets) = sets {
            sets.clear(superblock.epoch);
        }
        superblock.store(&*log.device)
    }

    /// Writes everything and notes that it was closed in good order. Nothing is taken any more; reading goes on.
    ///
    /// # Errors
    /// If something could not be written: the tier then counts as not closed in good order.
    pub fn close(&self) -> io::Result<()> {
        self.core.closed.store(true, Release);
        let log = &self.core.log;
        if !self.flush() {
            return Err(io::Error::other("some objects could not be written"));
        }
        log.device.sync()?;
        let mut superblock = lock(&self.core.superblock);
        superblock.closed = true;
        superblock.next_seq = log.next_seq.load(Relaxed);
        superblock.store(&*log.device)
    }

    /// Bytes of regions that are in use or filled, and of the sets.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let Core { log, sets, .. } = &*self.core;
        let regions = lock(&log.order).len() + log.in_memory_count();
        let sets = sets.as_ref().map_or(0, |sets| u64::from(sets.sets));
        wide(regions * log.geometry.region_bytes) + sets * wide(BLOCK)
    }

    /// Figures.
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

/// Sees what the device holds, and makes room for what is asked. `None` if nothing was there.
fn prepare(device: &dyn Device, path: &Path, config: &Config) -> Result<Option<Superblock>, Error> {
    let geometry = Geometry::new(config)?;
    let fail = |call, source| Error::Io { path: path.into(), call, source };
    let held = load(device).map_err(|source| fail("read", source))?;
    if let Some(error) = refuse(&held, path) {
        return Err(error);
    }
    let found = match held {
        Held::Super(found) => Some(found),
        _ if !device.may_be_blank(config.bytes) => {
            return Err(Error::Foreign { path: path.into() });
        }
        _ => None,
    };
    if let Some((what, found, asked)) = found.and_then(|found| found.differs(&geometry)) {
        return Err(Error::Geometry { path: path.into(), what, found, asked });
    }
    device.reserve(config.bytes).map_err(|source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Error::Full { path: path.into(), bytes: config.bytes }
        }
        _ => fail("reserve", source),
    })?;
    if found.is_none() {
        let mut superblock = Superblock::new(&geometry);
        superblock.store(device).map_err(|source| fail("write", source))?;
    }
    Ok(found)
}
