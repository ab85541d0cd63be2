//! workload: what is asked of a cache, as functions of a seed or of a trace's lines.
//!
//! [`Synthetic`] draws requests by popularity, sizes and a mix of operations: a Zipf distribution of any exponent, a uniform
//! one, or the distributions of a cachebench configuration ([`cachebench`]). [`Trace`] reads the public traces of Meta and
//! Twitter line by line. [`Arrivals`] says when requests are due, [`value`] what bytes a value has, so that a wrong one is seen.
//! Not here: clocks, files, sockets, threads. The same seed gives the same requests on any machine.

mod alias;
mod arrivals;
pub mod cachebench;
mod popularity;
mod random;
mod sizes;
mod synthetic;
mod trace;
pub mod value;
mod zipf;

pub use arrivals::{Arrivals, Spacing};
pub use popularity::{BUCKETS, Buckets};
pub use random::Random;
pub use sizes::Sizes;
pub use synthetic::{Parts, Popularity, Ratios, Stream, Synthetic};
pub use trace::{Format, Reason, Trace, TraceError};
pub use zipf::Zipf;

/// A key has at most as many bytes as memcached takes.
pub const KEY_MAX: usize = 250;
/// A value has at most so many bytes.
pub const VALUE_MAX: usize = 128 << 20;

/// What is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Read a key that is known.
    #[default]
    Get,
    /// Read a key that nobody has stored, a new one each time.
    LoneGet,
    /// Store a key that is known.
    Set,
    /// Store a new key, which nobody asks for again.
    LoneSet,
    /// Read a key and, if it is there, store it anew.
    Update,
    /// Remove a key.
    Delete,
}

/// One request. Made once and filled again for each, so that keys take no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// What is asked.
    pub op: Op,
    /// Of which key: 1 to [`KEY_MAX`] bytes, none of them a space or a control character.
    pub key: Vec<u8>,
    /// Bytes of its value, at most [`VALUE_MAX`].
    pub value_bytes: usize,
    /// Seconds it lives; 0 is for ever.
    pub ttl: u32,
    /// A read that finds nothing stores the key (look-aside).
    pub fill: bool,
}

/// Why a workload can't be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unusable {
    /// No keys, or more than can be told apart.
    #[error("{0} keys; a workload has 1 to {max}", max = synthetic::KEYS_MAX)]
    Keys(u64),
    /// An exponent of Zipf's law.
    #[error("exponent {0}; Zipf's law is drawn for 0 to {max}", max = zipf::EXPONENT_MAX)]
    Exponent(f64),
    /// Values and weights of a distribution that do not fit each other.
    #[error(
        "{what}: {values} values and {weights} weights; as many make a discrete distribution, one weight less makes pieces"
    )]
    Lengths {
        /// Which distribution.
        what: &'static str,
        /// How many values.
        values: usize,
        /// How many weights.
        weights: usize,
    },
    /// A weight that is none.
    #[error("{what}: weight {found}; weights are finite, at least 0 and not all 0")]
    Weight {
        /// Which distribution.
        what: &'static str,
        /// The weight.
        found: f64,
    },
    /// A size that is none.
    #[error("{what}: {found} bytes or seconds; at most {max}, and pieces in ascending order")]
    Size {
        /// Which distribution.
        what: &'static str,
        /// The size.
        found: f64,
        /// The most it may be.
        max: u64,
    },
    /// A configuration of cachebench that is not understood.
    #[error("cachebench configuration: {0}")]
    Config(String),
}
