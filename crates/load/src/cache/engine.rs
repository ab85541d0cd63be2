//! Drives the cache in this process, if the user names no server.
//!
//! Generic over [`Store`], so that all engines are driven alike, with one exception: items without a time to live are
//! stored as a program that uses the cache as a library does, with nothing besides the value. Values are copied into a
//! buffer of the reader.

use nearfar_cache::Cache;
use nearfar_cache::store::{Edit, Meta, Refused, Store};
use nearfar_topology::Bytes;

use super::job::Job;
use super::results::Memory;
use super::run::Subject;

mod drive;

/// The interface of an engine under load.
pub trait Engine: Store {
    /// Stores a value without a time to live and with nothing besides.
    ///
    /// # Errors
    /// As [`Store::set`].
    fn keep(&self, key: &[u8], value: &[u8]) -> Result<(), Refused>;
}

impl Engine for Cache {
    fn keep(&self, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        self.set(key, value)
    }
}

/// A worker's access to the engine.
struct Door<'a> {
    engine: &'a dyn Engine,
    /// An empty buffer for [`Store::edit`].
    none: Vec<u8>,
}

impl Door<'_> {
    /// Appends the value of `key` to `out`; returns false if the key is missing.
    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> bool {
        self.engine.get(key, out, &mut |_, _, _| ()).is_some()
    }

    /// Stores `value` under `key` for `ttl` seconds; 0 means without expiry.
    fn set(&self, key: &[u8], value: &[u8], ttl: u32) -> Result<(), Refused> {
        if ttl == 0 {
            return self.engine.keep(key, value);
        }
        let now = self.engine.now();
        let expires = now.saturating_add(ttl);
        Store::set(self.engine, key, value, &Meta { expires, accessed: now, ..Meta::default() })
    }

    /// Removes `key`; returns false if it was missing.
    fn delete(&mut self, key: &[u8]) -> bool {
        let mut found = false;
        let removed = self.engine.edit(key, &mut self.none, &mut |old, _| {
            found = old.is_some();
            Edit::Remove
        });
        removed.is_ok() && found
    }
}

/// An engine as the subject of a run.
#[expect(missing_debug_implementations, reason = "an engine is a trait object without Debug")]
pub struct InProcess<'a> {
    /// Its name.
    pub name: String,
    /// The engine.
    pub engine: &'a dyn Engine,
    /// Resident memory of this process before the engine was created.
    pub resident_before: Option<Bytes>,
}

impl Subject for InProcess<'_> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn version(&self) -> Option<String> {
        None
    }

    fn work(&self, job: &mut Job<'_>) -> anyhow::Result<()> {
        drive::drive(&mut Door { engine: self.engine, none: Vec::new() }, job);
        Ok(())
    }

    fn memory(&self) -> Memory {
        let mut memory = Memory::default();
        let before = self.resident_before.map_or(0, |bytes| bytes.0);
        memory.resident_bytes = resident("self").map(|bytes| bytes.0.saturating_sub(before));
        self.engine.stats(&mut |name, value| memory.figure(name, value));
        memory
    }

    fn second(&self, second: u32) {
        // The clock of a cache begins at 1.
        self.engine.set_now(second.saturating_add(1));
    }
}

/// Resident memory of a process, given by its id or `self`.
pub fn resident(process: &str) -> Option<Bytes> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(Bytes(kib << 10))
}

#[cfg(test)]
mod tests;
