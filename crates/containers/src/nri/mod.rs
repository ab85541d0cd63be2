//! The node resource interface (NRI): a plugin of containerd or CRI-O that places the memory of containers.
//!
//! A connection is a unix socket with multiplexed frames ([`frame`]) that have ttrpc messages ([`ttrpc`]), which have
//! protobuf messages ([`messages`]) of `nri.pkg.api.v1alpha1`. The runtime calls the plugin: [`plugin`] answers, and
//! [`session`] carries the bytes. Everything is blocking, on one thread: the runtime waits for each answer anyway.
//! Sizes are bounded, and a malformed frame or message ends the connection.

pub mod frame;
mod log;
pub mod messages;
pub mod metrics;
pub mod plugin;
pub mod session;
pub mod ttrpc;

#[cfg(test)]
mod fake;
#[cfg(fuzzing)]
mod fuzz;
#[cfg(fuzzing)]
pub use fuzz::fuzz;
