//! sim: a simulated machine, for questions about memory traffic.
//!
//! Here: properties of a machine that affect cache lines ([`mod@machine`]), its steady state under closed-loop demand
//! ([`flow`]), workloads and their pages ([`mod@workload`], [`pages`]), placements by policies ([`mod@policy`],
//! [`mod@compare`]), figures ([`mod@metrics`]), a machine in time with controllers that migrate pages ([`live`]), a
//! fleet of such machines ([`fleet`]), individually drawn accesses ([`stream`]), and the comparison with published
//! figures ([`published`]). Not here: files, clocks, the live system. Equal inputs give equal outputs; random numbers
//! come from a seed. Results are *simulated* and must be labelled as such.
//! Read next: `flow/network.rs` for the model, `published/mod.rs` for how far to trust it.
#![forbid(unsafe_code)]

pub mod alias;
pub mod compare;
pub mod fleet;
pub mod flow;
pub mod live;
pub mod machine;
pub mod metrics;
mod oracle;
pub mod pages;
pub mod policy;
pub mod published;
pub mod rng;
pub mod stream;
pub mod studies;
#[cfg(test)]
mod testkit;
mod threads;
mod unable;
pub mod workload;

pub use compare::{Compared, compare};
pub use machine::Machine;
pub use policy::Policy;
pub use unable::Unable;
pub use workload::Workload;
