//! Copying by the CPU: short jobs through its caches, long ones with non-temporal stores around them.
//!
//! A non-temporal store does not read the cache line that it overwrites, and evicts no lines in use by others. Such
//! stores are weakly ordered, hence the fences. docs/cache-copy.md has the measured length from which they are faster.
//! They exist on x86-64 only; elsewhere, and under Miri, all jobs are copied by words.
#![expect(unsafe_code, reason = "memory is copied by instructions the compiler does not see into")]

use super::job::Job;
use super::{Copier, Outcome};
use crate::arena::WORD;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Jobs of at least this many bytes use non-temporal stores.
const STREAM: usize = 1 << 10;

/// The CPU.
#[derive(Clone, Copy, Debug)]
pub struct Cpu;

impl Copier for Cpu {
    fn copy(&self, jobs: &[Job<'_>], outcomes: &mut Vec<Outcome>) {
        fence();
        jobs.iter().for_each(copy);
        fence();
        outcomes.clear();
        outcomes.resize(jobs.len(), Outcome::Done);
    }
}

/// Copies a job. The caller issues fences before and after.
pub(super) fn copy(job: &Job<'_>) {
    if job.bytes() < STREAM || cfg!(not(all(target_arch = "x86_64", not(miri)))) {
        return job.by_words();
    }
    // Whole cache lines of the target use non-temporal stores, the words before and after them ordinary ones.
    let (head, rest) = job.split(job.destination().addr().wrapping_neg() % LINE / WORD);
    let (lines, tail) = rest.split(rest.bytes() / LINE * LINE / WORD);
    head.by_words();
    stream(&lines);
    tail.by_words();
}

/// Orders all earlier stores, non-temporal ones included, before later stores.
pub(super) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 CPU has SSE.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

/// Copies whole cache lines with non-temporal stores; the target is aligned to a line.
fn stream(job: &Job<'_>) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if job.bytes() > 0 {
        // SAFETY: both places have these bytes mapped (`Job::new`), and the target is aligned to 64 bytes. Other
        // threads access them by atomic words or by instructions like these. Every x86-64 CPU has SSE2.
        unsafe {
            core::arch::asm!(
                "2:",
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movntdq [{to}], {a}",
                "movntdq [{to} + 16], {b}",
                "movntdq [{to} + 32], {c}",
                "movntdq [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {lines}",
                "jnz 2b",
                from = inout(reg) job.source() => _,
                to = inout(reg) job.destination() => _,
                lines = inout(reg) job.bytes() / LINE => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    job.by_words();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::copy::testkit::Memory;

    #[test]
    fn each_length_around_the_limits_arrives_whole_at_each_alignment() {
        let lengths: Vec<usize> = (0..40).chain(120..180).chain(500..530).collect();
        let memory = Memory::new(&lengths);
        memory.assert_copied(&memory.copy(&Cpu));
        assert!(Memory::new(&[]).copy(&Cpu).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]
        #[test]
        fn any_batch_arrives_whole(lengths in prop::collection::vec(0_usize..3_000, 0..40)) {
            let memory = Memory::new(&lengths);
            let outcomes = memory.copy(&Cpu);
            prop_assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Done));
            memory.assert_copied(&outcomes);
        }
    }
}
