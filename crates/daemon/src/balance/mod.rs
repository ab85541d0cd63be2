//! Traffic management on the live machine: sensors and page migration behind a [`nearfar_control::balancing::Loop`].
//!
//! - [`service`]: the process: start, loop, stop, restore.
//! - [`options`]: the options; `scope`: the processes it is about.
//! - `choice`: the sensors in use; `model`: latencies and bandwidths of the machine; `pages`: migration of pages.
//! - `rivals`: other programs that migrate the same pages.
//! - [`state`]: the status file, filled by `telling`, formatted by `words`.

mod choice;
mod model;
pub mod options;
mod pages;
pub(crate) mod rivals;
mod scope;
pub mod service;
pub mod state;
mod telling;
mod words;

pub use model::layout;
