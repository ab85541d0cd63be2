//! Feedback on migration: the part of the referenced far pages to promote next, and when to back off.

use super::{Observation, PART_SETTLED, SECOND_NS, Tiering, WHOLE, scale, share_of};

/// A trial is judged after this part of near memory has been promoted.
const TRIAL_PART: u64 = 2;
/// A trial succeeds if near pages are referenced at least this much more often than far ones, in per cent,
const GAIN_PERCENT: u64 = 125;
/// or if that figure has grown by this factor since it began, in per cent.
const GROWTH_PERCENT: u64 = 105;
/// A gain that changes by more than this ends a backoff, in per cent.
const CHANGED_PERCENT: u64 = 10;
/// The first backoff; each consecutive failure doubles it.
const REST_NS: u64 = 30 * SECOND_NS;
/// Limit of the doublings.
const RESTS_MAX: u32 = 6;
/// The largest and the smallest part that is promoted of the referenced far pages.
pub(super) const PART_MOST: u64 = WHOLE / 2;
const PART_LEAST: u64 = WHOLE / 64;
/// The part is judged after this part of near memory has been promoted, or after this many scans.
const PART_JUDGED: u64 = 8;
const PART_JUDGED_LOOKS: u32 = 6;
/// The part is kept while near memory gains one referenced page for this many promoted ones,
const PART_YIELDS: u64 = 8;
/// and, without a count of near pages, while far memory loses one for this many.
const PART_YIELDS_BY_AGE: u64 = 16;
/// If less than this of the gain is left, in per cent, the hot set has moved.
pub(super) const LOST_PERCENT: u64 = 80;

/// The part of the referenced far pages that is promoted, as a share, and the figures it depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) share: u64,
    /// Recent average of the gain, at similar windows.
    gain: u64,
    /// Referenced bytes in near and in far memory when it was last judged.
    used: u64,
    far: u64,
    window_ns: u64,
    /// Bytes promoted, and scans, since it was last judged.
    promoted: u64,
    looks: u32,
}

/// The trial of migration, with backoff after failure.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trial {
    /// Bytes promoted since the trial began.
    promoted: u64,
    /// How much more often near pages were referenced than far ones at its start, in per cent.
    gain: u64,
    /// Remaining backoff.
    pub(super) rest_ns: u64,
    /// Consecutive failed trials.
    failed: u32,
}

impl Part {
    pub(super) const fn fresh(gain: u64, [used, far]: [u64; 2], window_ns: u64) -> Self {
        Self { share: PART_MOST, gain, used, far, window_ns, promoted: 0, looks: 0 }
    }
}

impl Part {
    /// Keeps the part if promotion was effective, else halves it.
    fn judge(&mut self, brings: bool) {
        self.share = if brings { self.share } else { (self.share / 2).max(PART_LEAST) };
        (self.promoted, self.looks) = (0, 0);
    }
}

impl Tiering {
    pub(super) fn judge_part(&mut self, seen: &Observation) {
        let Some(gain) = self.gain() else { return };
        // Scaled to all of near memory, so that memory freed by demotion does not count as a loss.
        let used = share_of(seen.near.total.0, self.near_used.unwrap_or(0));
        let far = self.far_hot(seen);
        let part = &mut self.part;
        part.promoted = part.promoted.saturating_add(seen.far_scan.moved.0);
        let enough = seen.near.total.0 / PART_JUDGED;
        if !seen.both() {
            part.looks += 1;
            // Near pages were not counted; pages referenced there are missing in far memory. Slow promotion is judged
            // as well, since a scan costs the same for few pages as for many.
            if part.promoted >= enough || part.looks >= PART_JUDGED_LOOKS {
                let least = (part.promoted / PART_YIELDS_BY_AGE).max(1);
                part.judge(far.saturating_add(least) <= part.far);
                part.far = far;
            }
            return;
        }
        // Another window finds other pages referenced, so its gain is not comparable with the previous one, unless
        // there is no gain. Promoted bytes keep accumulating: repeated searches for the window would otherwise postpone
        // the judgement indefinitely.
        if part.window_ns.abs_diff(self.window_ns) > self.window_ns / 8 && gain >= 100 {
            if part.window_ns == 0 {
                (part.promoted, part.looks) = (0, 0);
            }
            (part.used, part.far, part.gain, part.window_ns) = (used, far, gain, self.window_ns);
        }
        if gain < scale(part.gain, LOST_PERCENT, 100) {
            *part = Part::fresh(gain, [used, far], self.window_ns);
            // Earlier trials concerned another hot set.
            (self.trial, self.calm) = (Trial { gain, ..Trial::default() }, 0);
            return;
        }
        part.gain = scale(part.gain, 3, 4).saturating_add(gain / 4);
        if part.promoted >= enough {
            let least = (part.promoted / PART_YIELDS).max(1);
            part.judge(used >= part.used.saturating_add(least));
            (part.used, part.far) = (used, far);
        }
    }

    pub(super) fn judge_trial(&mut self, seen: &Observation) {
        let fits = self.window_fits(seen);
        let counted = if self.trial.rest_ns > 0 { seen.both() } else { seen.sampled() };
        let gain = self.gain().filter(|_| counted);
        let trial = &mut self.trial;
        if trial.rest_ns > 0 {
            let changed = gain.is_some_and(|gain| gain.abs_diff(trial.gain) > CHANGED_PERCENT);
            trial.rest_ns = if changed { 0 } else { trial.rest_ns.saturating_sub(seen.elapsed.0) };
            trial.promoted = 0;
            if changed {
                trial.failed = 0;
                self.part = Part::fresh(0, [0; 2], self.window_ns);
            }
            return;
        }
        if !fits {
            return;
        }
        trial.promoted = trial.promoted.saturating_add(seen.far_scan.moved.0);
        let Some(gain) = gain else { return };
        if trial.gain == 0 {
            trial.gain = gain;
        }
        let settled = self.part.share <= PART_SETTLED;
        if trial.promoted < (seen.near.total.0 / TRIAL_PART).max(1) && !settled {
            return;
        }
        let grown = gain >= scale(trial.gain, GROWTH_PERCENT, 100);
        (trial.promoted, trial.gain) = (0, gain);
        if gain >= GAIN_PERCENT || grown {
            trial.failed = 0;
        } else {
            trial.rest_ns = REST_NS << trial.failed.min(RESTS_MAX);
            trial.failed = trial.failed.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests;
