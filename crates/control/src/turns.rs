//! Schedules the loops of several boundaries between tiers, one scan at a time.
//!
//! A node of a middle tier is the far side of one boundary and the near side of the next. A scan clears accessed bits,
//! so two simultaneous scans of one node would hide references from each other, and their sampling windows differ.
//! Hence a scan of one boundary ends before a scan of another begins; the boundary that has been due the longest is
//! next. Waiting only delays a scan: each loop uses the time that has actually passed.

use nearfar_policy::ports::TierBoundaries;
use nearfar_policy::tiering::Goals;
use nearfar_topology::Nanoseconds;

use crate::tiering::Loop;

/// The loops of all boundaries, fastest first.
#[derive(Debug)]
pub struct Turns {
    /// Each loop with its due time.
    loops: Vec<(Loop, Nanoseconds)>,
    turn: usize,
}

impl Turns {
    /// All loops are due at once.
    #[must_use]
    pub fn new(loops: Vec<Loop>) -> Self {
        Self { loops: loops.into_iter().map(|one| (one, Nanoseconds(0))).collect(), turn: 0 }
    }

    /// The loops, fastest boundary first.
    pub fn loops(&self) -> impl ExactSizeIterator<Item = &Loop> {
        self.loops.iter().map(|(one, _)| one)
    }

    /// Sets the goals of each loop, fastest boundary first.
    pub fn set_goals(&mut self, goals: impl IntoIterator<Item = Goals>) {
        self.loops.iter_mut().zip(goals).for_each(|((one, _), goals)| one.set_goals(goals));
    }

    /// Whether a scan is outstanding.
    #[must_use]
    pub fn is_scanning(&self) -> bool {
        self.loops.get(self.turn).is_some_and(|(one, _)| one.is_scanning())
    }

    /// Runs the step that is due at `now`. Returns the delay from the end of this step to the next.
    ///
    /// # Errors
    /// Errors of the machine. `tick` may be called again.
    pub fn tick<P: TierBoundaries>(
        &mut self,
        now: Nanoseconds,
        pages: &mut P,
    ) -> Result<Nanoseconds, P::Error> {
        if !self.is_scanning() {
            let next = (0..self.loops.len()).min_by_key(|at| self.loops[*at].1);
            self.turn = next.unwrap_or(0);
        }
        let Some((one, due)) = self.loops.get_mut(self.turn) else { return Ok(Nanoseconds(0)) };
        if !one.is_scanning() && *due > now {
            return Ok(Nanoseconds(due.0 - now.0));
        }
        pages.turn_to(self.turn)?;
        let wait = one.tick(now, pages)?;
        if one.is_scanning() {
            return Ok(wait);
        }
        *due = Nanoseconds(now.0.saturating_add(wait.0));
        let next = self.loops.iter().map(|(_, due)| due.0).min().unwrap_or(0);
        Ok(Nanoseconds(next.saturating_sub(now.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_policy::ports::{Count, KeptBy, TierPages};
    use nearfar_policy::tiering::{BackgroundMigration, Decision, Goals, Scan, Scanned, TierUsage};
    use nearfar_topology::{Bytes, BytesPerSecond};

    const MIB: u64 = 1 << 20;

    /// Three tiers with all pages always referenced; records the boundary of each pass.
    #[derive(Default)]
    struct Notes {
        turn: usize,
        did: Vec<(usize, &'static str)>,
        counts: [Count; 2],
    }

    impl Notes {
        fn note(&mut self, what: &'static str) -> Result<Nanoseconds, ()> {
            self.did.push((self.turn, what));
            Ok(Nanoseconds(1_000_000))
        }
    }

    impl TierPages for Notes {
        type Error = ();
        fn clear_accessed(&mut self, _: Scan) -> Result<Nanoseconds, ()> {
            self.note("forget")
        }
        fn scan(&mut self, _: Scan) -> Result<Nanoseconds, ()> {
            let count = &mut self.counts[self.turn];
            for look in [&mut count.near_scan, &mut count.far_scan] {
                *look =
                    Scanned { at: Bytes(look.at.0 + MIB), used: Bytes(look.used.0 + MIB), ..*look };
            }
            self.note("look")
        }
        fn migrate(&mut self, _: &Decision) -> Result<Nanoseconds, ()> {
            self.note("exchange")
        }
        fn idle(&mut self, _: &BackgroundMigration) -> Result<KeptBy, ()> {
            self.note("rest").map(|_| KeptBy::Machine)
        }
        fn sides(&mut self) -> Result<(TierUsage, TierUsage), ()> {
            let side = TierUsage { total: Bytes(100 * MIB), free: Bytes(0) };
            Ok((side, side))
        }
        fn count(&mut self) -> Result<Count, ()> {
            let (near, far) = self.sides()?;
            Ok(Count { near, far, ..self.counts[self.turn] })
        }
    }

    impl TierBoundaries for Notes {
        fn turn_to(&mut self, boundary: usize) -> Result<(), ()> {
            self.turn = boundary;
            Ok(())
        }
    }

    fn run(boundaries: usize, ticks: usize) -> (Notes, Turns) {
        let mut pages = Notes::default();
        let goals = Goals::with_traffic(BytesPerSecond(1 << 30));
        let loops = (0..boundaries).map(|_| Loop::new(goals, Count::default()));
        let mut turns = Turns::new(loops.collect());
        let mut now = Nanoseconds(0);
        for _ in 0..ticks {
            now.0 += turns.tick(now, &mut pages).unwrap().0 + 1_000;
        }
        (pages, turns)
    }

    #[test]
    fn scans_of_two_tier_boundaries_alternate_without_overlap() {
        let (pages, turns) = run(2, 200);
        let mut under_way = None;
        for (turn, what) in &pages.did {
            assert_eq!(under_way.unwrap_or(*turn), *turn, "{:?}", pages.did);
            under_way = (*what != "rest").then_some(*turn);
        }
        let looks = |turn| pages.did.iter().filter(|did| **did == (turn, "look")).count();
        assert!(looks(0) >= 10 && looks(0).abs_diff(looks(1)) <= 1, "{} {}", looks(0), looks(1));
        assert_eq!(turns.loops().len(), 2);
    }

    #[test]
    fn a_single_boundary_gets_every_turn_and_none_does_nothing() {
        assert!(run(1, 40).0.did.iter().all(|(turn, _)| *turn == 0));
        assert!(run(0, 3).0.did.is_empty());
    }
}
