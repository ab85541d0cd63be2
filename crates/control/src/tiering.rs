//! Tiering as a loop: a look every period, in the order in which the kernel can do it.
//!
//! A look is: forget what was used, on both sides; a window later demote what was not used again, which makes room; then
//! promote what was; then rest until the period is over. Each step is one `tick`, which says when the next is due.

use nearfar_policy::tiering::{Decision, Goals, Looked, Observation, Side, Tiering};
use nearfar_topology::{Bytes, Nanoseconds};

/// What is asked of a machine: two sides of pages that can be looked at and moved.
pub trait Pages {
    /// Why something could not be done.
    type Error;

    /// First pass over both sides: forget that pages were used. Gives how long the pass takes to begin.
    ///
    /// # Errors
    /// The machine's.
    fn forget(&mut self) -> Result<Nanoseconds, Self::Error>;

    /// Second pass over so much near memory: demote what was not used.
    ///
    /// # Errors
    /// The machine's.
    fn demote(&mut self, from: Bytes) -> Result<Nanoseconds, Self::Error>;

    /// Second pass over so much far memory: promote what was used.
    ///
    /// # Errors
    /// The machine's.
    fn promote(&mut self, from: Bytes) -> Result<Nanoseconds, Self::Error>;

    /// Nothing more until the next look; when this returns, what was under way has ended.
    ///
    /// # Errors
    /// The machine's.
    fn rest(&mut self) -> Result<(), Self::Error>;

    /// What there is, and what has been done since the beginning.
    ///
    /// # Errors
    /// The machine's.
    fn count(&mut self) -> Result<Count, Self::Error>;
}

/// Counters of a machine, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The faster side, now.
    pub near: Side,
    /// The slower side, now.
    pub far: Side,
    /// Looked at and moved from far to near.
    pub promotion: Looked,
    /// Looked at and moved from near to far.
    pub demotion: Looked,
    /// CPU time that it took.
    pub cpu: Nanoseconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Decide,
    Forgotten,
    Demote,
    Promote,
    Rest,
}

/// The loop of one boundary between tiers.
#[derive(Debug)]
pub struct Loop {
    policy: Tiering,
    step: Step,
    decision: Option<Decision>,
    seen: Observation,
    before: Count,
    /// When the look began, and when its window did.
    began: Nanoseconds,
    forgot: Nanoseconds,
}

impl Loop {
    /// A loop that has not looked yet; `now` counts from its beginning.
    #[must_use]
    pub fn new(goals: Goals, before: Count) -> Self {
        Self {
            policy: Tiering::new(goals),
            step: Step::Decide,
            decision: None,
            seen: Observation { near: before.near, far: before.far, ..Observation::default() },
            before,
            began: Nanoseconds(0),
            forgot: Nanoseconds(0),
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

    /// Does what is due; gives when the next thing is.
    ///
    /// # Errors
    /// The machine's. The loop may be ticked again.
    pub fn tick<P: Pages>(
        &mut self,
        now: Nanoseconds,
        pages: &mut P,
    ) -> Result<Nanoseconds, P::Error> {
        let after = |from: Nanoseconds, by: Nanoseconds| Nanoseconds(from.0.saturating_add(by.0));
        let decision = match (self.step, self.decision) {
            (Step::Decide, _) | (_, None) => {
                self.observe(now, pages.count()?);
                let decision = self.policy.step(&self.seen);
                self.decision = Some(decision);
                self.began = now;
                if decision.promote_from.0 == 0 && decision.demote_from.0 == 0 {
                    return Ok(after(now, decision.period));
                }
                let takes = pages.forget()?;
                self.step = Step::Forgotten;
                return Ok(after(now, takes));
            }
            (_, Some(decision)) => decision,
        };
        let next = match self.step {
            Step::Decide | Step::Forgotten => {
                pages.rest()?;
                self.forgot = now;
                self.step = Step::Demote;
                after(now, decision.window)
            }
            Step::Demote => {
                self.step = Step::Promote;
                if decision.demote_from.0 == 0 {
                    now
                } else {
                    after(now, pages.demote(decision.demote_from)?)
                }
            }
            Step::Promote => {
                self.step = Step::Rest;
                if decision.promote_from.0 == 0 {
                    now
                } else {
                    after(now, pages.promote(decision.promote_from)?)
                }
            }
            Step::Rest => {
                pages.rest()?;
                self.step = Step::Decide;
                after(self.began, decision.period).max(now)
            }
        };
        Ok(next)
    }

    fn observe(&mut self, now: Nanoseconds, count: Count) {
        let since = |now: Bytes, before: Bytes| Bytes(now.0.saturating_sub(before.0));
        let looked = |now: Looked, before: Looked| Looked {
            at: since(now.at, before.at),
            passed: since(now.passed, before.passed),
            moved: since(now.moved, before.moved),
        };
        self.seen = Observation {
            elapsed: Nanoseconds(now.0.saturating_sub(self.began.0)),
            cpu: Nanoseconds(count.cpu.0.saturating_sub(self.before.cpu.0)),
            near: count.near,
            far: count.far,
            promotion: looked(count.promotion, self.before.promotion),
            demotion: looked(count.demotion, self.before.demotion),
        };
        self.before = count;
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
    }

    impl Notes {
        fn note(&mut self, what: &'static str) -> Result<Nanoseconds, &'static str> {
            self.did.push(what);
            if self.fails { Err("no") } else { Ok(Nanoseconds(1_000)) }
        }
    }

    impl Pages for Notes {
        type Error = &'static str;
        fn forget(&mut self) -> Result<Nanoseconds, Self::Error> {
            self.note("forget")
        }
        fn demote(&mut self, from: Bytes) -> Result<Nanoseconds, Self::Error> {
            self.count.demotion.at.0 += from.0;
            self.note("demote")
        }
        fn promote(&mut self, from: Bytes) -> Result<Nanoseconds, Self::Error> {
            self.count.promotion.at.0 += from.0;
            self.note("promote")
        }
        fn rest(&mut self) -> Result<(), Self::Error> {
            self.note("rest").map(|_| ())
        }
        fn count(&mut self) -> Result<Count, Self::Error> {
            self.note("count").map(|_| self.count)
        }
    }

    fn full() -> Notes {
        let near = Side { total: Bytes(100 * MIB), free: Bytes(0) };
        let far = Side { total: Bytes(400 * MIB), free: Bytes(300 * MIB) };
        Notes { count: Count { near, far, ..Count::default() }, ..Notes::default() }
    }

    fn goals() -> Goals {
        Goals::with_traffic(BytesPerSecond(1 << 30))
    }

    #[test]
    fn a_look_forgets_waits_demotes_promotes_and_rests_in_this_order() {
        let mut pages = full();
        let mut tiering = Loop::new(goals(), pages.count);
        let mut now = Nanoseconds(0);
        for _ in 0..6 {
            now = tiering.tick(now, &mut pages).unwrap();
        }
        assert_eq!(
            pages.did,
            ["count", "forget", "rest", "demote", "promote", "rest", "count", "forget"]
        );
        let decision = tiering.decision().unwrap();
        assert!(now.0 >= decision.period.0, "the second look begins a period after the first");
        assert!(tiering.seen().promotion.at.0 > 0);
    }

    #[test]
    fn where_nothing_is_far_nothing_is_touched() {
        let mut pages = full();
        pages.count.near.free = Bytes(90 * MIB);
        pages.count.far.free = pages.count.far.total;
        let mut tiering = Loop::new(goals(), pages.count);
        let mut now = Nanoseconds(0);
        for _ in 0..5 {
            now = tiering.tick(now, &mut pages).unwrap();
        }
        assert_eq!(pages.did, ["count"; 5]);
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
