//! Tiering between two neighbouring tiers: which pages to promote and demote, and whether migration pays.
//!
//! # Observation
//! An access *scan* ([`Scan`]) makes two passes over all pages: the first clears the accessed bits, the second, one
//! sampling *window* of time `L` later, counts the pages referenced since. Then one pass demotes, and a last one
//! promotes into the memory freed by demotion. A page accessed `r` times a second is found referenced with probability
//! `1 - exp(-r L)`, so the window is a threshold on the access frequency, of about `1 / L`. Promotion selects
//! referenced pages in far memory, demotion unreferenced pages in near memory: page by page, at any granularity of hot
//! and cold. A single scan errs for pages near the threshold; therefore only a share of its result is acted upon.
//!
//! # Control law
//! 1. *The window fits the hot set to near memory.* The referenced pages of both tiers are the hot set at this window.
//!    If they fill more than half of near memory, the window is shortened, else lengthened. (A shorter window separates
//!    frequently from occasionally used pages better.) The *search* for it is a sequence of scans, each with a longer
//!    window. The pages referenced in the first one are the hottest of all: they are promoted at once.
//! 2. *The cost of scans bounds their rate*: over a minute they use no more CPU time than allowed. Unused time is saved
//!    for at most a minute, so that a new hot set is promoted soon. While few pages migrate, scans become rarer.
//! 3. *Demotion only frees the memory needed*: headroom for allocations, and the size of the promotion that follows. A
//!    workload that fits near memory is not affected. Demoted pages were unreferenced for four windows.
//! 4. *For rarely used pages, age decides*: if many pages are used less than once in a few windows, being unreferenced
//!    for that time says little. Near pages are then demoted in cyclic order of their addresses, except those
//!    referenced since the previous round (the CLOCK algorithm): the fewer pages migrate, the longer a page must have
//!    been unreferenced. The benefit of migration is estimated from the near pages that demotion has just passed;
//!    counting all would clear their accessed bits and with them their age, and is rare.
//! 5. *Each scan promotes a part of the referenced far pages*, as free memory and traffic limits allow, and the hottest
//!    part: pages referenced within a window shortened in the same proportion. The part starts at one half and is
//!    halved while promotion does not increase the number of referenced near pages. It is reset to one half when the
//!    *gain* (how much more often near pages are referenced than far ones) drops: the hot set has moved.
//! 6. *Migration must pay.* If access frequencies differ, near pages are soon referenced more often than far ones. If a
//!    good part of near memory has been exchanged without that result (a sequential scan, or uniform access), tiering
//!    backs off, for longer each time, then tries again; meanwhile it only counts, and a changed gain ends the backoff.
//!
//! One [`Tiering`] controls one boundary between tiers; a machine with three tiers has two. Scans use DAMON's `young`
//! filter: Linux 6.11, Documentation/mm/damon/design.rst. A kernel without hardware samples has no access count per
//! page.

use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};

mod budget;
pub mod clock_hand;
mod feedback;
pub mod migration;
pub mod segments;
pub mod targets;
mod terms;

use budget::{Credit, PART_SETTLED};
use feedback::{LOST_PERCENT, Part, Trial};

pub use terms::{
    BackgroundMigration, Decision, Estimate, Goals, Observation, Reason, Scan, Scanned, TierUsage,
    scale,
};

const WHOLE: u64 = 10_000;
const SECOND_NS: u64 = 1_000_000_000;

/// The controller of one boundary.
#[derive(Clone, Debug)]
pub struct Tiering {
    goals: Goals,
    window_ns: u64,
    period_ns: u64,
    seek: Seek,
    credit: Credit,
    /// Migration budget in bytes; negative after overspending.
    traffic: i64,
    /// Consecutive scans that found little to do.
    calm: u32,
    /// Consecutive scans by age.
    aged: u32,
    near_used: Option<u64>,
    far_used: Option<u64>,
    part: Part,
    trial: Trial,
}

/// State of the search for the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seek {
    /// In progress; with the previous window in ns and the size of its hot set.
    Under(Option<(u64, u64)>),
    Found,
}

/// The window is fitted to a hot set of this part of near memory.
const TARGET_PART: u64 = 2;
/// Demoted pages were unreferenced for this many windows, but no longer than this is required.
const PATIENCE: u64 = 4;
const IDLE_MOST_NS: u64 = 2 * SECOND_NS;
/// Age decides if the average near page is used less than once in this time: then enough pages stay unreferenced during
/// one round of the hand over near memory, a few seconds at least.
const AGE_NS: u64 = SECOND_NS / 4;
/// At most this part of near memory is exchanged per scan, and by age, which is more accurate.
const MOST_PART: u64 = 8;
const MOST_PART_BY_AGE: u64 = 4;
/// After this many scans by age all near pages are counted again, which clears their accessed bits and so their age.
const AGED_MOST: u32 = 64;
/// Earlier, if far memory has this part more referenced pages than in the previous scan.
const GROWN_PART: u64 = 4;
/// Below this share of referenced far pages nothing is worth promoting: 0.5 %.
const NOTHING: u64 = 50;
/// Near memory free beyond the headroom by more than this part triggers an early scan.
const UNFILLED: u64 = 32;
/// If less than this part of what should be promoted has room, near memory has none.
const FEW: u64 = 16;

impl Tiering {
    /// A controller without observations.
    #[must_use]
    pub fn new(goals: Goals) -> Self {
        let (least, most) = goals.window;
        let window_ns = least.0.clamp(1, most.0.max(1));
        Self {
            goals,
            window_ns,
            period_ns: window_ns,
            seek: Seek::Under(None),
            credit: Credit::full(goals.cpu),
            traffic: 0,
            calm: 0,
            aged: 0,
            near_used: None,
            far_used: None,
            part: Part::fresh(0, [0; 2], 0),
            trial: Trial::default(),
        }
    }

    /// The current estimate of the hot set and access frequencies.
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

    /// Records the result of the last scan and decides the next actions.
    pub fn step(&mut self, seen: &Observation) -> Decision {
        let far_before = self.far_used;
        self.learn(seen);
        let grown =
            far_before.zip(self.far_used).is_some_and(|(was, is)| is > was + was / GROWN_PART);
        self.aged = match seen.both() {
            true => 0,
            // Far pages are referenced more often than before, so near pages may be less.
            false if grown => AGED_MOST,
            false => self.aged.saturating_add(1),
        };
        self.allow_traffic(seen);
        let looked_ns = self.window_ns;
        match self.seek {
            Seek::Under(before) if seen.both() => self.seek(seen, before),
            Seek::Under(_) => {}
            Seek::Found => {
                self.judge_part(seen);
                self.judge_trial(seen);
                self.fit_window(seen);
            }
        }
        self.fit_period(seen);
        // During the search, migrations use the window of this scan, not the next one.
        let window_ns = if self.seek == Seek::Found { self.window_ns } else { looked_ns };
        self.decide(seen, Nanoseconds(window_ns))
    }

    fn learn(&mut self, seen: &Observation) {
        let share = |look: Scanned| {
            (look.at.0 > 0).then(|| scale(look.used.0, WHOLE, look.at.0).min(WHOLE))
        };
        // A sample of near pages is weighted by its share of them.
        let (at, taken) = (seen.near_scan.at.0, seen.near.taken());
        self.near_used = match (self.near_used, share(seen.near_scan)) {
            (Some(before), Some(now)) if !seen.both() => {
                let before = scale(before, taken.saturating_sub(at), taken);
                Some(before.saturating_add(scale(now, at.min(taken), taken)))
            }
            (before, now) => now.or(before),
        };
        self.far_used = share(seen.far_scan).or(self.far_used);
    }

    /// The budget accumulates for at most a second; overspending is paid back.
    fn allow_traffic(&mut self, seen: &Observation) {
        let most = signed(self.goals.traffic.0);
        let allowed = signed(scale(self.goals.traffic.0, seen.elapsed.0, SECOND_NS));
        let moved = signed(seen.near_scan.moved.0.saturating_add(seen.far_scan.moved.0));
        self.traffic = self.traffic.saturating_add(allowed).min(most).saturating_sub(moved);
    }

    /// Lengthens the window while the hot set is smaller than near memory holds, then interpolates between the last two
    /// windows.
    fn seek(&mut self, seen: &Observation, before: Option<(u64, u64)>) {
        let (least, most) = (self.goals.window.0.0.max(1), self.goals.window.1.0);
        let (hot, capacity, window) = (self.hot(seen).max(1), self.target(seen), self.window_ns);
        let next = if hot < capacity {
            let longer = scale(window, capacity, hot);
            longer.clamp(window.saturating_mul(2), window.saturating_mul(8))
        } else {
            match before {
                Some((shorter, less)) if less < capacity => {
                    let part = scale(
                        window.saturating_sub(shorter),
                        capacity - less,
                        hot.saturating_sub(less).max(1),
                    );
                    shorter.saturating_add(part)
                }
                _ => scale(window, capacity, hot),
            }
        };
        self.window_ns = next.clamp(least, most.max(least));
        let found = hot >= capacity || window >= most || self.far_hot(seen) <= self.spare(seen);
        self.seek = if found { Seek::Found } else { Seek::Under(Some((window, hot))) };
    }

    fn hot(&self, seen: &Observation) -> u64 {
        // Before the first scan all near pages count as referenced, and no far pages.
        let near = share_of(seen.near.taken(), self.near_used.unwrap_or(WHOLE));
        near.saturating_add(share_of(seen.far.taken(), self.far_used.unwrap_or(0)))
    }

    /// Size of the referenced far pages.
    fn far_hot(&self, seen: &Observation) -> u64 {
        share_of(seen.far.taken(), self.far_used.unwrap_or(0))
    }

    /// Near memory that can be filled without demotion.
    fn spare(&self, seen: &Observation) -> u64 {
        seen.near.free.0.saturating_sub(Self::room_kept(self.headroom(seen.near)))
    }

    /// Memory kept free for allocations.
    const fn room_kept(headroom: u64) -> u64 {
        headroom.saturating_add(headroom / 2)
    }

    fn headroom(&self, near: TierUsage) -> u64 {
        share_of(near.total.0, u64::from(self.goals.headroom.0))
    }

    /// How much more often near pages are referenced than far ones, in per cent; `None` before both were scanned.
    fn gain(&self) -> Option<u64> {
        self.near_used.zip(self.far_used).map(|(near, far)| scale(near, 100, far))
    }

    /// Whether far pages are referenced more often than near ones.
    fn is_elsewhere(&self) -> bool {
        self.gain().is_some_and(|gain| gain < LOST_PERCENT)
    }

    fn capacity(&self, seen: &Observation) -> u64 {
        seen.near.total.0.saturating_sub(self.headroom(seen.near)).max(1)
    }

    /// Size of the hot set that the window is fitted to: less than near memory holds, for the sake of contrast.
    fn target(&self, seen: &Observation) -> u64 {
        (self.capacity(seen) / TARGET_PART).max(1)
    }

    /// Whether the window separates hot from cold: a hot set far too large or too small makes a trial meaningless.
    fn window_fits(&self, seen: &Observation) -> bool {
        let (hot, capacity) = (self.hot(seen), self.target(seen));
        let at_an_end =
            self.window_ns <= self.goals.window.0.0 || self.window_ns >= self.goals.window.1.0;
        at_an_end || hot.abs_diff(capacity) <= capacity / 4
    }

    /// Shortens the window if the hot set is larger than its target, else lengthens it; by a factor of two at most.
    /// Restarts the search if it is far off, and sooner if the additional hot pages are far: a program has just
    /// started.
    fn fit_window(&mut self, seen: &Observation) {
        let (least, most) = (self.goals.window.0.0.max(1), self.goals.window.1.0);
        if seen.both() {
            let (hot, capacity) = (self.hot(seen).max(1), self.target(seen));
            // Within a tenth of the target the window is kept.
            if hot.abs_diff(capacity) > capacity / 10 {
                let scaled = scale(self.window_ns, capacity, hot);
                let (shorter, longer) = (self.window_ns / 2, self.window_ns.saturating_mul(2));
                self.window_ns = scaled.clamp(shorter, longer);
            }
            let more = hot > capacity + capacity / if self.is_elsewhere() { 4 } else { 2 };
            let off = more && self.window_ns > least
                || hot < capacity / 2
                    && self.far_hot(seen) > self.spare(seen)
                    && self.window_ns < most;
            if off {
                self.seek = Seek::Under(None);
                self.window_ns = if hot > capacity { least } else { self.window_ns };
            }
        }
        self.window_ns = self.window_ns.clamp(least, most.max(least));
    }

    /// Whether a scan is useful: far memory is in use, or near memory is short of headroom.
    #[must_use]
    pub fn is_scan_due(&self, near: TierUsage, far: TierUsage) -> bool {
        far.taken() > 0 || near.free.0 < self.headroom(near)
    }

    /// Limits to hold until the next scan.
    #[must_use]
    pub fn background_migration(&self, seen: &Observation) -> BackgroundMigration {
        let headroom = self.headroom(seen.near);
        let worth = self.far_used.is_some_and(|used| used >= NOTHING);
        BackgroundMigration {
            free_least: Bytes(headroom / 2),
            free_most: worth.then(|| Bytes(Self::room_kept(headroom))),
            // A kernel approaches its goal in steps of this size.
            rate: BytesPerSecond((self.goals.traffic.0 / 2).min(headroom)),
            cpu: self.goals.cpu,
        }
    }

    /// Whether the next scan should start now, `since` after the last one was recorded: near memory has less free than
    /// upkeep must keep, or more than it may leave (as when promotion did not find the pages that demotion made room
    /// for), and enough CPU time has been saved for a scan. A shortage that demotion by age can relieve without a scan
    /// does not count ([`relief`](Self::relief)).
    #[must_use]
    pub fn is_off(&self, near: TierUsage, far: TierUsage, since: Nanoseconds) -> bool {
        let earned = signed(share_of(since.0, u64::from(self.goals.cpu.0)));
        let saved = self.credit.saved_ns.saturating_add(earned);
        let headroom = self.headroom(near);
        let pressed = self.is_pressed(near, far) && !self.by_age();
        let wanted =
            share_of(far.taken(), self.far_used.filter(|used| *used >= NOTHING).unwrap_or(0));
        let spare = near.free.0.saturating_sub(Self::room_kept(headroom));
        let unfilled = self.trial.rest_ns == 0 && spare.min(wanted) > near.total.0 / UNFILLED;
        (pressed || unfilled) && since.0 >= SECOND_NS && saved >= signed(self.credit.look_ns)
    }

    fn is_pressed(&self, near: TierUsage, far: TierUsage) -> bool {
        near.free.0 < self.headroom(near) / 2 && far.free.0 > 0
    }

    /// Bytes to demote in addition to the last decision, `since` after it, if near memory has less free than upkeep
    /// must keep; only by age, which needs no scan and so costs programs little.
    #[must_use]
    pub fn relief(&self, near: TierUsage, far: TierUsage, since: Nanoseconds) -> Bytes {
        if !self.is_pressed(near, far) || !self.by_age() || since.0 < SECOND_NS {
            return Bytes(0);
        }
        let budget = self.traffic.max(0).cast_unsigned() / 2;
        let short = self.headroom(near).saturating_sub(near.free.0);
        Bytes(short.min(far.free.0).min(budget))
    }

    /// The next scan.
    #[must_use]
    pub fn scan(&self) -> Scan {
        Scan { window: Nanoseconds(self.window_ns), by_age: self.by_age() }
    }

    /// Whether demotion is by age: the average near page is used so rarely that being unreferenced for one window says
    /// little. Near pages are still counted now and then, and while far pages are referenced more often: a program may
    /// have started since.
    fn by_age(&self) -> bool {
        if self.aged >= AGED_MOST || self.is_elsewhere() {
            return false;
        }
        let used = self.near_used.unwrap_or(WHOLE);
        self.seek == Seek::Found && scale(used, AGE_NS, self.window_ns) <= WHOLE
    }

    /// The share of referenced far pages to promote. By age it may be all, as the demoted pages were idle for long.
    fn promoted_share(&self) -> u64 {
        if self.by_age() { self.part.share * 2 } else { self.part.share }
    }

    fn decide(&mut self, seen: &Observation, window: Nanoseconds) -> Decision {
        let by_age = self.by_age();
        let (headroom, rests) = (self.headroom(seen.near), self.trial.rest_ns > 0);
        let (far_hot, spare) = (self.far_hot(seen), self.spare(seen));
        let nothing = self.far_used.is_none_or(|used| used < NOTHING);
        let seeks = self.seek != Seek::Found && !nothing;
        // Promotion and demotion together stay within the traffic limit.
        let budget = self.traffic.max(0).cast_unsigned() / 2;
        let exchanged = if rests || nothing {
            0
        } else if seeks {
            if self.hot(seen) <= self.capacity(seen) { far_hot } else { 0 }
        } else {
            let most_part = if by_age { MOST_PART_BY_AGE } else { MOST_PART };
            share_of(far_hot, self.promoted_share()).min(seen.near.total.0 / most_part)
        };
        // Free near memory is always filled with referenced pages.
        let filled = if nothing { 0 } else { far_hot.min(spare) };
        let unused = share_of(seen.near.taken(), WHOLE - self.near_used.unwrap_or(0).min(WHOLE));
        let gives = unused.min(seen.far.free.0).min(budget);
        let (free, kept) = (seen.near.free.0, headroom / 2);
        let wanted = exchanged.max(filled).min(budget);
        // Some of the demotion will fail; pages that find no free memory stay far.
        let room = free.saturating_add(scale(gives, 3, 4)).saturating_sub(kept);
        let promote = wanted.min(room);
        // Headroom for allocations, and for the promotion that follows.
        let short = headroom.saturating_add(promote).saturating_sub(free);
        let demote = if promote > 0 { scale(short, 4, 3) } else { short }.min(gives);
        let reason = if filled > exchanged {
            Reason::Fills
        } else if rests {
            Reason::NoGain { again_in: Nanoseconds(self.trial.rest_ns) }
        } else if nothing {
            Reason::Fits
        } else if promote < wanted / FEW {
            Reason::NoRoom
        } else if seeks {
            Reason::Seeks
        } else if self.part.share <= PART_SETTLED {
            Reason::Settled
        } else {
            Reason::Exchange
        };
        // A partial promotion takes the most frequently used pages.
        let in_part = filled < exchanged && exchanged < far_hot && !by_age;
        let promote_ns = if in_part {
            share_of(window.0, self.part.share).max(self.goals.window.0.0).min(window.0)
        } else {
            window.0
        };
        let idle_ns =
            if by_age { window.0 } else { window.0.saturating_mul(PATIENCE).min(IDLE_MOST_NS) };
        Decision {
            promote: Bytes(promote),
            promote_window: Nanoseconds(promote_ns),
            demote: Bytes(demote),
            by_age,
            idle: Nanoseconds(idle_ns.max(window.0)),
            period: Nanoseconds(self.period_ns.max(self.window_ns)),
            reason,
        }
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn share_of(bytes: u64, basis_points: u64) -> u64 {
    scale(bytes, basis_points.min(WHOLE), WHOLE)
}

#[cfg(test)]
#[path = "tiering/tests.rs"]
mod tests;
