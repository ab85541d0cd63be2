//! The daemon: a process that measures the load of each node's memory and publishes it to programs that place memory.
//!
//! `options` has the options of file and command line; `plan` applies them to this machine; `look` samples; `service`
//! repeats that and publishes the result; `status` reads the published page. Samples are evaluated in
//! `nearfar_policy::advisor`; the page is defined in `nearfar_policy::advice`.

mod look;
pub mod options;
pub(crate) mod plan;
pub mod service;
pub mod status;
