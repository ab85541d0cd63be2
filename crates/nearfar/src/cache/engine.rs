//! The cache in this process as a target: what `nearfar cache bench` asks where no server is named.
//!
//! Over [`Store`], so that it is the same for every engine. Values are copied into the buffer a store takes them from and out of
//! it into the reader's, as a front end would.

use nearfar_cache::store::{Edit, Meta, Store};
use nearfar_topology::Bytes;

use super::found::Memory;
use super::job::Job;
use super::run::Subject;
use super::target::{Target, drive};

/// One worker's door to a store.
struct Door<'a> {
    store: &'a dyn Store,
    value: Vec<u8>,
    cas: u64,
}

impl Target for Door<'_> {
    fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> anyhow::Result<bool> {
        Ok(self.store.get(key, out, &mut |_, _, _| ()).is_some())
    }

    fn set(&mut self, key: &[u8], value: &[u8], ttl: u32) -> anyhow::Result<bool> {
        let now = self.store.now();
        self.cas += 1;
        let expires = if ttl == 0 { 0 } else { now.saturating_add(ttl) };
        let meta = Meta { cas: self.cas, expires, accessed: now, ..Meta::default() };
        self.value.clear();
        self.value.extend_from_slice(value);
        Ok(self.store.edit(key, &mut self.value, &mut |_, _| Edit::Put(meta)).is_ok())
    }

    fn delete(&mut self, key: &[u8]) -> anyhow::Result<bool> {
        let (mut none, mut found) = (Vec::new(), false);
        let removed = self.store.edit(key, &mut none, &mut |old, _| {
            found = old.is_some();
            Edit::Remove
        });
        Ok(removed.is_ok() && found)
    }
}

/// A store as the subject of a run.
pub(crate) struct InProcess<'a> {
    /// What it is called.
    pub(crate) name: String,
    /// The store.
    pub(crate) store: &'a dyn Store,
    /// Memory of this process before the store was made.
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
        let mut door = Door { store: self.store, value: Vec::new(), cas: 0 };
        drive(&mut door, job);
        Ok(())
    }

    fn memory(&self) -> Memory {
        let mut memory = Memory::default();
        let now = resident("self");
        let before = self.resident_before.map_or(0, |bytes| bytes.0);
        memory.resident_bytes = now.map(|bytes| bytes.0.saturating_sub(before));
        self.store.stats(&mut |name, value| memory.figure(name, value));
        memory
    }

    fn second(&self, second: u32) {
        self.store.set_now(second.max(1));
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
