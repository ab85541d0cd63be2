//! An event counter, as readers and devices use it to be woken.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// An event counter that can be polled.
pub(super) fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Resets it to 0.
pub(super) fn reset(event: &OwnedFd) {
    // An empty counter needs no reset.
    let _ = rustix::io::read(event, &mut [0_u8; 8]);
}
