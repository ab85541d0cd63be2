//! Tiering between two neighbouring tiers: which pages are to change sides, and whether moving pays.
//!
//! # What can be seen
//! A *look* at a node has two passes: the first forgets of every page that it was used (clears the accessed bit), the
//! second, a *window* of time `L` later, finds which have been used since. A page used `r` times a second is found used
//! with probability `1 - exp(-r L)`, so the window is a threshold on how often a page is used, of about `1 / L`. Promotion
//! takes from far memory what a look finds used, demotion from near memory what it finds unused: page by page, however
//! finely hot and cold are mixed. A single look errs for pages near the threshold; that is what the share of a look that
//! is acted upon is for.
//!
//! # The law
//! 1. *The window fits the hot set to near memory.* What a look finds used, near and far together, is the hot set at this
//!    window. If it is more than near memory holds, the window gets shorter, else longer.
//! 2. *Looks are as far apart as their cost demands*: they take no more CPU than allowed.
//! 3. *Demotion makes room, no more*: for the headroom that new pages need, and for what is promoted next. A workload
//!    that fits near memory loses nothing to it.
//! 4. *Each look promotes a part of what it found*, as room and traffic allow. Hot pages are found again and again,
//!    others by chance; so the part starts at a half and shrinks while promoting adds nothing to the *gain* (how much more
//!    often near pages are found used than far ones), and is a half again when the gain falls: the hot set has moved.
//! 5. *Moving must pay.* Where pages differ in use, near pages are soon found used more often than far ones. If a good
//!    part of near memory has been exchanged and they still are not (a scan, or use spread evenly), it rests, longer
//!    each time, and then tries again.
//!
//! One [`Tiering`] stands for one boundary between tiers; a machine with three tiers has two.
//!
//! Looks by DAMON's `young` filter: Linux 6.11, Documentation/mm/damon/design.rst. What a kernel without hardware samples
//! does not have is a count per page; hence windows.

use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};

const WHOLE: u64 = 10_000;
const SECOND_NS: u64 = 1_000_000_000;

/// What is allowed and wanted. `Default` but for traffic, which depends on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goals {
    /// The share of near memory that stays free for new pages.
    pub headroom: BasisPoints,
    /// The most that moves, promotion and demotion together.
    pub traffic: BytesPerSecond,
    /// The share of one CPU that looking and moving may take.
    pub cpu: BasisPoints,
    /// The shortest and the longest window.
    pub window: (Nanoseconds, Nanoseconds),
}

impl Goals {
    /// The usual goals for this much traffic: 2 % headroom, 5 % of a CPU, windows of 20 ms to 30 s.
    #[must_use]
    pub const fn with_traffic(traffic: BytesPerSecond) -> Self {
        Self {
            headroom: BasisPoints(200),
            traffic,
            cpu: BasisPoints(500),
            window: (Nanoseconds(SECOND_NS / 50), Nanoseconds(30 * SECOND_NS)),
        }
    }
}

/// One side of the boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// All its memory.
    pub total: Bytes,
    /// What is free of it.
    pub free: Bytes,
}

impl Side {
    fn taken(self) -> u64 {
        self.total.0.saturating_sub(self.free.0)
    }
}

impl Observation {
    /// What was promoted in exchange: in a look at both sides. Only that says something of the gain.
    fn exchanged(&self) -> u64 {
        if self.both() { self.promotion.moved.0 } else { 0 }
    }

    fn both(&self) -> bool {
        self.demotion.at.0 > 0 && self.promotion.at.0 > 0
    }
}

/// What the second pass of a look came upon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Pages looked at.
    pub at: Bytes,
    /// Of these, found used (far) or unused (near), and asked to move.
    pub passed: Bytes,
    /// Of these, moved.
    pub moved: Bytes,
}

/// What a step is decided from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Time since the last step: a period.
    pub elapsed: Nanoseconds,
    /// CPU time that looking and moving took.
    pub cpu: Nanoseconds,
    /// The faster tier.
    pub near: Side,
    /// The slower tier.
    pub far: Side,
    /// Looks at far memory.
    pub promotion: Looked,
    /// Looks at near memory.
    pub demotion: Looked,
}

/// What to do next. Directions whose amount is nothing stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// From a look's first pass to its second.
    pub window: Nanoseconds,
    /// From the start of a look to the start of the next; at least `window`.
    pub period: Nanoseconds,
    /// So much of far memory is looked at in the second pass; what is found used is promoted.
    pub promote_from: Bytes,
    /// So much of near memory; what is found unused is demoted, before anything is promoted.
    pub demote_from: Bytes,
    /// Why, for people.
    pub reason: Reason,
}

/// Why a decision is as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing in far memory is used.
    Fits,
    /// Used pages in far memory change places with unused ones in near memory.
    Exchange,
    /// Near memory holds what is used most; few pages move.
    Settled,
    /// Exchanging has not made near pages the more used ones; it rests.
    NoGain {
        /// Until it is tried again.
        again_in: Nanoseconds,
    },
}

impl Reason {
    /// One word for JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Exchange => "exchange",
            Self::Settled => "settled",
            Self::NoGain { .. } => "no_gain",
        }
    }
}

/// What is known by now, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// What is used within a window, near and far.
    pub hot: Bytes,
    /// Share of near pages that looks find used.
    pub near_used: BasisPoints,
    /// Share of far pages that looks find used.
    pub far_used: BasisPoints,
    /// The window.
    pub window: Nanoseconds,
}

/// The controller of one boundary.
#[derive(Clone, Debug)]
pub struct Tiering {
    goals: Goals,
    window_ns: u64,
    period_ns: u64,
    near_used: Option<u64>,
    far_used: Option<u64>,
    /// The same two, of looks at both sides with the same window.
    compared: Option<(u64, u64)>,
    part: Part,
    trial: Trial,
}

/// The part of what is found that is promoted, as a share, and what decides of it.
#[derive(Clone, Copy, Debug)]
struct Part {
    share: u64,
    /// The gain when it was last judged.
    gain: u64,
    /// The most it has been since the part was a half.
    gain_most: u64,
    /// Promoted since it was last judged.
    promoted: u64,
}

/// Whether moving pays: tried, and rested from if not.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    /// Promoted since the trial began.
    promoted: u64,
    /// How much more often near pages were found used than far ones as it began, in per cent.
    gain: u64,
    /// Time still to rest.
    rest_ns: u64,
    /// Trials that failed in a row.
    failed: u32,
}

/// Promoted before a trial is judged: this part of near memory.
const TRIAL_PART: u64 = 4;
/// A trial succeeds if near pages are found used at least this much more often than far ones, in per cent,
const GAIN_PERCENT: u64 = 125;
/// or if that has grown this much since it began, in per cent.
const GROWTH_PERCENT: u64 = 110;
/// The first rest; each after a further failure is twice as long.
const REST_NS: u64 = 30 * SECOND_NS;
/// The most doublings.
const RESTS_MAX: u32 = 6;
/// Below this share of used far pages there is nothing worth promoting: 0.5 %.
const NOTHING: u64 = 50;
/// The most and the least that is promoted of what is found.
const PART_MOST: u64 = WHOLE / 2;
const PART_LEAST: u64 = WHOLE / 64;
/// Promoted before the part is judged: this part of near memory.
const PART_JUDGED: u64 = 16;
/// What is left of the gain when the hot set has moved, in per cent.
const LOST_PERCENT: u64 = 70;

impl Tiering {
    /// A controller that knows nothing yet.
    #[must_use]
    pub fn new(goals: Goals) -> Self {
        let (least, most) = goals.window;
        let window_ns = (SECOND_NS / 2).clamp(least.0.max(1), most.0.max(least.0).max(1));
        Self {
            goals,
            window_ns,
            period_ns: window_ns.max(SECOND_NS),
            near_used: None,
            far_used: None,
            compared: None,
            part: Part { share: PART_MOST, gain: 0, gain_most: 0, promoted: 0 },
            trial: Trial::default(),
        }
    }

    /// What is known by now.
    #[must_use]
    pub fn estimate(&self, seen: &Observation) -> Estimate {
        let share = |share: Option<u64>| {
            BasisPoints(share.and_then(|share| u32::try_from(share).ok()).unwrap_or(0))
        };
        Estimate {
            hot: Bytes(self.hot(seen)),
            near_used: share(self.near_used),
            far_used: share(self.far_used),
            window: Nanoseconds(self.window_ns),
        }
    }

    /// Takes in what the last look found and says how to go on.
    pub fn step(&mut self, seen: &Observation) -> Decision {
        self.learn(seen);
        self.judge_part(seen);
        self.judge_trial(seen);
        self.fit_window(seen);
        self.fit_period(seen);
        self.decide(seen)
    }

    fn learn(&mut self, seen: &Observation) {
        let learn = |known: &mut Option<u64>, found: Bytes, at: Bytes| {
            if at.0 == 0 {
                return;
            }
            let share = ratio(found.0, at.0).min(WHOLE);
            // Half of what was, half of what is: looks are samples.
            *known = Some(known.map_or(share, |before| u64::midpoint(before, share)));
        };
        let used = Bytes(seen.demotion.at.0.saturating_sub(seen.demotion.passed.0));
        learn(&mut self.near_used, used, seen.demotion.at);
        learn(&mut self.far_used, seen.promotion.passed, seen.promotion.at);
        if seen.both() {
            let (mut near, mut far) = self.compared.unzip();
            learn(&mut near, used, seen.demotion.at);
            learn(&mut far, seen.promotion.passed, seen.promotion.at);
            self.compared = near.zip(far);
        }
    }

    fn hot(&self, seen: &Observation) -> u64 {
        // What has not been looked at is taken to be in use if near, and not if far.
        let near = share_of(seen.near.taken(), self.near_used.unwrap_or(WHOLE));
        near.saturating_add(share_of(seen.far.taken(), self.far_used.unwrap_or(0)))
    }

    fn headroom(&self, seen: &Observation) -> u64 {
        share_of(seen.near.total.0, u64::from(self.goals.headroom.0))
    }

    /// How much more often near pages are found used than far ones, in per cent.
    fn gain(&self) -> Option<u64> {
        self.compared.map(|(near_used, far_used)| scale(near_used, 100, far_used))
    }

    fn judge_part(&mut self, seen: &Observation) {
        let Some(gain) = self.gain() else { return };
        let part = &mut self.part;
        part.promoted = part.promoted.saturating_add(seen.exchanged());
        part.gain_most = part.gain_most.max(gain);
        if gain < scale(part.gain_most, LOST_PERCENT, 100) {
            *part = Part { share: PART_MOST, gain, gain_most: gain, promoted: 0 };
        } else if part.promoted >= seen.near.total.0 / PART_JUDGED {
            let grown = gain >= scale(part.gain, 105, 100);
            part.share = if grown { part.share } else { (part.share / 2).max(PART_LEAST) };
            (part.gain, part.promoted) = (gain, 0);
        }
    }

    fn judge_trial(&mut self, seen: &Observation) {
        let (gain, fits) = (self.gain(), self.window_fits(seen));
        let trial = &mut self.trial;
        if trial.rest_ns > 0 {
            trial.rest_ns = trial.rest_ns.saturating_sub(seen.elapsed.0);
            trial.promoted = 0;
            trial.gain = 0;
            return;
        }
        if !fits {
            return;
        }
        trial.promoted = trial.promoted.saturating_add(seen.exchanged());
        let Some(gain) = gain else { return };
        if trial.gain == 0 {
            trial.gain = gain;
        }
        if trial.promoted < (seen.near.total.0 / TRIAL_PART).max(1) {
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

    fn capacity(&self, seen: &Observation) -> u64 {
        seen.near.total.0.saturating_sub(self.headroom(seen)).max(1)
    }

    /// Whether the window tells hot from cold here: a hot set far too large or too small says nothing of a trial.
    fn window_fits(&self, seen: &Observation) -> bool {
        let (hot, capacity) = (self.hot(seen), self.capacity(seen));
        let at_an_end =
            self.window_ns <= self.goals.window.0.0 || self.window_ns >= self.goals.window.1.0;
        at_an_end || hot.abs_diff(capacity) <= capacity / 4
    }

    /// Shorter where more is hot than near memory holds, longer where less; by a half at most.
    fn fit_window(&mut self, seen: &Observation) {
        let (least, most) = (self.goals.window.0.0.max(1), self.goals.window.1.0);
        if seen.both() {
            let (hot, capacity) = (self.hot(seen).max(1), self.capacity(seen));
            // Within a twentieth of the capacity it stays as it is.
            if hot.abs_diff(capacity) > capacity / 20 {
                let scaled = scale(self.window_ns, capacity, hot);
                let (shorter, longer) = (self.window_ns / 2, self.window_ns.saturating_mul(2));
                self.window_ns = scaled.clamp(shorter, longer);
            }
        }
        self.window_ns = self.window_ns.clamp(least, most.max(least));
    }

    /// Looks follow each other as soon as their cost allows, but not sooner than a second.
    fn fit_period(&mut self, seen: &Observation) {
        let least = self.window_ns.max(SECOND_NS);
        // What was spent without a look says nothing of looks.
        let looked = seen.promotion.at.0 > 0 || seen.demotion.at.0 > 0;
        let spent = if looked { seen.cpu.0 } else { 0 };
        let affordable = scale(spent, WHOLE, u64::from(self.goals.cpu.0).max(1));
        let most = self.window_ns.saturating_mul(2).max(60 * SECOND_NS);
        self.period_ns = affordable.clamp(least, most);
    }

    fn decide(&self, seen: &Observation) -> Decision {
        let headroom = self.headroom(seen);
        let rests = self.trial.rest_ns > 0;
        let far_taken = seen.far.taken();
        let far_used = self.far_used.unwrap_or(WHOLE / 2);
        let nothing = self.far_used.is_some_and(|used| used < NOTHING);
        let budget = scale(self.goals.traffic.0, self.period_ns, SECOND_NS) / 2;
        // What is to be promoted; while nothing is known, a look at a sixteenth tells.
        let wanted = if rests || far_taken == 0 {
            0
        } else {
            share_of(share_of(far_taken, far_used), self.part.share)
        };
        let wanted = wanted.min(budget).min(seen.near.total.0 / 8);
        let short = (headroom + if nothing { 0 } else { wanted }).saturating_sub(seen.near.free.0);
        let demote = short.min(budget).min(seen.far.free.0);
        let unused = WHOLE - self.near_used.unwrap_or(WHOLE / 2).min(WHOLE - 100);
        let demote_from = scale(demote, WHOLE, unused).min(seen.near.taken());
        // What demotion makes room for is promoted in the same look.
        let expected = share_of(demote_from, unused);
        let room = (seen.near.free.0.saturating_add(expected)).saturating_sub(headroom / 2);
        let promote = wanted.min(room);
        let promote_from = scale(promote, WHOLE, far_used.max(1)).min(far_taken);
        // A look at little tells little: at least a sixteenth of far memory is looked at, while there is room.
        let promote_from = if promote > 0 { promote_from.max(far_taken / 64) } else { 0 };
        let reason = if rests {
            Reason::NoGain { again_in: Nanoseconds(self.trial.rest_ns) }
        } else if far_taken == 0 || nothing {
            Reason::Fits
        } else if self.part.share <= WHOLE / 16 {
            Reason::Settled
        } else {
            Reason::Exchange
        };
        Decision {
            window: Nanoseconds(self.window_ns),
            period: Nanoseconds(self.period_ns),
            promote_from: Bytes(promote_from),
            demote_from: Bytes(demote_from),
            reason,
        }
    }
}

/// `value * by / of`, saturating; `of` above zero.
fn scale(value: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(by) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// `part` of `whole` in basis points.
fn ratio(part: u64, whole: u64) -> u64 {
    scale(part, WHOLE, whole)
}

fn share_of(bytes: u64, basis_points: u64) -> u64 {
    scale(bytes, basis_points.min(WHOLE), WHOLE)
}

#[cfg(test)]
#[path = "tiering/tests.rs"]
mod tests;
