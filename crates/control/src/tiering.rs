//! Tiering as a loop: a look every period, in the order in which the kernel can do it.
//!
//! A look is: forget what was used, on both sides; a window later count what was used since; exchange what was decided:
//! demote, and promote into the room that this makes; then rest until the period is over, or, where the machine does not
//! keep near memory up by itself, until it is short of room, or has much to fill. Where room can be made without a look,
//! pages are demoted meanwhile. Each step is one `tick`, which says how long to wait before the next: passes are due so long
//! after the kernel has taken the command.

use nearfar_policy::tiering::{Decision, Goals, Look, Looked, Observation, Side, Tiering, Upkeep};
use nearfar_topology::{Bytes, Nanoseconds};

/// What is asked of a machine: two sides of pages that can be looked at and moved.
pub trait Pages {
    /// Why something could not be done.
    type Error;

    /// First pass over both sides: forget that pages were used, for such a look. Gives how long to wait for it.
    ///
    /// # Errors
    /// The machine's.
    fn forget(&mut self, look: Look) -> Result<Nanoseconds, Self::Error>;

    /// Second pass, a window after the first: count what was used, and forget that it was. Gives how long to wait for it.
    ///
    /// # Errors
    /// The machine's.
    fn look(&mut self, look: Look) -> Result<Nanoseconds, Self::Error>;

    /// Third pass: demote as decided, and promote as soon as that has made room. Gives how long to wait for it.
    ///
    /// # Errors
    /// The machine's.
    fn exchange(&mut self, decision: &Decision) -> Result<Nanoseconds, Self::Error>;

    /// Nothing more until the next look but upkeep, where the machine sees to that by itself; when this returns, what was
    /// under way has ended.
    ///
    /// # Errors
    /// The machine's.
    fn rest(&mut self, upkeep: &Upkeep) -> Result<KeptBy, Self::Error>;

    /// What there is now, near and far. Asked for often, so it should be cheap.
    ///
    /// # Errors
    /// The machine's.
    fn sides(&mut self) -> Result<(Side, Side), Self::Error>;

    /// What there is, and what has been done since the beginning.
    ///
    /// # Errors
    /// The machine's.
    fn count(&mut self) -> Result<Count, Self::Error>;
}

/// Who sees to upkeep between looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptBy {
    /// The machine.
    Machine,
    /// The loop, which asks every second how much room there is.
    Loop,
}

/// Counters of a machine, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The faster side, now.
    pub near: Side,
    /// The slower side, now.
    pub far: Side,
    /// Found in near memory, and moved from it.
    pub near_look: Looked,
    /// Found in far memory, and moved from it.
    pub far_look: Looked,
    /// CPU time that it took.
    pub cpu: Nanoseconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Forget,
    Look,
    Decide,
    Rest,
}

/// How soon it is looked again whether there is anything to do.
const IDLE: Nanoseconds = Nanoseconds(1_000_000_000);

/// The loop of one boundary between tiers.
#[derive(Debug)]
pub struct Loop {
    policy: Tiering,
    step: Step,
    decision: Option<Decision>,
    seen: Observation,
    before: Count,
    /// When the look began, and when the last one was taken in; when the next is due.
    began: Nanoseconds,
    observed: Nanoseconds,
    due: Nanoseconds,
    kept_by: KeptBy,
}

impl Loop {
    /// A loop that has not looked yet; `now` counts from its beginning.
    #[must_use]
    pub fn new(goals: Goals, before: Count) -> Self {
        Self {
            policy: Tiering::new(goals),
            step: Step::Forget,
            decision: None,
            seen: Observation { near: before.near, far: before.far, ..Observation::default() },
            before,
            began: Nanoseconds(0),
            observed: Nanoseconds(0),
            due: Nanoseconds(0),
            kept_by: KeptBy::Loop,
        }
    }

    /// What was decided last.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.decision
    }

    /// What was seen last.
    #[must_use]
    pub fn seen(&self) -> &Observation {
        &self.seen
    }

    /// The policy, for what it has learned.
    #[must_use]
    pub fn policy(&self) -> &Tiering {
        &self.policy
    }

    /// Who sees to upkeep between looks.
    #[must_use]
    pub fn kept_by(&self) -> KeptBy {
        self.kept_by
    }

    /// Whether a look is under way: from its first pass until it rests.
    #[must_use]
    pub fn is_looking(&self) -> bool {
        self.step != Step::Forget
    }

    /// Goes on with other goals from the next look on.
    pub fn set_goals(&mut self, goals: Goals) {
        self.policy.set_goals(goals);
    }

    /// Does what is due at `now`; gives how long after it has been done the next thing is.
    ///
    /// # Errors
    /// The machine's. The loop may be ticked again.
    pub fn tick<P: Pages>(
        &mut self,
        now: Nanoseconds,
        pages: &mut P,
    ) -> Result<Nanoseconds, P::Error> {
        match self.step {
            Step::Forget => {
                (self.seen.near, self.seen.far) = pages.sides()?;
                if now.0 < self.due.0 && !self.is_off(now) {
                    let Some(relief) = self.relief(now) else { return Ok(self.pause(now)) };
                    self.step = Step::Rest;
                    return pages.exchange(&relief);
                }
                self.began = now;
                if !self.policy.is_to_look(self.seen.near, self.seen.far) {
                    return Ok(IDLE);
                }
                let takes = pages.forget(self.policy.look())?;
                self.step = Step::Look;
                Ok(takes)
            }
            Step::Look => {
                let takes = pages.look(self.policy.look())?;
                self.step = Step::Decide;
                Ok(takes)
            }
            Step::Decide => {
                self.observe(now, pages.count()?);
                let decision = self.policy.step(&self.seen);
                self.decision = Some(decision);
                self.step = Step::Rest;
                if decision.promote.0 == 0 && decision.demote.0 == 0 {
                    return Ok(Nanoseconds(0));
                }
                pages.exchange(&decision)
            }
            Step::Rest => {
                self.kept_by = pages.rest(&self.policy.upkeep(&self.seen))?;
                self.step = Step::Forget;
                let decision = self.decision;
                if decision.is_some_and(|decision| decision.promote.0 > 0 || decision.demote.0 > 0)
                {
                    let count = pages.count()?;
                    (self.seen.near, self.seen.far) = (count.near, count.far);
                }
                let period = decision.map_or(IDLE, |decision| decision.period);
                self.due = Nanoseconds(self.began.0.saturating_add(period.0));
                Ok(self.pause(now))
            }
        }
    }

    /// Whether near memory has so little room, or so much, that the next look can't wait.
    fn is_off(&self, now: Nanoseconds) -> bool {
        let since = Nanoseconds(now.0.saturating_sub(self.observed.0));
        self.kept_by == KeptBy::Loop && self.policy.is_off(self.seen.near, self.seen.far, since)
    }

    /// What makes room before the next look.
    fn relief(&self, now: Nanoseconds) -> Option<Decision> {
        let since = Nanoseconds(now.0.saturating_sub(self.observed.0));
        let demote = match self.kept_by {
            KeptBy::Machine => Bytes(0),
            KeptBy::Loop => self.policy.relief(self.seen.near, self.seen.far, since),
        };
        let last = self.decision.filter(|_| demote.0 > 0)?;
        Some(Decision { promote: Bytes(0), demote, ..last })
    }

    /// Until the next look, or until it is to be asked whether there is room.
    fn pause(&self, now: Nanoseconds) -> Nanoseconds {
        let left = self.due.0.saturating_sub(now.0);
        Nanoseconds(match self.kept_by {
            KeptBy::Machine => left,
            KeptBy::Loop => left.min(IDLE.0),
        })
    }

    fn observe(&mut self, now: Nanoseconds, count: Count) {
        let since = |now: Bytes, before: Bytes| Bytes(now.0.saturating_sub(before.0));
        let looked = |now: Looked, before: Looked| Looked {
            at: since(now.at, before.at),
            used: since(now.used, before.used),
            moved: since(now.moved, before.moved),
        };
        self.seen = Observation {
            elapsed: Nanoseconds(now.0.saturating_sub(self.observed.0)),
            cpu: Nanoseconds(count.cpu.0.saturating_sub(self.before.cpu.0)),
            near: count.near,
            far: count.far,
            near_look: looked(count.near_look, self.before.near_look),
            far_look: looked(count.far_look, self.before.far_look),
        };
        (self.before, self.observed) = (count, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_policy::tiering::Goals;
    use nearfar_topology::BytesPerSecond;

    const MIB: u64 = 1 << 20;

    /// Notes what it is asked to do.
    #[derive(Default)]
    struct Notes {
        did: Vec<&'static str>,
        count: Count,
        fails: bool,
        keeps: bool,
        exchanged: Option<Decision>,
        /// One byte in so many is found used, near and far.
        parts: [u64; 2],
    }

    impl Notes {
        fn note(&mut self, what: &'static str) -> Result<Nanoseconds, &'static str> {
            self.did.push(what);
            if self.fails { Err("no") } else { Ok(Nanoseconds(100_000_000)) }
        }
    }

    impl Pages for Notes {
        type Error = &'static str;
        fn forget(&mut self, _: Look) -> Result<Nanoseconds, Self::Error> {
            self.note("forget")
        }
        fn look(&mut self, _: Look) -> Result<Nanoseconds, Self::Error> {
            let parts = self.parts;
            let count = &mut self.count;
            let taken = |side: Side| side.total.0 - side.free.0;
            let sides = [(count.near, parts[0]), (count.far, parts[1])];
            for (look, (side, part)) in
                [&mut count.near_look, &mut count.far_look].into_iter().zip(sides)
            {
                look.at.0 += taken(side);
                look.used.0 += taken(side) / part;
            }
            self.note("look")
        }
        fn exchange(&mut self, decision: &Decision) -> Result<Nanoseconds, Self::Error> {
            self.count.far_look.moved.0 += decision.promote.0;
            self.count.near_look.moved.0 += decision.demote.0;
            self.exchanged = Some(*decision);
            self.note("exchange")
        }
        fn rest(&mut self, _: &Upkeep) -> Result<KeptBy, Self::Error> {
            self.note("rest").map(|_| if self.keeps { KeptBy::Machine } else { KeptBy::Loop })
        }
        fn sides(&mut self) -> Result<(Side, Side), Self::Error> {
            self.note("sides").map(|_| (self.count.near, self.count.far))
        }
        fn count(&mut self) -> Result<Count, Self::Error> {
            self.note("count").map(|_| self.count)
        }
    }

    fn full() -> Notes {
        let near = Side { total: Bytes(100 * MIB), free: Bytes(3 * MIB) };
        let far = Side { total: Bytes(400 * MIB), free: Bytes(300 * MIB) };
        let count = Count { near, far, ..Count::default() };
        Notes { count, keeps: true, parts: [8, 4], ..Notes::default() }
    }

    fn goals() -> Goals {
        Goals::with_traffic(BytesPerSecond(1 << 30))
    }

    #[test]
    fn a_look_forgets_counts_exchanges_and_rests_in_this_order() {
        let mut pages = full();
        let mut tiering = Loop::new(goals(), pages.count);
        let mut now = Nanoseconds(0);
        for _ in 0..4 {
            now.0 += tiering.tick(now, &mut pages).unwrap().0;
        }
        let look = ["sides", "forget", "look", "count", "exchange", "rest", "count"];
        assert_eq!(pages.did, look);
        let decision = tiering.decision().unwrap();
        assert!(now.0 >= decision.period.0, "the next look begins a period after this one");
        assert!(tiering.seen().far_look.at.0 > 0 && decision.promote.0 > 0, "{decision:?}");
    }

    #[test]
    fn near_memory_short_of_room_has_the_next_look_come_sooner_unless_the_machine_sees_to_it() {
        for keeps in [false, true] {
            let mut pages = full();
            pages.keeps = keeps;
            pages.count.far.free = Bytes(399 * MIB);
            let mut tiering = Loop::new(goals(), pages.count);
            let mut now = Nanoseconds(0);
            // Looks get rarer: next to nothing is in far memory.
            let rare = |tiering: &Loop| {
                tiering.decision().is_some_and(|decision| decision.period.0 > 10_000_000_000)
            };
            while now.0 < 600_000_000_000 {
                let wait = tiering.tick(now, &mut pages).unwrap();
                if rare(&tiering) && !tiering.is_looking() {
                    break;
                }
                now.0 += wait.0;
            }
            assert!(rare(&tiering), "{:?}", tiering.decision());
            let looks = |pages: &Notes| pages.did.iter().filter(|did| **did == "forget").count();
            let before = looks(&pages);
            let until = now.0 + 3_000_000_000;
            pages.count.near.free = Bytes(MIB / 2);
            while now.0 < until {
                now.0 += tiering.tick(now, &mut pages).unwrap().0.max(1);
            }
            assert_eq!(looks(&pages) > before, !keeps, "{:?}", pages.did);
        }
    }

    #[test]
    fn where_near_pages_are_known_by_age_room_is_made_without_a_look() {
        let mut pages = full();
        (pages.keeps, pages.parts) = (false, [4, 16]);
        let mut tiering = Loop::new(goals(), pages.count);
        let mut now = Nanoseconds(0);
        while !tiering.policy().look().by_age || tiering.is_looking() {
            now.0 += tiering.tick(now, &mut pages).unwrap().0.max(1);
            assert!(now.0 < 600_000_000_000, "{:?}", tiering.decision());
        }
        let due = tiering.due;
        pages.count.near.free = Bytes(MIB / 2);
        pages.did.clear();
        while now.0 < due.0 && !pages.did.contains(&"rest") {
            now.0 += tiering.tick(now, &mut pages).unwrap().0.max(1);
        }
        let did: Vec<_> = pages.did.iter().filter(|did| **did != "count").collect();
        assert!(did.ends_with(&[&"sides", &"exchange", &"rest"]), "{:?}", pages.did);
        assert!(!did.contains(&&"forget"), "{:?}", pages.did);
        assert_eq!(pages.exchanged.map(|decision| decision.promote), Some(Bytes(0)));
        assert!(tiering.decision().is_some_and(|decision| decision.period.0 > 0));
        assert_eq!(tiering.due, due, "the next look comes as if nothing had been");
    }

    #[test]
    fn where_nothing_is_far_nothing_is_touched() {
        let mut pages = full();
        pages.count.near.free = Bytes(90 * MIB);
        pages.count.far.free = pages.count.far.total;
        let mut tiering = Loop::new(goals(), pages.count);
        let mut now = Nanoseconds(0);
        for _ in 0..5 {
            now.0 += tiering.tick(now, &mut pages).unwrap().0;
        }
        assert_eq!(pages.did, ["sides"; 5]);
    }

    #[test]
    fn a_machine_that_fails_is_asked_again() {
        let mut pages = full();
        let mut tiering = Loop::new(goals(), pages.count);
        pages.fails = true;
        assert_eq!(tiering.tick(Nanoseconds(0), &mut pages), Err("no"));
        pages.fails = false;
        assert!(tiering.tick(Nanoseconds(1), &mut pages).is_ok());
    }
}
