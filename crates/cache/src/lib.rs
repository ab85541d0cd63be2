//! cache: items over several tiers of memory and one on disk, behind one index.
//!
//! Here: the cache ([`Cache`]), what goes first ([`evict`]), who moves items between tiers ([`mover`]), the tier on disk
//! ([`disk`]), copying in batches ([`copy`]), what a front end asks of a cache ([`store`]), memcached's protocol over that ([`proto`]), and its server
//! ([`server`]). Not here: which memory is near and which is far (the caller
//! says it in policies of memory), and the command line. Read next: `item.rs` for what lies in memory, `index.rs` for how it
//! is found, then `cache.rs`; for the disk `below/mod.rs`.

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
pub mod mover;
mod notes;
pub mod proto;
mod rob;
mod room;
pub mod server;
mod sizes;
mod space;
mod stats;
pub mod store;
pub mod workload;

#[cfg(test)]
mod tests;

pub use arena::PageSize;
pub use below::{Lookup, Ticket};
pub use cache::Cache;
pub use config::{Config, DiskTier, Error, Making, Tier};
pub use space::Counts;
pub use stats::{ClassStats, DiskStats, Stats, TierStats};
