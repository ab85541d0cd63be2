//! Regions are freed whole, oldest first; what the index wants kept is put in again.
//!
//! The list of a region is read back from the device, for it is not kept in memory. The index is asked object by object
//! ([`Keeper`]), then the region's footer is cleared on the device, and the region is free. Objects to keep are read and
//! appended like others, up to a share of the region: more would be copying, not caching. A region with too many errors goes
//! before its turn and is not used again; what it noted as removed is noted anew, as objects older than it may still be there.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::buffer::{Aligned, BLOCK};
use super::device::{read_exact, write_all};
use super::entry;
use super::footer::{self, Footer, Record};
use super::log::{Log, Object};
use super::place::{Place, Places, UNIT};
use super::region::Phase;
use super::stats::{add, one};
use super::words::{lock, wide};

/// What becomes of an object whose region is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The index has dropped it, or did not have it at this place.
    Gone,
    /// It is to be put in again; the index still has it at this place.
    Keep,
}

/// The index, as the tier sees it. An entry is found by what the tier gives: the hash leads to the entries that may be meant,
/// the place to the one that is. Called from a tick, without any lock of the tier held.
pub trait Keeper {
    /// The region around this place is about to be used anew. Says what becomes of the object.
    fn evicted(&self, hash: u64, place: Place) -> Fate;

    /// An object to be kept was put in again: the entry with place `from` is to say `to`. Says whether there was one; if not
    /// (it was removed or replaced meanwhile), the new copy is forgotten.
    fn moved(&self, hash: u64, from: Place, to: Place) -> bool;

    /// The object is gone: it was to be kept and could not be read, or its region could not be written.
    fn gone(&self, hash: u64, place: Place);

    /// All objects at these places are gone, and which they were can't be read. Entries may be dropped by going through the
    /// index, or whenever they are met: reading such a place finds nothing.
    fn lost(&self, places: Places);
}

impl Log {
    /// Regions that are free.
    pub(super) fn free_regions(&self) -> usize {
        lock(&self.free).len()
    }

    /// Deals with regions that could not be written: their objects are gone.
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
            // Pieces may have been written, and the footer of before was cleared: nothing more to do.
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

    /// Whether a region with objects has too many errors to be left.
    pub(super) fn has_worn(&self) -> bool {
        self.worn.load(Acquire) > 0 && self.next_to_go().is_some_and(|(_, _, worn)| worn)
    }

    /// Counts an error of a region.
    pub(super) fn error(&self, region: u32) {
        if self.regions[region as usize].error() == self.errors_max {
            self.worn.fetch_add(1, AcqRel);
        }
    }

    /// Evicts one region. Says whether there was one.
    pub(super) fn evict(&self, keeper: &dyn Keeper) -> bool {
        let Some((seq, region, _)) = self.next_to_go() else { return false };
        // Another tick may have been faster.
        if lock(&self.order).remove(&seq).is_none() {
            return true;
        }
        one(&self.counters.regions_evicted);
        match self.list(region, seq) {
            Some(records) => self.part_with(keeper, region, seq, &records),
            None => {
                one(&self.counters.regions_lost);
                keeper.lost(self.places(region));
            }
        }
        // From here on readers that are under way find that it has changed.
        let state = &self.regions[region as usize];
        state.set(seq, Phase::Retired);
        let cleared = self.clear_footer(region);
        if !cleared {
            one(&self.counters.write_errors);
        }
        if state.errors() >= self.errors_max {
            self.worn.fetch_sub(1, AcqRel);
        } else if cleared {
            state.set(seq, Phase::Free);
            lock(&self.free).push_back(region);
        }
        true
    }

    /// Asks for each object, and puts in again what is to be kept.
    fn part_with(&self, keeper: &dyn Keeper, region: u32, seq: u64, records: &[Record]) {
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
            let to = if bytes <= room { self.put_again(region, seq, record) } else { None };
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

    fn put_again(&self, region: u32, seq: u64, record: &Record) -> Option<Place> {
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
        let Ok((meta, key, value)) = entry::whole(object, bytes, seq) else {
            one(&self.counters.checksum_errors);
            self.error(region);
            return None;
        };
        let from = &object[value];
        let again = Object { hash: record.hash, key: &object[key], meta };
        let place = self.append(&again, from.len(), &mut |to| {
            to.copy_from_slice(from);
            true
        });
        if place.is_ok() {
            // It is not the users' a second time.
            let counters = &self.counters;
            counters.large_appended.fetch_sub(1, Relaxed);
            counters.large_bytes_users.fetch_sub(wide(from.len() + again.key.len()), Relaxed);
        }
        place.ok()
    }

    /// The list of a region on the device, if it can be read and is of this filling.
    pub(super) fn list(&self, region: u32, seq: u64) -> Option<Vec<Record>> {
        let footer = self.footer(region)?;
        if footer.seq != seq { None } else { self.records(region, &footer) }
    }

    /// A region's footer, if it holds.
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
        write_all(&*self.device, &zeros, at).is_ok()
    }
}
