//! memcached: the memcached protocol over any store, and the server that speaks it over sockets.
//!
//! Contents: the protocol without I/O ([`proto`]), over [`Store`](nearfar_cache::store::Store), which the cache
//! implements; the server ([`server`]). Not in this crate: items and memory (`nearfar-cache`), options and signals
//! (the command `nearfar cache serve`).

pub mod proto;
pub mod server;
