//! Eviction of large objects: whole regions, oldest first; objects that the index keeps are reinserted.
//!
//! The list of a region is read back from the device, because it is not kept in memory. The index is asked about each
//! object ([`Keeper`]), then the region's footer is cleared on the device, and the region is free. Objects to keep are
//! read and appended like new ones, up to a share of the region: more would be copying, not caching. A region with too
//! many errors is evicted early and retired; the removals in its list are recorded again, because older objects may
//! still exist.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::buffer::{Aligned, BLOCK};
use super::device::{read_exact, write_all};
use super::entry::{self, Spot};
use super::footer::{self, Footer, Record};
use super::locks::lock;
use super::log::{Flushed, Log, Object};
use super::place::{Place, Places, UNIT};
use super::region::Phase;
use super::stats::{add, one};
use super::words::wide;

/// The decision about an object whose region is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The index has dropped it, or has no entry with this place.
    Gone,
    /// Reinsert it; the index still has an entry with this place.
    Keep,
}

/// The tier's view of the index. Entries are found by hash and place: the hash selects candidates, the place the right
/// one. Called from a tick, without holding a lock of the tier.
pub trait Keeper {
    /// Called before the region of this place is reused. Decides on the object.
    fn evicted(&self, hash: u64, place: Place) -> Fate;

    /// A kept object was reinserted: the entry with place `from` must be changed to `to`. Returns whether there was
    /// one; if not (it was removed or replaced meanwhile), the new copy is dropped.
    fn moved(&self, hash: u64, from: Place, to: Place) -> bool;

    /// The object is lost: it was to be kept and could not be read, or its region could not be written.
    fn gone(&self, hash: u64, place: Place);

    /// All objects at these places are lost, and their hashes can't be read. Entries may be dropped by a sweep of the
    /// index, or when they are next found: reading such a place finds nothing.
    fn lost(&self, places: Places);
}

/// The keeper of a tier that is being closed: there is no index to update.
struct Nobody;

impl Keeper for Nobody {
    fn evicted(&self, _: u64, _: Place) -> Fate {
        Fate::Gone
    }
    fn moved(&self, _: u64, _: Place, _: Place) -> bool {
        false
    }
    fn gone(&self, _: u64, _: Place) {}
    fn lost(&self, _: Places) {}
}

/// Attempts to write the remaining objects and removals when the tier is closed.
const CLOSING_MAX: usize = 3;

impl Log {
    /// Writes everything before the tier is closed: removals go to other regions if theirs could not be written, and
    /// the oldest region is evicted if none is free. Returns whether everything was written.
    pub(super) fn flush_to_close(&self) -> bool {
        let mut failed = 0;
        while failed < CLOSING_MAX {
            match self.flush() {
                Flushed::All => return true,
                Flushed::NoRegion if self.evict(&Nobody) => {}
                _ => {
                    failed += 1;
                    self.drop_failed(&Nobody);
                }
            }
        }
        false
    }

    /// Number of free regions.
    pub(super) fn free_regions(&self) -> usize {
        lock(&self.free).len()
    }

    /// Drops regions that could not be written: their objects are lost.
    pub(super) fn drop_failed(&self, keeper: &dyn Keeper) {
        let failed = lock(&self.writer).take_failed();
        for fill in failed {
            let region = fill.region;
            self.regions[region as usize].set(fill.seq, Phase::Retired);
            for record in self.end(&fill) {
                match record.removes() {
                    Some((seq, _)) if self.has(seq) => self.note(record),
                    Some(_) => {}
                    None => keeper.gone(record.hash, self.place(region, &record)),
                }
            }
            // Pieces may have been written, but the previous footer was cleared: nothing else to do.
        }
    }

    /// The region to be evicted next: one with too many errors, else the oldest.
    fn next_to_go(&self) -> Option<(u64, u32, bool)> {
        let order = lock(&self.order);
        let worn = |region: u32| self.regions[region as usize].errors() >= self.errors_max;
        let as_found = |(seq, region): (&u64, &u32)| (*seq, *region, worn(*region));
        let some = self.worn.load(Acquire) > 0;
        let bad = if some { order.iter().find(|(_, region)| worn(**region)) } else { None };
        bad.or_else(|| order.iter().next()).map(as_found)
    }

    /// Whether a region with objects has too many errors to stay in use.
    pub(super) fn has_worn(&self) -> bool {
        self.worn.load(Acquire) > 0 && self.next_to_go().is_some_and(|(_, _, worn)| worn)
    }

    /// Counts an error of a region.
    pub(super) fn error(&self, region: u32) {
        if self.regions[region as usize].error() == self.errors_max {
            self.worn.fetch_add(1, AcqRel);
        }
    }

    /// Evicts one region. Returns whether there was one, and the device accepted the write that frees it.
    pub(super) fn evict(&self, keeper: &dyn Keeper) -> bool {
        if !self.free_retired() {
            return false;
        }
        let Some((seq, region, _)) = self.next_to_go() else { return false };
        let mut order = lock(&self.order);
        // Another tick may have taken it.
        if order.remove(&seq).is_none() {
            return true;
        }
        // A clear from here on starts another epoch.
        let epoch = self.epoch.load(Acquire);
        drop(order);
        one(&self.counters.regions_evicted);
        match self.list(region, seq) {
            Some(records) => self.part_with(keeper, region, (seq, epoch), &records),
            None => {
                one(&self.counters.regions_lost);
                self.lost.fetch_max(seq, AcqRel);
                keeper.lost(self.places(region));
            }
        }
        // From here on, concurrent readers detect the change.
        let state = &self.regions[region as usize];
        state.set(seq, Phase::Retired);
        if state.errors() >= self.errors_max {
            // It is not used again. If its footer stays, recovery counts the errors of its objects anew.
            let _ = self.clear_footer(region);
            self.worn.fetch_sub(1, AcqRel);
            return true;
        }
        lock(&self.retired).push((seq, region));
        self.free_retired()
    }

    /// Frees evicted regions once their footers are cleared. A device that refuses writes for a while must not cost all
    /// regions, so that one that can't be cleared is tried again by the next call, and none is evicted before.
    fn free_retired(&self) -> bool {
        while let Some((seq, region)) = { lock(&self.retired).pop() } {
            if !(0..self.errors_max.max(1)).any(|_| self.clear_footer(region)) {
                lock(&self.retired).push((seq, region));
                return false;
            }
            self.regions[region as usize].set(seq, Phase::Free);
            lock(&self.free).push_back(region);
        }
        true
    }

    /// Asks about each object, and reinserts those to be kept.
    fn part_with(
        &self,
        keeper: &dyn Keeper,
        region: u32,
        (seq, epoch): (u64, u64),
        records: &[Record],
    ) {
        let mut room = self.reinsert;
        for record in records {
            if let Some((removed, _)) = record.removes() {
                if removed != seq && self.has(removed) {
                    self.note(*record);
                }
                continue;
            }
            let (hash, from) = (record.hash, self.place(region, record));
            one(&self.counters.evicted);
            if keeper.evicted(hash, from) == Fate::Gone {
                continue;
            }
            let bytes = record.bytes as usize;
            let spot = Spot { epoch, seq, unit: record.unit };
            let to = if bytes <= room { self.put_again(region, spot, record) } else { None };
            let Some(to) = to else {
                keeper.gone(hash, from);
                continue;
            };
            room -= bytes;
            one(&self.counters.reinserted);
            add(&self.counters.reinserted_bytes, bytes.next_multiple_of(UNIT));
            if !keeper.moved(hash, from, to) {
                self.forget(to);
            }
        }
    }

    fn put_again(&self, region: u32, spot: Spot, record: &Record) -> Option<Place> {
        let at = self.geometry.region_at(region) + u64::from(record.unit) * wide(UNIT);
        let align = wide(self.device.align());
        let skip = usize::try_from(at % align).ok()?;
        let bytes = record.bytes as usize;
        let mut buffer = Aligned::new(skip + bytes)?;
        let len = (skip + bytes).next_multiple_of(self.device.align());
        if read_exact(&*self.device, &mut buffer[..len], at - at % align).is_err() {
            one(&self.counters.read_errors);
            self.error(region);
            return None;
        }
        let object = &buffer[skip..skip + bytes];
        let Ok((meta, key, value)) = entry::whole(object, bytes, &spot) else {
            one(&self.counters.checksum_errors);
            self.error(region);
            return None;
        };
        let from = &object[value];
        let again = Object { hash: record.hash, key: &object[key], meta };
        let place = self.append(&again, from.len(), &mut |to| {
            to.copy_from_slice(from);
            // A clear may have happened meanwhile.
            self.epoch.load(Acquire) == spot.epoch
        });
        if place.is_ok() {
            // Users' bytes are not counted a second time.
            let counters = &self.counters;
            counters.large_appended.fetch_sub(1, Relaxed);
            counters.large_bytes_users.fetch_sub(wide(from.len() + again.key.len()), Relaxed);
        }
        place.ok()
    }

    /// The list of a region on the device, if it is readable and matches this sequence number.
    pub(super) fn list(&self, region: u32, seq: u64) -> Option<Vec<Record>> {
        let footer = self.footer(region)?;
        let is_it = footer.seq == seq && footer.sum == self.regions[region as usize].sum();
        if is_it { self.records(region, &footer) } else { None }
    }

    /// A region's footer, if it is valid.
    pub(super) fn footer(&self, region: u32) -> Option<Footer> {
        let mut block = Aligned::new(BLOCK)?;
        let at = self.geometry.region_at(region) + wide(self.geometry.region_bytes - BLOCK);
        if read_exact(&*self.device, &mut block, at).is_err() {
            one(&self.counters.read_errors);
            return None;
        }
        footer::read(&block).filter(|footer| footer.region == region)
    }

    pub(super) fn records(&self, region: u32, footer: &Footer) -> Option<Vec<Record>> {
        let tail = footer::tail(footer.records as usize);
        let begin = self.geometry.region_bytes.checked_sub(tail)?;
        let mut list = Aligned::new(tail - BLOCK)?;
        let at = self.geometry.region_at(region) + wide(begin);
        if read_exact(&*self.device, &mut list, at).is_err() {
            one(&self.counters.read_errors);
            return None;
        }
        let found = footer::records(&list, footer);
        let found = found.filter(|records| footer::is_in_order(records, begin));
        if found.is_none() {
            one(&self.counters.checksum_errors);
        }
        found
    }

    fn clear_footer(&self, region: u32) -> bool {
        let Some(zeros) = Aligned::new(BLOCK) else { return false };
        let at = self.geometry.region_at(region) + wide(self.geometry.region_bytes - BLOCK);
        add(&self.counters.large_bytes_device, BLOCK);
        self.admission.spend(BLOCK);
        let is_cleared = write_all(&*self.device, &zeros, at).is_ok();
        if !is_cleared {
            one(&self.counters.write_errors);
        }
        is_cleared
    }
}
