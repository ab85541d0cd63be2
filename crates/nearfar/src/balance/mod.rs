//! Balancing on the live machine: sensors and the kernel's moving of pages behind a [`nearfar_control::balancing::Loop`].
//!
//! [`service`] is the process that does it. [`options`] is what can be set, [`scope`] whose memory it is about, [`choice`] which
//! sensors it sees by, [`model`] what the machine is taken for, [`pages`] does what the loop asks, [`rivals`] finds who else moves
//! the same pages; [`state`] is the file that tells `nearfar balance status` and `stop` of it, filled in by [`telling`] and
//! put in [`words`].

mod choice;
mod model;
pub(crate) mod options;
mod pages;
pub(crate) mod rivals;
mod scope;
pub(crate) mod service;
pub(crate) mod state;
mod telling;
mod words;
