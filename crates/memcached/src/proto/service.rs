//! State shared by all connections of one server: settings, CAS numbers, counters, and the conversion of clients' times
//! to the store's.
//!
//! It has no I/O and no clock. Facts that only a server knows (sockets, its process) come through [`Host`];
//! [`Service::tick`] advances the clock.

use core::fmt::{Debug, Display};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Mutex, PoisonError};

use super::counters::{BY_CLASS, ByClass, COUNTED, Counters};
use super::detail::Detail;
use nearfar_cache::store::Store;

/// Maximum bytes of a key.
pub const KEY_MAX: usize = 250;
/// Maximum bytes of a line, its end included; only get, gets, gat and gats may have longer ones.
pub const LINE_MAX: usize = 2048;
/// Bytes that memcached accounts for an item besides its key and value, so that the largest value is the same here.
pub const ITEM_OVERHEAD: usize = 57;
/// Times of expiry up to this value are relative, in seconds; larger ones are Unix time.
pub const RELATIVE_MAX: u32 = 60 * 60 * 24 * 30;
/// The reply to `version`. It begins with the version of memcached whose protocol this is, as clients parse its
/// numbers.
pub const VERSION: &str = concat!("1.6.45-nearfar-", env!("CARGO_PKG_VERSION"));

/// Permissions and limits of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum item size: bytes of key and value and [`ITEM_OVERHEAD`]. memcached's `-I`.
    pub item_bytes_max: usize,
    /// Requests of a connection that are executed before others have their turn. memcached's `-R`, where it is 20; here
    /// all replies of a turn are written at once, and longer turns mean fewer writes.
    pub requests_per_turn: usize,
    /// From this many bytes of replies on, they are written before the next request is executed.
    pub reply_bytes_max: usize,
    /// Maximum bytes of a dump of all items.
    pub dump_bytes_max: usize,
    /// The first CAS number. If items outlive the server it must be above all existing ones.
    pub cas_first: u64,
    /// Whether `flush_all` is permitted; memcached's `-F` turns it off.
    pub flush: bool,
    /// Whether keys may be listed and counted by prefix: `lru_crawler metadump`, `mgdump`, `stats cachedump`, `stats
    /// detail`. memcached's `-X` turns it off.
    pub dump: bool,
    /// Whether `shutdown` is permitted; memcached's `-A` turns it on.
    pub shutdown: bool,
    /// Whether `debugtime` exists, which moves the clock. For tests.
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

/// The kind of `shutdown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// At once.
    Now,
    /// After requests in progress are complete.
    Graceful,
}

/// Called with a name and a value.
pub type Figures<'a> = dyn FnMut(&str, &dyn Display) + 'a;

/// Facts that only the server around the protocol knows. The default methods report nothing.
pub trait Host: Debug + Send + Sync {
    /// Figures for `stats`.
    fn stats(&self, _each: &mut Figures<'_>) {}
    /// Figures for `stats settings`.
    fn settings(&self, _each: &mut Figures<'_>) {}
    /// Figures for `stats conns`.
    fn connections(&self, _each: &mut Figures<'_>) {}
    /// Called on `stats reset`.
    fn reset(&self) {}
    /// Called on `shutdown`.
    fn shutdown(&self, _how: Shutdown) {}
}

/// No server at all.
impl Host for () {}

/// Values of the counters at the last reset.
#[derive(Debug)]
struct Before {
    counted: [u64; COUNTED.len()],
    /// Of each size class.
    by_class: Vec<[u64; BY_CLASS.len()]>,
    stored: Vec<(String, u64)>,
}

/// State shared by all connections.
#[derive(Debug)]
pub struct Service {
    pub(super) settings: Settings,
    cas: AtomicU64,
    /// The Unix second of the store's second 0.
    origin: i64,
    /// Seconds by which `debugtime` moved the clock.
    pending: AtomicI64,
    paused: AtomicBool,
    pub(super) verbosity: AtomicU64,
    pub(super) detail: Detail,
    workers: Box<[Counters]>,
    before: Mutex<Before>,
    pub(super) host: Box<dyn Host>,
}

/// The store's counters that `stats reset` resets; its other figures are gauges.
const SET_BACK: [&str; 8] = [
    "evictions",
    "evicted_unfetched",
    "total_items",
    "index_crowded",
    "reclaimed",
    "expired_unfetched",
    "crawler_reclaimed",
    "crawler_items_checked",
];

fn is_set_back(name: &str) -> bool {
    let of_tiers = ["_evictions", "_demoted", "_promoted", "_slabs_dealt"];
    SET_BACK.contains(&name) || of_tiers.iter().any(|end| name.ends_with(end))
}

impl Service {
    /// For `workers` threads; the store's second 0 is `origin` in Unix time.
    #[must_use]
    pub fn new(settings: Settings, workers: usize, origin: i64, host: Box<dyn Host>) -> Self {
        Self {
            cas: AtomicU64::new(settings.cas_first),
            settings,
            origin,
            pending: AtomicI64::new(0),
            paused: AtomicBool::new(false),
            verbosity: AtomicU64::new(0),
            detail: Detail::default(),
            workers: (0..workers.max(1)).map(|_| Counters::default()).collect(),
            before: Mutex::new(Before {
                counted: [0; COUNTED.len()],
                by_class: Vec::new(),
                stored: Vec::new(),
            }),
            host,
        }
    }

    /// Permissions and limits of clients.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The counters of a worker. Only that worker's thread may add to them.
    pub(crate) fn counters(&self, worker: usize) -> &Counters {
        &self.workers[worker % self.workers.len()]
    }

    /// Sets the store's clock to `second`, plus the offset of `debugtime`.
    pub fn tick(&self, store: &dyn Store, second: u32) {
        if !self.paused.load(Relaxed) {
            let second = i64::from(second).saturating_add(self.pending.load(Relaxed));
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
        self.pending.fetch_add(seconds, Relaxed);
        let second = i64::from(store.now()).saturating_add(seconds);
        store.set_now(u32::try_from(second.max(1)).unwrap_or(u32::MAX));
    }

    #[inline]
    pub(super) fn next_cas(&self) -> u64 {
        self.cas.fetch_add(1, Relaxed)
    }

    /// The store's second for a client's time of expiry: 0 is never; negative and past times are expired.
    #[inline]
    pub(super) fn second(&self, expires: i32, now: u32) -> u32 {
        match u32::try_from(expires) {
            Ok(0) => 0,
            Ok(seconds @ ..=RELATIVE_MAX) => now.saturating_add(seconds),
            Ok(unix) => u32::try_from((i64::from(unix) - self.origin).max(1)).unwrap_or(u32::MAX),
            Err(_) => 1,
        }
    }

    /// The Unix second for a store's.
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

    /// Counts since the last reset, in the order of [`COUNTED`].
    #[must_use]
    pub fn counted(&self) -> [u64; COUNTED.len()] {
        let mut sums = self.all_counted();
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        for (sum, before) in sums.iter_mut().zip(before.counted) {
            *sum = sum.saturating_sub(before);
        }
        sums
    }

    fn all_of_class(&self, class: usize) -> [u64; BY_CLASS.len()] {
        let mut sums = [0u64; BY_CLASS.len()];
        for worker in &self.workers {
            for (sum, value) in sums.iter_mut().zip(worker.by_class.values(class)) {
                *sum = sum.wrapping_add(value);
            }
        }
        sums
    }

    /// Counts of a size class since the last reset, in the order of [`BY_CLASS`].
    pub(super) fn of_class(&self, class: usize) -> [u64; BY_CLASS.len()] {
        let mut sums = self.all_of_class(class);
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        for (sum, before) in sums.iter_mut().zip(before.by_class.get(class).into_iter().flatten()) {
            *sum = sum.saturating_sub(*before);
        }
        sums
    }

    /// The store's figures, less their values at the last reset, and without those counted here.
    pub fn stored(&self, store: &dyn Store, each: &mut dyn FnMut(&str, u64)) {
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        store.stats(&mut |name, value| {
            if COUNTED.iter().all(|(counted, _)| *counted != name) {
                let before = before.stored.iter().find(|(one, _)| one == name);
                each(name, value.saturating_sub(before.map_or(0, |(_, value)| *value)));
            }
        });
    }

    /// Resets the counters.
    pub fn reset(&self, store: &dyn Store) {
        let mut stored = Vec::new();
        store.stats(&mut |name, value| {
            if is_set_back(name) {
                stored.push((name.to_owned(), value));
            }
        });
        let by_class = ByClass::numbers().map(|class| self.all_of_class(class)).collect();
        let before = Before { counted: self.all_counted(), by_class, stored };
        *self.before.lock().unwrap_or_else(PoisonError::into_inner) = before;
        self.detail.clear();
        self.host.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_times_are_relative_up_to_thirty_days_and_unix_times_above() {
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
