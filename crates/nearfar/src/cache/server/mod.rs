//! A memcached server as the subject of a run: classic text protocol over TCP or a unix socket.
//!
//! Spoken directly, as in `nearfar-load`: a `get` and a `set` are a dozen lines. [`address`] says where, [`reply`] reads answers,
//! [`lane`] is a connection with what is under way on it, [`lanes`] a worker's loop over several, [`stats`] asks the server about
//! itself.

use std::time::Duration;

pub(crate) mod address;
mod lane;
mod lanes;
mod reply;
mod stats;

use super::found::Memory;
use super::job::Job;
use super::run::Subject;
use address::Address;

/// How long an answer may take at the end of a run, or to a question about the server itself, unless somebody says otherwise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A server and how it is asked.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// Where.
    pub(crate) address: Address,
    /// Connections of each thread.
    pub(crate) connections: u32,
    /// Commands under way at once on each.
    pub(crate) depth: u32,
    /// Reads that go as one command.
    pub(crate) multiget: u32,
    /// How long an answer may take at the end, and a lost connection to be made anew.
    pub(crate) patience: Duration,
}

impl Server {
    /// Fails if nobody answers there as memcached would, or as a proxy before it that says nothing of itself.
    pub(crate) fn greet(&self) -> anyhow::Result<()> {
        let said = stats::ask(&self.address, self.patience);
        said.map(|_| ()).or_else(|why| stats::reads(&self.address, self.patience).map_err(|_| why))
    }
}

impl Subject for Server {
    fn name(&self) -> String {
        self.address.to_string()
    }

    fn version(&self) -> Option<String> {
        stats::ask(&self.address, self.patience).ok()?.version
    }

    fn work(&self, job: &mut Job<'_>) -> anyhow::Result<()> {
        lanes::Lanes::connect(self, job)?.drive()
    }

    fn memory(&self) -> Memory {
        // A server that is gone by the end is told by the errors of its requests.
        stats::ask(&self.address, self.patience).map(|said| said.memory).unwrap_or_default()
    }

    fn second(&self, _: u32) {
        // It has a clock of its own.
    }
}
