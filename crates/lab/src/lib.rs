//! lab: a real kernel on an emulated machine whose far memory is slower.
//!
//! Here: machine files ([`machine`]), the download cache ([`fetch`]), the guest's first file system ([`image`]), starting
//! QEMU and talking to the guest ([`host`], `wire`), the guest's side (`guest`), the command line ([`cli`]) that both
//! `nearfar-lab` and `nearfar lab` are, and how a guest asks the emulated PMU ([`pmu`]). Not here: what an access costs
//! (crate timing) and the live system's memory. Read next: `host/mod.rs` for the life of a run.
#![forbid(unsafe_code)]

pub mod check;
pub mod cli;
pub mod fetch;
pub mod host;
pub mod image;
pub mod machine;

pub use nearfar_timing::pmu;

mod clock;
mod guest;
mod wire;
