//! For tests and fuzzers: a complete but slow store, and a connection to it.
//!
//! [`MapStore`] keeps items in a sorted map behind one lock and evicts nothing; it refuses items over its limit, so
//! that both refusals can be tested. Its clock does not advance by itself.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Connection, Dispatch, Service, Settings, Stop};
use nearfar_cache::store::{Decide, Edit, Head, Meta, Old, Refused, Store};

/// The Unix second of the store's second 0 in tests.
pub const ORIGIN: i64 = 1_700_000_000;

#[derive(Debug)]
struct Item {
    meta: Meta,
    stored: u32,
    value: Vec<u8>,
}

impl Old for Item {
    fn meta(&self) -> Meta {
        self.meta
    }
    fn len(&self) -> usize {
        self.value.len()
    }
    fn read(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.value);
    }
}

#[derive(Debug, Default)]
struct Items {
    map: BTreeMap<Vec<u8>, Item>,
    bytes: u64,
    /// Items stored before this second expire then.
    flush: u32,
}

/// Items in a map.
#[derive(Debug)]
pub struct MapStore {
    now: AtomicU32,
    limit: AtomicU64,
    item_max: usize,
    stored: AtomicU64,
    items: Mutex<Items>,
}

impl Default for MapStore {
    fn default() -> Self {
        Self::new(64 << 20, 1 << 20)
    }
}

impl MapStore {
    /// With room for `limit` bytes of keys and values, and `item_max` per item.
    #[must_use]
    pub fn new(limit: u64, item_max: usize) -> Self {
        let (stored, items) = (AtomicU64::new(0), Mutex::default());
        Self { now: AtomicU32::new(1), limit: AtomicU64::new(limit), item_max, stored, items }
    }

    /// The items, without expired ones.
    fn items(&self) -> MutexGuard<'_, Items> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        if items.flush != 0 && items.flush <= self.now() {
            let flush = std::mem::take(&mut items.flush);
            items.map.retain(|_, item| item.stored >= flush);
            items.bytes = items.map.iter().map(|(key, item)| size(key, item.value.len())).sum();
        }
        items
    }

    fn expire(&self, items: &mut Items, key: &[u8]) {
        let is_over = |item: &Item| item.meta.expires != 0 && item.meta.expires <= self.now();
        if items.map.get(key).is_some_and(is_over) {
            items.remove(key);
        }
    }
}

fn size(key: &[u8], bytes: usize) -> u64 {
    (key.len() + bytes) as u64
}

impl Items {
    fn remove(&mut self, key: &[u8]) {
        if let Some(item) = self.map.remove(key) {
            self.bytes -= size(key, item.value.len());
        }
    }
}

impl Store for MapStore {
    fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    fn set_now(&self, second: u32) {
        self.now.store(second, Relaxed);
    }

    fn get(&self, key: &[u8], out: &mut Vec<u8>, head: &mut Head<'_>) -> Option<Meta> {
        let mut items = self.items();
        self.expire(&mut items, key);
        let item = items.map.get_mut(key)?;
        let meta = item.meta;
        head(&meta, item.value.len(), out);
        out.extend_from_slice(&item.value);
        (item.meta.accessed, item.meta.fetched) = (self.now(), true);
        Some(meta)
    }

    fn edit(
        &self,
        key: &[u8],
        value: &mut Vec<u8>,
        decide: &mut Decide<'_>,
    ) -> Result<(), Refused> {
        let mut items = self.items();
        self.expire(&mut items, key);
        let old = items.map.get_mut(key);
        let edit = decide(old.as_deref().map(|old| -> &dyn Old { old }), value);
        match edit {
            Edit::Keep => (),
            Edit::Set(meta) => {
                if let Some(old) = old {
                    old.meta = meta;
                }
            }
            Edit::Remove => items.remove(key),
            Edit::Put(meta) => {
                let (bytes, freed) =
                    (key.len() + value.len(), old.map_or(0, |old| old.value.len()));
                let freed = if freed > 0 { size(key, freed) } else { 0 };
                if bytes > self.item_max {
                    return Err(Refused::TooLarge { bytes, limit: self.item_max });
                }
                if items.bytes - freed + bytes as u64 > self.limit.load(Relaxed) {
                    return Err(Refused::NoMemory { bytes });
                }
                items.remove(key);
                items.bytes += bytes as u64;
                let item = Item { meta, stored: self.now(), value: std::mem::take(value) };
                items.map.insert(key.to_vec(), item);
                self.stored.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }

    fn flush(&self, at: u32) {
        let mut items = self.items();
        if at == 0 || at <= self.now() {
            (items.flush, items.bytes) = (0, 0);
            items.map.clear();
        } else {
            items.flush = at;
        }
    }

    fn each(&self, each: &mut dyn FnMut(&[u8], &Meta, usize) -> bool) {
        let items = self.items();
        let is_over = |item: &Item| item.meta.expires != 0 && item.meta.expires <= self.now();
        let mut there = items.map.iter().filter(|(_, item)| !is_over(item));
        there.all(|(key, item)| each(key, &item.meta, item.value.len()));
    }

    fn resize(&self, bytes: u64) -> bool {
        let fits = bytes >= self.items().bytes;
        if fits {
            self.limit.store(bytes, Relaxed);
        }
        fits
    }

    fn stats(&self, each: &mut dyn FnMut(&str, u64)) {
        let (count, bytes) = {
            let items = self.items();
            (items.map.len() as u64, items.bytes)
        };
        each("curr_items", count);
        each("total_items", self.stored.load(Relaxed));
        each("bytes", bytes);
        each("limit_maxbytes", self.limit.load(Relaxed));
        each("evictions", 0);
        each("tier_0_items", count);
    }
}

/// A connection to a store of its own.
#[derive(Debug)]
pub struct Talk {
    /// The store; its clock can be set.
    pub store: MapStore,
    /// The shared state.
    pub service: Service,
    connection: Connection,
    rest: Vec<u8>,
    /// Whether it was closed.
    pub is_closed: bool,
}

impl Default for Talk {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}

impl Talk {
    /// A connection with these permissions and limits.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            store: MapStore::default(),
            service: Service::new(settings, 1, ORIGIN, Box::new(())),
            connection: Connection::default(),
            rest: Vec::new(),
            is_closed: false,
        }
    }

    /// Sends input; returns the replies.
    pub fn say(&mut self, text: impl AsRef<[u8]>) -> Vec<u8> {
        let mut all = Vec::new();
        self.rest.extend_from_slice(text.as_ref());
        while !self.is_closed {
            let dispatch = Dispatch::new(&self.service, 0, &self.store);
            let mut out = Vec::new();
            let fed = self.connection.feed(&dispatch, &self.rest, &mut out);
            self.rest.drain(..fed.consumed);
            all.append(&mut out);
            match fed.stop {
                // The map has no tier below it.
                Stop::Input | Stop::Later => break,
                Stop::Output | Stop::Turn => (),
                Stop::Close => self.is_closed = true,
            }
        }
        all
    }

    /// Sends input as a server does: the rest of a long value bypasses the input buffer.
    pub fn say_straight(&mut self, text: &[u8]) -> Vec<u8> {
        let mut text = text;
        if self.rest.is_empty()
            && let Some((room, more)) = self.connection.wants()
        {
            let (value, after) = text.split_at(text.len().min(more));
            room.extend_from_slice(value);
            text = after;
        }
        self.say(text)
    }

    /// Bytes of incomplete input.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.rest.len()
    }
}

/// Sends the same input to two connections, to one at once, to the other in parts with lengths given by the first
/// bytes; odd ones as [`Talk::say_straight`].
///
/// # Panics
/// If the replies differ.
pub fn fuzz(data: &[u8]) {
    let (parts, text) = data.split_at(data.len().min(8));
    let settings = || Settings {
        item_bytes_max: 4096,
        requests_per_turn: 5,
        reply_bytes_max: 512,
        debug_time: true,
        ..Settings::default()
    };
    let (mut whole, mut parted) = (Talk::new(settings()), Talk::new(settings()));
    let at_once = whole.say(text);
    let mut in_parts = Vec::new();
    let mut rest = text;
    let mut lengths = parts.iter().map(|byte| usize::from(*byte) + 1).cycle();
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(lengths.next().unwrap_or(1)));
        let said = if now.len() % 2 == 1 { parted.say_straight(now) } else { parted.say(now) };
        in_parts.extend(said);
        rest = later;
    }
    assert_eq!(at_once.escape_ascii().to_string(), in_parts.escape_ascii().to_string());
    assert_eq!(whole.is_closed, parted.is_closed);
    assert!(whole.is_closed || whole.waiting() == parted.waiting());
}
