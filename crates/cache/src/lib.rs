//! cache: items over several tiers of memory, behind one index.
//!
//! Here: the cache ([`Cache`]), what goes first ([`evict`]), who moves items between tiers ([`mover`]), copying in batches
//! ([`copy`]), what a front end asks of a cache ([`store`]), memcached's protocol over that ([`proto`]), and its server
//! ([`server`]). Not here: which memory is near and which is far (the caller
//! says it in policies of memory), and the command line. Read next: `item.rs` for what lies in memory, `index.rs` for how it
//! is found, then `cache.rs`.

mod arena;
mod cache;
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
pub mod server;
mod space;
mod stats;
pub mod store;

#[cfg(test)]
mod tests;

pub use arena::PageSize;
pub use cache::Cache;
pub use config::{Config, Error, Making, Tier};
pub use space::Counts;
pub use stats::{ClassStats, Stats, TierStats};
