//! What all connections of one server have in common: settings, CAS uniques, counters, and how clients' times become the store's.
//!
//! Here is no I/O and no clock. What only a server knows (sockets, its process) it tells through [`Host`]; the clock is moved by
//! [`Service::tick`].

use core::fmt::{Debug, Display};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Mutex, PoisonError};

use super::counters::{COUNTED, Counters};
use super::detail::Detail;
use crate::store::Store;

/// Keys have at most so many bytes.
pub const KEY_MAX: usize = 250;
/// Lines have at most so many bytes, their end included; only get, gets, gat and gats may have longer ones.
pub const LINE_MAX: usize = 2048;
/// What memcached counts of an item besides its key and value, so that the largest value is the same here.
pub const ITEM_OVERHEAD: usize = 57;
/// Times of expiry up to here are from now on, in seconds; larger ones are Unix time.
pub const RELATIVE_MAX: u32 = 60 * 60 * 24 * 30;
/// What `version` answers. It begins as memcached's whose protocol this is, as clients read it as numbers.
pub const VERSION: &str = concat!("1.6.45-nearfar-", env!("CARGO_PKG_VERSION"));

/// What clients may do, and how much at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The largest item: bytes of key and value and [`ITEM_OVERHEAD`]. memcached's `-I`.
    pub item_bytes_max: usize,
    /// So many requests of a connection are done before others have their turn. memcached's `-R`, where it is 20; here all
    /// replies of a turn are written at once, and longer turns mean fewer writes.
    pub requests_per_turn: usize,
    /// From so many bytes of replies on, they are written before the next request is looked at.
    pub reply_bytes_max: usize,
    /// From so many bytes on, a dump of all items is cut off.
    pub dump_bytes_max: usize,
    /// The first CAS unique. Where items outlive the server it must be above all there are.
    pub cas_first: u64,
    /// Whether `flush_all` does anything; else it is an error. memcached's `-F` turns it off.
    pub flush: bool,
    /// Whether keys may be listed and counted by prefix: `lru_crawler metadump`, `mgdump`, `stats cachedump`, `stats detail`.
    /// memcached's `-X` turns it off.
    pub dump: bool,
    /// Whether `shutdown` stops the server; else it is an error. memcached's `-A` turns it on.
    pub shutdown: bool,
    /// Whether `debugtime` moves the clock; else there is no such command. For tests.
    pub debug_time: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            item_bytes_max: 1 << 20,
            requests_per_turn: 256,
            reply_bytes_max: 256 << 10,
            dump_bytes_max: 64 << 20,
            cas_first: 1,
            flush: true,
            dump: true,
            shutdown: false,
            debug_time: false,
        }
    }
}

/// How `shutdown` wants the server to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// At once.
    Now,
    /// After what was begun has been finished.
    Graceful,
}

/// Is told a name and a value.
pub type Figures<'a> = dyn FnMut(&str, &dyn Display) + 'a;

/// What only the server around the protocol knows. Each method may be left as it is, and then there is nothing to know.
pub trait Host: Debug + Send + Sync {
    /// Figures for `stats`.
    fn stats(&self, _each: &mut Figures<'_>) {}
    /// Figures for `stats settings`.
    fn settings(&self, _each: &mut Figures<'_>) {}
    /// Figures for `stats conns`.
    fn connections(&self, _each: &mut Figures<'_>) {}
    /// `stats reset` was asked for.
    fn reset(&self) {}
    /// `shutdown` was asked for.
    fn shutdown(&self, _how: Shutdown) {}
}

/// No server at all.
impl Host for () {}

/// What had been counted when the counters were last set back.
#[derive(Debug)]
struct Before {
    counted: [u64; COUNTED.len()],
    stored: Vec<(String, u64)>,
}

/// What all connections have in common.
#[derive(Debug)]
pub struct Service {
    pub(super) settings: Settings,
    cas: AtomicU64,
    /// The Unix second of the store's second 0.
    origin: i64,
    /// Seconds that `debugtime` moved the clock.
    ahead: AtomicI64,
    paused: AtomicBool,
    pub(super) verbosity: AtomicU64,
    pub(super) detail: Detail,
    workers: Box<[Counters]>,
    before: Mutex<Before>,
    pub(super) host: Box<dyn Host>,
}

/// What a store counts that `stats reset` sets back; the rest of what it tells is how things stand.
const SET_BACK: [&str; 6] = [
    "evictions",
    "total_items",
    "reclaimed",
    "expired_unfetched",
    "crawler_reclaimed",
    "crawler_items_checked",
];

fn is_set_back(name: &str) -> bool {
    SET_BACK.iter().any(|one| name == *one || name.ends_with("_evictions"))
}

impl Service {
    /// For `workers` threads; the store's second 0 is `origin` in Unix time.
    #[must_use]
    pub fn new(settings: Settings, workers: usize, origin: i64, host: Box<dyn Host>) -> Self {
        Self {
            cas: AtomicU64::new(settings.cas_first),
            settings,
            origin,
            ahead: AtomicI64::new(0),
            paused: AtomicBool::new(false),
            verbosity: AtomicU64::new(0),
            detail: Detail::default(),
            workers: (0..workers.max(1)).map(|_| Counters::default()).collect(),
            before: Mutex::new(Before { counted: [0; COUNTED.len()], stored: Vec::new() }),
            host,
        }
    }

    /// What clients may do.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The counters of a worker. Only that worker's thread may add to them.
    pub(crate) fn counters(&self, worker: usize) -> &Counters {
        &self.workers[worker % self.workers.len()]
    }

    /// Sets the store's clock to `second`, and what `debugtime` moved it.
    pub fn tick(&self, store: &dyn Store, second: u32) {
        if !self.paused.load(Relaxed) {
            let second = i64::from(second).saturating_add(self.ahead.load(Relaxed));
            store.set_now(u32::try_from(second.max(1)).unwrap_or(u32::MAX));
        }
    }

    pub(super) fn pause(&self) {
        self.paused.store(true, Relaxed);
    }

    pub(super) fn resume(&self) {
        self.paused.store(false, Relaxed);
    }

    pub(super) fn move_clock(&self, store: &dyn Store, seconds: i64) {
        self.ahead.fetch_add(seconds, Relaxed);
        let second = i64::from(store.now()).saturating_add(seconds);
        store.set_now(u32::try_from(second.max(1)).unwrap_or(u32::MAX));
    }

    #[inline]
    pub(super) fn next_cas(&self) -> u64 {
        self.cas.fetch_add(1, Relaxed)
    }

    /// The store's second for a client's time of expiry: 0 is never, and what is negative or has been is over.
    #[inline]
    pub(super) fn second(&self, expires: i32, now: u32) -> u32 {
        match u32::try_from(expires) {
            Ok(0) => 0,
            Ok(seconds @ ..=RELATIVE_MAX) => now.saturating_add(seconds),
            Ok(unix) => u32::try_from((i64::from(unix) - self.origin).max(1)).unwrap_or(u32::MAX),
            Err(_) => 1,
        }
    }

    /// The Unix second of a store's.
    pub(super) fn unix(&self, second: u32) -> i64 {
        self.origin + i64::from(second)
    }

    fn all_counted(&self) -> [u64; COUNTED.len()] {
        let mut sums = [0u64; COUNTED.len()];
        for worker in &self.workers {
            for (sum, value) in sums.iter_mut().zip(worker.values()) {
                *sum = sum.wrapping_add(value);
            }
        }
        sums
    }

    /// What was counted since the counters were set back, in the order of [`COUNTED`].
    #[must_use]
    pub fn counted(&self) -> [u64; COUNTED.len()] {
        let mut sums = self.all_counted();
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        for (sum, before) in sums.iter_mut().zip(before.counted) {
            *sum = sum.saturating_sub(before);
        }
        sums
    }

    /// What the store tells, less what it had counted when the counters were set back, and without what is counted here.
    pub fn stored(&self, store: &dyn Store, each: &mut dyn FnMut(&str, u64)) {
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        store.stats(&mut |name, value| {
            if COUNTED.iter().all(|(counted, _)| *counted != name) {
                let before = before.stored.iter().find(|(one, _)| one == name);
                each(name, value.saturating_sub(before.map_or(0, |(_, value)| *value)));
            }
        });
    }

    /// Counts from here on.
    pub fn reset(&self, store: &dyn Store) {
        let mut stored = Vec::new();
        store.stats(&mut |name, value| {
            if is_set_back(name) {
                stored.push((name.to_owned(), value));
            }
        });
        let before = Before { counted: self.all_counted(), stored };
        *self.before.lock().unwrap_or_else(PoisonError::into_inner) = before;
        self.detail.clear();
        self.host.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_expiry_are_from_now_on_up_to_thirty_days_and_unix_time_above() {
        let service = Service::new(Settings::default(), 1, 1_000_000_000, Box::new(()));
        assert_eq!(service.second(0, 50), 0);
        assert_eq!(service.second(10, 50), 60);
        assert_eq!(service.second(2_592_000, 50), 2_592_050);
        assert_eq!(service.second(2_592_001, 50), 1);
        assert_eq!(service.second(1_000_000_070, 50), 70);
        assert_eq!(service.second(-1, 50), 1);
        assert_eq!(service.second(i32::MIN, 50), 1);
        assert_eq!(service.second(i32::MAX, 50), 1_147_483_647);
    }
}
