//! Effect of moves: traffic before the first move, the predicted gain, and traffic now.

use nearfar_policy::traffic::Metrics;
use nearfar_policy::traffic::balance::Verdict;
use nearfar_topology::BasisPoints;

use super::Round;

/// Rounds without a move that end an episode.
const QUIET: u32 = 10;

/// The present episode of moves, or the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Metrics before the first move.
    pub before: Option<Metrics>,
    /// Metrics now, or at the end of the episode.
    pub after: Option<Metrics>,
    /// The gain predicted with the first move, by policies that predict.
    pub predicted: Option<BasisPoints>,
    /// Pages moved.
    pub moved: u64,
    /// Whether the episode continues.
    pub open: bool,
    /// Rounds since the last move, and the metrics of the last round.
    quiet: u32,
    last: Option<Metrics>,
    wished: Option<BasisPoints>,
}

impl Effect {
    /// Adds a round, in which `moved` pages were moved.
    pub(super) fn of_round(&mut self, round: &Round, moved: u64, verdict: Option<Verdict>) {
        if let Some(Verdict::Moving { gain }) = verdict {
            self.wished.get_or_insert(gain);
        } else if moved == 0 {
            self.wished = None;
        }
        if moved > 0 && !self.open {
            let (before, predicted) = (self.last, self.wished);
            *self = Self { before, predicted, open: true, wished: predicted, ..Self::default() };
        }
        self.last = round.metrics.or(self.last);
        if !self.open {
            return;
        }
        self.after = self.last;
        self.moved += moved;
        self.quiet = if moved > 0 { 0 } else { self.quiet + 1 };
        self.open = self.quiet < QUIET;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(per_ms: u64) -> Round {
        Round { metrics: Some(Metrics { per_ms, ..Metrics::default() }), ..Round::default() }
    }

    #[test]
    fn an_episode_lasts_from_its_first_move_until_a_quiet_period() {
        let mut effect = Effect::default();
        effect.of_round(&round(90), 0, None);
        effect.of_round(&round(100), 0, Some(Verdict::Moving { gain: BasisPoints(800) }));
        effect.of_round(&round(104), 50, Some(Verdict::Moving { gain: BasisPoints(300) }));
        for _ in 0..=QUIET {
            effect.of_round(&round(108), 0, None);
        }
        let rates = [effect.before, effect.after].map(|metrics| metrics.unwrap().per_ms);
        assert_eq!((rates, effect.moved, effect.open), ([100, 108], 50, false));
        assert_eq!(effect.predicted, Some(BasisPoints(800)));
        effect.of_round(&round(60), 0, None);
        assert_eq!(effect.after.unwrap().per_ms, 108, "what comes later has other causes");
        effect.of_round(&round(61), 7, None);
        assert_eq!((effect.before.unwrap().per_ms, effect.predicted), (60, None));
    }
}
