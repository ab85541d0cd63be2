//! Stores: several requests are sent at once and their answers read, whatever the protocol.

use std::io;

mod memcached;
mod redis;

pub use memcached::Memcached;
pub use redis::Redis;

/// A request.
#[derive(Clone, Debug)]
pub enum Request<'a> {
    /// A whole record.
    Read {
        /// Its key.
        key: String,
    },
    /// Pieces of a record.
    Write {
        /// Its key.
        key: String,
        /// Which pieces, and what they are to hold.
        pieces: Vec<(u32, &'a [u8])>,
        /// Whether the record is new; then it has all pieces.
        new: bool,
    },
    /// Records in the order of keys.
    Scan {
        /// Where to start.
        key: String,
        /// How many.
        records: u64,
    },
}

/// What a store said that it should not have, or did not say.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It can't be reached.
    #[error("connecting to {store} at {address}: {source}; is it running there?")]
    Unreachable {
        /// Its name.
        store: &'static str,
        /// Where it should be.
        address: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The connection broke.
    #[error("talking to memcached: {0}")]
    Broken(#[from] io::Error),
    /// An error of Redis.
    #[error("redis: {0}; out of memory? see maxmemory and --records")]
    Redis(#[from] ::redis::RedisError),
    /// An answer that is not one.
    #[error("memcached answered `{said}` to {to}{hint}")]
    Refused {
        /// What was asked.
        to: String,
        /// What came back.
        said: String,
        /// What to do, if known.
        hint: &'static str,
    },
    /// It has no such thing.
    #[error("{store} has no scans, so it can't run workload E; take another workload or store")]
    NoScans {
        /// Its name.
        store: &'static str,
    },
}

/// A store.
pub trait Store {
    /// Sends all requests, then reads all answers. Returns how many reads found nothing.
    ///
    /// # Errors
    /// What the store refused, and a connection that broke; some of the requests may have been carried out.
    fn send(&mut self, requests: &[Request<'_>]) -> Result<u64, StoreError>;
}
