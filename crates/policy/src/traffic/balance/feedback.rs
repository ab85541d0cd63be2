//! Verification of predictions: measured throughput against the prediction, while loads are stable.
//!
//! Prediction and measurement are both taken relative to their values before the migration, so that a model that is off
//! by a constant factor is not penalised. A *miss* is a predicted gain of which less than a quarter was measured, after
//! allowance for noise. Three consecutive misses halve confidence, and with it the step length; a hit doubles it, up to
//! four times the usual step while there was no miss. Five misses prove that the model does not match the machine:
//! everything migrated since the first is migrated back, and balancing is off until loads change.
//!
//! For a large predicted gain steps are longer from the start: if threads wait for each other, throughput does not
//! improve until the last of them has its memory.

use crate::traffic::place::Placement;

/// A prediction is judged once it reaches this gain.
const JUDGED: f64 = 0.025;
/// Less than this share of it is a miss,
const CAME: f64 = 0.25;
/// with this allowance for noise.
const NOISE: f64 = 0.015;
/// Decisions by which the measurement lags behind.
const LAG: u32 = 3;
const MISSES_HALVE: u32 = 3;
const MISSES_OFF: u32 = 5;
const CONFIDENCE_LEAST: f64 = 0.125;
/// Limit of step lengths, in multiples of the usual.
const STRIDE_MOST: f64 = 4.0;
/// A step is lengthened by the factor of the predicted gain over this.
const GAIN_STEP: f64 = 0.25;

/// The state of the verification.
#[derive(Clone, Debug)]
pub(super) struct Feedback {
    open: Option<Episode>,
    misses: u32,
    /// The placement before the first miss.
    before: Placement,
    pub(super) confidence: f64,
    /// Step length relative to the usual one, by past hits.
    stride: f64,
}

/// Migrations that are judged together.
#[derive(Clone, Debug)]
struct Episode {
    from: Placement,
    measured: f64,
    /// Predicted throughput relative to the start.
    predicted: f64,
    /// Decisions since the last migration.
    since: u32,
}

/// Verdict on the predictions.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    GoOn,
    /// Restore this placement, and turn off.
    Undo(Placement),
}

impl Feedback {
    pub(super) const fn new() -> Self {
        Self { open: None, misses: 0, before: Placement::new(), confidence: 1.0, stride: 1.0 }
    }

    /// Step length relative to the usual one, for this predicted gain.
    pub(super) fn step(&self, gain: f64) -> f64 {
        // After a miss a predicted gain no longer lengthens the step.
        let urgent = if self.misses > 0 { 1.0 } else { gain / GAIN_STEP };
        self.confidence * self.stride.max(urgent).min(STRIDE_MOST)
    }

    /// Resets after changed loads: migrations in progress cannot be judged.
    pub(super) fn forget(&mut self) {
        *self = Self::new();
    }

    /// Records a migration with this predicted throughput relative to before.
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

    /// Judges by the measured throughput; called once per decision.
    pub(super) fn verify(&mut self, measured: f64) -> Outcome {
        let Some(open) = &mut self.open else { return Outcome::GoOn };
        open.since += 1;
        let gain = open.predicted - 1.0;
        // A large gain is judged before migration ends: the last step does not show yet.
        let due = gain >= JUDGED && (open.since >= LAG || gain >= 4.0 * JUDGED);
        if !due {
            if open.since > 4 * LAG {
                self.open = None;
            }
            return Outcome::GoOn;
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
            return Outcome::Undo(core::mem::take(&mut self.before));
        }
        Outcome::GoOn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn at(near: f64) -> Placement {
        vec![vec![near, 1.0 - near]]
    }

    /// Records `count` migrations with 5 % predicted, after each of which throughput is `came` times the previous one.
    fn moves(feedback: &mut Feedback, count: usize, came: f64) -> Outcome {
        let mut last = Outcome::GoOn;
        for step in 0..count {
            feedback.moved(&at(0.9 - 0.1 * step as f64), 1.0, 1.05);
            for _ in 0..LAG {
                last = feedback.verify(came);
            }
        }
        last
    }

    #[test]
    fn three_misses_halve_confidence_and_five_undo_the_migration() {
        let mut feedback = Feedback::new();
        assert_eq!(moves(&mut feedback, 2, 0.99), Outcome::GoOn);
        assert!(feedback.confidence >= 1.0);
        moves(&mut feedback, 1, 0.99);
        assert!((feedback.confidence - 0.5).abs() < 1e-9);
        assert_eq!(moves(&mut feedback, 2, 0.99), Outcome::Undo(at(0.9)));
    }

    #[test]
    fn a_gain_that_was_reached_resets_the_misses() {
        let mut feedback = Feedback::new();
        moves(&mut feedback, 3, 0.99);
        moves(&mut feedback, 1, 1.04);
        assert!(feedback.confidence >= 1.0);
        assert_eq!(moves(&mut feedback, 4, 0.99), Outcome::GoOn);
    }

    #[test]
    fn a_third_of_the_predicted_gain_does_not_count_as_a_miss() {
        let mut feedback = Feedback::new();
        assert_eq!(moves(&mut feedback, 9, 1.017), Outcome::GoOn);
        assert!(feedback.confidence >= 1.0);
    }

    #[test]
    fn steps_double_with_each_gain_up_to_four_times_and_reset_after_a_miss() {
        let mut feedback = Feedback::new();
        for times in [1.0, 2.0, 4.0, 4.0] {
            assert!(
                (feedback.step(0.1) - times).abs() < 1e-9,
                "{} for {times}",
                feedback.step(0.1)
            );
            moves(&mut feedback, 1, 1.04);
        }
        moves(&mut feedback, 1, 0.99);
        assert!((feedback.step(0.1) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_larger_predicted_gain_lengthens_steps_until_a_miss() {
        let mut feedback = Feedback::new();
        for (gain, times) in [(0.1, 1.0), (0.5, 2.0), (1.0, 4.0), (9.0, 4.0)] {
            assert!(
                (feedback.step(gain) - times).abs() < 1e-9,
                "{} for {gain}",
                feedback.step(gain)
            );
        }
        moves(&mut feedback, 1, 0.99);
        assert!((feedback.step(9.0) - 1.0).abs() < 1e-9);
    }
}
