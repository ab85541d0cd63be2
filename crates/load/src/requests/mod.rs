//! Requests to a cache, as functions of a seed or of a trace's lines.
//!
//! [`Synthetic`] generates requests by popularity, sizes and a mix of operations: a Zipf distribution of any exponent,
//! a uniform one, or the distributions of a cachebench configuration ([`cachebench`]). [`Trace`] reads public
//! traces (Meta's, Twitter's, libCacheSim's) line by line. [`Arrivals`] has the due times of requests, [`value`] the content of
//! values, by which a wrong one is detected. Not here: clocks, files, sockets, threads. The same seed gives the same
//! requests on any machine.

mod alias;
mod arrivals;
pub mod cachebench;
mod popularity;
mod sizes;
mod synthetic;
mod trace;
pub mod value;
mod zipf;

pub use arrivals::{Arrivals, Spacing};
pub use popularity::{BUCKETS, Buckets};
pub use sizes::Sizes;
pub use synthetic::{Parts, Popularity, Ratios, Stream, Synthetic};
pub use trace::{Format, Layout, Picked, Reason, Table, Trace, TraceError};
pub use zipf::Zipf;

/// The most bytes of a key, as in memcached.
pub const KEY_MAX: usize = 250;
/// The most bytes of a value.
pub const VALUE_MAX: usize = 128 << 20;

/// An operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Read a known key.
    #[default]
    Get,
    /// Read a key that was never stored, a new one each time.
    LoneGet,
    /// Store a known key.
    Set,
    /// Store a new key, which is not requested again.
    LoneSet,
    /// Read a key and, if it is present, store it again.
    Update,
    /// Remove a key.
    Delete,
}

/// One request. Made once and refilled for each, so that keys need no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// Its key: 1 to [`KEY_MAX`] bytes, none of them a space or a control character.
    pub key: Vec<u8>,
    /// Bytes of its value, at most [`VALUE_MAX`].
    pub value_bytes: usize,
    /// Time to live in seconds; 0 is without expiry.
    pub ttl: u32,
    /// Whether a read that misses stores the key (look-aside).
    pub fill: bool,
}

/// Reasons why a workload is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unusable {
    /// No keys, or more than can be distinguished.
    #[error("{0} keys; a workload has 1 to {max}", max = synthetic::KEYS_MAX)]
    Keys(u64),
    /// An invalid exponent of Zipf's law.
    #[error("exponent {0}; Zipf's law is drawn for 0 to {max}", max = zipf::EXPONENT_MAX)]
    Exponent(f64),
    /// Numbers of values and weights of a distribution that do not match.
    #[error(
        "{what}: {values} values and {weights} weights; as many make a discrete distribution, one weight less makes pieces"
    )]
    Lengths {
        /// The distribution.
        what: &'static str,
        /// Number of values.
        values: usize,
        /// Number of weights.
        weights: usize,
    },
    /// An invalid weight.
    #[error("{what}: weight {found}; weights are finite, at least 0 and not all 0")]
    Weight {
        /// The distribution.
        what: &'static str,
        /// The weight.
        found: f64,
    },
    /// An invalid size.
    #[error("{what}: {found} bytes or seconds; at most {max}, and pieces in ascending order")]
    Size {
        /// The distribution.
        what: &'static str,
        /// The size.
        found: f64,
        /// The largest valid size.
        max: u64,
    },
    /// A configuration of cachebench that is not supported.
    #[error("cachebench configuration: {0}")]
    Config(String),
}
