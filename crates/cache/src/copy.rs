//! Copying batches of items between tiers, for the movers that work in the background.
//!
//! A mover hands over a batch of [`Job`]s, one to some hundred, and learns what became of each: done, or failed and why.
//! Whoever copies is behind one trait, [`Copier`]: the CPU ([`cpu`]), an Intel DSA ([`dsa`]) or both at once ([`hybrid`]).
//! No DSA was at hand: its driver has been run against a queue in software only ([`software`]), and what the hybrid comes to
//! with a real one is simulated ([`simulate`]). Not here: which items move, and when a place may be used again.
//! Start at `cpu.rs`, then `dsa/queue.rs`.

pub mod clock;
pub mod cpu;
pub mod dsa;
pub mod hybrid;
mod job;
pub mod measure;
pub mod simulate;
pub mod software;
pub mod split;
mod stream;
#[cfg(test)]
mod testkit;
pub mod tuner;

pub use job::{Job, Place};
pub use stream::Lanes;

/// Why a job was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Source and destination have bytes in common. Nothing was copied.
    #[error("the source and the destination overlap; nothing was copied")]
    Overlap,
    /// A device took the job and did not come back within its time, nor could its queue be drained. It may still write the
    /// destination at any time, so nobody is to use that until [`Copier::settled`] names it.
    #[error(
        "the device took the job and did not come back; the destination can't be used until it is settled"
    )]
    Unfinished,
}

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All bytes are at the destination, and seen there by whoever learns of it from this thread.
    Done,
    /// It was not done.
    Failed(Failure),
}

/// Somebody who copies.
pub trait Copier {
    /// Copies all jobs, in any order, and waits for it. `outcomes` is then what became of each, in the order of the jobs;
    /// what was in it before is gone.
    fn copy(&mut self, jobs: &[Job], outcomes: &mut Vec<Outcome>);

    /// Appends to `places` the destinations of jobs that came back as [`Failure::Unfinished`] and that the device has let go
    /// of since: from now on they can be used again. What is in them is worth nothing.
    fn settled(&mut self, places: &mut Vec<Place>) {
        let _ = places;
    }
}

/// What a device did with a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// Bytes it copied.
    pub device_bytes: u64,
    /// Bytes of its share that the CPU had to copy.
    pub cpu_bytes: u64,
    /// Operations that met a page fault.
    pub faults: u64,
}

/// A device that copies while the CPU does something else.
pub trait Overlap: Copier {
    /// Whether it is worth giving it anything.
    fn is_usable(&mut self) -> bool;

    /// Begins to copy a batch; no other is under way. Each start is followed by [`Overlap::finish`]: until then, sources and
    /// destinations stay in use even if this value is dropped.
    fn start(&mut self, jobs: &[Job]);

    /// Does what is due, without waiting. Whether the batch is done.
    fn poll(&mut self) -> bool;

    /// Waits for the batch that was started; `outcomes` is what became of each job.
    fn finish(&mut self, outcomes: &mut Vec<Outcome>) -> Ran;
}

#[cfg(test)]
mod tests {
    use super::clock::Monotonic;
    use super::*;

    #[test]
    fn whoever_copies_can_be_given_to_a_mover_on_another_thread() {
        fn goes<T: Copier + Send + 'static>() {}
        goes::<cpu::Cpu>();
        goes::<dsa::Dsa>();
        goes::<hybrid::Hybrid<dsa::Dsa, Monotonic>>();
    }
}
