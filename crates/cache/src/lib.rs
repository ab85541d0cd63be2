//! cache: items over several tiers of memory and a block device, behind one index.
//!
//! Here: what a front end asks of a cache ([`store`]); what benchmarks ask of one ([`workload`]).
//! Not here: which memory is near and which is far (the caller says it in nodes), and the command line.

pub mod store;
pub mod workload;
