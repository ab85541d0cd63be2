//! Tiering between two neighbouring tiers: which pages are to change sides, and whether moving pays.
//!
//! # What can be seen
//! A *look* has two passes over all pages: the first forgets of every page that it was used (clears the accessed bit), the
//! second, a *window* of time `L` later, counts which have been used since. Then one demotes, and a last one promotes into
//! the room that was made. A page used `r` times a second is found used with probability `1 - exp(-r L)`, so the window is a
//! threshold on how often a page is used, of about `1 / L`. Promotion takes from far memory what is found used, demotion
//! from near memory what is found unused: page by page, however finely hot and cold are mixed. A single look errs for
//! pages near the threshold; that is what the share of a look that is acted upon is for.
//!
//! # The law
//! 1. *The window fits the hot set to near memory.* What a look finds used, near and far together, is the hot set at this
//!    window. If it is more than half of what near memory holds, the window gets shorter, else longer. (The shorter, the
//!    greater the contrast of pages used often and pages used sometimes.) It is *sought* by looks that follow each other,
//!    each with a longer window. What is found used by the first of them is the hottest there is: it moves at once.
//! 2. *Looks are as far apart as their cost demands*: over a minute they take no more CPU than allowed. What was not used
//!    is saved for a minute, so that a new hot set is fetched soon. When few pages move, looks get rarer.
//! 3. *Demotion makes room, no more*: for the headroom that new pages need, and for what is promoted right after it. A
//!    workload that fits near memory loses nothing to it. What is demoted has been unused for four windows: pages in between
//!    stay where they are.
//! 4. *Where that is seldom enough, age decides*: many pages are used more rarely than once in a few windows, and to
//!    have been unused for so long says little of them. So near pages are demoted in the order of their addresses, round
//!    and round, those that were used since they were last come by excepted (the CLOCK algorithm): the fewer pages move,
//!    the longer must one have been unused. What moving brings is told by a sample of them, those that demotion has just come
//!    by; to count all of them would forget how old they are, and is rarely done.
//! 5. *Each look promotes a part of what it found*, as room and traffic allow, and the hottest part: what is found used in
//!    a window as much shorter. The part starts at a half and shrinks where promoting does not leave near memory with more
//!    pages that are found used. It is a half again when the *gain* falls (how much more often near pages are found used than
//!    far ones): the hot set has moved.
//! 6. *Moving must pay.* Where pages differ in use, near pages are soon found used more often than far ones. If a good
//!    part of near memory has been exchanged and they still are not (a scan, or use spread evenly), it rests, longer
//!    each time, and then tries again; it only counts meanwhile, and a change ends the rest.
//!
//! One [`Tiering`] stands for one boundary between tiers; a machine with three tiers has two.
//!
//! Looks by DAMON's `young` filter: Linux 6.11, Documentation/mm/damon/design.rst. What a kernel without hardware samples
//! does not have is a count per page; hence windows.

use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};

mod judge;
mod terms;

use judge::{LOST_PERCENT, PART_MOST, Part, Trial};

pub use terms::{Decision, Estimate, Goals, Look, Looked, Observation, Reason, Side, Upkeep};

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
    /// Bytes that may be moved by now; below zero if more was.
    traffic: i64,
    /// Looks in a row that found little to do.
    calm: u32,
    /// Looks by age in a row.
    aged: u32,
    near_used: Option<u64>,
    far_used: Option<u64>,
    part: Part,
    trial: Trial,
}

/// Where the search for the window stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seek {
    /// Begun; with the window before and the hot set that it found.
    Under(Option<(u64, u64)>),
    Found,
}

/// CPU time saved or owed, and what a look costs.
#[derive(Clone, Copy, Debug)]
struct Credit {
    saved_ns: i64,
    look_ns: u64,
}

/// CPU time is saved for so long.
const SAVED_NS: u64 = 60 * SECOND_NS;
/// Looks are not further apart than this, whatever they cost.
const PERIOD_MOST_NS: u64 = 6 * 3600 * SECOND_NS;
/// The window finds this part of what near memory holds.
const TARGET_PART: u64 = 2;
/// What is demoted has been unused for so many windows, but not for longer than this.
const PATIENCE: u64 = 4;
const IDLE_MOST_NS: u64 = 2 * SECOND_NS;
/// Age decides if an average near page is used less than once in this: then enough are unused for as long as the hand takes
/// to come round, a few seconds at least.
const AGE_NS: u64 = SECOND_NS / 4;
/// This part of near memory is exchanged in one look at most, and by age, which errs less.
const MOST_PART: u64 = 8;
const MOST_PART_BY_AGE: u64 = 4;
/// After so many looks by age, all near pages are counted again: of those that are left, it is forgotten how old they are.
const AGED_MOST: u32 = 64;
/// Sooner, if this part more is found used in far memory than by the look before.
const GROWN_PART: u64 = 4;
/// Looks that find little to do make the next come later, this many doublings of a second at most.
const CALM_MOST: u32 = 5;
/// Below this share of used far pages there is nothing worth promoting: 0.5 %.
const NOTHING: u64 = 50;
/// Where all that is used fits near memory and less than this part of it is used in far memory, there is little to do.
const LITTLE: u64 = 256;
/// Beyond what is kept free, this part of near memory is too much to be left unfilled until the next look.
const UNFILLED: u64 = 32;
/// Below this there is little left to do.
const PART_SETTLED: u64 = WHOLE / 16;

impl Tiering {
    /// A controller that knows nothing yet.
    #[must_use]
    pub fn new(goals: Goals) -> Self {
        let (least, most) = goals.window;
        let window_ns = least.0.clamp(1, most.0.max(1));
        let saved_ns = share_of(SAVED_NS, u64::from(goals.cpu.0)).cast_signed();
        Self {
            goals,
            window_ns,
            period_ns: window_ns,
            seek: Seek::Under(None),
            credit: Credit { saved_ns, look_ns: 0 },
            traffic: 0,
            calm: 0,
            aged: 0,
            near_used: None,
            far_used: None,
            part: Part::fresh(0, [0; 2], 0),
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
        let far_before = self.far_used;
        self.learn(seen);
        let grown =
            far_before.zip(self.far_used).is_some_and(|(was, is)| is > was + was / GROWN_PART);
        self.aged = match seen.both() {
            true => 0,
            // Far pages are used more often than before: near ones may be used less.
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
        // While the window is sought, what moves is what this look was for, not the next.
        let window_ns = if self.seek == Seek::Found { self.window_ns } else { looked_ns };
        self.decide(seen, Nanoseconds(window_ns))
    }

    fn learn(&mut self, seen: &Observation) {
        let share =
            |look: Looked| (look.at.0 > 0).then(|| ratio(look.used.0, look.at.0).min(WHOLE));
        // A sample of near pages counts for as much as it is of them.
        let (at, taken) = (seen.near_look.at.0, seen.near.taken());
        self.near_used = match (self.near_used, share(seen.near_look)) {
            (Some(before), Some(now)) if !seen.both() => {
                let before = scale(before, taken.saturating_sub(at), taken);
                Some(before.saturating_add(scale(now, at.min(taken), taken)))
            }
            (before, now) => now.or(before),
        };
        self.far_used = share(seen.far_look).or(self.far_used);
    }

    /// What may be moved is saved for a second; what was moved beyond it is made up for.
    fn allow_traffic(&mut self, seen: &Observation) {
        let most = signed(self.goals.traffic.0);
        let allowed = signed(scale(self.goals.traffic.0, seen.elapsed.0, SECOND_NS));
        let moved = signed(seen.near_look.moved.0.saturating_add(seen.far_look.moved.0));
        self.traffic = self.traffic.saturating_add(allowed).min(most).saturating_sub(moved);
    }

    /// Goes on with a longer window while less is used than near memory holds, and takes one between the last two then.
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
        // What has not been looked at is taken to be in use if near, and not if far.
        let near = share_of(seen.near.taken(), self.near_used.unwrap_or(WHOLE));
        near.saturating_add(share_of(seen.far.taken(), self.far_used.unwrap_or(0)))
    }

    /// What is found used in far memory.
    fn far_hot(&self, seen: &Observation) -> u64 {
        share_of(seen.far.taken(), self.far_used.unwrap_or(0))
    }

    /// What near memory has room for without demotion.
    fn spare(&self, seen: &Observation) -> u64 {
        seen.near.free.0.saturating_sub(Self::room_kept(self.headroom(seen.near)))
    }

    /// What is not filled, so that there is room for new pages.
    const fn room_kept(headroom: u64) -> u64 {
        headroom.saturating_add(headroom / 2)
    }

    fn headroom(&self, near: Side) -> u64 {
        share_of(near.total.0, u64::from(self.goals.headroom.0))
    }

    /// How much more often near pages are found used than far ones, in per cent.
    fn gain(&self) -> Option<u64> {
        self.near_used.zip(self.far_used).map(|(near, far)| scale(near, 100, far))
    }

    /// Whether far pages are found used more often than near ones.
    fn is_elsewhere(&self) -> bool {
        self.gain().is_some_and(|gain| gain < LOST_PERCENT)
    }

    fn capacity(&self, seen: &Observation) -> u64 {
        seen.near.total.0.saturating_sub(self.headroom(seen.near)).max(1)
    }

    /// How much the window is to find used: less than near memory holds, as it is the contrast that tells.
    fn target(&self, seen: &Observation) -> u64 {
        (self.capacity(seen) / TARGET_PART).max(1)
    }

    /// Whether the window tells hot from cold here: a hot set far too large or too small says nothing of a trial.
    fn window_fits(&self, seen: &Observation) -> bool {
        let (hot, capacity) = (self.hot(seen), self.target(seen));
        let at_an_end =
            self.window_ns <= self.goals.window.0.0 || self.window_ns >= self.goals.window.1.0;
        at_an_end || hot.abs_diff(capacity) <= capacity / 4
    }

    /// Shorter where more is hot than near memory holds, longer where less; at most twice as long and half as long.
    /// Sought anew if it is far off, and sooner where what is used more than before is far: a program has just begun.
    fn fit_window(&mut self, seen: &Observation) {
        let (least, most) = (self.goals.window.0.0.max(1), self.goals.window.1.0);
        if seen.both() {
            let (hot, capacity) = (self.hot(seen).max(1), self.target(seen));
            // Within a tenth of the capacity it stays as it is.
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

    /// Looks follow each other as soon as their cost allows, but not sooner than a second, and later when there is little
    /// to do.
    fn fit_period(&mut self, seen: &Observation) {
        let whole = u64::from(self.goals.cpu.0).max(1);
        // The less there is to gain, the less is spent on it: a look costs programs more than its CPU time, as it leaves
        // caches full of page tables.
        let share = match self.seek {
            Seek::Found if !self.is_elsewhere() => {
                scale(whole, self.part.share, PART_MOST).clamp(whole.div_ceil(8), whole)
            }
            _ => whole,
        };
        let earned = signed(share_of(seen.elapsed.0, share));
        let (saved, most) = (self.credit.saved_ns, signed(share_of(SAVED_NS, whole)));
        self.credit.saved_ns =
            saved.saturating_add(earned).min(most).saturating_sub(signed(seen.cpu.0)).max(-most);
        if seen.near_look.at.0 > 0 || seen.far_look.at.0 > 0 {
            self.credit.look_ns = seen.cpu.0;
        }
        let settled = self.part.share <= PART_SETTLED || self.trial.rest_ns > 0;
        let fits = self.hot(seen) <= self.capacity(seen)
            && self.far_hot(seen) <= seen.near.total.0 / LITTLE;
        let settled = self.seek == Seek::Found && (settled || fits);
        self.calm = if settled { (self.calm + 1).min(CALM_MOST) } else { 0 };
        let least = match self.seek {
            Seek::Under(_) => self.window_ns,
            Seek::Found => self.window_ns.max(SECOND_NS << self.calm),
        };
        let owed = signed(self.credit.look_ns).saturating_sub(self.credit.saved_ns).max(0);
        let affordable = scale(owed.cast_unsigned(), WHOLE, share);
        self.period_ns = affordable.clamp(least, least.max(PERIOD_MOST_NS));
    }

    /// Whether there is anything to look for: something in far memory, or too little room in near memory.
    #[must_use]
    pub fn is_to_look(&self, near: Side, far: Side) -> bool {
        far.taken() > 0 || near.free.0 < self.headroom(near)
    }

    /// What is to hold until the next look.
    #[must_use]
    pub fn upkeep(&self, seen: &Observation) -> Upkeep {
        let headroom = self.headroom(seen.near);
        let worth = self.far_used.is_some_and(|used| used >= NOTHING);
        Upkeep {
            free_least: Bytes(headroom / 2),
            free_most: worth.then(|| Bytes(Self::room_kept(headroom))),
            // So coarse are the steps in which a kernel approaches its goal.
            rate: BytesPerSecond((self.goals.traffic.0 / 2).min(headroom)),
            cpu: self.goals.cpu,
        }
    }

    /// Whether near memory has so little room, or so much, that the next look should come now, so long after the last was
    /// taken in: less than upkeep is to leave, or more than it is to fill, as where promotion did not find what demotion made
    /// room for; and CPU time has been saved for a look. Where room can be made without one, it is no reason
    /// ([`relief`](Self::relief)).
    #[must_use]
    pub fn is_off(&self, near: Side, far: Side, since: Nanoseconds) -> bool {
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

    fn is_pressed(&self, near: Side, far: Side) -> bool {
        near.free.0 < self.headroom(near) / 2 && far.free.0 > 0
    }

    /// What the last decision is to demote more, so long after it, where there is less room than upkeep is to leave: by age
    /// that needs no look, which would cost programs much.
    #[must_use]
    pub fn relief(&self, near: Side, far: Side, since: Nanoseconds) -> Bytes {
        if !self.is_pressed(near, far) || !self.by_age() || since.0 < SECOND_NS {
            return Bytes(0);
        }
        let budget = self.traffic.max(0).cast_unsigned() / 2;
        let short = self.headroom(near).saturating_sub(near.free.0);
        Bytes(short.min(far.free.0).min(budget))
    }

    /// The next look.
    #[must_use]
    pub fn look(&self) -> Look {
        Look { window: Nanoseconds(self.window_ns), by_age: self.by_age() }
    }

    /// Where an average near page is used so seldom that to be unused for a window says little of it. Near pages are counted
    /// all the same now and then, and where far ones are used more often: a program may have begun since.
    fn by_age(&self) -> bool {
        if self.aged >= AGED_MOST || self.is_elsewhere() {
            return false;
        }
        let used = self.near_used.unwrap_or(WHOLE);
        self.seek == Seek::Found && scale(used, AGE_NS, self.window_ns) <= WHOLE
    }

    /// The share of what is found used that is promoted. Where what gives way for it has long been unused, it may be all.
    fn promoted_share(&self) -> u64 {
        if self.by_age() { self.part.share * 2 } else { self.part.share }
    }

    fn decide(&mut self, seen: &Observation, window: Nanoseconds) -> Decision {
        let by_age = self.by_age();
        let (headroom, rests) = (self.headroom(seen.near), self.trial.rest_ns > 0);
        let (far_hot, spare) = (self.far_hot(seen), self.spare(seen));
        let nothing = self.far_used.is_none_or(|used| used < NOTHING);
        let seeks = self.seek != Seek::Found && !nothing;
        // Both ways together keep to the traffic that is allowed.
        let budget = self.traffic.max(0).cast_unsigned() / 2;
        let exchanged = if rests || nothing {
            0
        } else if seeks {
            if self.hot(seen) <= self.capacity(seen) { far_hot } else { 0 }
        } else {
            let most_part = if by_age { MOST_PART_BY_AGE } else { MOST_PART };
            share_of(far_hot, self.promoted_share()).min(seen.near.total.0 / most_part)
        };
        // Where there is room, what is used is better off near in any case.
        let filled = if nothing { 0 } else { far_hot.min(spare) };
        let unused = share_of(seen.near.taken(), WHOLE - self.near_used.unwrap_or(0).min(WHOLE));
        let gives = unused.min(seen.far.free.0).min(budget);
        let (free, kept) = (seen.near.free.0, headroom / 2);
        let wanted = exchanged.max(filled).min(budget);
        // Not all that is to be demoted will be, and what finds no room stays far.
        let room = free.saturating_add(scale(gives, 3, 4)).saturating_sub(kept);
        let promote = wanted.min(room);
        // Room for new pages, and for what is promoted right after.
        let short = headroom.saturating_add(promote).saturating_sub(free);
        let demote = if promote > 0 { scale(short, 4, 3) } else { short }.min(gives);
        let reason = if filled > exchanged {
            Reason::Fills
        } else if rests {
            Reason::NoGain { again_in: Nanoseconds(self.trial.rest_ns) }
        } else if nothing {
            Reason::Fits
        } else if seeks {
            Reason::Seeks
        } else if self.part.share <= PART_SETTLED {
            Reason::Settled
        } else {
            Reason::Exchange
        };
        // Of what is promoted only in part, that which is used most.
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

/// `value * by / of`, saturating; `of` above zero.
fn scale(value: u64, by: u64, of: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(by) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
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
