//! Which pages go: hottest for their size, not those that moved of late, and none of a process whose pages go to and fro.
//!
//! What moved while it was taken for another region's, as one node's pages are for shared ones until there are samples enough, need
//! not rest.
//!
//! A page that comes back to where it was within 32 decisions is a *return*. If more than a fifth of what a process has moved
//! of late are returns, it is frozen: for 16 decisions, and twice as long each time after. What is frozen is measured, not
//! moved.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Bytes};

use crate::traffic::{Page, Process};

/// Decisions in which a page that moved stays.
const RESTS: u64 = 8;
/// Decisions within which coming back is a return.
const RETURNS: u64 = 32;
/// More returns than this freeze a process,
const RETURNS_MOST: BasisPoints = BasisPoints(2_000);
/// once so many of its pages have moved of late.
const MOVES_LEAST: u64 = 20;
/// Decisions that it is frozen for at first, and the most doublings.
const FROZEN: u64 = 16;
const DOUBLINGS_MAX: u32 = 8;

/// A page that could go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The page.
    pub page: Page,
    /// Its size.
    pub bytes: Bytes,
    /// How often it was accessed.
    pub accesses: u64,
}

/// What has moved.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// Decisions so far.
    now: u64,
    /// When and from where pages moved last, and of which region they were.
    moved: BTreeMap<Page, Moved>,
    processes: BTreeMap<Process, Moves>,
}

#[derive(Clone, Copy, Debug)]
struct Moved {
    when: u64,
    from: usize,
    region: usize,
}

/// A process's moves of late: halved when there are many.
#[derive(Clone, Copy, Debug, Default)]
struct Moves {
    all: u64,
    returns: u64,
    frozen_until: u64,
    freezes: u32,
}

impl Pages {
    /// Nothing has moved yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a decision.
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

    /// Whether a process is left alone now.
    #[must_use]
    pub fn is_frozen(&self, process: Process) -> bool {
        self.processes.get(&process).is_some_and(|moves| self.now < moves.frozen_until)
    }

    /// The pages of a region that go from node to node, at most so many bytes: counted as moved.
    pub fn select(
        &mut self,
        (region, from, to): (usize, usize, usize),
        most: Bytes,
        candidates: &[Candidate],
    ) -> Vec<Page> {
        // What moved in this decision may go on: a part of it went elsewhere.
        let rests = |page: &Page| {
            self.moved.get(page).is_some_and(|moved| {
                moved.region == region && (1..RESTS).contains(&(self.now - moved.when))
            })
        };
        let may = |one: &&Candidate| {
            one.bytes.0 > 0 && !self.is_frozen(one.page.process) && !rests(&one.page)
        };
        let mut open: Vec<&Candidate> = candidates.iter().filter(may).collect();
        // Accesses a byte, without dividing; the lower page among equals.
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
    fn the_hottest_for_their_size_go_first_as_far_as_allowed() {
        let mut all = pages(0..10);
        // A huge page, hotter than any but not for its size.
        all.push(Candidate { bytes: Bytes(2 << 20), accesses: 500, ..all[0] });
        all[10].page.number = 512;
        let mut one = Pages::new();
        one.tick();
        assert_eq!(numbers(&one.select((4, 0, 1), Bytes(3 * 4096 + 100), &all)), [9, 8, 7]);
    }

    #[test]
    fn a_page_that_moved_rests_for_eight_decisions() {
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
    fn a_page_that_was_taken_for_another_regions_need_not_rest() {
        let mut one = Pages::new();
        one.tick();
        one.select((4, 0, 1), Bytes(4096), &pages(5..6));
        one.tick();
        assert_eq!(one.select((0, 1, 0), Bytes(4096), &pages(5..6)).len(), 1);
        one.tick();
        assert_eq!(one.select((0, 0, 1), Bytes(4096), &pages(5..6)).len(), 0);
    }

    /// Decisions until the process is frozen, with its pages going to and fro.
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
    fn a_process_whose_pages_go_to_and_fro_is_frozen_longer_each_time() {
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
    fn pages_that_go_one_way_freeze_nothing() {
        let mut one = Pages::new();
        for round in 0..100 {
            one.tick();
            let some = pages(round * 50..(round + 1) * 50);
            assert_eq!(one.select((4, 0, 1), Bytes(u64::MAX), &some).len(), 50);
        }
        assert!(!one.is_frozen(Process(1)));
    }
}
