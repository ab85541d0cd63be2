//! Spreads the private memory of running processes over nodes by weights of their own.
//!
//! Problem: weights of weighted interleave are the machine's; the kernel takes none for one program. Approach: the program
//! allocates by plain interleave, and pages then migrate to the node where the kernel would have allocated them by these
//! weights: that of the page number (for a huge page: the number of the huge page) modulo the sum of the weights
//! ([`Weights::node_of`]). So a page migrates at most once. Mappings with a suitable number of bytes on each node are not
//! searched page by page. A mapping in which migration fails (pinned pages, pages shared with a forked child, larger folios)
//! is left alone until its size changes by an eighth.
//!
//! Limits: shared memory, hugetlbfs and the page cache stay where they were allocated, and so do mappings of which less
//! than a 64th is resident. Source: mm/mempolicy.c, weighted_interleave_nid.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_policy::Weights;
use nearfar_policy::traffic::{PAGE, PIECES, Page, Process};
use nearfar_topology::{Bytes, BytesPerSecond, Nanoseconds, NodeId};

use super::{Mover, Outcome, Rate, Request, Shared};
use crate::fs::{Fs, FsError};
use crate::mapped::{self, Mapping};
use crate::pages;

/// Pages searched at a time: 64 MiB.
const CHUNK: u64 = (64 << 20) / PAGE;
/// The part of a mapping that may be on the wrong node,
const TOLERANCE: u64 = 32;
/// the least part of it that must be resident,
const SPARSE: u64 = 64;
/// and the change in size after which one that was left alone is searched again.
const CHANGE: u64 = 8;
/// No limit of the rate.
const RATE: BytesPerSecond = BytesPerSecond(1 << 44);

/// The weights, and the mappings in which migration failed.
#[derive(Debug)]
pub struct Spread {
    weights: Weights,
    /// By process and first address: resident bytes at the time.
    failed: BTreeMap<(u32, u64), u64>,
}

impl Spread {
    /// Nothing has migrated yet.
    #[must_use]
    pub const fn new(weights: Weights) -> Self {
        Self { weights, failed: BTreeMap::new() }
    }

    /// Forgets all processes but these: others have ended.
    pub fn keep(&mut self, processes: &[u32]) {
        self.failed.retain(|(process, _), _| processes.contains(process));
    }

    /// Migrates the misplaced pages of a process, unless `stops` says to end before; returns the bytes that migrated.
    ///
    /// # Errors
    /// The process's mappings can't be read.
    pub fn pass(
        &mut self,
        fs: &dyn Fs,
        pid: u32,
        stops: &dyn Fn() -> bool,
    ) -> Result<Bytes, FsError> {
        let mut moved = Bytes(0);
        let mut live = BTreeSet::new();
        for mapping in mapped::of_process(fs, pid)? {
            let (start, resident) = (mapping.start, mapping.resident().0);
            live.insert(start);
            let known = self.failed.get(&(pid, start));
            let is_given_up = known.is_some_and(|then| resident.abs_diff(*then) <= then / CHANGE);
            if !mapping.is_private || is_given_up || suits(&self.weights, &mapping) {
                continue;
            }
            let tally = self.search(pid, (start / PAGE, mapping.end.div_ceil(PAGE)), stops);
            let (asked, done) = (tally.pages.values().sum::<u64>(), tally.count(Outcome::Moved));
            if done < asked / 2 {
                self.failed.insert((pid, start), resident);
            }
            moved.0 = moved.0.saturating_add(tally.bytes().0);
        }
        self.failed.retain(|(process, start), _| *process != pid || live.contains(start));
        Ok(moved)
    }

    /// Migrates the misplaced pages of a range.
    fn search(&self, pid: u32, (first, end): (u64, u64), stops: &dyn Fn() -> bool) -> super::Tally {
        let mut mover = Mover::new(Rate::new(RATE, Nanoseconds(0)), Shared::Stay);
        let (mut from, mut now) = (first, Nanoseconds(0));
        while from < end && !stops() {
            let to = end.min((from / CHUNK + 1) * CHUNK);
            let numbers: Vec<u64> = (from..to).collect();
            let nodes = pages::nodes(pid, &numbers);
            mover.ask(requests(&self.weights, Process(pid), &numbers, &nodes));
            // A step's migration takes its time, so the rate need not be kept by waiting.
            while mover.waiting() > 0 && !stops() {
                now.0 += 1_000_000_000;
                mover.step(now);
            }
            from = to;
        }
        mover.tally().clone()
    }
}

/// Whether about as many bytes of the mapping are on each node as the weights say, or too few are resident to tell.
fn suits(weights: &Weights, mapping: &Mapping) -> bool {
    let resident = mapping.resident().0;
    if resident.saturating_mul(SPARSE) < mapping.end - mapping.start {
        return true;
    }
    let round = u64::from(weights.round());
    let part = |node| resident / round * u64::from(weights.get(node).unwrap_or(0));
    let on = |node| mapping.nodes.get(&node).map_or(0, |bytes| bytes.0);
    let nodes = weights.iter().map(|(node, _)| node).chain(mapping.nodes.keys().copied());
    let tolerance = (resident / TOLERANCE).max(round * PAGE);
    nodes.into_iter().all(|node| on(node).abs_diff(part(node)) <= tolerance)
}

/// Requests for pages that are on other nodes than the weights say. All 512 pages of a huge page are on one node, which
/// those of no other range are if they were interleaved.
fn requests(
    weights: &Weights,
    process: Process,
    numbers: &[u64],
    nodes: &[Option<NodeId>],
) -> Vec<Request> {
    let mut requests = Vec::new();
    let mut all = numbers.iter().copied().zip(nodes.iter().copied()).peekable();
    while let Some((first, _)) = all.peek().copied() {
        let block: Vec<(u64, NodeId)> =
            std::iter::from_fn(|| all.next_if(|(number, _)| number / PIECES == first / PIECES))
                .filter_map(|(number, node)| Some((number, node?)))
                .collect();
        let whole = u64::try_from(block.len()) == Ok(PIECES);
        let huge = whole && block.windows(2).all(|pair| pair[0].1 == pair[1].1);
        let take = if huge { 1 } else { block.len() };
        for (number, from) in block.into_iter().take(take) {
            let to = weights.node_of(if huge { number / PIECES } else { number });
            if from != to {
                let page = Page { process, number };
                requests.push(Request { page, huge, from: Some(from), to });
            }
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn weights(pages: &[u8]) -> Weights {
        Weights::new((0..).map(NodeId).zip(pages.iter().copied()).collect()).unwrap()
    }

    /// The nodes of pages after the requests were carried out.
    fn after(numbers: &[u64], nodes: &[Option<NodeId>], wanted: &Weights) -> Vec<Option<NodeId>> {
        let mut after = nodes.to_vec();
        for request in requests(wanted, Process(1), numbers, nodes) {
            for (number, node) in numbers.iter().zip(&mut after) {
                let is_meant = match request.huge {
                    true => number / PIECES == request.page.number / PIECES,
                    false => *number == request.page.number,
                };
                if is_meant {
                    assert_eq!(*node, request.from);
                    *node = Some(request.to);
                }
            }
        }
        after
    }

    #[test]
    fn a_quarter_of_interleaved_pages_migrates_for_three_to_one() {
        let numbers: Vec<u64> = (8..1032).collect();
        let even: Vec<_> =
            numbers.iter().map(|page| Some(weights(&[1, 1]).node_of(*page))).collect();
        let wanted = weights(&[3, 1]);
        assert_eq!(requests(&wanted, Process(1), &numbers, &even).len(), numbers.len() / 4);
        let after = after(&numbers, &even, &wanted);
        assert_eq!(after.iter().filter(|node| **node == Some(NodeId(1))).count(), 256);
        assert!(requests(&wanted, Process(1), &numbers, &after).is_empty());
    }

    #[test]
    fn a_huge_page_is_requested_once_and_pages_that_are_absent_are_not() {
        let numbers: Vec<u64> = (0..2048).collect();
        let node = |page: &u64| (*page < 1536).then_some(NodeId(0));
        let nodes: Vec<_> = numbers.iter().map(node).collect();
        let requests = requests(&weights(&[1, 1]), Process(1), &numbers, &nodes);
        let found: Vec<_> =
            requests.iter().map(|one| (one.page.number, one.huge, one.to)).collect();
        assert_eq!(found, [(512, true, NodeId(1))]);
    }

    #[test]
    fn a_mapping_suits_by_its_bytes_on_each_node() {
        let mapping = |near: u64, far: u64, size: u64| Mapping {
            start: 0,
            end: size << 20,
            policy: "interleave:0-1".into(),
            nodes: [(NodeId(0), Bytes(near << 20)), (NodeId(1), Bytes(far << 20))].into(),
            file: None,
            is_private: true,
        };
        let wanted = weights(&[3, 1]);
        assert!(suits(&wanted, &mapping(75, 25, 100)));
        assert!(suits(&wanted, &mapping(74, 26, 100)));
        assert!(!suits(&wanted, &mapping(50, 50, 100)));
        assert!(suits(&wanted, &mapping(5, 5, 1000)), "nearly all of it is not resident");
        let mut elsewhere = mapping(75, 25, 130);
        elsewhere.nodes.insert(NodeId(2), Bytes(25 << 20));
        assert!(!suits(&wanted, &elsewhere));
    }

    proptest! {
        #[test]
        fn after_one_pass_nothing_is_misplaced(
            pages in proptest::collection::vec(1u8..6, 1..4),
            start in 0u64..2000,
            places in proptest::collection::vec(proptest::option::weighted(0.9, 0u16..4), 1..1600),
        ) {
            let wanted = weights(&pages);
            let numbers: Vec<u64> = (start..).take(places.len()).collect();
            let nodes: Vec<_> = places.into_iter().map(|node| node.map(NodeId)).collect();
            let after = after(&numbers, &nodes, &wanted);
            prop_assert!(requests(&wanted, Process(1), &numbers, &after).is_empty());
        }
    }
}
