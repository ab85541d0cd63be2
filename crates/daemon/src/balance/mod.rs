//! Traffic management on the live machine: sensors and page migration behind a [`nearfar_control::balancing::Loop`].
//!
//! - [`service`]: the process: start, loop, stop, restore.
//! - [`options`]: the options; `scope`: the processes it is about.
//! - `choice`: the sensors in use; `model`: latencies and bandwidths of the machine; `pages`: migration of pages.
//! - `other_movers`: other programs that migrate the same pages.
//! - [`state`]: the status file, filled by `report`, formatted by `text`.

mod choice;
mod model;
pub mod options;
pub(crate) mod other_movers;
mod pages;
mod report;
mod scope;
pub mod service;
pub mod state;
mod text;

pub use model::layout;
