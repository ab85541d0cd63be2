//! The CPU as one who copies: small jobs through its caches, large ones around them.
//!
//! A small job's destination is soon in a cache anyway, and a store around caches costs more than one into them as long as
//! the line need not come from memory. A mover's large jobs go to places that nobody reads soon. From which length on is
//! configured; docs/cache-copy.md has what [`measure`](super::measure) said here.

use super::job::Job;
use super::stream::{self, Lanes, Present};
use super::{Copier, Failure, Outcome};

/// From which length on what is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Jobs of so many bytes or more go around the caches.
    pub stream_from: usize,
    /// Jobs of so many bytes or more do so with the widest lanes, others with 16 bytes.
    pub wide_from: usize,
    /// The widest lanes to use, if the machine has them.
    pub lanes: Lanes,
}

impl Default for CpuConfig {
    fn default() -> Self {
        Self { stream_from: 1 << 10, wide_from: 2 << 10, lanes: Lanes::Avx512 }
    }
}

/// What a CPU copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounts {
    /// Jobs, or parts of one, through the caches.
    pub cached: u64,
    /// Bytes of these.
    pub cached_bytes: u64,
    /// Jobs, or parts of one, around the caches.
    pub streamed: u64,
    /// Bytes of these.
    pub streamed_bytes: u64,
}

/// The CPU.
#[derive(Clone, Debug)]
pub struct Cpu {
    config: CpuConfig,
    narrow: Present,
    wide: Present,
    counts: CpuCounts,
}

impl Cpu {
    /// Copies as configured.
    #[must_use]
    pub fn new(config: CpuConfig) -> Self {
        Self {
            config,
            narrow: Present::at_most(config.lanes.min(Lanes::Sse2)),
            wide: Present::at_most(config.lanes),
            counts: CpuCounts::default(),
        }
    }

    /// What it copied until now.
    #[must_use]
    pub fn counts(&self) -> CpuCounts {
        self.counts
    }

    /// Copies one job. Before anybody is told, [`Cpu::fence`].
    pub(super) fn one(&mut self, job: &Job) -> Outcome {
        if job.overlaps() {
            return Outcome::Failed(Failure::Overlap);
        }
        let (length, counts) = (job.length(), &mut self.counts);
        if length < self.config.stream_from {
            stream::cached(job);
            (counts.cached, counts.cached_bytes) =
                (counts.cached + 1, counts.cached_bytes + length as u64);
            return Outcome::Done;
        }
        let lanes = if length < self.config.wide_from { self.narrow } else { self.wide };
        stream::streamed(job, lanes);
        (counts.streamed, counts.streamed_bytes) =
            (counts.streamed + 1, counts.streamed_bytes + length as u64);
        Outcome::Done
    }

    /// Has all that was copied be seen before what is stored from now on.
    pub(super) fn fence(&self) {
        stream::fence();
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new(CpuConfig::default())
    }
}

impl Copier for Cpu {
    fn copy(&mut self, jobs: &[Job], outcomes: &mut Vec<Outcome>) {
        outcomes.clear();
        outcomes.extend(jobs.iter().map(|job| self.one(job)));
        self.fence();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::copy::testkit::Memory;

    fn streaming(lanes: Lanes) -> Cpu {
        Cpu::new(CpuConfig { stream_from: 1, wide_from: 1, lanes })
    }

    #[test]
    fn each_kind_of_lanes_copies_each_length_at_each_alignment_and_nothing_else() {
        for lanes in [Lanes::None, Lanes::Sse2, Lanes::Avx, Lanes::Avx512] {
            for shift in [0, 1, 15, 16, 31, 33, 63] {
                for length in [0, 1, 63, 64, 65, 127, 128, 129, 191, 1000, 4096, 4097] {
                    let mut memory = Memory::shifted(&[length], 3, shift);
                    let outcomes = memory.copy(&mut streaming(lanes));
                    assert_eq!(outcomes, [Outcome::Done]);
                    memory.assert_copied(&outcomes);
                }
            }
        }
    }

    #[test]
    fn length_decides_the_way_and_both_are_counted() {
        let mut cpu = Cpu::new(CpuConfig { stream_from: 100, wide_from: 5000, lanes: Lanes::Avx });
        let mut memory = Memory::new(&[99, 100, 6000]);
        let outcomes = memory.copy(&mut cpu);
        memory.assert_copied(&outcomes);
        let CpuCounts { cached, cached_bytes, streamed, streamed_bytes } = cpu.counts();
        assert_eq!((cached, cached_bytes, streamed, streamed_bytes), (1, 99, 2, 6100));
    }

    #[test]
    fn a_job_whose_places_overlap_is_refused_and_others_are_done() {
        for lanes in [Lanes::None, Lanes::Avx512] {
            let mut memory = Memory::new(&[500, 300]);
            memory.overlap(1, 299);
            let outcomes = memory.copy(&mut streaming(lanes));
            assert_eq!(outcomes, [Outcome::Done, Outcome::Failed(Failure::Overlap)]);
            memory.assert_copied(&outcomes);
        }
        let mut memory = Memory::new(&[300]);
        memory.overlap(0, 300);
        assert_eq!(memory.copy(&mut Cpu::default()), [Outcome::Done], "side by side is apart");
    }

    #[test]
    fn an_empty_batch_has_no_outcomes_whatever_was_there_before() {
        let mut outcomes = vec![Outcome::Done; 3];
        Cpu::default().copy(&[], &mut outcomes);
        assert!(outcomes.is_empty());
        assert!(Lanes::all().iter().all(|lanes| *lanes <= Lanes::widest()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_batch_arrives_whole(
            lengths in prop::collection::vec(0_usize..20_000, 0..40),
            shifts in (0_usize..64, 0_usize..64),
            limits in (0_usize..10_000, 0_usize..10_000),
        ) {
            let config = CpuConfig { stream_from: limits.0, wide_from: limits.1, lanes: Lanes::Avx512 };
            let mut memory = Memory::shifted(&lengths, shifts.0, shifts.1);
            let outcomes = memory.copy(&mut Cpu::new(config));
            prop_assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done));
            memory.assert_copied(&outcomes);
        }
    }
}
