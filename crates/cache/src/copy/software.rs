//! A work queue in software: no device, but the same descriptors and completion records as one.
//!
//! The driver of [`dsa`](super::dsa) is tested with it, as no device was at hand, and it goes wrong when told to: full, out of
//! order, page faults, batches half done, refusals of each kind, descriptors lost, and a device that hangs and writes late.
//! It knows batches, drains, moves and nothing at all; other operations it calls invalid. It is not made to be fast: how long
//! anything takes says nothing about a device. Work is done by a thread ([`Worker`]), or by whoever waits ([`SoftwareQueue`]
//! with [`Pace::OnCall`]); descriptors may also come from a pipe ([`serve_pipe`]).

mod device;
mod memory;
mod pipe;
mod work;

pub use device::{Pace, SoftwareDevice, SoftwareQueue, Worker};
pub use pipe::serve_pipe;
pub use work::{Act, Order, Script, SoftwareConfig, always};

#[cfg(test)]
mod tests;
