//! cache: items over several tiers of memory and one on disk, behind one index.
//!
//! Here: the cache ([`Cache`]), what goes first ([`evict`]), who moves items between tiers ([`mover`]), the tier on disk
//! ([`disk`]), copying in batches ([`copy`]), what a front end asks of a cache ([`store`]), memcached's protocol over that
//! (`proto`) and its server (`server`), both with the feature `serve`; a cache as a program has it that keeps it itself
//! ([`local`]), and by settings in words (`settings` and `tiers`, with the feature `words`). The engine itself does not know which
//! memory is near and which is far: its [`Config`] has policies of memory. Not here: the command line, and the C and Python
//! interfaces (artefacts), which forward to [`local`]. Read next: `item.rs` for what lies in memory, `index.rs` for how it is found,
//! then `cache.rs`; for the disk `below/mod.rs`.
//!
//! ```
//! use nearfar_cache::{Cache, Config};
//!
//! let cache = Cache::new(&Config::of_bytes(64 << 20))?;
//! cache.set(b"key", b"value")?;
//! let mut value = Vec::new();
//! assert!(cache.get(b"key", &mut value));
//! assert_eq!(value, b"value");
//! assert!(cache.delete(b"key") && !cache.get(b"key", &mut value));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arena;
mod balance;
mod below;
mod cache;
mod chain;
mod config;
pub mod copy;
pub mod disk;
mod edit;
pub mod evict;
mod index;
mod item;
pub mod local;
pub mod mover;
mod notes;
#[cfg(feature = "serve")]
pub mod proto;
mod reap;
mod rob;
mod room;
#[cfg(feature = "serve")]
pub mod server;
#[cfg(feature = "words")]
pub mod settings;
mod sizes;
mod space;
mod stats;
pub mod store;
#[cfg(feature = "words")]
pub mod tiers;
#[cfg(feature = "workload")]
pub mod workload;

#[cfg(test)]
mod tests;

#[cfg(all(doctest, feature = "words"))]
#[doc = include_str!("../../../docs/cache-library.md")]
mod manual {}

pub use arena::PageSize;
pub use below::{Lookup, Ticket};
pub use cache::Cache;
pub use config::{Config, DiskTier, Error, Making, Tier};
pub use reap::SLOTS_PER_SECOND;
pub use stats::{ClassStats, Counts, DiskStats, Stats, TierStats};
