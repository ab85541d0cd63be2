//! Traffic: accesses to memory as they are seen, by whoever sees them, and the policies that act on them.
//!
//! The simulator and the daemon fill in the same types and call the same functions: a [`Round`] of counters, a [`Table`] of
//! sampled pages. What is about nodes is in the order of [`Round::nodes`]; what is missing counts as nothing.
//!
//! | module | what it does |
//! |---|---|
//! | [`metrics`] | how busy, how local, how uneven a round was |
//! | [`carrefour`] | the published system: gates by metrics, page by page relocated, interleaved, replicated |
//! | [`model`] | what a placement comes to: loops, queues, prices |
//! | [`place`] | the best placement by that; weights for new memory and what is worth promoting, by the same prices |
//! | [`balance`] | the controller: senses, predicts, moves what repays, checks itself |
//! | [`colloid`] | equal latencies, by bounds: what needs to know least |
//!
//! Sources: Carrefour (ASPLOS 2013) and its version for huge pages (USENIX ATC 2014); Colloid (SOSP 2024).

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Bytes, Nanoseconds, NodeId};

pub mod balance;
pub mod carrefour;
pub mod colloid;
pub mod metrics;
pub mod model;
mod number;
pub mod place;
#[cfg(test)]
mod testkit;

pub use metrics::Metrics;

/// A page, in bytes.
pub const PAGE: u64 = 4096;
/// Pages of a huge page.
pub const PIECES: u64 = 512;

/// A process, by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process(pub u32);

/// A page of a process, by its number: its address in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Page {
    /// Whose.
    pub process: Process,
    /// Which.
    pub number: u64,
}

impl Page {
    /// The first page of the huge page that this one would be in.
    #[must_use]
    pub const fn whole(self) -> Self {
        Self { number: self.number - self.number % PIECES, ..self }
    }

    /// A number that is this page's own, and looks like chance.
    #[must_use]
    pub const fn hash(self, salt: u64) -> u64 {
        mix(mix(mix(self.number) ^ self.process.0 as u64) ^ salt)
    }
}

/// Every bit of the result hangs on every bit of `value` (the last step of splitmix64).
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The node.
    pub node: NodeId,
    /// All its memory; none for a node that has CPUs alone.
    pub total: Bytes,
    /// What is free of it.
    pub free: Bytes,
}

/// What is known of reads and writes in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// Nothing.
    #[default]
    Unknown,
    /// Lines that came into caches, and how many of these another cache had modified.
    Fills {
        /// All.
        all: u64,
        /// Modified ones.
        modified: u64,
    },
    /// Lines read from memory and written to it.
    Lines {
        /// Read.
        reads: u64,
        /// Written.
        writes: u64,
    },
}

impl Reads {
    /// Those of two times together; of two kinds, the first.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Lines { reads, writes }, Self::Lines { reads: more, writes: also }) => {
                let (reads, writes) = (reads.saturating_add(more), writes.saturating_add(also));
                Self::Lines { reads, writes }
            }
            (Self::Fills { all, modified }, Self::Fills { all: more, modified: also }) => {
                let (all, modified) = (all.saturating_add(more), modified.saturating_add(also));
                Self::Fills { all, modified }
            }
            (Self::Unknown, known) | (known, _) => known,
        }
    }
}

/// A thread in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Whose.
    pub process: Process,
    /// The share of a CPU that it had.
    pub cpu: BasisPoints,
    /// Lines that came into its CPU's cache.
    pub fills: u64,
    /// Of these, modified by another.
    pub modified: u64,
}

/// What counters say of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// How long it was.
    pub elapsed: Nanoseconds,
    /// The share of it in which counters counted: there are fewer of them than there are events.
    pub coverage: BasisPoints,
    /// The nodes.
    pub nodes: Vec<Memory>,
    /// Accesses to memory: a row for each node whose CPUs asked, in it a column for each that answered.
    pub accesses: Vec<Vec<u64>>,
    /// Reads and writes of all.
    pub reads: Reads,
    /// Threads, where these are seen one by one.
    pub threads: Vec<Thread>,
}

impl Round {
    /// Accesses that each node's memory answered.
    #[must_use]
    pub fn by_node(&self) -> Vec<u64> {
        let column = |node| {
            let cells = self.accesses.iter().filter_map(|row| row.get(node));
            cells.fold(0_u64, |sum, cell| sum.saturating_add(*cell))
        };
        (0..self.nodes.len()).map(column).collect()
    }

    /// Where `node` stands in [`Round::nodes`].
    #[must_use]
    pub fn place_of(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|memory| memory.node == node)
    }
}

/// What was sampled of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The node it is on.
    pub node: NodeId,
    /// Whether it is part of a huge page.
    pub huge: bool,
    /// Accesses by node whose CPUs asked.
    pub by: Vec<u32>,
    /// How many of them wrote.
    pub writes: u32,
}

impl Sampled {
    /// All accesses.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.by.iter().map(|samples| u64::from(*samples)).sum()
    }

    /// The only node that accessed it, by its place; `None` if there are several.
    #[must_use]
    pub fn lone(&self) -> Option<usize> {
        let mut from = (0..self.by.len()).filter(|cpu| self.by[*cpu] > 0);
        from.next().filter(|_| from.next().is_none())
    }

    fn add(&mut self, other: &Self) {
        for (sum, more) in self.by.iter_mut().zip(&other.by) {
            *sum = sum.saturating_add(*more);
        }
        self.writes = self.writes.saturating_add(other.writes);
    }
}

/// A sample, as a sensor has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The page.
    pub page: Page,
    /// The node it is on.
    pub node: NodeId,
    /// Whether it is part of a huge page.
    pub huge: bool,
    /// The node whose CPU asked, by its place among the nodes.
    pub cpu: usize,
    /// Whether it wrote.
    pub write: bool,
}

/// Sampled pages of a round: so many at most, first come, first served; samples of others are lost, and counted.
#[derive(Clone, Debug)]
pub struct Table {
    pages: BTreeMap<Page, Sampled>,
    pages_max: usize,
    nodes: usize,
    lost: u64,
}

impl Table {
    /// An empty one, for so many pages, on a machine with so many nodes.
    #[must_use]
    pub const fn new(pages_max: usize, nodes: usize) -> Self {
        Self { pages: BTreeMap::new(), pages_max, nodes, lost: 0 }
    }

    /// Counts a sample. One from a CPU whose node is not known is lost.
    pub fn add(&mut self, sample: Sample) {
        let known = sample.cpu < self.nodes;
        let room = self.pages.len() < self.pages_max || self.pages.contains_key(&sample.page);
        if !known || !room {
            self.lost = self.lost.saturating_add(1);
            return;
        }
        let fresh =
            || Sampled { node: sample.node, huge: sample.huge, by: vec![0; self.nodes], writes: 0 };
        let page = self.pages.entry(sample.page).or_insert_with(fresh);
        (page.node, page.huge) = (sample.node, sample.huge);
        page.by[sample.cpu] = page.by[sample.cpu].saturating_add(1);
        page.writes = page.writes.saturating_add(u32::from(sample.write));
    }

    /// Pages, process by process, in the order of their numbers.
    #[must_use]
    pub const fn pages(&self) -> &BTreeMap<Page, Sampled> {
        &self.pages
    }

    /// Samples lost so far.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// The same with the pieces of a huge page taken together, under its first page.
    #[must_use]
    pub fn whole_pages(&self) -> BTreeMap<Page, Sampled> {
        let mut whole: BTreeMap<Page, Sampled> = BTreeMap::new();
        for (page, sampled) in &self.pages {
            let page = if sampled.huge { page.whole() } else { *page };
            whole.entry(page).and_modify(|sum| sum.add(sampled)).or_insert_with(|| sampled.clone());
        }
        whole
    }

    /// Whether fewer than two samples came of each page, so that it can't be told who shares it.
    #[must_use]
    pub fn is_thin(&self) -> bool {
        let samples = self.pages.values().fold(0_u64, |sum, page| sum.saturating_add(page.all()));
        samples < 2 * u64::try_from(self.pages.len()).unwrap_or(u64::MAX / 2)
    }

    /// Notes where so many pages are now, from one on; those that have not been sampled are passed over.
    pub fn placed(&mut self, page: Page, pages: u64, node: NodeId) {
        let end = Page { number: page.number.saturating_add(pages), ..page };
        self.pages.range_mut(page..end).for_each(|(_, sampled)| sampled.node = node);
    }

    /// The same pages for one round more, which may be of more of them.
    pub const fn keep(&mut self, pages_max: usize) {
        (self.pages_max, self.lost) = (pages_max, 0);
    }

    /// Forgets all, for a next round of so many pages.
    pub fn clear(&mut self, pages_max: usize) {
        (self.pages_max, self.lost) = (pages_max, 0);
        self.pages.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(number: u64, cpu: usize) -> Sample {
        let page = Page { process: Process(7), number };
        Sample { page, node: NodeId(0), huge: number >= PIECES, cpu, write: cpu == 1 }
    }

    #[test]
    fn a_full_table_goes_on_counting_its_pages_and_loses_samples_of_others() {
        let mut table = Table::new(2, 2);
        for (number, cpu) in [(1, 0), (2, 0), (3, 0), (1, 1), (4, 1), (1, 9)] {
            table.add(sample(number, cpu));
        }
        assert_eq!(table.pages().len(), 2);
        assert_eq!(table.lost(), 3, "pages 3 and 4, and a CPU of no node");
        let first = &table.pages()[&sample(1, 0).page];
        assert_eq!((first.by.as_slice(), first.writes, first.lone()), ([1, 1].as_slice(), 1, None));
        table.clear(1);
        assert_eq!((table.pages().len(), table.lost()), (0, 0));
    }

    #[test]
    fn a_table_is_thin_until_two_samples_came_of_each_page_and_knows_where_pages_went() {
        let mut table = Table::new(10, 2);
        [sample(1, 0), sample(512, 0), sample(600, 1)].into_iter().for_each(|one| table.add(one));
        assert!(table.is_thin());
        table.placed(sample(512, 0).page, PIECES, NodeId(1));
        let nodes: Vec<_> = table.pages().values().map(|page| page.node.0).collect();
        assert_eq!(nodes, [0, 1, 1]);
        table.keep(3);
        [sample(1, 0), sample(512, 0), sample(600, 1)].into_iter().for_each(|one| table.add(one));
        assert!(!table.is_thin());
        table.add(sample(7, 0));
        assert_eq!((table.pages().len(), table.lost()), (3, 1));
    }

    #[test]
    fn pieces_of_a_huge_page_are_taken_together_and_small_pages_are_not() {
        let mut table = Table::new(10, 2);
        for (number, cpu) in [(1, 0), (2, 0), (513, 0), (600, 1), (1024, 1)] {
            table.add(sample(number, cpu));
        }
        let whole = table.whole_pages();
        let numbers: Vec<_> = whole.keys().map(|page| page.number).collect();
        assert_eq!(numbers, [1, 2, 512, 1024]);
        assert_eq!(whole[&sample(512, 0).page].by, [1, 1]);
    }

    #[test]
    fn a_pages_hash_is_its_own() {
        let hashes: alloc::collections::BTreeSet<_> =
            (0..1000).map(|number| sample(number, 0).page.hash(1)).collect();
        assert_eq!(hashes.len(), 1000);
        assert_ne!(sample(1, 0).page.hash(1), sample(1, 0).page.hash(2));
    }
}
