//! Large objects: appended to regions, which are written one after another and evicted whole.
//!
//! A lane is a region being filled; a key's lane follows from its hash, so that of two objects with one key the later
//! one is in the later region. Appending copies the value into the lane's buffer, under its lock. A full region is
//! sealed: its list and footer are appended, and [`Writer`] writes it to the device. Regions and buffers are limited;
//! an append that finds none is refused instead of waiting. Eviction is in `evict.rs`, reading in `read.rs`.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, RwLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::meta::Meta;

use super::admit::Admission;
use super::buffer::Aligned;
use super::config::{Config, Geometry};
use super::device::Device;
use super::entry::{self, Spot};
use super::error::Refused;
use super::footer::{self, Footer, Record};
use super::locks::{all, lock, read, write};
use super::place::{Place, Places, UNIT};
use super::region::{Body, Fill, Phase, Region, largest};
use super::stats::{Counters, add, one};
use super::words::{mixed, narrow, size, wide};
use super::writer::Writer;

/// Number of retries when a buffer or region that seemed available is taken by another thread, or has no memory.
const REFUSED_MAX: usize = 100;
/// Timeout of waiting for a completed write.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// An object to be stored, without its value.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// The hash of its key, as in the index.
    pub hash: u64,
    /// Its key, of at most 65535 bytes; 255 for a small object.
    pub key: &'a [u8],
    /// Its metadata.
    pub meta: Meta,
}

/// A region being filled, and removals that wait for one.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) fill: Option<Arc<Fill>>,
    pub(super) removals: Vec<Record>,
}

impl Lane {
    /// Moves waiting removals into the region being filled, while it has room for them and for `bytes` more.
    fn note_waiting(&mut self, bytes: usize) {
        let Some(fill) = &self.fill else { return };
        let mut body = write(&fill.body);
        while !self.removals.is_empty() && body.has_room(bytes, 1) {
            body.records.extend(self.removals.pop());
        }
    }
}

/// The result of writing everything in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Everything was written.
    All,
    /// Removals wait, and no region is free.
    NoRegion,
    /// A write failed, or there is no memory.
    Failed,
}

/// The store of large objects.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) device: Arc<dyn Device>,
    pub(super) geometry: Geometry,
    pub(super) epoch: AtomicU64,
    pub(super) regions: Box<[Region]>,
    pub(super) lanes: Box<[Mutex<Lane>]>,
    /// Regions in memory: the lanes' and those being written.
    pub(super) fills: RwLock<Vec<Arc<Fill>>>,
    pub(super) free: Mutex<VecDeque<u32>>,
    /// Evicted regions, with their sequence numbers, whose footers are still to be cleared.
    pub(super) retired: Mutex<Vec<(u64, u32)>>,
    /// Regions on the device, by sequence number.
    pub(super) order: Mutex<BTreeMap<u64, u32>>,
    pub(super) next_seq: AtomicU64,
    /// The newest region that was evicted although its list could not be read. The list may have held removals of
    /// objects in older regions, so no older region is used when the tier is opened again.
    pub(super) lost: AtomicU64,
    pub(super) writer: Mutex<Writer>,
    /// Readable when a write has completed.
    ready: OwnedFd,
    spare: Mutex<Spare>,
    pub(super) errors_max: u32,
    /// Bytes of a region that may be reinserted.
    pub(super) reinsert: usize,
    /// Regions with too many errors that were not evicted yet.
    pub(super) worn: AtomicU32,
    pub(super) counters: Arc<Counters>,
    pub(super) admission: Arc<Admission>,
}

/// Unused buffers of regions, and the number that may still be allocated.
#[derive(Debug)]
struct Spare {
    buffers: Vec<Aligned>,
    more: usize,
}

impl Log {
    pub(super) fn new(
        device: Arc<dyn Device>,
        geometry: Geometry,
        config: &Config,
        shared: (Arc<Counters>, Arc<Admission>),
    ) -> io::Result<Self> {
        let queue = device.queue(64)?;
        let ready = queue.ready().try_clone_to_owned()?;
        let writer = Writer::new(queue);
        Ok(Self {
            device,
            geometry,
            epoch: AtomicU64::new(1),
            regions: (0..geometry.regions).map(|_| Region::default()).collect(),
            lanes: (0..config.lanes).map(|_| Mutex::default()).collect(),
            fills: RwLock::default(),
            retired: Mutex::default(),
            free: Mutex::default(),
            order: Mutex::default(),
            next_seq: AtomicU64::new(1),
            lost: AtomicU64::new(0),
            writer: Mutex::new(writer),
            ready,
            spare: Mutex::new(Spare { buffers: Vec::new(), more: config.lanes + config.writing }),
            errors_max: config.errors_max,
            reinsert: geometry.region_bytes * usize::from(config.reinsert_percent) / 100,
            worn: AtomicU32::new(0),
            counters: shared.0,
            admission: shared.1,
        })
    }

    /// Maximum bytes of key and value of an object.
    pub(super) fn largest(&self) -> usize {
        largest(self.geometry.region_bytes)
    }

    /// All places of a region.
    pub(super) fn places(&self, region: u32) -> Places {
        let units = self.geometry.units();
        Places { first_unit: u64::from(region) * units, units }
    }

    /// The place of a record of a region.
    pub(super) fn place(&self, region: u32, record: &Record) -> Place {
        let unit = u64::from(region) * self.geometry.units() + u64::from(record.unit);
        Place::new(unit, record.bytes as usize)
    }

    fn lane(&self, hash: u64) -> &Mutex<Lane> {
        let lanes = wide(self.lanes.len());
        &self.lanes[size(mixed(hash) % lanes)]
    }

    /// Stores an object whose value `fill` writes; stores nothing if `fill` returns false.
    pub(super) fn append(
        &self,
        object: &Object<'_>,
        value: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<Place, Refused> {
        let key = object.key.len();
        let (limit, bytes) = (self.largest(), key.saturating_add(value));
        if key > entry::KEY_MAX || bytes > limit {
            return Err(Refused::TooLarge { bytes, limit });
        }
        let room = entry::room(key, value);
        let mut lane = lock(self.lane(object.hash));
        let into = self.with_room(&mut lane, room)?;
        let mut body = write(&into.body);
        let bytes = entry::bytes(key, value);
        let unit = narrow(body.used / UNIT);
        let Some(at) = body.room(bytes) else { return Err(Refused::Busy) };
        if !fill(&mut at[entry::HEADER + key..]) {
            return Err(Refused::Abandoned);
        }
        let spot = Spot { epoch: into.epoch, seq: into.seq, unit };
        entry::seal(at, &spot, object.key, &object.meta);
        body.keep(object.hash, bytes, object.meta.expires);
        one(&self.counters.large_appended);
        add(&self.counters.large_bytes_users, key + value);
        self.admission.spend(room);
        let unit = u64::from(into.region) * self.geometry.units() + u64::from(unit);
        Ok(Place::new(unit, bytes))
    }

    /// The sequence number of the region of a place, if there can be an object.
    pub(super) fn stamp(&self, place: Place) -> Option<u64> {
        let region = size(place.unit() / self.geometry.units());
        let (seq, phase) = self.regions.get(region)?.get();
        matches!(phase, Phase::Memory | Phase::Written).then_some(seq)
    }

    /// Records that the object at this place is removed.
    pub(super) fn forget(&self, place: Place) {
        let unit = narrow(size(place.unit() % self.geometry.units()));
        if let Some(seq) = self.stamp(place) {
            one(&self.counters.removals);
            self.note(Record::removal(seq, unit));
        }
    }

    /// Puts a removal into a region that was begun no earlier than the region of the removed object: recovery reads it
    /// first, and it lives at least as long. The lane that filled that region has such a region, or will have.
    pub(super) fn note(&self, removal: Record) {
        let Some((seq, _)) = removal.removes() else { return };
        for lane in &self.lanes {
            let mut lane = lock(lane);
            match self.with_room(&mut lane, 0) {
                Ok(fill) if fill.seq < seq => {}
                Ok(fill) => return write(&fill.body).records.push(removal),
                // It waits for the lane's next region.
                Err(_) => return lane.removals.push(removal),
            }
        }
    }

    /// Whether the region with this sequence number still exists.
    pub(super) fn has(&self, seq: u64) -> bool {
        let is_in_memory = read(&self.fills).iter().any(|fill| fill.seq == seq);
        is_in_memory || lock(&self.order).contains_key(&seq)
    }

    /// The lane's region, or a new one if it has no room.
    fn with_room(&self, lane: &mut Lane, bytes: usize) -> Result<Arc<Fill>, Refused> {
        if let Some(fill) = &lane.fill {
            if read(&fill.body).has_room(bytes, 0) {
                return Ok(Arc::clone(fill));
            }
            self.seal(fill);
            lane.fill = None;
        }
        let fill = self.begin()?;
        lane.fill = Some(Arc::clone(&fill));
        lane.note_waiting(bytes);
        Ok(fill)
    }

    /// Starts a new region.
    fn begin(&self) -> Result<Arc<Fill>, Refused> {
        let Some(buffer) = self.buffer() else {
            one(&self.counters.refused_busy);
            return Err(Refused::Busy);
        };
        let Some(region) = lock(&self.free).pop_front() else {
            lock(&self.spare).buffers.push(buffer);
            one(&self.counters.refused_busy);
            return Err(Refused::Busy);
        };
        let seq = self.next_seq.fetch_add(1, Relaxed);
        let epoch = self.epoch.load(Acquire);
        let fill = Arc::new(Fill { region, seq, epoch, body: RwLock::new(Body::new(buffer)) });
        write(&self.fills).push(Arc::clone(&fill));
        self.regions[region as usize].set(seq, Phase::Memory);
        Ok(fill)
    }

    /// A buffer, after checking for completed writes if necessary.
    fn buffer(&self) -> Option<Aligned> {
        for reap in [false, true] {
            if reap {
                self.reap();
            }
            let mut spare = lock(&self.spare);
            if let Some(buffer) = spare.buffers.pop() {
                return Some(buffer);
            }
            if spare.more > 0 {
                let made = Aligned::new(self.geometry.region_bytes)?;
                spare.more -= 1;
                return Some(made);
            }
        }
        None
    }

    /// Starts writing a region as it is.
    pub(super) fn seal(&self, fill: &Arc<Fill>) {
        let mut body = write(&fill.body);
        let Body { buffer, records, sealed, .. } = &mut *body;
        let Some(bytes) = Arc::get_mut(buffer).filter(|_| !*sealed) else { return };
        let footer = Footer {
            region: fill.region,
            seq: fill.seq,
            epoch: fill.epoch,
            records: 0,
            list_sum: 0,
            sum: 0,
        };
        self.admission.spend(footer::tail(records.len()));
        self.regions[fill.region as usize].set_sum(footer::write(bytes, footer, records));
        *sealed = true;
        drop(body);
        let at = self.geometry.region_at(fill.region);
        lock(&self.writer).begin(Arc::clone(fill), at);
    }

    /// Processes completed writes.
    pub(super) fn reap(&self) {
        // Held throughout: a thread that finds the writer idle finds all completions processed.
        let mut writer = lock(&self.writer);
        for fill in writer.reap(&self.counters, self.errors_max) {
            if fill.epoch == self.epoch.load(Acquire) {
                lock(&self.order).insert(fill.seq, fill.region);
                self.regions[fill.region as usize].set(fill.seq, Phase::Written);
            } else {
                self.free_again(&fill);
            }
            self.end(&fill);
        }
    }

    /// Waits until a write has completed, or for a short time, if no buffer is available. Other threads continue.
    pub(super) fn wait_for_buffer(&self) {
        if !self.has_buffer() && lock(&self.writer).is_busy() {
            self.wait();
        }
    }

    fn has_buffer(&self) -> bool {
        let spare = lock(&self.spare);
        spare.more > 0 || !spare.buffers.is_empty()
    }

    fn wait(&self) {
        let mut ready = [PollFd::new(&self.ready, PollFlags::IN)];
        // After an event or a timeout, the caller checks, and comes back if it was too early.
        let _ = poll(&mut ready, Some(&MOMENT));
        self.reap();
    }

    /// Takes the buffer of a region that is written or failed.
    pub(super) fn end(&self, fill: &Arc<Fill>) -> Vec<Record> {
        write(&self.fills).retain(|one| !Arc::ptr_eq(one, fill));
        let mut body = write(&fill.body);
        body.over = true;
        let buffer = core::mem::replace(&mut body.buffer, Arc::new(Aligned::empty()));
        let mut spare = lock(&self.spare);
        match Arc::into_inner(buffer) {
            Some(buffer) => spare.buffers.push(buffer),
            None => spare.more += 1,
        }
        core::mem::take(&mut body.records)
    }

    /// Writes everything in memory, and waits for it. Returns whether all of it was written.
    pub(super) fn flush(&self) -> Flushed {
        let mut flushed = Flushed::All;
        for lane in &self.lanes {
            let mut refused = 0;
            while !self.flush_lane(&mut lock(lane)) {
                // Removals wait for a buffer, if one will become free.
                self.reap();
                if !self.has_buffer() && lock(&self.writer).is_busy() {
                    self.wait();
                    continue;
                }
                refused += 1;
                if lock(&self.free).is_empty() {
                    flushed = Flushed::NoRegion;
                    break;
                }
                if refused == REFUSED_MAX {
                    flushed = Flushed::Failed;
                    break;
                }
            }
        }
        self.wait_for_all();
        let writer = lock(&self.writer);
        if writer.has_failed() || writer.is_stuck() { Flushed::Failed } else { flushed }
    }

    /// Seals the lane's region; returns whether the lane has no waiting removals any more.
    fn flush_lane(&self, lane: &mut Lane) -> bool {
        lane.note_waiting(0);
        if let Some(fill) = lane.fill.take_if(|fill| !read(&fill.body).records.is_empty()) {
            self.seal(&fill);
        }
        while !lane.removals.is_empty() {
            let Ok(fill) = self.with_room(lane, 0) else { return false };
            self.seal(&fill);
            lane.fill = None;
        }
        true
    }

    /// Waits for all writes in flight.
    fn wait_for_all(&self) {
        self.reap();
        while lock(&self.writer).is_busy() {
            self.wait();
        }
    }

    /// Number of regions in memory.
    pub(super) fn in_memory_count(&self) -> usize {
        read(&self.fills).len()
    }

    /// The region of a place, if it is in memory.
    pub(super) fn in_memory(&self, region: u32, seq: u64) -> Option<Arc<Fill>> {
        let fills = read(&self.fills);
        fills.iter().find(|fill| fill.region == region && fill.seq == seq).map(Arc::clone)
    }

    /// Drops all objects and removals. Appends wait meanwhile.
    pub(super) fn clear(&self, epoch: u64) {
        let mut lanes = all(&self.lanes);
        for lane in &mut lanes {
            lane.removals.clear();
            if let Some(fill) = lane.fill.take() {
                self.free_again(&fill);
                self.end(&fill);
            }
        }
        self.wait_for_all();
        // Readers that see the new epoch find no region of the old one; neither does eviction, which holds the order.
        let mut order = lock(&self.order);
        for state in &self.regions {
            if let (seq, Phase::Written) = state.get() {
                state.set(seq, Phase::Retired);
            }
        }
        self.epoch.store(epoch, Release);
        let mut free = lock(&self.free);
        for (_, region) in core::mem::take(&mut *order) {
            self.regions[region as usize].set(0, Phase::Free);
            free.push_back(region);
        }
    }

    fn free_again(&self, fill: &Fill) {
        self.regions[fill.region as usize].set(0, Phase::Free);
        lock(&self.free).push_back(fill.region);
    }
}
