//! Stream detection: finds the misses that a prefetcher, or the CPU itself, would have requested before they were
//! needed.
//!
//! A miss that continues a run at a constant stride (either direction, any stride within a page) is part of a stream
//! once the stride has held twice; small irregularities do not end a stream. Addresses are virtual, so streams continue
//! across pages. Any other miss counts as dependent on the load before it.

const TRACKED: usize = 16;
/// Largest stride, in lines.
const REACH: i64 = 32;
/// How many times a stride must have held.
const TRUSTED: u8 = 2;
/// Strides that a run may skip at once without counting as a different run.
const SKIP: u64 = 4;
const CONFIDENCE_MAX: u8 = 15;

#[derive(Clone, Copy, Debug)]
struct Run {
    last: u64,
    stride: i64,
    confidence: u8,
}

/// The current runs of misses of one vCPU.
#[derive(Debug)]
pub(crate) struct Streams {
    runs: [Run; TRACKED],
    /// The most recent matches, which are most likely to match next.
    latest: usize,
    previous: usize,
    /// Where to start the search for a run to replace.
    hand: usize,
}

impl Streams {
    /// No runs.
    pub(crate) const fn new() -> Self {
        let none = Run { last: u64::MAX / 2, stride: 0, confidence: 0 };
        Self { runs: [none; TRACKED], latest: 0, previous: 0, hand: 0 }
    }

    /// Records a miss at a virtual line; returns whether it is part of a stream.
    pub(crate) fn observe(&mut self, line: u64) -> bool {
        if self.runs[self.latest].continues(line) {
            return self.runs[self.latest].extend(line);
        }
        std::mem::swap(&mut self.latest, &mut self.previous);
        if self.runs[self.latest].continues(line) {
            return self.runs[self.latest].extend(line);
        }
        if let Some(index) = self.runs.iter().position(|run| run.continues(line)) {
            self.latest = index;
            return self.runs[index].extend(line);
        }
        if let Some(index) = self.runs.iter().position(|run| run.reaches(line)) {
            self.latest = index;
            return self.runs[index].turn(line);
        }
        self.start(line);
        false
    }

    /// Starts a run, replacing one that has not been confirmed for a while.
    fn start(&mut self, line: u64) {
        while self.runs[self.hand].confidence > 0 {
            self.runs[self.hand].confidence -= 1;
            self.hand = (self.hand + 1) % TRACKED;
        }
        self.runs[self.hand] = Run { last: line, stride: 0, confidence: 0 };
        self.hand = (self.hand + 1) % TRACKED;
    }
}

impl Run {
    #[inline]
    fn step_to(&self, line: u64) -> i64 {
        line.wrapping_sub(self.last).cast_signed()
    }

    #[inline]
    fn continues(&self, line: u64) -> bool {
        self.stride != 0 && self.step_to(line) == self.stride
    }

    fn reaches(&self, line: u64) -> bool {
        self.step_to(line).unsigned_abs() <= REACH.unsigned_abs()
    }

    #[inline]
    fn extend(&mut self, line: u64) -> bool {
        self.last = line;
        self.confidence = (self.confidence + 1).min(CONFIDENCE_MAX);
        self.confidence >= TRUSTED
    }

    /// Handles a nearby miss that is not the expected one: tolerated in the run's direction, else the run starts again.
    fn turn(&mut self, line: u64) -> bool {
        let step = self.step_to(line);
        if step == 0 {
            return self.confidence >= TRUSTED;
        }
        self.last = line;
        let goes_on = step.signum() == self.stride.signum()
            && step.unsigned_abs() <= SKIP * self.stride.unsigned_abs();
        if goes_on && self.confidence > 0 {
            let trusted = self.confidence >= TRUSTED;
            self.confidence -= 1;
            return trusted;
        }
        self.stride = step;
        self.confidence = 0;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn share(lines: impl IntoIterator<Item = u64>) -> f64 {
        let mut streams = Streams::new();
        let seen: Vec<bool> = lines.into_iter().map(|line| streams.observe(line)).collect();
        seen.iter().filter(|part| **part).count() as f64 / seen.len() as f64
    }

    #[test]
    fn a_run_is_a_stream_from_its_fourth_line_on() {
        let mut streams = Streams::new();
        let seen: Vec<bool> = (100..106).map(|line| streams.observe(line)).collect();
        assert_eq!(seen, [false, false, false, true, true, true]);
    }

    #[test]
    fn streams_have_either_direction_and_any_stride_within_a_page() {
        for stride in [1i64, -1, 2, -3, 8, 32] {
            let lines = (0..1000i64).map(|n| (1 << 30) + n * stride).map(i64::cast_unsigned);
            assert!(share(lines) > 0.99, "stride {stride}");
        }
    }

    #[test]
    fn several_runs_at_once_stay_apart() {
        let lines = (0..1000u64).flat_map(|n| (0..10u64).map(move |run| (run << 20) + n));
        assert!(share(lines) > 0.99);
    }

    #[test]
    fn a_run_survives_random_accesses_between() {
        let mut random = 1u64;
        let lines = (0..20_000u64).map(|n| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if n % 4 == 0 { random >> 20 } else { (1 << 50) + n }
        });
        assert!(share(lines) > 0.7);
    }

    proptest! {
        #[test]
        fn random_lines_are_no_stream(seed in 1u64..u64::MAX, bits in 16u32..40) {
            let mut random = seed;
            let lines = (0..2000).map(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random & ((1 << bits) - 1)
            });
            prop_assert!(share(lines) < 0.01);
        }
    }
}
