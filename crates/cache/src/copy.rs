//! Copying batches of items between memory tiers.
//!
//! A mover prepares the targets of a batch, passes its [`Job`]s to a [`Copier`], and publishes the items that are
//! unchanged (`placement/shift.rs`). Two copiers are here: the CPU ([`Cpu`]) and Intel's Data Streaming Accelerator
//! ([`Dsa`]), selected by [`Copying`].
//!
//! # Concurrent edits
//! A job reads words that other threads may be writing, and writes words that other threads may be reading: a lock-free
//! reader may still hold the place of the previous item. This is no data race, because both sides use atomic accesses:
//! - arenas consist of atomic words and are only accessed as such, by the string instruction, or by `cpu.rs`;
//! - the CPU copies relaxed atomic words, or uses assembly opaque to the compiler, which loads and stores each byte
//!   once; a device accesses memory from outside of the program, as another thread does.
//!
//! A torn copy is therefore possible, and detected: the header of the source is compared after the copy, and the item
//! is published only if it is the same. [`Copier::copy`] guarantees the order that this needs: stores before the call
//! (the target's header, with its mark of an incomplete item) are visible before any word of a copy, the words of a
//! source are read before the call returns, and copies are visible before any store after the call.

mod cpu;
mod dsa;
mod job;
#[cfg(test)]
pub(crate) mod testkit;

use core::fmt::Debug;
use std::sync::Arc;

pub use cpu::Cpu;
pub use dsa::{Discovery, Dsa, Mode, NoDsa, WorkQueue, discover};
pub use job::Job;

/// Default limit of items per batch.
const AT_ONCE: usize = 16;

/// Result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All words were copied.
    Done,
    /// A device took the job and did not complete it, nor could its queue be drained. It may still write the target at any time:
    /// the target must never be used again.
    Unfinished,
}

/// Copies batches of jobs.
pub trait Copier: Debug + Send + Sync {
    /// Copies all jobs, in any order, and waits for them. Afterwards `outcomes` has the result of each job, in their
    /// order.
    fn copy(&self, jobs: &[Job<'_>], outcomes: &mut Vec<Outcome>);

    /// Maximal number of items per batch.
    fn at_once(&self) -> usize {
        AT_ONCE
    }
}

/// Selects the copier of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copying {
    /// The CPU.
    #[default]
    Cpu,
    /// Intel's DSA; an error without a usable work queue.
    Dsa,
    /// DSA if a work queue is usable, otherwise the CPU.
    Auto,
}

impl Copying {
    /// All variants with their names.
    pub const ALL: [(&str, Self); 3] =
        [("cpu", Self::Cpu), ("dsa", Self::Dsa), ("auto", Self::Auto)];

    /// Opens the copier on this machine.
    ///
    /// # Errors
    /// [`NoDsa`], if DSA is required and no work queue can be used.
    pub fn open(self) -> Result<Arc<dyn Copier>, NoDsa> {
        match self {
            Self::Cpu => Ok(Arc::new(Cpu)),
            Self::Dsa => Ok(Arc::new(Dsa::open()?)),
            Self::Auto => Self::Dsa.open().or_else(|_| Self::Cpu.open()),
        }
    }
}
