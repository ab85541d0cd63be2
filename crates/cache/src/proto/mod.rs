//! proto: memcached's protocol, classic text and meta commands, over any [`Store`](crate::store::Store).
//!
//! Here: bytes in, bytes out ([`Connection`]); what is common to all connections ([`Service`]). No sockets, no clock, no
//! threads: those are [`server`](crate::server)'s. What is answered, and where that differs from memcached, is in
//! docs/cache-protocol.md. Read next: `connection.rs`, then `desk.rs` for which command is which.

mod admin;
mod ahead;
mod connection;
mod counters;
mod desk;
mod detail;
mod dump;
mod flags;
mod gaps;
mod keys;
mod meta;
mod service;
mod stats;
mod storage;
#[cfg(any(test, fuzzing, feature = "testkit"))]
pub mod testkit;
mod text;

#[cfg(test)]
mod tests;

pub use ahead::Ahead;
pub use connection::{Connection, Doing, Fed, Stop};
pub use counters::{COUNTED, Counters};
pub use desk::Desk;
pub use service::{
    Figures, Host, ITEM_OVERHEAD, KEY_MAX, LINE_MAX, RELATIVE_MAX, Service, Settings, Shutdown,
    VERSION,
};
