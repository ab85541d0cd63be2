//! cache: items over several tiers of memory and a block device, behind one index.
//!
//! Here: what a front end asks of a cache ([`store`]), memcached's protocol over that ([`proto`]), and its server ([`server`]).
//! Not here: which memory is near and which is far (the caller says it in nodes), and the command line.

pub mod proto;
pub mod server;
pub mod store;
