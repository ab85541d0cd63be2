//! proto: memcached's protocol, classic text and meta commands, over any [`Store`](nearfar_cache::store::Store).
//!
//! It maps bytes to bytes ([`Connection`]); the state shared by all connections is a [`Service`]. Sockets, clock and
//! threads are in [`server`](crate::server). docs/cache-protocol.md documents the replies, and the differences from
//! memcached. Read next: `connection.rs`, then `dispatch.rs` for the dispatch of commands.

mod admin;
mod connection;
mod counters;
mod deferred;
mod detail;
mod dispatch;
mod dump;
mod flags;
mod keys;
mod meta;
mod pending_reads;
mod service;
mod stats;
mod storage;
#[cfg(any(test, fuzzing, feature = "testkit"))]
pub mod testkit;
mod text;

#[cfg(test)]
mod tests;

pub use connection::{Connection, Doing, Fed, Stop};
pub use counters::{COUNTED, Counters};
pub use dispatch::Dispatch;
pub use pending_reads::PendingReads;
pub use service::{
    Figures, Host, ITEM_OVERHEAD, KEY_MAX, LINE_MAX, RELATIVE_MAX, Service, Settings, Shutdown,
    VERSION,
};
