//! Intel's Data Streaming Accelerator (the kernel's `idxd`), driven from user space.
//!
//! [`discover`](mod@discover) finds the work queues of type user, [`open`](mod@open) opens one and determines its
//! submission method, [`queue`] is the driver of one, [`format`](mod@format) has descriptors and completion records.
//! None of this has run on the device itself: its tests run the driver on a queue in software, and submission by
//! `write()` on a socket. Not here: configuration of queues (docs/cache-copy.md), and waiting by UMWAIT.

mod discover;
mod format;
mod line;
mod open;
mod portal;
mod queue;
mod submit;
#[cfg(test)]
mod tests;

use core::fmt;
use std::path::Path;
use std::sync::Mutex;

pub use discover::{Discovery, Mode, WorkQueue, discover};

use super::job::Job;
use super::{Copier, Outcome, cpu};
use nearfar_kernel::fs::RootFs;
use queue::{Queue, QueueConfig};

/// No work queue is usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoDsa {
    /// The reason for each queue found.
    pub why: Vec<String>,
}

impl fmt::Display for NoDsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match &self.why[..] {
            [] => "no work queue of type user is enabled".to_owned(),
            why => why.join("; "),
        };
        write!(
            f,
            "copying by DSA: {why}; docs/cache-copy.md sets one up, or have the CPU copy (cpu)"
        )
    }
}

impl core::error::Error for NoDsa {}

/// Work queues of one or more DSA devices. A batch goes to one queue: the first one not in use by another thread, with
/// those on the target's NUMA node first, as writes across sockets cost most. Without a free one, the CPU copies.
#[derive(Debug)]
pub struct Dsa(Vec<(Option<u32>, Mutex<Queue>)>);

impl Dsa {
    /// Opens all usable work queues of this machine.
    ///
    /// # Errors
    /// [`NoDsa`], if there are none.
    pub fn open() -> Result<Self, NoDsa> {
        let fs = RootFs::live().map_err(|error| NoDsa { why: vec![error.to_string()] })?;
        let Discovery { queues, findings: mut why } = discover(&fs);
        let mut opened = Vec::new();
        for found in queues {
            match open::open(&found, Path::new("/dev/dsa"), QueueConfig::default()) {
                Ok(queue) => opened.push(queue),
                Err(error) => why.push(error.to_string()),
            }
        }
        if opened.is_empty() { Err(NoDsa { why }) } else { Ok(Self::of(opened)) }
    }

    fn of(queues: Vec<Queue>) -> Self {
        Self(queues.into_iter().map(|queue| (queue.node(), Mutex::new(queue))).collect())
    }
}

impl Copier for Dsa {
    fn copy(&self, jobs: &[Job<'_>], outcomes: &mut Vec<Outcome>) {
        outcomes.clear();
        outcomes.resize(jobs.len(), Outcome::Done);
        let node = jobs.first().and_then(Job::node);
        let is_far = |queue: Option<u32>| queue.zip(node).is_some_and(|(one, other)| one != other);
        let free = |far: bool| {
            let queues = self.0.iter().filter(move |(node, _)| is_far(*node) == far);
            queues.filter_map(|(_, queue)| queue.try_lock().ok()).find(|queue| queue.is_usable())
        };
        match free(false).or_else(|| free(true)) {
            Some(mut queue) => queue.copy(jobs, outcomes),
            None => {
                cpu::fence();
                jobs.iter().for_each(cpu::copy);
                cpu::fence();
            }
        }
    }
}
