//! The cache in this process as what is asked: where no server is named.
//!
//! Over [`Store`], so that it is the same for every engine, but for one thing: what lives for ever is stored as a program that
//! has the cache as a library would, with nothing besides its value. Values are copied out into a buffer of the reader's.

use nearfar_cache::Cache;
use nearfar_cache::store::{Edit, Meta, Refused, Store};
use nearfar_topology::Bytes;

use super::found::Memory;
use super::job::Job;
use super::run::Subject;

mod drive;

pub(crate) use drive::TIMED;

/// What is asked.
pub(crate) trait Engine: Store {
    /// Stores a value for ever, with nothing besides.
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

/// One worker's door to it.
struct Door<'a> {
    engine: &'a dyn Engine,
    /// For [`Store::edit`], which wants a buffer.
    none: Vec<u8>,
}

impl Door<'_> {
    /// Appends the value of `key` to `out`; false if there is none.
    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> bool {
        self.engine.get(key, out, &mut |_, _, _| ()).is_some()
    }

    /// Stores `value` under `key` for `ttl` seconds; 0 is for ever.
    fn set(&self, key: &[u8], value: &[u8], ttl: u32) -> Result<(), Refused> {
        if ttl == 0 {
            return self.engine.keep(key, value);
        }
        let now = self.engine.now();
        let expires = now.saturating_add(ttl);
        Store::set(self.engine, key, value, &Meta { expires, accessed: now, ..Meta::default() })
    }

    /// Removes `key`; false if it was not there.
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
pub(crate) struct InProcess<'a> {
    /// What it is called.
    pub(crate) name: String,
    /// It.
    pub(crate) engine: &'a dyn Engine,
    /// Memory of this process before it was made.
    pub(crate) resident_before: Option<Bytes>,
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

/// Resident memory of a process, by its number or `self`.
pub(crate) fn resident(process: &str) -> Option<Bytes> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(Bytes(kib << 10))
}

#[cfg(test)]
mod tests;
