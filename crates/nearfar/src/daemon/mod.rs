//! The daemon: a process that measures how busy each node's memory is and says so to those who place some.
//!
//! `options` is what may be asked for, in a file or by command; `plan` what that is on this machine; `look` measures; `service` does
//! so again and again and publishes it; `status` reads what is published. What is made of a look is `nearfar_policy::advisor`,
//! what is published `nearfar_policy::advice`.

mod look;
pub(crate) mod options;
pub(crate) mod plan;
pub(crate) mod service;
pub(crate) mod status;
