//! Migrates address ranges of a running process to other nodes, within a rate.
//!
//! Ranges are visited once, in chunks of 64 MiB: the pages of a chunk that are on other nodes than the targets are
//! requested from the [`Mover`], each for the target with the most free memory left. The process keeps running: the kernel
//! copies a page and exchanges the mapping. Pages that it touches for the first time later follow its own policy. The
//! former places of the pages that moved are kept as runs ([`Run`]), so that they can go back.

use std::collections::{BTreeMap, VecDeque};

use nearfar_policy::traffic::{PAGE, PIECES, Page, Process};
use nearfar_topology::{Bytes, BytesPerSecond, Nanoseconds, NodeId};

use super::{Mover, Outcome, Rate, Request, Shared, Tally};
use crate::fs::Fs;
use crate::pages;
use crate::process::Identity;

/// Bytes of which the pages are requested at a time.
const CHUNK: u64 = 64 << 20;

/// Pages in a row that were on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the first page.
    pub first: u64,
    /// How many.
    pub pages: u64,
    /// Their node.
    pub node: NodeId,
}

/// A migration in progress.
#[derive(Debug)]
pub struct Migration {
    process: Process,
    /// The process when it began; its number may be another's later.
    identity: Option<Identity>,
    has_ended: bool,
    mover: Mover,
    /// Addresses, and the one target of their pages if they go back.
    ranges: VecDeque<(u64, u64, Option<NodeId>)>,
    targets: BTreeMap<NodeId, Bytes>,
    all: u64,
    left: u64,
    moved: Vec<Run>,
}

/// The next step of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Call again at once.
    Now,
    /// Call again at this time: the rate is used up.
    At(Nanoseconds),
    /// All ranges were visited.
    Done,
}

impl Migration {
    /// A migration of address ranges of process `pid` to targets with this much free memory.
    #[must_use]
    pub fn new(
        pid: u32,
        ranges: impl IntoIterator<Item = (u64, u64)>,
        targets: BTreeMap<NodeId, Bytes>,
        rate: BytesPerSecond,
        now: Nanoseconds,
    ) -> Self {
        let ranges = ranges.into_iter().map(|(start, end)| (start, end, None));
        Self::over(pid, ranges, targets, Mover::new(Rate::new(rate, now), Shared::Move))
    }

    /// The way back: each run to its node, with this much free memory on the nodes.
    #[must_use]
    pub fn back(
        pid: u32,
        runs: &[Run],
        targets: BTreeMap<NodeId, Bytes>,
        rate: BytesPerSecond,
        now: Nanoseconds,
    ) -> Self {
        let address = |page: u64| page.saturating_mul(PAGE);
        let range = |run: &Run| {
            (address(run.first), address(run.first.saturating_add(run.pages)), Some(run.node))
        };
        let mover = Mover::new(Rate::new(rate, now), Shared::Move);
        Self::over(pid, runs.iter().map(range), targets, mover)
    }

    fn over(
        pid: u32,
        ranges: impl IntoIterator<Item = (u64, u64, Option<NodeId>)>,
        targets: BTreeMap<NodeId, Bytes>,
        mover: Mover,
    ) -> Self {
        let ranges: VecDeque<_> =
            ranges.into_iter().filter(|(start, end, _)| start < end).collect();
        let lengths = ranges.iter().map(|(start, end, _)| end - start);
        let all = lengths.fold(0, u64::saturating_add);
        let moved = Vec::new();
        let (process, identity, has_ended) = (Process(pid), Identity::of(pid), false);
        Self { process, identity, has_ended, mover, ranges, targets, all, left: all, moved }
    }

    /// Where the pages that moved were before, in the order in which they moved.
    #[must_use]
    pub fn moved(&self) -> &[Run] {
        &self.moved
    }

    /// Bytes of address space visited, and of all ranges.
    #[must_use]
    pub const fn progress(&self) -> (Bytes, Bytes) {
        (Bytes(self.all - self.left), Bytes(self.all))
    }

    /// Outcomes so far.
    #[must_use]
    pub const fn tally(&self) -> &Tally {
        self.mover.tally()
    }

    /// Whether the process ended before all ranges were visited.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Migrates a batch, if the rate permits it.
    pub fn step(&mut self, fs: &dyn Fs, now: Nanoseconds) -> Next {
        if self.mover.waiting() == 0 {
            if !self.ranges.is_empty() && self.identity.is_some_and(|process| !process.is_running())
            {
                self.has_ended = true;
                return Next::Done;
            }
            let Some((start, end, back_to)) = self.chunk() else { return Next::Done };
            let numbers: Vec<u64> = (start / PAGE..end.div_ceil(PAGE)).collect();
            let places = pages::places(fs, self.process.0, &numbers);
            let found = numbers.into_iter().zip(places);
            let mut only = BTreeMap::new();
            let targets = match back_to {
                Some(node) => {
                    only.insert(node, self.targets.get(&node).copied().unwrap_or(Bytes(0)));
                    &mut only
                }
                None => &mut self.targets,
            };
            let requests = requests(self.process, found, targets);
            self.mover.ask(requests);
            self.left = self.left.saturating_sub(end - start);
            return Next::Now;
        }
        for done in self.mover.step(now) {
            if let (Outcome::Moved, Some(node)) = (done.outcome, done.from) {
                let (page, pages) = match done.request.huge {
                    true => (done.request.page.whole(), PIECES),
                    false => (done.request.page, 1),
                };
                note(&mut self.moved, Run { first: page.number, pages, node });
            }
        }
        match self.mover.next() {
            Some(next) if next.0 > 0 => Next::At(Nanoseconds(now.0.saturating_add(next.0))),
            _ => Next::Now,
        }
    }

    /// Takes the next chunk off the ranges.
    fn chunk(&mut self) -> Option<(u64, u64, Option<NodeId>)> {
        let (start, end, back_to) = self.ranges.pop_front()?;
        let stop = end.min((start / CHUNK + 1).saturating_mul(CHUNK));
        if stop < end {
            self.ranges.push_front((stop, end, back_to));
        }
        Some((start, stop, back_to))
    }
}

/// Adds a run, joined with the last one if it continues that.
fn note(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.node == run.node && last.first + last.pages == run.first => {
            last.pages += run.pages;
        }
        _ => runs.push(run),
    }
}

/// Requests for pages that are on other nodes than the targets; a huge page once. Each goes to the target with the most
/// free memory left, which is reduced accordingly.
fn requests(
    process: Process,
    found: impl IntoIterator<Item = (u64, Option<pages::Place>)>,
    targets: &mut BTreeMap<NodeId, Bytes>,
) -> Vec<Request> {
    let mut requests = Vec::new();
    for (number, place) in pages::once(found) {
        if targets.contains_key(&place.node) {
            continue;
        }
        let page = Page { process, number };
        let most =
            targets.iter_mut().max_by_key(|(node, free)| (free.0, std::cmp::Reverse(**node)));
        let Some((to, free)) = most else { continue };
        let request = Request { page, huge: place.huge, from: Some(place.node), to: *to };
        free.0 = free.0.saturating_sub(request.bytes().0);
        requests.push(request);
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TreeFs;
    use crate::pages::Place;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn small(node: u16) -> Option<Place> {
        Some(Place { node: NodeId(node), huge: false })
    }

    fn targets(free: &[(u16, u64)]) -> BTreeMap<NodeId, Bytes> {
        free.iter().map(|(node, mib)| (NodeId(*node), Bytes(mib * MIB))).collect()
    }

    #[test]
    fn only_pages_elsewhere_are_requested_and_a_huge_one_once() {
        let huge = Some(Place { node: NodeId(0), huge: true });
        let mut found = vec![(0, small(0)), (1, small(1)), (2, None)];
        found.extend((512..1024).map(|number| (number, huge)));
        let requests = requests(Process(7), found, &mut targets(&[(1, 100)]));
        let numbers: Vec<(u64, bool)> =
            requests.iter().map(|one| (one.page.number, one.huge)).collect();
        assert_eq!(numbers, [(0, false), (512, true)]);
    }

    #[test]
    fn the_target_with_most_free_memory_is_taken_first() {
        let found = (0..768).map(|number| (number, small(0)));
        let requests = requests(Process(7), found, &mut targets(&[(1, 2), (2, 3)]));
        let on = |node: u16| requests.iter().filter(|one| one.to == NodeId(node)).count();
        assert_eq!((on(1), on(2)), (256, 512));
    }

    #[test]
    fn ranges_are_visited_in_chunks_and_progress_ends_at_all() {
        let ranges = [(MIB, 200 * MIB), (300 * MIB, 300 * MIB), (400 * MIB, 401 * MIB)];
        let rate = BytesPerSecond(1 << 40);
        let mut migration =
            Migration::new(u32::MAX, ranges, targets(&[(0, 1)]), rate, Nanoseconds(0));
        let chunks: Vec<_> = std::iter::from_fn(|| migration.chunk()).collect();
        assert_eq!(chunks.len(), 5);
        assert_eq!(chunks.iter().map(|(start, end, _)| end - start).sum::<u64>(), 200 * MIB);
        let fs = TreeFs(nearfar_topology::Tree::new());
        let mut migration =
            Migration::new(u32::MAX, ranges, targets(&[(0, 1)]), rate, Nanoseconds(0));
        while migration.step(&fs, Nanoseconds(0)) != Next::Done {}
        assert_eq!(migration.progress(), (Bytes(200 * MIB), Bytes(200 * MIB)));
    }

    #[test]
    fn pages_that_moved_are_kept_as_runs() {
        let mut runs = Vec::new();
        for (first, pages, node) in
            [(512, 512, 0), (1024, 1, 0), (1025, 1, 0), (1026, 1, 2), (2000, 1, 2)]
        {
            note(&mut runs, Run { first, pages, node: NodeId(node) });
        }
        let shown: Vec<_> = runs.iter().map(|run| (run.first, run.pages, run.node.0)).collect();
        assert_eq!(shown, [(512, 514, 0), (1026, 1, 2), (2000, 1, 2)]);
        let back = Migration::back(7, &runs, targets(&[]), BytesPerSecond(1), Nanoseconds(0));
        assert_eq!(back.progress().1, Bytes(516 * PAGE));
        let absurd = [Run { first: 1, pages: u64::MAX, node: NodeId(0) }; 2];
        let back = Migration::back(7, &absurd, targets(&[]), BytesPerSecond(1), Nanoseconds(0));
        assert_eq!(back.progress().1, Bytes(u64::MAX));
    }

    proptest! {
        #[test]
        fn migration_always_chooses_the_target_with_most_free_memory(
            nodes in prop::collection::vec(0u16..4, 1..200), free in prop::collection::vec(0u64..4, 2..3),
        ) {
            let free: Vec<(u16, u64)> = (8..).zip(free).collect();
            let mut left = targets(&free);
            let found = nodes.iter().zip(0..).map(|(node, number)| (number, small(*node)));
            let count = requests(Process(1), found, &mut left).len() as u64;
            prop_assert_eq!(count, nodes.len() as u64);
            let spread = left.values().map(|bytes| bytes.0);
            let (least, most) = (spread.clone().min().unwrap(), spread.max().unwrap());
            let before = free.iter().map(|(_, mib)| mib * MIB);
            let gap = before.clone().max().unwrap() - before.min().unwrap();
            prop_assert!(most - least <= gap.max(PAGE));
        }
    }
}
