//! The services that change memory usage on the live machine, and their common parts.
//!
//! - [`tier`]: promotion and demotion between tiers (`nearfar tier`).
//! - [`budget`]: limits of near memory for cgroups (`nearfar tier start --near-max`), in place of the loop of `tier`.
//! - [`balance`]: traffic management between the nodes of a tier (`nearfar balance`).
//! - [`advice`]: publishes the load of each node to programs that place memory (`nearfar daemon`).
//! - [`history`]: the last decisions, for `nearfar why`.
//! - [`owner`]: one of the first two runs at a time; the claim says which, and how it is stopped.
//! - [`end`]: ends one of them and restores its settings, also after a kill.
//! - `settings`: the kernel's NUMA balancing at a start, and settings as lines of a dry run.
//! - `status`: a status file that can't be written ends no service.
//! - [`recording`]: access records written while pages move.
//!
//! A service takes resolved values (a [`nearfar_command::machine::Machine`], options), never command-line arguments. Decisions are in
//! crates policy and control; here they meet sensors, DAMON and page migration.
#![forbid(unsafe_code)]

pub mod advice;
pub mod balance;
pub mod budget;
pub mod end;
#[cfg(fuzzing)]
pub mod fuzz;
pub mod history;
pub mod last;
pub mod owner;
pub mod recording;
mod settings;
mod status;
pub mod tier;
pub mod why;
