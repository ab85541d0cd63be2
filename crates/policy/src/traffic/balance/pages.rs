//! Selection of the pages to migrate: hottest for their size, not recently migrated, and none of a thrashing process.
//!
//! A page that was migrated as part of another region, as private pages taken for shared ones until there are enough
//! samples, may be migrated again at once.
//!
//! A page that is migrated back within 32 decisions is a *return*. A process with more than a fifth of returns among
//! its recent migrations is frozen: for 16 decisions, and twice as long each further time. A frozen process is measured
//! but not migrated.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Bytes};

use crate::traffic::{Page, Process};

/// A migrated page stays for this many decisions.
const RESTS: u64 = 8;
/// A migration back within this many decisions is a return.
const RETURNS: u64 = 32;
/// A higher share of returns freezes a process,
const RETURNS_MOST: BasisPoints = BasisPoints(2_000);
/// once this many of its pages have been migrated recently.
const MOVES_LEAST: u64 = 20;
/// Decisions of the first freeze, and the limit of its doublings.
const FROZEN: u64 = 16;
const DOUBLINGS_MAX: u32 = 8;

/// A page that may be migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The page.
    pub page: Page,
    /// Its size.
    pub bytes: Bytes,
    /// Number of its sampled accesses.
    pub accesses: u64,
}

/// History of migrations.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// Decisions so far.
    now: u64,
    /// The last migration of each page: its decision, source node and region.
    moved: BTreeMap<Page, Moved>,
    processes: BTreeMap<Process, Moves>,
}

#[derive(Clone, Copy, Debug)]
struct Moved {
    when: u64,
    from: usize,
    region: usize,
}

/// Recent migrations of a process; halved when they exceed a limit.
#[derive(Clone, Copy, Debug, Default)]
struct Moves {
    all: u64,
    returns: u64,
    frozen_until: u64,
    freezes: u32,
}

impl Pages {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a decision.
    pub fn tick(&mut self) {
        self.now += 1;
        let since = self.now.saturating_sub(RETURNS);
        self.moved.retain(|_, moved| moved.when >= since);
        for moves in self.processes.values_mut() {
            if moves.all >= MOVES_LEAST
                && returns(*moves) > RETURNS_MOST
                && self.now >= moves.frozen_until
            {
                moves.frozen_until = self.now + (FROZEN << moves.freezes.min(DOUBLINGS_MAX));
                moves.freezes += 1;
                (moves.all, moves.returns) = (0, 0);
            }
            if moves.all > 100 * MOVES_LEAST {
                (moves.all, moves.returns) = (moves.all / 2, moves.returns / 2);
            }
        }
    }

    /// Forgets earlier migrations: after a change of loads, one back is no sign of thrashing.
    pub fn loads_changed(&mut self) {
        self.moved.clear();
    }

    /// Whether a process is frozen now.
    #[must_use]
    pub fn is_frozen(&self, process: Process) -> bool {
        self.processes.get(&process).is_some_and(|moves| self.now < moves.frozen_until)
    }

    /// Selects pages of a region to migrate between two nodes, up to `most` bytes, and records them as migrated.
    pub fn select(
        &mut self,
        (region, from, to): (usize, usize, usize),
        most: Bytes,
        candidates: &[Candidate],
    ) -> Vec<Page> {
        // A page migrated in this same decision may be migrated on: a part of it went elsewhere.
        let rests = |page: &Page| {
            self.moved.get(page).is_some_and(|moved| {
                moved.region == region && (1..RESTS).contains(&(self.now - moved.when))
            })
        };
        let may = |one: &&Candidate| {
            one.bytes.0 > 0 && !self.is_frozen(one.page.process) && !rests(&one.page)
        };
        let mut open: Vec<&Candidate> = candidates.iter().filter(may).collect();
        // By accesses per byte, without a division; the lower page among equals.
        open.sort_by(|a, b| {
            let heat = |one: &Candidate, other: &Candidate| {
                u128::from(one.accesses) * u128::from(other.bytes.0)
            };
            heat(b, a).cmp(&heat(a, b)).then(a.page.cmp(&b.page))
        });
        let mut left = most.0;
        let mut chosen = Vec::new();
        for one in open {
            let Some(rest) = left.checked_sub(one.bytes.0) else { continue };
            left = rest;
            chosen.push(one.page);
        }
        for page in &chosen {
            let before = self.moved.insert(*page, Moved { when: self.now, from, region });
            let returns = before.is_some_and(|moved| moved.from == to);
            let moves = self.processes.entry(page.process).or_default();
            moves.all += 1;
            moves.returns += u64::from(returns);
        }
        chosen
    }
}

fn returns(moves: Moves) -> BasisPoints {
    BasisPoints(u32::try_from(moves.returns * 10_000 / moves.all.max(1)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(numbers: core::ops::Range<u64>) -> Vec<Candidate> {
        let one = |number| Candidate {
            page: Page { process: Process(1), number },
            bytes: Bytes(4096),
            accesses: number,
        };
        numbers.map(one).collect()
    }

    fn numbers(pages: &[Page]) -> Vec<u64> {
        pages.iter().map(|page| page.number).collect()
    }

    #[test]
    fn the_hottest_pages_by_size_are_selected_first_within_the_byte_limit() {
        let mut all = pages(0..10);
        // A huge page, the hottest of all but not for its size.
        all.push(Candidate { bytes: Bytes(2 << 20), accesses: 500, ..all[0] });
        all[10].page.number = 512;
        let mut one = Pages::new();
        one.tick();
        assert_eq!(numbers(&one.select((4, 0, 1), Bytes(3 * 4096 + 100), &all)), [9, 8, 7]);
    }

    #[test]
    fn a_migrated_page_is_not_selected_again_for_eight_decisions() {
        let mut one = Pages::new();
        let all = pages(5..6);
        one.tick();
        assert_eq!(one.select((4, 0, 1), Bytes(4096), &all).len(), 1);
        for _ in 0..7 {
            one.tick();
            assert_eq!(one.select((4, 1, 0), Bytes(4096), &all).len(), 0);
        }
        one.tick();
        assert_eq!(one.select((4, 1, 0), Bytes(4096), &all).len(), 1);
    }

    #[test]
    fn a_page_that_returns_after_loads_have_changed_does_not_thrash() {
        let mut one = Pages::new();
        for turn in 0..100_u64 {
            one.tick();
            assert!(!one.is_frozen(Process(1)), "{turn}");
            let (from, to) = if turn.is_multiple_of(2) { (0, 1) } else { (1, 0) };
            assert_eq!(one.select((4, from, to), Bytes(9 * 4096), &pages(0..9)).len(), 9);
            one.loads_changed();
        }
    }

    #[test]
    fn a_page_moved_as_part_of_another_region_is_not_in_cool_down() {
        let mut one = Pages::new();
        one.tick();
        one.select((4, 0, 1), Bytes(4096), &pages(5..6));
        one.tick();
        assert_eq!(one.select((0, 1, 0), Bytes(4096), &pages(5..6)).len(), 1);
        one.tick();
        assert_eq!(one.select((0, 0, 1), Bytes(4096), &pages(5..6)).len(), 0);
    }

    /// Decisions until the process is frozen while its pages thrash.
    fn until_frozen(one: &mut Pages) -> u64 {
        for round in 0..1000 {
            one.tick();
            if one.is_frozen(Process(1)) {
                return round;
            }
            let (from, to) = if (one.now / RESTS).is_multiple_of(2) { (0, 1) } else { (1, 0) };
            one.select((4, from, to), Bytes(100 * 4096), &pages(0..100));
        }
        panic!("never frozen");
    }

    #[test]
    fn a_process_with_thrashing_pages_is_frozen_twice_as_long_each_time() {
        let mut one = Pages::new();
        let mut lasted = Vec::new();
        for _ in 0..3 {
            until_frozen(&mut one);
            let mut frozen = 0;
            while one.is_frozen(Process(1)) {
                assert_eq!(one.select((4, 0, 1), Bytes(4096), &pages(500..600)).len(), 0);
                one.tick();
                frozen += 1;
            }
            lasted.push(frozen);
        }
        assert_eq!(lasted, [16, 32, 64]);
        assert!(!one.is_frozen(Process(2)));
    }

    #[test]
    fn pages_that_move_in_one_direction_freeze_no_process() {
        let mut one = Pages::new();
        for round in 0..100 {
            one.tick();
            let some = pages(round * 50..(round + 1) * 50);
            assert_eq!(one.select((4, 0, 1), Bytes(u64::MAX), &some).len(), 50);
        }
        assert!(!one.is_frozen(Process(1)));
    }
}
