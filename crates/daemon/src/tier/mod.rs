//! Tiering on the live machine: DAMON and page migration behind a [`nearfar_control::tiering::Loop`] for each boundary between
//! tiers.
//!
//! - [`service`]: the process: start, loop, stop, restore. [`options`]: the options; [`change`]: changing them while it runs.
//! - `preview`: the dry run of a start.
//! - [`plan`]: the nodes of each tier; `scope`: the memory that is tiered.
//! - [`damon`]: scans and migration, by `schemes`; `passes` and `intervals`: their timing; `reading`: reads of memory and CPU time. Addresses,
//!   targets and yields are decided in [`nearfar_policy::tiering`].
//! - [`state`]: the status file; `log`: the access record.

pub mod change;
pub mod damon;
mod intervals;
pub(crate) mod log;
pub mod options;
mod passes;
pub mod plan;
mod preview;
mod reading;
pub mod schemes;
pub(crate) mod scope;
pub mod service;
pub mod state;

pub use preview::preview;
