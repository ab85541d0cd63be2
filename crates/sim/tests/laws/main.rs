//! Laws of the simulator: properties of any machine, under any workload, for any seed.
//!
//! `machines` draws machines and workloads; the other modules each state the laws of one part. Not here: published figures and
//! calibrated cases, which the tests beside the code have.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod best;
mod built;
mod chance;
mod compare;
mod exact;
mod figures;
mod fleet;
mod flow;
mod hand;
mod idle;
mod links;
mod loops;
mod machines;
mod moves;
mod network;
mod oracle;
mod pages;
mod placements;
mod policies;
mod published;
mod readings;
mod settled;
mod stream;
mod stripes;
mod studies;
mod workloads;
mod world;
