//! control: the loops between a policy and a machine.
//!
//! Here: the tiering loop of one boundary between tiers ([`tiering`]), the order in which several boundaries take their turns
//! ([`turns`]), and the loop that balances memory traffic ([`balancing`]). A loop is driven by `tick(now)` and returns when it
//! is to be called next; it has no clock and does not wait. The machine is behind the ports of [`nearfar_policy::ports`], so
//! the same loops run on the live system and in the simulator.
//! Not here: decisions (crate policy), and the live system (crates kernel, sensors and daemon).
#![forbid(unsafe_code)]

pub mod balancing;
pub mod tiering;
pub mod turns;
