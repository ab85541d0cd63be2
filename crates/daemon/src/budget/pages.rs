//! Selects pages of a cgroup to migrate: mapped pages on given nodes, idle ones first, from where the last selection ended.
//!
//! Idle is judged by the flags that the kernel's reclaim keeps for each page (`/proc/kpageflags`): a page is idle that is neither
//! referenced (bit 2) nor on an active list (bit 6), or is marked idle (bit 25). With MGLRU (Debian's default) Linux
//! 6.12 sets the first of these; newer kernels keep generations that no file shows, all pages look alike, and the order
//! is that of a CLOCK hand: by process and address, cyclic. A selection first takes idle pages of at most four
//! times the bytes it wants, then any pages: a limit holds even if everything is in use.

use std::collections::BTreeSet;

use nearfar_kernel::fs::Fs;
use nearfar_kernel::mapped;
use nearfar_kernel::moving::Request;
use nearfar_kernel::pages::{self, Place};
use nearfar_policy::traffic::{PAGE, PIECES, Page, Process};
use nearfar_topology::{Bytes, NodeId};

/// How many times the wanted bytes are searched for idle pages.
const SEARCH: u64 = 4;
/// Pages read at a time.
const BATCH: u64 = 4096;

/// The position behind the last page selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hand {
    process: u32,
    page: u64,
}

/// The task of a selection.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Processes of the cgroup, in order.
    pub processes: &'a [u32],
    /// Nodes whose pages are selected.
    pub from: &'a BTreeSet<NodeId>,
    /// Their target.
    pub to: NodeId,
    /// The amount.
    pub bytes: Bytes,
    /// Whether referenced pages are taken first, instead of idle ones.
    pub hot_first: bool,
}

/// A candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    page: Page,
    place: Place,
    idle: bool,
}

/// Selects pages and moves the hand behind the last one.
pub fn select(fs: &dyn Fs, wanted: &Wanted<'_>, hand: &mut Hand) -> Vec<Request> {
    let mut candidates = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    let mut end = *hand;
    for (process, start, stop) in ranges(fs, wanted, *hand) {
        let mut at = start;
        while at < stop {
            let numbers: Vec<u64> = (at..stop.min(at + BATCH)).collect();
            at += BATCH;
            end = Hand { process, page: at.min(stop) };
            for candidate in read(fs, process, &numbers, wanted.from) {
                let size = size(candidate.place);
                bytes += size;
                first += if candidate.idle != wanted.hot_first { size } else { 0 };
                candidates.push(candidate);
            }
            if first >= wanted.bytes.0 || bytes >= wanted.bytes.0.saturating_mul(SEARCH) {
                *hand = end;
                return chosen(&candidates, wanted);
            }
        }
    }
    *hand = end;
    chosen(&candidates, wanted)
}

const fn size(place: Place) -> u64 {
    if place.huge { PAGE * PIECES } else { PAGE }
}

/// The preferred candidates, then others, up to the amount.
fn chosen(candidates: &[Candidate], wanted: &Wanted<'_>) -> Vec<Request> {
    let preferred = |one: &&Candidate| one.idle != wanted.hot_first;
    let others = candidates.iter().filter(|one| !preferred(one));
    let mut left = wanted.bytes.0;
    let mut requests = Vec::new();
    for one in candidates.iter().filter(preferred).chain(others) {
        if left == 0 {
            break;
        }
        left = left.saturating_sub(size(one.place));
        let (page, from) = (one.page, Some(one.place.node));
        requests.push(Request { page, huge: one.place.huge, from, to: wanted.to });
    }
    requests
}

/// Page ranges of the processes with memory on the nodes, beginning at the hand and ending before it.
fn ranges(fs: &dyn Fs, wanted: &Wanted<'_>, hand: Hand) -> Vec<(u32, u64, u64)> {
    let mut before = Vec::new();
    let mut after = Vec::new();
    for process in wanted.processes {
        // One that has ended, or may not be read, has none.
        for mapping in mapped::of_process(fs, *process).unwrap_or_default() {
            if !mapping.nodes.keys().any(|node| wanted.from.contains(node)) {
                continue;
            }
            let (start, stop) = (mapping.start / PAGE, mapping.end.div_ceil(PAGE));
            let split = match process.cmp(&hand.process) {
                std::cmp::Ordering::Less => stop,
                std::cmp::Ordering::Greater => start,
                std::cmp::Ordering::Equal => hand.page.clamp(start, stop),
            };
            if start < split {
                before.push((*process, start, split));
            }
            if split < stop {
                after.push((*process, split, stop));
            }
        }
    }
    after.append(&mut before);
    after
}

/// The pages among `numbers` that are on the nodes; a huge one once.
fn read(fs: &dyn Fs, process: u32, numbers: &[u64], from: &BTreeSet<NodeId>) -> Vec<Candidate> {
    let places = pages::places(fs, process, numbers);
    let found = pages::once(numbers.iter().copied().zip(places));
    let found: Vec<(u64, Place)> = found.filter(|(_, place)| from.contains(&place.node)).collect();
    let numbers: Vec<u64> = found.iter().map(|(number, _)| *number).collect();
    let idle = pages::idle(fs, process, &numbers);
    let candidate = |((number, place), idle): ((u64, Place), bool)| {
        let page = Page { process: Process(process), number };
        Candidate { page, place, idle }
    };
    found.into_iter().zip(idle).map(candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(number: u64, huge: bool, idle: bool) -> Candidate {
        let page = Page { process: Process(7), number };
        Candidate { page, place: Place { node: NodeId(0), huge }, idle }
    }

    fn wanted(pages: u64, hot_first: bool) -> Wanted<'static> {
        static FROM: BTreeSet<NodeId> = BTreeSet::new();
        let bytes = Bytes(pages * PAGE);
        Wanted { processes: &[], from: &FROM, to: NodeId(1), bytes, hot_first }
    }

    #[test]
    fn idle_pages_go_first_and_others_only_as_far_as_they_are_needed() {
        let all =
            [candidate(0, false, false), candidate(1, false, true), candidate(2, false, true)];
        let numbers = |pages: u64, hot_first: bool| -> Vec<u64> {
            chosen(&all, &wanted(pages, hot_first)).iter().map(|one| one.page.number).collect()
        };
        assert_eq!(numbers(1, false), [1]);
        assert_eq!(numbers(3, false), [1, 2, 0]);
        assert_eq!(numbers(1, true), [0], "promotion takes referenced ones");
        assert!(numbers(0, false).is_empty());
    }

    #[test]
    fn a_huge_page_counts_as_all_its_pieces() {
        let all = [candidate(0, true, true), candidate(512, false, true)];
        assert_eq!(chosen(&all, &wanted(512, false)).len(), 1);
        assert_eq!(chosen(&all, &wanted(513, false)).len(), 2);
    }

    #[test]
    fn page_selection_continues_from_the_clock_hand() {
        let memory = std::hint::black_box(vec![1_u8; 64 << 20]);
        let fs = nearfar_kernel::fs::RootFs::live().unwrap();
        let own = std::process::id();
        let from: BTreeSet<NodeId> = (0..64).map(NodeId).collect();
        let wanted = Wanted {
            processes: &[own],
            from: &from,
            to: NodeId(1),
            bytes: Bytes(8 << 20),
            hot_first: false,
        };
        let mut hand = Hand::default();
        let first = select(&fs, &wanted, &mut hand);
        let bytes: u64 = first.iter().map(|one| one.bytes().0).sum();
        assert!((8 << 20..=10 << 20).contains(&bytes), "{bytes}");
        let behind = hand;
        select(&fs, &wanted, &mut hand);
        assert_ne!(behind, hand, "it goes on");
        assert_eq!(memory[7], 1);
    }
}
