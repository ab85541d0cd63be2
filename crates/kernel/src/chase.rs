//! Present load latency of a node, by a chain of dependent loads ([`Chase`]); and the clocks that go with it.

use nearfar_topology::Nanoseconds;

use crate::sys::clock;

mod region;

pub use region::Chase;

/// Time on the monotonic clock, which all processes share.
#[must_use]
pub fn now() -> Nanoseconds {
    clock::monotonic()
}

/// CPU time of this process.
#[must_use]
pub fn own_cpu() -> Nanoseconds {
    clock::own_cpu()
}
