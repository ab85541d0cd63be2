//! control: the loops between policy and a machine.
//!
//! Here: when to look, move and rest ([`tiering`]), how several such loops take turns ([`turns`]), and what traffic is seen by
//! ([`sense`]). A loop is driven by `tick(now)` and says when it wants to be called next; it has no clock and does not wait.
//! What it needs of a machine is a trait, so that it does not know whether the machine is real.
//! Not here: decisions (crate policy), and the live system (crate kernel).
#![forbid(unsafe_code)]

pub mod balancing;
pub mod sense;
pub mod tiering;
pub mod turns;
