//! Stores: several requests are sent at once and their answers read, with any protocol.

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
        /// The pieces, with their new content.
        pieces: Vec<(u32, &'a [u8])>,
        /// Whether the record is new; then all pieces are present.
        new: bool,
    },
    /// Records in the order of keys.
    Scan {
        /// First key.
        key: String,
        /// Number of records.
        records: u64,
    },
}

/// A wrong or missing answer of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store can't be reached.
    #[error("connecting to {store} at {address}: {source}; is it running there?")]
    Unreachable {
        /// Its name.
        store: &'static str,
        /// Its address.
        address: String,
        /// The error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The connection broke.
    #[error("talking to memcached: {0}")]
    Broken(#[from] io::Error),
    /// Redis returned an error.
    #[error("redis: {0}; out of memory? see maxmemory and --records")]
    Redis(#[from] ::redis::RedisError),
    /// The store refused a request.
    #[error("memcached answered `{said}` to {to}{hint}")]
    Refused {
        /// The request.
        to: String,
        /// The answer.
        said: String,
        /// The remedy, if known.
        hint: &'static str,
    },
    /// The store does not support scans.
    #[error("{store} has no scans, so it can't run workload E; take another workload or store")]
    NoScans {
        /// Its name.
        store: &'static str,
    },
}

/// A store.
pub trait Store {
    /// Sends all requests, then reads all answers. Returns the number of reads that missed.
    ///
    /// # Errors
    /// The store refused a request, or the connection broke; some of the requests may have been carried out.
    fn send(&mut self, requests: &[Request<'_>]) -> Result<u64, StoreError>;
}
