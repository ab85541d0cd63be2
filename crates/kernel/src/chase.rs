//! How long a load takes on a node now, by a chain of loads of our own ([`Chase`]); and the clocks that go with it.

use nearfar_topology::Nanoseconds;

pub use crate::sys::chase::Chase;
use crate::sys::clock;

/// What has passed on the monotonic clock, which all processes share.
#[must_use]
pub fn now() -> Nanoseconds {
    clock::monotonic()
}

/// CPU time that this process has had.
#[must_use]
pub fn own_cpu() -> Nanoseconds {
    clock::own_cpu()
}
