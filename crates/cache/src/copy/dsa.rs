//! Intel's Data Streaming Accelerator (the kernel's `idxd`), driven from user space.
//!
//! [`format`](mod@format) has the bytes, [`discover`](mod@discover) finds the work queues a machine offers to users,
//! [`open`](mod@open) opens one and finds out how it takes descriptors, [`queue`] is the driver, [`fleet`] is several queues by
//! NUMA node. None of this has been run on the device itself: its tests run the driver against a queue in software, and
//! `write()` submission against a pipe. Not here: how queues are configured (docs/cache-copy.md), and waiting by UMWAIT.

pub mod discover;
pub mod fleet;
pub mod format;
mod group;
mod judge;
pub(super) mod line;
pub mod open;
mod portal;
pub mod queue;
pub mod submit;
#[cfg(test)]
mod tests;

pub use discover::{Discovery, Mode, WorkQueue, discover};
pub use fleet::Dsa;
pub use open::{OpenError, open};
pub use queue::{Counts, Limits, Queue, QueueConfig};
pub use submit::{Submit, SubmitError, WriteDoor};
