//! One thread of the stress test: its operations, and the checks of their results.
//!
//! Operations and keys are pseudo-random. Each value encodes its key and the number of its change, so that a read detects a
//! foreign, torn or outdated value. The last operations contain no flush, so that the final check finds items.

use std::fmt;

use nearfar_cache::Cache;
use nearfar_cache::store::{Edit, Meta, Old, Store};

use crate::expected::{Change, Expected, fill, item_of, meta, name};

/// Maximum number of errors printed.
const TOLD: u64 = 10;
/// One operation in this many is a resize.
const RESIZE: u64 = 20_000;
/// The last operations of a thread, without flushes, so that items are found afterwards.
const LAST: u64 = 10_000;
/// Bytes of the cache's tiers of memory.
const MEMORY: u64 = 6 << 20;

/// Counts of operations and errors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) reads: u64,
    pub(crate) hits: u64,
    pub(crate) stores: u64,
    pub(crate) refused: u64,
    pub(crate) deletes: u64,
    pub(crate) edits: u64,
    pub(crate) flushes: u64,
    pub(crate) resizes: u64,
    pub(crate) found_again: u64,
    pub(crate) wrong: u64,
    pub(crate) told: Vec<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.hits += other.hits;
        self.stores += other.stores;
        self.refused += other.refused;
        self.deletes += other.deletes;
        self.edits += other.edits;
        self.flushes += other.flushes;
        self.resizes += other.resizes;
        self.found_again += other.found_again;
        self.wrong += other.wrong;
        self.told.extend_from_slice(&other.told);
    }

    fn wrong(&mut self, key: u64, what: impl fmt::Display) {
        self.wrong += 1;
        if self.wrong <= TOLD {
            self.told.push(format!("key {key}: {what}"));
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reads, hits, stores, refused, deletes, edits, flushes, resizes, .. } = self;
        writeln!(f, "reads {reads}, of them hits {hits}; stores {stores}, refused {refused}")?;
        writeln!(f, "deletes {deletes}, edits {edits}, flushes {flushes}, resizes {resizes}")?;
        writeln!(f, "found again after it was closed and opened: {}", self.found_again)?;
        self.told.iter().try_for_each(|told| writeln!(f, "WRONG {told}"))?;
        writeln!(f, "wrong {}", self.wrong)
    }
}

/// A thread's part.
pub(crate) struct Worker<'a> {
    cache: &'a Cache,
    expected: &'a Expected,
    dice: u64,
    out: Vec<u8>,
    value: Vec<u8>,
    /// One operation in this many is a flush.
    flush_in: u64,
    pub(crate) tally: Tally,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        (cache, expected): (&'a Cache, &'a Expected),
        seed: u64,
        flush_in: u64,
    ) -> Self {
        let dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (out, value) = (Vec::new(), Vec::new());
        Self { cache, expected, dice, out, value, flush_in, tally: Tally::default() }
    }

    /// A number below `limit`.
    fn draw(&mut self, limit: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 16) % limit
    }

    /// Bytes of a value: most are short.
    fn length(&mut self) -> usize {
        let most = match self.draw(1000) {
            0..900 => 500,
            900..992 => 8000,
            _ => 200_000,
        };
        usize::try_from(self.draw(most)).unwrap_or(0)
    }

    /// Performs one operation; `left` is the number of remaining ones.
    pub(crate) fn step(&mut self, left: u64) {
        if self.draw(self.flush_in) == 0 && left > LAST {
            return self.flush();
        }
        if self.draw(RESIZE) == 0 {
            return self.resize();
        }
        // Some keys are used more often, so that some are promoted from disk.
        let keys = self.expected.keys();
        let part = if self.draw(4) == 0 { keys } else { keys.div_ceil(8) };
        let key = self.draw(part);
        match self.draw(100) {
            0..76 => self.read(key),
            76..90 => self.store(key),
            90..93 => self.delete(key),
            _ => self.edit(key),
        }
    }

    fn read(&mut self, key: u64) {
        let slot = self.expected.of(key);
        let least = slot.acknowledged();
        self.out.clear();
        let mut head = None;
        let found = Store::get(self.cache, &name(key), &mut self.out, &mut |meta, length, _| {
            head = Some((*meta, length));
        });
        self.tally.reads += 1;
        let Some(found) = found else { return };
        self.tally.hits += 1;
        let most = slot.begun();
        let told = |meta: &Meta| (meta.flags, meta.cas);
        if head.is_none_or(|(meta, length)| told(&meta) != told(&found) || length != self.out.len())
        {
            self.tally.wrong(key, format_args!("{head:?} was told, {found:?} found"));
        }
        match item_of(key, &self.out, &found) {
            Err(what) => self.tally.wrong(key, what),
            Ok((number, last)) => {
                let last = if last == 0 { number } else { last };
                if !(least..=most).contains(&last) {
                    self.tally.wrong(key, format_args!("change {last}, not {least} to {most}"));
                }
            }
        }
    }

    fn store(&mut self, key: u64) {
        let (bytes, is_plain) = (self.length(), self.draw(2) == 0);
        let change = self.expected.of(key).begin();
        let number = change.number;
        fill(key, number, bytes, &mut self.value);
        let besides = meta(number, number);
        let done = self.cache.put(&name(key), &self.value, (!is_plain).then_some(&besides));
        self.tally.stores += 1;
        self.tally.refused += u64::from(done.is_err());
        // A refused operation leaves no item.
        change.end(done.is_ok().then_some((number, if is_plain { 0 } else { number })));
    }

    fn delete(&mut self, key: u64) {
        let change = self.expected.of(key).begin();
        let found = self.cache.delete(&name(key));
        self.tally.deletes += 1;
        if found && change.before().is_none() {
            self.tally.wrong(key, "something was deleted that was not there");
        }
        change.end(None);
    }

    fn edit(&mut self, key: u64) {
        let (what, bytes) = (self.draw(4), self.length());
        let change = self.expected.of(key).begin();
        let (number, before) = (change.number, change.before());
        let mut value = std::mem::take(&mut self.value);
        let (mut seen, mut next) = (None, None);
        let done = self.cache.edit(&name(key), &mut value, &mut |old, value| {
            seen = old.map(|old| seen_of(key, old));
            match (what, old, before) {
                (0, ..) | (1, None, _) => Edit::Keep,
                (1, Some(old), Some((stored, _))) => {
                    next = Some(Some((stored, number)));
                    Edit::Set(Meta { accessed: old.meta().accessed, ..meta(stored, number) })
                }
                (2, ..) => {
                    next = Some(None);
                    Edit::Remove
                }
                _ => {
                    fill(key, number, bytes, value);
                    next = Some(Some((number, number)));
                    Edit::Put(meta(number, number))
                }
            }
        });
        self.value = value;
        self.tally.edits += 1;
        self.check_last(key, seen, &change);
        self.tally.refused += u64::from(done.is_err());
        // A refused or declined operation leaves the item unchanged.
        if let (Ok(()), Some(next)) = (done, next) {
            change.end(next);
        }
    }

    /// A change must find the last acknowledged state, unless the item was evicted.
    fn check_last(
        &mut self,
        key: u64,
        seen: Option<Result<(u64, u64), String>>,
        change: &Change<'_>,
    ) {
        match seen {
            None => (),
            Some(Err(what)) => self.tally.wrong(key, what),
            Some(Ok(seen)) if Some(seen) == change.before() => (),
            Some(Ok(seen)) => {
                self.tally.wrong(key, format_args!("{seen:?}, not {:?}", change.before()));
            }
        }
    }

    fn flush(&mut self) {
        let all = self.expected.begin_all();
        self.cache.flush(0);
        self.tally.flushes += 1;
        all.into_iter().for_each(|change| change.end(None));
    }

    fn resize(&mut self) {
        let bytes = MEMORY / 2 + self.draw(MEMORY / 2 + 1);
        self.tally.resizes += u64::from(self.cache.resize(bytes));
    }

    /// Reads all keys of a cache without concurrent changes.
    pub(crate) fn look_again(&mut self, tally: &mut Tally) {
        for key in 0..self.expected.keys() {
            let change = self.expected.of(key).begin();
            self.out.clear();
            let found = Store::get(self.cache, &name(key), &mut self.out, &mut |_, _, _| ());
            let Some(found) = found else { continue };
            self.tally.found_again += 1;
            let seen = item_of(key, &self.out, &found);
            self.check_last(key, Some(seen), &change);
        }
        tally.add(&self.tally);
    }
}

fn seen_of(key: u64, old: &dyn Old) -> Result<(u64, u64), String> {
    let mut out = Vec::new();
    old.read(&mut out);
    if out.len() != old.len() {
        return Err(format!("{} bytes were told, {} read", old.len(), out.len()));
    }
    item_of(key, &out, &old.meta())
}
