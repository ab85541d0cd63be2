//! Reading: from buffers that are not yet written, else from the device, by one read for nearly all objects.
//!
//! What is read counts only if the region was on the device before and after with the same sequence number, if the checksum
//! holds, and if the key is the one that was asked for. All else is a miss. [`Disk::read`](super::Disk::read) waits; many at once
//! are read by a [`Reader`](super::Reader). Both use what is here.

use crate::store::Meta;

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use super::buffer::{Aligned, BLOCK};
use super::device::read_exact;
use super::entry::{self, Found};
use super::log::Log;
use super::place::{Place, UNIT};
use super::reader::{Item, Outcome};
use super::region::Phase;
use super::set::{self, Held};
use super::sets::{Known, Sets};
use super::stats::one;
use super::words::{read, size, wide};

/// How often a region may change between memory and device while one looks where it is.
const CHANGES_MAX: usize = 1000;

/// A read of a large object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    region: u32,
    seq: u64,
    /// Where the read begins.
    pub(super) at: u64,
    /// Bytes before the object.
    skip: usize,
    /// Bytes from the object to the region's end.
    most: usize,
}

/// How a read of a large object begins.
#[derive(Debug)]
pub(super) enum Start {
    /// It was in memory.
    Hit(Meta, Vec<u8>),
    /// Another key's object is there.
    Other,
    /// Nothing is there.
    Miss,
    /// So many bytes have to be read.
    Ask(Want, usize),
}

/// How it goes on.
#[derive(Debug)]
pub(super) enum Next {
    /// The value is this part of the buffer.
    Hit(Meta, Range<usize>),
    /// Another key's object is there.
    Other,
    /// Nothing is there.
    Miss,
    /// So many bytes have to be there, from where it began.
    More(usize),
}

impl Log {
    /// Begins with a place.
    pub(super) fn start(&self, place: Place, key: &[u8]) -> Start {
        one(&self.counters.large_reads);
        let units = self.geometry.units();
        let skip = size(place.unit() % units) * UNIT;
        let Ok(region) = u32::try_from(place.unit() / units) else { return Start::Miss };
        let Some(state) = self.regions.get(region as usize) else { return Start::Miss };
        for _ in 0..CHANGES_MAX {
            let (seq, phase) = state.get();
            match phase {
                Phase::Free | Phase::Retired => break,
                Phase::Written => return self.ask(place, region, seq, skip),
                Phase::Memory => {
                    let Some(fill) = self.in_memory(region, seq) else { continue };
                    let body = read(&fill.body);
                    if body.over {
                        continue;
                    }
                    let bytes = body.buffer.get(skip..body.used).unwrap_or_default();
                    match entry::look(bytes, bytes.len(), seq, key) {
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

    fn ask(&self, place: Place, region: u32, seq: u64, skip: usize) -> Start {
        let object = self.geometry.region_at(region) + wide(skip);
        let before = size(object % wide(self.device.align()));
        let most = self.geometry.region_bytes - skip;
        let want = Want { region, seq, at: object - wide(before), skip: before, most };
        Start::Ask(want, self.round(before + place.bound().min(most)))
    }

    fn round(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.device.align())
    }

    /// Looks at what was read.
    pub(super) fn next(&self, want: &Want, bytes: &[u8], key: &[u8]) -> Next {
        let found =
            entry::look(bytes.get(want.skip..).unwrap_or_default(), want.most, want.seq, key);
        let still = self.regions[want.region as usize].is_written(want.seq);
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

    /// Takes note of a read that failed.
    pub(super) fn failed(&self, want: &Want) {
        one(&self.counters.read_errors);
        self.error(want.region);
    }

    /// Reads an object for `take`, and waits for it.
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

/// A larger buffer with the same begin.
pub(super) fn longer(begin: &[u8], need: usize) -> Option<Aligned> {
    let mut larger = Aligned::new(need)?;
    larger[..begin.len()].copy_from_slice(begin);
    Some(larger)
}

/// What a set's block says of a key.
#[derive(Debug)]
pub(super) enum Asked {
    /// The value is this part of the block.
    Hit(Meta, Range<usize>),
    /// It is not there.
    Miss,
    /// It does not hold together: it may have been written at the same time.
    Corrupt,
}

impl Sets {
    /// Begins with a key: what memory knows, and its set.
    pub(super) fn start(&self, hash: u64, key: &[u8]) -> (u32, Known) {
        one(&self.counters.small_reads);
        let (set, known) = self.known(hash, key);
        match &known {
            Known::Hit(..) => {
                one(&self.counters.small_hits);
                one(&self.counters.small_hits_memory);
            }
            Known::Filtered => one(&self.counters.small_filtered),
            Known::Nothing | Known::Ask => {}
        }
        (set, known)
    }

    /// Looks at the block that was read.
    pub(super) fn next(&self, set: u32, block: &[u8], key: &[u8]) -> Asked {
        match set::look(block, self.epoch.load(Relaxed), set) {
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

    /// Takes note of a block that can't be read, or does not hold together even when read again.
    pub(super) fn failed(&self, set: u32, is_corrupt: bool) {
        let counters = &self.counters;
        one(if is_corrupt { &counters.checksum_errors } else { &counters.read_errors });
        self.error(set);
    }

    /// Reads an object for `take`, and waits for it.
    pub(super) fn get<R>(&self, hash: u64, key: &[u8], take: impl FnOnce(Outcome<'_>) -> R) -> R {
        let (set, mut known) = self.start(hash, key);
        let mut block = Aligned::empty();
        for again in [true, false] {
            match known {
                Known::Hit(meta, value) => {
                    return take(Outcome::Found(Item { meta, value: &value }));
                }
                Known::Nothing | Known::Filtered => break,
                Known::Ask => {}
            }
            if block.is_empty() {
                match Aligned::new(BLOCK) {
                    Some(made) => block = made,
                    None => break,
                }
            }
            if read_exact(&*self.device, &mut block, Self::at(set)).is_err() {
                self.failed(set, false);
                break;
            }
            match self.next(set, &block, key) {
                Asked::Hit(meta, value) => {
                    return take(Outcome::Found(Item { meta, value: &block[value] }));
                }
                Asked::Miss => break,
                Asked::Corrupt if again => known = self.known(hash, key).1,
                Asked::Corrupt => {
                    self.failed(set, true);
                    break;
                }
            }
        }
        take(Outcome::Nothing)
    }
}
