//! cache: items over several tiers of memory and one on disk, behind one index.
//!
//! Contents: the cache ([`Cache`]), eviction policies ([`evict`]), movers between tiers ([`mover`]), the disk tier
//! ([`disk`], a crate of its own), copying in batches ([`copy`]), the interface for front ends ([`store`]), a cache
//! embedded in a program ([`local`]), and its configuration by text (`settings` and `tiers`, with the feature `words`).
//! The engine itself does not distinguish near and far memory: its [`Config`] has memory policies. Not in this crate:
//! memcached's protocol and its server (`nearfar-memcached`), the command line, and the C and Python interfaces
//! (artefacts), which forward to [`local`]. Read next: `item.rs` for the layout in memory, `index.rs` for lookup, then
//! `contents.rs` and `cache.rs`; for the disk `below/mod.rs`.
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
mod below;
mod cache;
mod chain;
mod config;
mod contents;
pub mod copy;
mod edit;
pub mod evict;
mod expire;
mod fetcher;
mod figures;
mod hints;
mod index;
mod item;
pub mod local;
pub mod mover;
mod on_disk;
mod order;
mod placement;
mod promotions;
mod read;
#[cfg(feature = "words")]
pub mod settings;
mod sizes;
mod slab_balance;
mod space;
mod stats;
pub mod store;
mod sync;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
#[cfg(feature = "words")]
pub mod tiers;

#[cfg(test)]
mod tests;

#[cfg(all(doctest, feature = "words"))]
#[doc = include_str!("../../../docs/cache-library.md")]
mod manual {}

pub use arena::PageSize;
pub use cache::Cache;
pub use config::{Config, DiskTier, Error, Making, Tier};
pub use expire::SLOTS_PER_SECOND;
pub use nearfar_cache_disk as disk;
pub use on_disk::{Lookup, Ticket};
pub use stats::{ClassStats, Counts, DiskStats, Stats, TierStats};
