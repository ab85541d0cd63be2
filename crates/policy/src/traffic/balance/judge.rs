//! Whether what was predicted came: measured throughput against the prediction, while loads stay the same.
//!
//! Prediction and measurement are both taken relative to what they were before, so that a model that is off by a factor is not
//! blamed. A *miss* is a gain of which less than a quarter came, noise allowed for. Three in a row halve confidence, and with
//! it the length of steps, and what comes doubles it, up to four times the usual where there was no miss; five are proof that the
//! model is not of this machine: what was moved since the first is moved back, and nothing is done until loads change.
//!
//! Where very much is to gain, steps are longer from the first: where threads wait for each other, nothing shows until the last of
//! them has its memory.

use crate::traffic::place::Placement;

/// A prediction is judged once it is of so much.
const JUDGED: f64 = 0.025;
/// Less than this share of it is a miss,
const CAME: f64 = 0.25;
/// but for this much noise.
const NOISE: f64 = 0.015;
/// Decisions that the measurement lags behind.
const LAG: u32 = 3;
const MISSES_HALVE: u32 = 3;
const MISSES_OFF: u32 = 5;
const CONFIDENCE_LEAST: f64 = 0.125;
/// Steps are at most so many times the usual.
const STRIDE_MOST: f64 = 4.0;
/// A step may be as many times the usual as what is to gain is this.
const GAIN_STEP: f64 = 0.25;

/// The judge.
#[derive(Clone, Debug)]
pub(super) struct Judge {
    open: Option<Episode>,
    misses: u32,
    /// Where all was when the first miss began.
    before: Placement,
    pub(super) confidence: f64,
    /// How long steps may be beside the usual, as predictions came.
    stride: f64,
}

/// Moves that are judged together.
#[derive(Clone, Debug)]
struct Episode {
    from: Placement,
    measured: f64,
    /// What was predicted, relative to before.
    predicted: f64,
    /// Decisions since the last move.
    since: u32,
}

/// What the judge says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Judgement {
    GoOn,
    /// Back to there, and off.
    Undo(Placement),
}

impl Judge {
    pub(super) const fn new() -> Self {
        Self { open: None, misses: 0, before: Placement::new(), confidence: 1.0, stride: 1.0 }
    }

    /// How long steps may be beside the usual, on the way to such a gain.
    pub(super) fn step(&self, gain: f64) -> f64 {
        // After a miss, what is predicted is no reason.
        let urgent = if self.misses > 0 { 1.0 } else { gain / GAIN_STEP };
        self.confidence * self.stride.max(urgent).min(STRIDE_MOST)
    }

    /// Loads have changed: what is under way can't be judged, and all is open again.
    pub(super) fn forget(&mut self) {
        *self = Self::new();
    }

    /// A move by which so much is predicted, relative to before it.
    pub(super) fn moved(&mut self, from: &Placement, measured: f64, predicted: f64) {
        let open = self.open.get_or_insert_with(|| Episode {
            from: from.clone(),
            measured,
            predicted: 1.0,
            since: 0,
        });
        open.predicted *= predicted;
        open.since = 0;
    }

    /// Judges by what is measured now; called once a decision.
    pub(super) fn judge(&mut self, measured: f64) -> Judgement {
        let Some(open) = &mut self.open else { return Judgement::GoOn };
        open.since += 1;
        let gain = open.predicted - 1.0;
        // A long way is judged on the way: what was just moved does not show yet.
        let due = gain >= JUDGED && (open.since >= LAG || gain >= 4.0 * JUDGED);
        if !due {
            if open.since > 4 * LAG {
                self.open = None;
            }
            return Judgement::GoOn;
        }
        let came = measured / open.measured.max(1e-12) - 1.0;
        let missed = came < gain * CAME - NOISE;
        if self.misses == 0 {
            self.before.clone_from(&open.from);
        }
        self.open = None;
        self.misses = if missed { self.misses + 1 } else { 0 };
        if missed {
            self.stride = 1.0;
        } else if self.confidence >= 1.0 {
            self.stride = (self.stride * 2.0).min(STRIDE_MOST);
        } else {
            self.confidence = (self.confidence * 2.0).min(1.0);
        }
        if self.misses == MISSES_HALVE {
            self.confidence = (self.confidence / 2.0).max(CONFIDENCE_LEAST);
        }
        if self.misses >= MISSES_OFF {
            self.misses = 0;
            return Judgement::Undo(core::mem::take(&mut self.before));
        }
        Judgement::GoOn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn at(near: f64) -> Placement {
        vec![vec![near, 1.0 - near]]
    }

    /// Moves of 5 % predicted, after each of which throughput is `came` times what it was.
    fn moves(judge: &mut Judge, count: usize, came: f64) -> Judgement {
        let mut last = Judgement::GoOn;
        for step in 0..count {
            judge.moved(&at(0.9 - 0.1 * step as f64), 1.0, 1.05);
            for _ in 0..LAG {
                last = judge.judge(came);
            }
        }
        last
    }

    #[test]
    fn three_misses_halve_confidence_and_five_undo_all_of_them() {
        let mut judge = Judge::new();
        assert_eq!(moves(&mut judge, 2, 0.99), Judgement::GoOn);
        assert!(judge.confidence >= 1.0);
        moves(&mut judge, 1, 0.99);
        assert!((judge.confidence - 0.5).abs() < 1e-9);
        assert_eq!(moves(&mut judge, 2, 0.99), Judgement::Undo(at(0.9)));
    }

    #[test]
    fn a_gain_that_came_wipes_out_misses() {
        let mut judge = Judge::new();
        moves(&mut judge, 3, 0.99);
        moves(&mut judge, 1, 1.04);
        assert!(judge.confidence >= 1.0);
        assert_eq!(moves(&mut judge, 4, 0.99), Judgement::GoOn);
    }

    #[test]
    fn a_third_of_what_was_predicted_is_no_miss() {
        let mut judge = Judge::new();
        assert_eq!(moves(&mut judge, 9, 1.017), Judgement::GoOn);
        assert!(judge.confidence >= 1.0);
    }

    #[test]
    fn steps_grow_while_gains_come_and_are_the_usual_again_after_a_miss() {
        let mut judge = Judge::new();
        for times in [1.0, 2.0, 4.0, 4.0] {
            assert!((judge.step(0.1) - times).abs() < 1e-9, "{} for {times}", judge.step(0.1));
            moves(&mut judge, 1, 1.04);
        }
        moves(&mut judge, 1, 0.99);
        assert!((judge.step(0.1) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn on_the_way_to_much_steps_are_longer_until_it_does_not_come() {
        let mut judge = Judge::new();
        for (gain, times) in [(0.1, 1.0), (0.5, 2.0), (1.0, 4.0), (9.0, 4.0)] {
            assert!((judge.step(gain) - times).abs() < 1e-9, "{} for {gain}", judge.step(gain));
        }
        moves(&mut judge, 1, 0.99);
        assert!((judge.step(9.0) - 1.0).abs() < 1e-9);
    }
}
