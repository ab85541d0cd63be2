//! Reads: from buffers that are not yet written, else from the device, by one read for nearly all objects.
//!
//! Data is valid only if the region was on the device before and after the read with the same sequence number, if the
//! checksum matches, and if the key is the requested one. All else is a miss. [`Disk::read`](super::Disk::read) blocks;
//! a [`Reader`](super::Reader) has many reads in flight. Both use this module.

use crate::meta::Meta;

use core::ops::Range;
use core::sync::atomic::Ordering::Acquire;

use super::buffer::{Aligned, BLOCK};
use super::device::read_exact;
use super::entry::{self, Found, Spot};
use super::locks::read;
use super::log::Log;
use super::outcome::{Item, Outcome};
use super::place::{Place, UNIT};
use super::region::Phase;
use super::set::{self, Held};
use super::sets::{Known, Sets};
use super::stats::one;
use super::words::{narrow, size, wide};

/// Number of retries while a region moves between memory and device.
const CHANGES_MAX: usize = 1000;

/// Number of reads of a set for one key while it is rewritten.
const READS_MAX: u8 = 8;

/// A read of a large object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    region: u32,
    spot: Spot,
    /// Address of the read.
    pub(super) at: u64,
    /// Bytes before the object.
    skip: usize,
    /// Bytes from the object to the region's end.
    most: usize,
}

/// First step of reading a large object.
#[derive(Debug)]
pub(super) enum Start {
    /// It was in memory.
    Hit(Meta, Vec<u8>),
    /// Another key's object is there.
    Other,
    /// No object is there.
    Miss,
    /// This many bytes must be read.
    Ask(Want, usize),
}

/// Step after a completed read.
#[derive(Debug)]
pub(super) enum Next {
    /// The value is this range of the buffer.
    Hit(Meta, Range<usize>),
    /// Another key's object is there.
    Other,
    /// No object is there.
    Miss,
    /// This many bytes are needed, from the same address.
    More(usize),
}

impl Log {
    /// Starts the read of a place.
    pub(super) fn start(&self, place: Place, key: &[u8]) -> Start {
        one(&self.counters.large_reads);
        let units = self.geometry.units();
        let unit = narrow(size(place.unit() % units));
        let skip = unit as usize * UNIT;
        let Ok(region) = u32::try_from(place.unit() / units) else { return Start::Miss };
        let Some(state) = self.regions.get(region as usize) else { return Start::Miss };
        for _ in 0..CHANGES_MAX {
            // In this order: once an epoch is read, no region of an earlier epoch is left.
            let epoch = self.epoch.load(Acquire);
            let (seq, phase) = state.get();
            match phase {
                Phase::Free | Phase::Retired => break,
                Phase::Written => {
                    return self.ask(place, region, Spot { epoch, seq, unit });
                }
                Phase::Memory => {
                    let Some(fill) = self.in_memory(region, seq) else { continue };
                    let body = read(&fill.body);
                    if body.over {
                        continue;
                    }
                    let bytes = body.buffer.get(skip..body.used).unwrap_or_default();
                    let spot = Spot { epoch: fill.epoch, seq, unit };
                    match entry::look(bytes, bytes.len(), &spot, key) {
                        Found::Hit(meta, value) => {
                            one(&self.counters.large_hits);
                            one(&self.counters.large_hits_memory);
                            return Start::Hit(meta, bytes[value].to_vec());
                        }
                        Found::Other => {
                            one(&self.counters.large_other);
                            return Start::Other;
                        }
                        _ => break,
                    }
                }
            }
        }
        one(&self.counters.large_other);
        Start::Miss
    }

    fn ask(&self, place: Place, region: u32, spot: Spot) -> Start {
        let skip = spot.unit as usize * UNIT;
        let object = self.geometry.region_at(region) + wide(skip);
        let before = size(object % wide(self.device.align()));
        let most = self.geometry.region_bytes - skip;
        let want = Want { region, spot, at: object - wide(before), skip: before, most };
        Start::Ask(want, self.round(before + place.bound().min(most)))
    }

    fn round(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.device.align())
    }

    /// Evaluates the bytes read.
    pub(super) fn next(&self, want: &Want, bytes: &[u8], key: &[u8]) -> Next {
        let found =
            entry::look(bytes.get(want.skip..).unwrap_or_default(), want.most, &want.spot, key);
        let still = self.regions[want.region as usize].is_written(want.spot.seq)
            && self.epoch.load(Acquire) == want.spot.epoch;
        match found {
            _ if !still => one(&self.counters.large_other),
            Found::Hit(meta, value) => {
                one(&self.counters.large_hits);
                return Next::Hit(meta, value.start + want.skip..value.end + want.skip);
            }
            Found::More(need) if self.round(want.skip + need) > bytes.len() => {
                one(&self.counters.large_second_reads);
                return Next::More(self.round(want.skip + need));
            }
            Found::Other => {
                one(&self.counters.large_other);
                return Next::Other;
            }
            Found::Older => one(&self.counters.large_other),
            Found::Corrupt | Found::More(_) => {
                one(&self.counters.checksum_errors);
                self.error(want.region);
            }
        }
        Next::Miss
    }

    /// Counts a failed read.
    pub(super) fn failed(&self, want: &Want) {
        one(&self.counters.read_errors);
        self.error(want.region);
    }

    /// Reads an object for `take`; blocks.
    pub(super) fn get<R>(
        &self,
        place: Place,
        key: &[u8],
        take: impl FnOnce(Outcome<'_>) -> R,
    ) -> R {
        let (want, mut len) = match self.start(place, key) {
            Start::Hit(meta, value) => return take(Outcome::Found(Item { meta, value: &value })),
            Start::Other => return take(Outcome::Other),
            Start::Miss => return take(Outcome::Nothing),
            Start::Ask(want, len) => (want, len),
        };
        let (mut buffer, mut have) = (Aligned::new(len), 0);
        while let Some(into) = &mut buffer {
            let at = want.at + wide(have);
            if read_exact(&*self.device, &mut into[have..len], at).is_err() {
                self.failed(&want);
                break;
            }
            match self.next(&want, &into[..len], key) {
                Next::Hit(meta, value) => {
                    return take(Outcome::Found(Item { meta, value: &into[value] }));
                }
                Next::Other => return take(Outcome::Other),
                Next::Miss => break,
                Next::More(need) => {
                    (buffer, have) = (longer(&into[..len], need), len);
                    len = need;
                }
            }
        }
        take(Outcome::Nothing)
    }
}

/// A larger buffer with the same contents at its start.
pub(super) fn longer(begin: &[u8], need: usize) -> Option<Aligned> {
    let mut larger = Aligned::new(need)?;
    larger[..begin.len()].copy_from_slice(begin);
    Some(larger)
}

/// The result of looking up a key in a set's block.
#[derive(Debug)]
pub(super) enum Asked {
    /// The value is this range of the block.
    Hit(Meta, Range<usize>),
    /// There is no such object.
    Miss,
    /// It is invalid: it may have been written concurrently.
    Corrupt,
}

impl Sets {
    /// Starts the read of a key: the result from memory, and the key's set.
    pub(super) fn start(&self, hash: u64, key: &[u8]) -> (u32, Known) {
        one(&self.counters.small_reads);
        let (set, known) = self.known(hash, key);
        match &known {
            Known::Hit(..) => {
                one(&self.counters.small_hits);
                one(&self.counters.small_hits_memory);
            }
            Known::Filtered => one(&self.counters.small_filtered),
            Known::Nothing | Known::Ask(_) => {}
        }
        (set, known)
    }

    /// Evaluates the block read.
    pub(super) fn next(&self, set: u32, block: &[u8], key: &[u8]) -> Asked {
        match self.held(set, block) {
            Held::Corrupt => return Asked::Corrupt,
            Held::Nothing => self.learn(set, block),
            Held::Objects(used) => {
                self.learn(set, block);
                if let Some(found) = set::find(block, used, key) {
                    one(&self.counters.small_hits);
                    return Asked::Hit(found.meta, found.value);
                }
            }
        }
        Asked::Miss
    }

    /// Whether an invalid block should be read again, because it may have been written during the read. `reads` counts
    /// the reads so far; `sum` is the set's sum before the last one.
    pub(super) fn reads_again(&self, (set, sum): (u32, u32), reads: u8) -> bool {
        reads < READS_MAX && (reads == 1 || self.is_written_since(set, sum))
    }

    /// Counts an error of a block that can't be read, or that is invalid although it was not written since it had this
    /// sum.
    pub(super) fn failed(&self, (set, sum): (u32, u32), is_corrupt: bool) {
        if is_corrupt && self.is_written_since(set, sum) {
            return;
        }
        let counters = &self.counters;
        one(if is_corrupt { &counters.checksum_errors } else { &counters.read_errors });
        self.error(set);
    }

    /// Reads an object for `take`; blocks.
    pub(super) fn get<R>(&self, hash: u64, key: &[u8], take: impl FnOnce(Outcome<'_>) -> R) -> R {
        let (set, mut known) = self.start(hash, key);
        let mut block = Aligned::empty();
        for reads in 1..=READS_MAX {
            let sum = match known {
                Known::Hit(meta, value) => {
                    return take(Outcome::Found(Item { meta, value: &value }));
                }
                Known::Nothing | Known::Filtered => break,
                Known::Ask(sum) => sum,
            };
            if block.is_empty() {
                match Aligned::new(BLOCK) {
                    Some(made) => block = made,
                    None => break,
                }
            }
            if read_exact(&*self.device, &mut block, self.at(set)).is_err() {
                self.failed((set, sum), false);
                break;
            }
            match self.next(set, &block, key) {
                Asked::Hit(meta, value) => {
                    return take(Outcome::Found(Item { meta, value: &block[value] }));
                }
                Asked::Miss => break,
                Asked::Corrupt if self.reads_again((set, sum), reads) => {
                    known = self.known(hash, key).1;
                }
                Asked::Corrupt => {
                    self.failed((set, sum), true);
                    break;
                }
            }
        }
        take(Outcome::Nothing)
    }
}
