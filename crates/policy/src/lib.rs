//! policy: decisions as pure functions of observations.
//!
//! Here: one node's bandwidth at a read:write mix ([`bandwidth`]), interleave weights that add up the bandwidth of
//! several nodes ([`mod@weights`]), promotion and demotion between tiers ([`tiering`]), budgets of near memory
//! ([`budget`]), weights for new memory under load ([`interleave`]), the advice page for programs that place memory
//! ([`advice`], [`advisor`]), and the distribution of traffic over controllers and links ([`traffic`]). Not here:
//! measuring (crates kernel and probe), carrying out decisions (crate kernel). This crate has no I/O, no clock, no
//! randomness and no unsafe code: equal inputs give equal outputs. Decisions use whole numbers; the one model that
//! needs real numbers ([`traffic::model`]) keeps them internal and bit-exact on all machines. Read next: `weights.rs`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod advice;
pub mod advisor;
pub mod bandwidth;
pub mod budget;
pub mod interleave;
pub mod ports;
pub mod tiering;
pub mod traffic;
pub mod weights;

pub use bandwidth::{BandwidthByMix, BandwidthError};
pub use weights::{TOLERANCE, Unweighable, Weights, weights, worthwhile};
