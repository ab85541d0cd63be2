//! cache: items over several tiers of memory and a block device, behind one index.
//!
//! Here: what a front end asks of a cache ([`store`]), and the tier on a block device ([`disk`]).
//! Not here: which memory is near and which is far (the caller says it in nodes), and the command line.

pub mod disk;
pub mod store;
