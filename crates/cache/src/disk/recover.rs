//! What a tier finds on its device when it is opened.
//!
//! Footers are read, one block a region, then the lists of those that hold, newest region first and in each the newest record
//! first, so that of each hash the first that is met counts, and removals are met before what they remove.
//! Regions without a footer that holds are free: they were never filled, or were being filled when the process ended. Objects
//! are not read; each is checked when it is. Hashes met are remembered while this lasts (some 20 bytes an object), and removals.

use core::sync::atomic::Ordering::{Acquire, Relaxed};
use std::collections::HashSet;

use super::footer::{Footer, Record};
use super::log::Log;
use super::place::{Place, UNIT};
use super::region::Phase;
use super::words::{lock, wide};

/// Sequence numbers that may have been given to regions that were not written.
const SKIP: u64 = 4096;

/// An object found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The hash of its key.
    pub hash: u64,
    /// Where it is.
    pub place: Place,
    /// Bytes of it on the device, header included.
    pub bytes: usize,
    /// The second from which it is no more; 0 is never.
    pub expires: u32,
}

/// What opening a tier came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// It was made anew: nothing was there.
    pub is_new: bool,
    /// It had been closed in good order.
    pub was_closed: bool,
    /// What was there is forgotten: it had not been closed in good order, and [`Recover::Closed`](super::Recover) was asked for.
    pub discarded: bool,
    /// Regions taken over.
    pub regions: u64,
    /// Regions with something in them that does not hold together.
    pub torn: u64,
    /// Objects told.
    pub objects: u64,
}

/// What was met so far.
#[derive(Debug, Default)]
struct Met {
    hashes: HashSet<u64>,
    /// Sequence numbers and units of objects that were removed.
    removed: HashSet<(u64, u32)>,
}

impl Log {
    /// Makes all regions free.
    pub(super) fn begin_anew(&self) {
        lock(&self.free).extend(0..self.geometry.regions);
    }

    /// Takes over what holds.
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
        opened
    }

    fn take_over(
        &self,
        footer: &Footer,
        met: &mut Met,
        (opened, found): (&mut Opened, &mut dyn FnMut(&Recovered)),
    ) -> bool {
        let Some(records) = self.records(footer.region, footer) else { return false };
        met.removed.extend(records.iter().filter_map(Record::removes));
        for record in records.iter().rev().filter(|record| record.removes().is_none()) {
            let end = u64::from(record.unit) * wide(UNIT) + u64::from(record.bytes);
            let inside = end <= wide(self.geometry.region_bytes);
            // One that was removed hides older ones all the same.
            let is_first = met.hashes.insert(record.hash);
            let is_removed = met.removed.contains(&(footer.seq, record.unit));
            if !is_first || is_removed || !inside {
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
        self.regions[footer.region as usize].set(footer.seq, Phase::Written);
        lock(&self.order).insert(footer.seq, footer.region);
        true
    }
}
