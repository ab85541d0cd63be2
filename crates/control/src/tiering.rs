//! The tiering loop of one boundary: scans both tiers every period and migrates pages between them.
//!
//! A scan has these steps, in the order in which the kernel can do them: clear the accessed bits of pages on both
//! sides; count the referenced pages after the sampling window; demote and promote as decided; then idle until the
//! period is over. Where the machine does not maintain near memory by itself, the next scan starts earlier if near
//! memory has too little free memory, or much to fill. Where the policy can demote without a scan, pages are demoted
//! between scans.
//!
//! Each step is one `tick`, which returns the delay until the next one; the delay counts from the end of the step,
//! after the kernel has accepted the command. Not here: decisions (crate policy) and system calls (crate daemon).

use nearfar_policy::ports::{Count, KeptBy, TierPages};
use nearfar_policy::tiering::{Decision, Goals, Observation, Scanned, Tiering};
use nearfar_topology::{Bytes, Nanoseconds};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Forget,
    Scan,
    Decide,
    Rest,
}

/// Interval between checks while no scan is due.
const IDLE: Nanoseconds = Nanoseconds(1_000_000_000);
/// The same where the machine maintains near memory: scans may be hours apart, and results are to be current.
const IDLE_KEPT: Nanoseconds = Nanoseconds(10_000_000_000);

/// The loop of one boundary between tiers.
#[derive(Debug)]
pub struct Loop {
    policy: Tiering,
    step: Step,
    decision: Option<Decision>,
    seen: Observation,
    before: Count,
    /// Start of the last scan, time of the last observation, and start of the next scan.
    began: Nanoseconds,
    observed: Nanoseconds,
    due: Nanoseconds,
    kept_by: KeptBy,
}

impl Loop {
    /// A loop before its first scan; `now` counts from its creation.
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

    /// The last decision.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.decision
    }

    /// The last observation.
    #[must_use]
    pub fn seen(&self) -> &Observation {
        &self.seen
    }

    /// The policy, with its learned state.
    #[must_use]
    pub fn policy(&self) -> &Tiering {
        &self.policy
    }

    /// Whether the machine or this loop maintains near memory between scans.
    #[must_use]
    pub fn kept_by(&self) -> KeptBy {
        self.kept_by
    }

    /// Whether a scan, or a demotion between scans, is outstanding: until the loop idles.
    #[must_use]
    pub fn is_scanning(&self) -> bool {
        self.step != Step::Forget
    }

    /// Sets the goals that apply from the next scan on.
    pub fn set_goals(&mut self, goals: Goals) {
        self.policy.set_goals(goals);
    }

    /// Runs the step that is due at `now`. Returns the delay from the end of this step to the next.
    ///
    /// # Errors
    /// Errors of the machine. The loop may be ticked again.
    pub fn tick<P: TierPages>(
        &mut self,
        now: Nanoseconds,
        pages: &mut P,
    ) -> Result<Nanoseconds, P::Error> {
        match self.step {
            Step::Forget => {
                (self.seen.near, self.seen.far) = pages.sides()?;
                if now.0 < self.due.0 && !self.is_off(now) {
                    let Some(relief) = self.relief(now) else {
                        if self.kept_by == KeptBy::Machine {
                            // Counts background migration, for reports.
                            pages.count()?;
                        }
                        return Ok(self.pause(now));
                    };
                    self.step = Step::Rest;
                    return pages.migrate(&relief);
                }
                self.began = now;
                if !self.policy.is_scan_due(self.seen.near, self.seen.far) {
                    return Ok(IDLE);
                }
                let takes = pages.clear_accessed(self.policy.scan())?;
                self.step = Step::Scan;
                Ok(takes)
            }
            Step::Scan => {
                let takes = pages.scan(self.policy.scan())?;
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
                pages.migrate(&decision)
            }
            Step::Rest => {
                self.kept_by = pages.idle(&self.policy.background_migration(&self.seen))?;
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

    /// Whether near memory has too little or too much free memory to wait for the next scan.
    fn is_off(&self, now: Nanoseconds) -> bool {
        let since = Nanoseconds(now.0.saturating_sub(self.observed.0));
        self.kept_by == KeptBy::Loop && self.policy.is_off(self.seen.near, self.seen.far, since)
    }

    /// The demotion that frees near memory before the next scan; `None` if none is needed or possible.
    fn relief(&self, now: Nanoseconds) -> Option<Decision> {
        let since = Nanoseconds(now.0.saturating_sub(self.observed.0));
        let demote = match self.kept_by {
            KeptBy::Machine => Bytes(0),
            KeptBy::Loop => self.policy.relief(self.seen.near, self.seen.far, since),
        };
        let last = self.decision.filter(|_| demote.0 > 0)?;
        Some(Decision { promote: Bytes(0), demote, ..last })
    }

    /// Delay until the next scan, or until the next check of free memory.
    fn pause(&self, now: Nanoseconds) -> Nanoseconds {
        let most = match self.kept_by {
            KeptBy::Machine => IDLE_KEPT,
            KeptBy::Loop => IDLE,
        };
        Nanoseconds(self.due.0.saturating_sub(now.0).min(most.0))
    }

    fn observe(&mut self, now: Nanoseconds, count: Count) {
        let since = |now: Bytes, before: Bytes| Bytes(now.0.saturating_sub(before.0));
        let looked = |now: Scanned, before: Scanned| Scanned {
            at: since(now.at, before.at),
            used: since(now.used, before.used),
            moved: since(now.moved, before.moved),
        };
        self.seen = Observation {
            elapsed: Nanoseconds(now.0.saturating_sub(self.observed.0)),
            cpu: Nanoseconds(count.cpu.0.saturating_sub(self.before.cpu.0)),
            idle_cpu: Nanoseconds(count.idle_cpu.0.saturating_sub(self.before.idle_cpu.0)),
            near: count.near,
            far: count.far,
            near_scan: looked(count.near_scan, self.before.near_scan),
            far_scan: looked(count.far_scan, self.before.far_scan),
        };
        (self.before, self.observed) = (count, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_policy::tiering::{BackgroundMigration, Scan, TierUsage};
    use nearfar_topology::BytesPerSecond;

    const MIB: u64 = 1 << 20;

    /// Records its calls.
    #[derive(Default)]
    struct Notes {
        did: Vec<&'static str>,
        count: Count,
        fails: bool,
        keeps: bool,
        exchanged: Option<Decision>,
        /// Bytes per referenced byte, near and far.
        parts: [u64; 2],
    }

    impl Notes {
        fn note(&mut self, what: &'static str) -> Result<Nanoseconds, &'static str> {
            self.did.push(what);
            if self.fails { Err("no") } else { Ok(Nanoseconds(100_000_000)) }
        }
    }

    impl TierPages for Notes {
        type Error = &'static str;
        fn clear_accessed(&mut self, _: Scan) -> Result<Nanoseconds, Self::Error> {
            self.note("forget")
        }
        fn scan(&mut self, _: Scan) -> Result<Nanoseconds, Self::Error> {
            let parts = self.parts;
            let count = &mut self.count;
            let taken = |side: TierUsage| side.total.0 - side.free.0;
            let sides = [(count.near, parts[0]), (count.far, parts[1])];
            for (look, (side, part)) in
                [&mut count.near_scan, &mut count.far_scan].into_iter().zip(sides)
            {
                look.at.0 += taken(side);
                look.used.0 += taken(side) / part;
            }
            self.note("look")
        }
        fn migrate(&mut self, decision: &Decision) -> Result<Nanoseconds, Self::Error> {
            self.count.far_scan.moved.0 += decision.promote.0;
            self.count.near_scan.moved.0 += decision.demote.0;
            self.exchanged = Some(*decision);
            self.note("exchange")
        }
        fn idle(&mut self, _: &BackgroundMigration) -> Result<KeptBy, Self::Error> {
            self.note("rest").map(|_| if self.keeps { KeptBy::Machine } else { KeptBy::Loop })
        }
        fn sides(&mut self) -> Result<(TierUsage, TierUsage), Self::Error> {
            self.note("sides").map(|_| (self.count.near, self.count.far))
        }
        fn count(&mut self) -> Result<Count, Self::Error> {
            self.note("count").map(|_| self.count)
        }
    }

    fn full() -> Notes {
        let near = TierUsage { total: Bytes(100 * MIB), free: Bytes(3 * MIB) };
        let far = TierUsage { total: Bytes(400 * MIB), free: Bytes(300 * MIB) };
        let count = Count { near, far, ..Count::default() };
        Notes { count, keeps: true, parts: [8, 4], ..Notes::default() }
    }

    fn goals() -> Goals {
        Goals::with_traffic(BytesPerSecond(1 << 30))
    }

    #[test]
    fn a_scan_clears_bits_then_counts_then_exchanges_then_idles() {
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
        assert!(tiering.seen().far_scan.at.0 > 0 && decision.promote.0 > 0, "{decision:?}");
    }

    #[test]
    fn low_free_near_memory_schedules_a_scan_unless_the_kernel_demotes() {
        for keeps in [false, true] {
            let mut pages = full();
            pages.keeps = keeps;
            pages.count.far.free = Bytes(399 * MIB);
            let mut tiering = Loop::new(goals(), pages.count);
            let mut now = Nanoseconds(0);
            // Scans become rare: far memory is almost empty.
            let rare = |tiering: &Loop| {
                tiering.decision().is_some_and(|decision| decision.period.0 > 10_000_000_000)
            };
            while now.0 < 600_000_000_000 {
                let wait = tiering.tick(now, &mut pages).unwrap();
                if rare(&tiering) && !tiering.is_scanning() {
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
    fn background_migration_of_the_machine_is_counted_between_scans_however_rare_they_are() {
        let mut pages = full();
        let mut tiering = Loop::new(goals(), pages.count);
        let mut now = Nanoseconds(0);
        while tiering.is_scanning() || tiering.due.0 <= now.0 + 25_000_000_000 {
            // Scans are expensive, and so become rare.
            pages.count.cpu.0 += 2_000_000_000;
            now.0 += tiering.tick(now, &mut pages).unwrap().0.max(1);
            assert!(now.0 < 600_000_000_000, "{:?}", tiering.decision());
        }
        pages.did.clear();
        let (from, mut waits) = (now, Vec::new());
        while now.0 < from.0 + 25_000_000_000 {
            waits.push(tiering.tick(now, &mut pages).unwrap());
            now.0 += waits.last().unwrap().0;
        }
        assert!(waits.iter().all(|wait| wait.0 <= 10_000_000_000), "{waits:?}");
        assert_eq!(pages.did, ["sides", "count"].repeat(3));
    }

    #[test]
    fn aged_near_pages_are_demoted_without_a_scan() {
        let mut pages = full();
        (pages.keeps, pages.parts) = (false, [4, 16]);
        let mut tiering = Loop::new(goals(), pages.count);
        let mut now = Nanoseconds(0);
        while !tiering.policy().scan().by_age || tiering.is_scanning() {
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
    fn without_pages_in_far_memory_no_scan_runs() {
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
    fn a_failed_tick_is_retried() {
        let mut pages = full();
        let mut tiering = Loop::new(goals(), pages.count);
        pages.fails = true;
        assert_eq!(tiering.tick(Nanoseconds(0), &mut pages), Err("no"));
        pages.fails = false;
        assert!(tiering.tick(Nanoseconds(1), &mut pages).is_ok());
    }
}
