//! A memcached server as the subject of a run: classic text protocol over TCP or a unix socket.
//!
//! [`address`] is the server's address, `lane` a connection with its outstanding requests, `lanes` a worker's loop over
//! several; `stats` queries the server's statistics.

use std::time::Duration;

pub mod address;
mod lane;
mod lanes;
mod stats;

use super::job::Job;
use super::results::Memory;
use super::run::Subject;
use address::Address;

/// Default time limit of an answer at the end of a run, or to a request for statistics.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A server, and the parameters of requests to it.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its address.
    pub address: Address,
    /// Connections per thread.
    pub connections: u32,
    /// Outstanding commands per connection.
    pub depth: u32,
    /// Reads combined into one command.
    pub multiget: u32,
    /// Time limit of an answer at the end, and of reconnecting.
    pub patience: Duration,
}

impl Server {
    /// Checks that a memcached server, or a proxy for one, answers.
    ///
    /// # Errors
    /// There is no connection, or an answer of another protocol.
    pub fn greet(&self) -> anyhow::Result<()> {
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
        // If the server has ended by then, the errors of its requests show it.
        stats::ask(&self.address, self.patience).map(|said| said.memory).unwrap_or_default()
    }

    fn second(&self, _: u32) {
        // It has its own clock.
    }
}
