//! policy: what to do, as pure functions from observations to decisions.
//!
//! Here: one node's bandwidth at a read:write mix ([`bandwidth`]), the weights that use several nodes to their measure
//! ([`mod@weights`]), which pages are to change tiers ([`tiering`]), where new memory goes while memory is busy
//! ([`interleave`]), what is said of it to those who place memory ([`advice`], [`advisor`]), and how traffic is spread over
//! controllers and links ([`traffic`]).
//! Not here: where figures come from (crates kernel and probe) and how a decision is carried out (crate kernel). This
//! crate has no I/O, no clock, no randomness and no unsafe code: same in, same out. It decides in whole numbers; the one model
//! that can't ([`traffic::model`]) keeps real numbers inside, exact to the bit on all machines.
//! Read next: `weights.rs`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod advice;
pub mod advisor;
pub mod bandwidth;
pub mod interleave;
pub mod tiering;
pub mod traffic;
pub mod weights;

pub use bandwidth::{BandwidthByMix, BandwidthError};
pub use weights::{TOLERANCE, Unweighable, Weights, weights, worthwhile};
