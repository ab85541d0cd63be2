//! The emulated performance monitoring unit: counts of lines by CPU and node, and samples of single accesses.
//!
//! Hardware has registers for this; here the interface is a virtio port of the guest, with lines of text. A request is
//! `TOKEN WORD [NUMBER]`; the client chooses the token, and an answer that begins with another token belongs to an
//! earlier client:
//!
//! ```text
//! 7 start 8192        one access in 8192 that missed all caches is sampled from now on
//! 7 read              what there is since the last read
//! 7 stop
//!
//! begin 7             each request is answered so
//! cpus 0 0 1 1        the node of each CPU
//! lines 2 1 5000 300  CPU 2 has read 5000 lines of node 1 and written 300, since the machine was started
//! lost 3              samples that had no room, since the last read
//! at 7fff0040 3c40 2 1 w   a sample: virtual and physical address, CPU, node, r or w
//! end 7
//! ```
//!
//! The parser may get other programs' bytes: for any input it returns an answer or `None`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::stats::Sample;

/// The port's name.
pub const PORT: &str = "nearfar.pmu";

/// Most samples kept until they are read.
const KEPT_MAX: usize = 1 << 15;
/// Maximum length of a request.
pub const REQUEST_MAX: usize = 64;
/// Maximum lines of an answer: samples, and counts for the largest number of CPUs and nodes.
const LINES_MAX: usize = KEPT_MAX + (1 << 14);

/// An access that missed all caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Guest-virtual.
    pub virtual_address: u64,
    /// Guest-physical.
    pub physical_address: u64,
    /// The requesting CPU.
    pub cpu: u32,
    /// The memory's node.
    pub node: u16,
    /// Whether it was a store.
    pub write: bool,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Sample one access in `every`.
    Start {
        /// Sampling period, at least 1.
        every: u64,
    },
    /// Return counts and samples.
    Read,
    /// Stop sampling.
    Stop,
}

impl Request {
    /// Its text form.
    #[must_use]
    pub fn line(self, token: u64) -> String {
        match self {
            Self::Start { every } => format!("{token} start {every}\n"),
            Self::Read => format!("{token} read\n"),
            Self::Stop => format!("{token} stop\n"),
        }
    }

    /// Parses a line; `None` if it is no request.
    #[must_use]
    pub fn parse(line: &str) -> Option<(u64, Self)> {
        let mut words = line.split_whitespace();
        let token = words.next()?.parse().ok()?;
        let request = match words.next()? {
            "start" => {
                Self::Start { every: words.next()?.parse().ok().filter(|every| *every > 0)? }
            }
            "read" => Self::Read,
            "stop" => Self::Stop,
            _ => return None,
        };
        words.next().is_none().then_some((token, request))
    }
}

/// Reads and writes of a node's lines by a CPU, since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// The CPU.
    pub cpu: u32,
    /// The node.
    pub node: u16,
    /// Lines read.
    pub reads: u64,
    /// Lines written.
    pub writes: u64,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The node of each CPU.
    pub cpus: Vec<u16>,
    /// By CPU and node.
    pub lines: Vec<Lines>,
    /// Samples dropped for lack of room since the last read.
    pub lost: u64,
    /// Samples since the last read.
    pub samples: Vec<Sampled>,
}

impl Answer {
    /// Its text.
    #[must_use]
    pub fn text(&self, token: u64) -> String {
        let mut text = format!("begin {token}\ncpus");
        // Writing to a string can't fail, here and below.
        for node in &self.cpus {
            let _ = write!(text, " {node}");
        }
        for of in &self.lines {
            let _ = write!(text, "\nlines {} {} {} {}", of.cpu, of.node, of.reads, of.writes);
        }
        let _ = write!(text, "\nlost {}", self.lost);
        for of in &self.samples {
            let (at, frame) = (of.virtual_address, of.physical_address);
            let way = if of.write { 'w' } else { 'r' };
            let _ = write!(text, "\nat {at:x} {frame:x} {} {} {way}", of.cpu, of.node);
        }
        let _ = write!(text, "\nend {token}\n");
        text
    }

    /// Parses the answer to `token`, skipping earlier lines; `None` if lines are missing or invalid.
    pub fn parse<'a>(mut lines: impl Iterator<Item = &'a str>, token: u64) -> Option<Self> {
        let (begin, end) = (format!("begin {token}"), format!("end {token}"));
        lines.find(|line| *line == begin)?;
        let mut answer = Self::default();
        for line in lines.take(LINES_MAX) {
            if line == end {
                return Some(answer);
            }
            answer.line(line)?;
        }
        None
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        match words.next()? {
            "cpus" => self.cpus = words.map(|word| word.parse().ok()).collect::<Option<_>>()?,
            "lost" => self.lost = words.next()?.parse().ok()?,
            "lines" => self.lines.push(Lines {
                cpu: words.next()?.parse().ok()?,
                node: words.next()?.parse().ok()?,
                reads: words.next()?.parse().ok()?,
                writes: words.next()?.parse().ok()?,
            }),
            "at" => self.samples.push(Sampled {
                virtual_address: u64::from_str_radix(words.next()?, 16).ok()?,
                physical_address: u64::from_str_radix(words.next()?, 16).ok()?,
                cpu: words.next()?.parse().ok()?,
                node: words.next()?.parse().ok()?,
                write: match words.next()? {
                    "w" => true,
                    "r" => false,
                    _ => return None,
                },
            }),
            _ => return None,
        }
        Some(())
    }
}

/// Collects samples from vCPUs. Any number of threads may use it concurrently.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    /// Sampling period; 0 is off.
    every: AtomicU64,
    kept: Mutex<Vec<Sampled>>,
    lost: AtomicU64,
}

/// A vCPU's distance to the next sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    left: u64,
    random: u64,
}

impl Step {
    /// The initial state of a vCPU.
    pub(crate) const fn of(vcpu: usize) -> Self {
        Self { left: 0, random: vcpu as u64 + 1 }
    }
}

impl Tap {
    /// Samples an access if one is due. Steps are random, from half to one and a half of the period, so that no loop
    /// synchronises with them.
    #[inline]
    pub(crate) fn pass(&self, step: &mut Step, access: impl FnOnce() -> Sampled) {
        let every = self.every.load(Relaxed);
        if every == 0 {
            return;
        }
        if step.left > 0 {
            step.left -= 1;
            return;
        }
        step.random ^= step.random << 13;
        step.random ^= step.random >> 7;
        step.random ^= step.random << 17;
        step.left = every / 2 + step.random % every.max(1);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_MAX {
            kept.push(access());
        } else {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Carries out a request; returns the answer with these counts.
    pub(crate) fn answer(&self, request: Request, cpus: &[u16], counted: &Sample) -> Answer {
        let mut answer = Answer { cpus: cpus.to_vec(), ..Answer::default() };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match request {
            Request::Start { every } => {
                self.every.store(every, Relaxed);
                kept.clear();
                self.lost.store(0, Relaxed);
            }
            Request::Stop => {
                self.every.store(0, Relaxed);
                kept.clear();
            }
            Request::Read => {
                answer.samples = std::mem::take(&mut *kept);
                answer.lost = self.lost.swap(0, Relaxed);
            }
        }
        for node in &counted.nodes {
            for ((cpu, reads), writes) in (0..).zip(&node.reads).zip(&node.writes) {
                let (reads, writes) = (*reads, *writes);
                answer.lines.push(Lines { cpu, node: node.id, reads, writes });
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::NodeSample;
    use proptest::prelude::*;

    fn access(at: u64) -> Sampled {
        Sampled { virtual_address: at, physical_address: at, cpu: 1, node: 0, write: false }
    }

    fn counted() -> Sample {
        let node =
            NodeSample { id: 3, reads: vec![5, 6], writes: vec![7, 8], stall_ns: vec![0, 0] };
        Sample { at_ns: 0, nodes: vec![node] }
    }

    #[test]
    fn every_nth_access_is_kept_between_start_and_stop() {
        let (tap, mut step) = (Tap::default(), Step::of(1));
        let mut run =
            |tap: &Tap, count: u64| (0..count).for_each(|at| tap.pass(&mut step, || access(at)));
        let ask = |request| tap.answer(request, &[0, 3], &counted());
        run(&tap, 1000);
        assert_eq!(ask(Request::Read).samples, [], "not started");
        ask(Request::Start { every: 10 });
        run(&tap, 100_000);
        let answer = ask(Request::Read);
        assert!((9_000..=11_000).contains(&answer.samples.len()), "{}", answer.samples.len());
        assert_eq!(answer.lines[1], Lines { cpu: 1, node: 3, reads: 6, writes: 8 });
        let gaps =
            answer.samples.windows(2).map(|two| two[1].virtual_address - two[0].virtual_address);
        assert!(
            gaps.collect::<std::collections::BTreeSet<_>>().len() > 5,
            "not in step with a loop"
        );
        ask(Request::Stop);
        run(&tap, 1000);
        assert_eq!(ask(Request::Read).samples, []);
    }

    #[test]
    fn samples_beyond_the_buffer_are_counted_once() {
        let (tap, mut step) = (Tap::default(), Step::of(0));
        tap.answer(Request::Start { every: 1 }, &[], &counted());
        (0..3 * KEPT_MAX as u64).for_each(|at| tap.pass(&mut step, || access(at)));
        let answer = tap.answer(Request::Read, &[], &counted());
        assert_eq!(answer.samples.len(), KEPT_MAX);
        assert!(answer.lost > 0);
        assert_eq!(tap.answer(Request::Read, &[], &counted()).lost, 0);
    }

    #[test]
    fn requests_parse_and_invalid_ones_are_refused() {
        for request in [Request::Start { every: 9 }, Request::Read, Request::Stop] {
            assert_eq!(Request::parse(request.line(4).trim()), Some((4, request)));
        }
        for odd in ["", "1", "x read", "1 start", "1 start 0", "1 start -1", "1 read 2", "1 go"] {
            assert_eq!(Request::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn foreign_and_incomplete_answers_are_skipped() {
        let answer = Answer { cpus: vec![0], lost: 2, ..Answer::default() };
        let text = format!("lines 1\n{}{}", Answer::default().text(1), answer.text(2));
        assert_eq!(Answer::parse(text.lines(), 2), Some(answer));
        assert_eq!(Answer::parse(text.lines(), 3), None);
        assert_eq!(Answer::parse(text.lines().take(4), 1), None);
    }

    proptest! {
        #[test]
        fn answers_are_read_as_they_were_written(
            cpus in prop::collection::vec(any::<u16>(), 1..5),
            lines in prop::collection::vec(any::<(u32, u16, u64, u64)>(), 0..5),
            samples in prop::collection::vec(any::<(u64, u64, u32, u16, bool)>(), 0..5),
            lost in any::<u64>(),
        ) {
            let lines = lines.into_iter().map(|(cpu, node, reads, writes)| Lines { cpu, node, reads, writes });
            let samples = samples.into_iter().map(|of| Sampled {
                virtual_address: of.0, physical_address: of.1, cpu: of.2, node: of.3, write: of.4,
            });
            let answer = Answer { cpus, lines: lines.collect(), lost, samples: samples.collect() };
            prop_assert_eq!(Answer::parse(answer.text(7).lines(), 7), Some(answer));
        }

        #[test]
        fn no_text_panics(text in "((begin|end|at|lines|cpus|lost|[0-9a-fx-]{1,20}|w|r) ?\n?){0,30}") {
            let _ = Answer::parse(text.lines(), 1);
            let _ = text.lines().map(Request::parse).count();
        }
    }
}
