//! The caches under test, behind the interface that get-or-set needs.
//!
//! All copy the value out, as a program that sends it on does. Caches that keep values behind a reference count have no
//! cheaper way.

use std::time::Duration;

use foyer_memory::{CacheBuilder, EvictionConfig, S3FifoConfig};
use nearfar_cache::{Config, PageSize};

/// Bytes of a key, and of a value.
pub const KEY: usize = 16;
pub const VALUE: usize = 64;

pub type Key = [u8; KEY];
pub type Value = [u8; VALUE];

/// A cache under test.
pub trait Peer: Send + Sync {
    /// Appends a value to `out`; false if the key is missing.
    fn get(&self, key: &Key, out: &mut Vec<u8>) -> bool;
    fn set(&self, key: &Key, value: &Value);
}

/// The names of the caches; the first is compared with the others.
pub const NAMES: [&str; 5] = ["nearfar", "segcache", "quick_cache", "foyer", "moka"];

/// The capacity of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// In items, for caches that count items.
    pub items: usize,
    /// In bytes, for caches that count bytes: keys, values and headers, without the index.
    pub bytes: usize,
}

pub fn make(name: &str, size: Size) -> Result<Box<dyn Peer>, String> {
    Ok(match name {
        "nearfar" => {
            let config = Config { items: Some(size.items as u64), pages: PageSize::Huge, ..Config::of_bytes(size.bytes as u64) };
            Box::new(nearfar_cache::Cache::new(&config).map_err(|error| error.to_string())?)
        }
        "segcache" => {
            // The hash table's size is a power of two of at least that many items.
            let power = u8::try_from((size.items * 8 / 7).next_power_of_two().ilog2()).map_err(|error| error.to_string())?;
            let builder = segcache::Segcache::builder().hash_power(power).heap_size(size.bytes).segment_size(1 << 20);
            let built = builder.eviction(segcache::Policy::S3Fifo { admission_ratio: 0.1 }).build();
            Box::new(built.map_err(|error| error.to_string())?)
        }
        "quick_cache" => Box::new(quick_cache::sync::Cache::<Key, Value>::new(size.items)),
        "foyer" => {
            let config = EvictionConfig::S3Fifo(S3FifoConfig::default());
            Box::new(Foyer(CacheBuilder::new(size.items).with_shards(16).with_eviction_config(config).build()))
        }
        "moka" => Box::new(Moka(moka::sync::Cache::new(size.items as u64))),
        other => return Err(format!("{other}: none of {}", NAMES.join(", "))),
    })
}

impl Peer for nearfar_cache::Cache {
    fn get(&self, key: &Key, out: &mut Vec<u8>) -> bool {
        Self::get(self, key, out)
    }

    fn set(&self, key: &Key, value: &Value) {
        // A refused value only causes a miss later.
        let _ = Self::set(self, key, value);
    }
}

impl Peer for segcache::Segcache {
    fn get(&self, key: &Key, out: &mut Vec<u8>) -> bool {
        let Some(item) = Self::get(self, key) else { return false };
        let segcache::Value::Bytes(bytes) = item.value() else { return false };
        out.extend_from_slice(bytes);
        true
    }

    fn set(&self, key: &Key, value: &Value) {
        let _ = self.insert(key, value.as_slice(), None, Duration::ZERO);
    }
}

impl Peer for quick_cache::sync::Cache<Key, Value> {
    fn get(&self, key: &Key, out: &mut Vec<u8>) -> bool {
        Self::get(self, key).is_some_and(|value| {
            out.extend_from_slice(&value);
            true
        })
    }

    fn set(&self, key: &Key, value: &Value) {
        self.insert(*key, *value);
    }
}

struct Foyer(foyer_memory::Cache<Key, Value>);

impl Peer for Foyer {
    fn get(&self, key: &Key, out: &mut Vec<u8>) -> bool {
        self.0.get(key).is_some_and(|entry| {
            out.extend_from_slice(entry.value());
            true
        })
    }

    fn set(&self, key: &Key, value: &Value) {
        self.0.insert(*key, *value);
    }
}

struct Moka(moka::sync::Cache<Key, Value>);

impl Peer for Moka {
    fn get(&self, key: &Key, out: &mut Vec<u8>) -> bool {
        self.0.get(key).is_some_and(|value| {
            out.extend_from_slice(&value);
            true
        })
    }

    fn set(&self, key: &Key, value: &Value) {
        self.0.insert(*key, *value);
    }
}
