//! Recovery of a tier's objects when it is opened.
//!
//! Lists of regions are read, newest region first and in each the newest record first, so that of each hash the first
//! record counts, and removals are read before the objects they remove. Objects are not read here; each is checked when
//! it is read. Hashes (some 20 bytes per object) and removals are kept in memory meanwhile.
//!
//! After a clean close the table lists the regions. A region that does not match it may have replaced or removed any
//! older object, so all older regions are dropped with it. After a crash there is no table: a region without a valid
//! footer is free, because it was never filled, or was being filled when the process ended.

use core::sync::atomic::Ordering::{Acquire, Relaxed};
use std::collections::HashSet;

use super::footer::{Footer, Record};
use super::locks::lock;
use super::log::Log;
use super::place::Place;
use super::region::Phase;
use super::stats::one;
use super::table::{Known, Table};
use super::words::wide;

/// Sequence numbers that may have been given to regions that were not written.
const SKIP: u64 = 4096;

/// A recovered object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The hash of its key.
    pub hash: u64,
    /// Its place.
    pub place: Place,
    /// Bytes of it on the device, header included.
    pub bytes: usize,
    /// The second from which it is expired; 0: never.
    pub expires: u32,
}

/// The result of opening a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// It was created: there was none.
    pub is_new: bool,
    /// It had been closed cleanly.
    pub was_closed: bool,
    /// Its objects were discarded: it had not been closed cleanly
    /// ([`AfterCrash::Discard`](super::AfterCrash::Discard)), or its table is damaged.
    pub discarded: bool,
    /// Recovered regions.
    pub regions: u64,
    /// Regions with invalid contents.
    pub torn: u64,
    /// Regions dropped because they are older than one of those.
    pub older: u64,
    /// Reported objects.
    pub objects: u64,
    /// A number that an attacker can't know, the same as long as any object of this tier is found: the seed of a caller's
    /// hashes of keys.
    pub seed: u64,
}

/// Records read so far.
#[derive(Debug, Default)]
struct Met {
    hashes: HashSet<u64>,
    /// Sequence numbers and units of removed objects.
    removed: HashSet<(u64, u32)>,
    /// Objects hidden by a newer one with the same hash. The index does not know them, and the newer one may be evicted first.
    hidden: Vec<Record>,
}

impl Log {
    /// Makes all regions free.
    pub(super) fn begin_anew(&self) -> Opened {
        lock(&self.free).extend(0..self.geometry.regions);
        Opened::default()
    }

    /// Recovers the regions in the table of a clean close.
    pub(super) fn take_over_all(&self, table: &Table, found: &mut dyn FnMut(&Recovered)) -> Opened {
        let epoch = self.epoch.load(Acquire);
        let (mut opened, mut met) = (Opened::default(), Met::default());
        let known = table.regions();
        let mut is_free = vec![true; self.regions.len()];
        for Known { seq, sum, region } in &known {
            let is_it =
                |footer: &Footer| (footer.epoch, footer.seq, footer.sum) == (epoch, *seq, *sum);
            let footer = self.footer(*region).filter(is_it);
            if !footer.is_some_and(|one| self.take_over(&one, &mut met, (&mut opened, found))) {
                opened.torn = 1;
                break;
            }
            opened.regions += 1;
            is_free[*region as usize] = false;
        }
        opened.older = wide(known.len()) - opened.regions - opened.torn;
        self.hide(met);
        lock(&self.free)
            .extend((0..).zip(is_free).filter_map(|(region, free)| free.then_some(region)));
        opened
    }

    /// Recovers all intact regions after a crash.
    pub(super) fn recover(&self, found: &mut dyn FnMut(&Recovered)) -> Opened {
        let epoch = self.epoch.load(Acquire);
        let mut opened = Opened::default();
        let mut footers: Vec<Footer> = Vec::new();
        for region in 0..self.geometry.regions {
            match self.footer(region) {
                Some(footer) if footer.epoch == epoch && footer.seq > 0 => footers.push(footer),
                _ => lock(&self.free).push_back(region),
            }
        }
        footers.sort_by_key(|footer| core::cmp::Reverse(footer.seq));
        let newest = footers.first().map_or(0, |footer| footer.seq);
        self.next_seq.fetch_max(newest, Relaxed);
        self.next_seq.fetch_add(SKIP, Relaxed);
        let mut met = Met::default();
        for footer in footers {
            if self.take_over(&footer, &mut met, (&mut opened, found)) {
                opened.regions += 1;
            } else {
                opened.torn += 1;
                lock(&self.free).push_back(footer.region);
            }
        }
        self.hide(met);
        opened
    }

    /// Records the removal of objects that a newer one with the same hash hides. It is written with the next region.
    fn hide(&self, met: Met) {
        let removals = met.hidden.len() as u64;
        self.counters.removals.fetch_add(removals, Relaxed);
        lock(&self.lanes[0]).removals.extend(met.hidden);
    }

    fn take_over(
        &self,
        footer: &Footer,
        met: &mut Met,
        (opened, found): (&mut Opened, &mut dyn FnMut(&Recovered)),
    ) -> bool {
        let Some(records) = self.records(footer.region, footer) else { return false };
        // A future number will be that of another region, whose objects such a removal would hide.
        let next = self.next_seq.load(Relaxed);
        let removed = records.iter().filter_map(Record::removes).map(|(seq, _)| seq);
        if removed.chain([footer.seq]).any(|seq| seq >= next) {
            one(&self.counters.checksum_errors);
            return false;
        }
        met.removed.extend(records.iter().filter_map(Record::removes));
        for record in records.iter().rev().filter(|record| record.removes().is_none()) {
            // A removed one hides older ones, too.
            let is_first = met.hashes.insert(record.hash);
            let is_removed = met.removed.contains(&(footer.seq, record.unit));
            if !is_first && !is_removed {
                met.hidden.push(Record::removal(footer.seq, record.unit));
            }
            if !is_first || is_removed {
                continue;
            }
            opened.objects += 1;
            found(&Recovered {
                hash: record.hash,
                place: self.place(footer.region, record),
                bytes: record.bytes as usize,
                expires: record.expires,
            });
        }
        let region = &self.regions[footer.region as usize];
        region.set_sum(footer.sum);
        region.set(footer.seq, Phase::Written);
        lock(&self.order).insert(footer.seq, footer.region);
        true
    }
}
