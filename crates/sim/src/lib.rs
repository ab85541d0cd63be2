//! sim: a machine that is not there, for questions about memory traffic.
//!
//! Here: what a machine is to a cache line ([`mod@machine`]), its steady state under closed-loop demand ([`flow`]), workloads
//! and their pages ([`mod@workload`], [`pages`]), where policies put those ([`mod@policy`], [`mod@compare`]), what comes of it
//! ([`mod@metrics`]), a machine in time with controllers that move pages ([`live`]), a fleet of such machines ([`fleet`]),
//! accesses drawn one by one ([`stream`]), and how all that stands to published figures ([`published`]).
//! Not here: files, clocks, the live system. Same in, same out; chance comes from a seed. What comes out is *simulated* and
//! is to be called so.
//! Read next: `flow/network.rs` for the model, `published/mod.rs` for how far to trust it.
#![forbid(unsafe_code)]

pub mod alias;
pub mod compare;
pub mod fleet;
pub mod flow;
pub mod live;
pub mod machine;
pub mod metrics;
pub mod pages;
pub mod policy;
pub mod published;
pub mod rng;
pub mod stream;
#[cfg(test)]
mod testkit;
mod threads;
pub mod workload;

pub use compare::{Compared, compare};
pub use machine::Machine;
pub use policy::Policy;
pub use workload::Workload;
