//! Traffic: observed memory accesses, and the policies that act on them.
//!
//! The simulator and the daemon fill in the same types and call the same functions: a [`Round`] of counters, a
//! [`Table`] of sampled pages. Vectors over nodes are in the order of [`Round::nodes`]; missing entries count as zero.
//!
//! | module | purpose |
//! |---|---|
//! | [`metrics`] | utilisation, locality and imbalance of a round |
//! | [`carrefour`] | the published system: gates by metrics; pages are relocated, interleaved, replicated |
//! | [`model`] | throughput of a placement: closed loops, queues, prices |
//! | [`place`] | the best placement by the model; weights for new memory and the promotion threshold, by the same prices |
//! | [`balance`] | the controller: senses, predicts, migrates if that repays, verifies the result |
//! | [`colloid`] | equal latencies, by a bounds search: needs the fewest inputs |
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
mod waits;

pub use metrics::Metrics;

/// Size of a page, in bytes.
pub const PAGE: u64 = 4096;
/// Pages of a huge page.
pub const PIECES: u64 = 512;

/// A process, by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process(pub u32);

/// A page of a process, by its number: its address in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Page {
    /// The process.
    pub process: Process,
    /// Its page number: the address divided by [`PAGE`].
    pub number: u64,
}

impl Page {
    /// The first page of the aligned huge page that contains this one.
    #[must_use]
    pub const fn whole(self) -> Self {
        Self { number: self.number - self.number % PIECES, ..self }
    }

    /// A pseudo-random number derived from this page and `salt`.
    #[must_use]
    pub const fn hash(self, salt: u64) -> u64 {
        mix(mix(mix(self.number) ^ self.process.0 as u64) ^ salt)
    }
}

/// Every bit of the result depends on every bit of `value` (the last step of splitmix64).
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
    /// Its total memory; zero for a node with CPUs only.
    pub total: Bytes,
    /// Free memory.
    pub free: Bytes,
}

/// Reads and writes counted in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// Not counted.
    #[default]
    Unknown,
    /// Lines filled into caches, and those of them that another cache had modified.
    Fills {
        /// All.
        all: u64,
        /// Modified ones.
        modified: u64,
    },
    /// Lines read from and written to memory.
    Lines {
        /// Read.
        reads: u64,
        /// Written.
        writes: u64,
    },
}

impl Reads {
    /// The sum of two counts of one kind; of two kinds, the first.
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
    /// Its process.
    pub process: Process,
    /// The share of a CPU that it used.
    pub cpu: BasisPoints,
    /// Lines filled into the cache of its CPU.
    pub fills: u64,
    /// Of these, modified by another cache.
    pub modified: u64,
}

/// Counters of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Its duration.
    pub elapsed: Nanoseconds,
    /// The share of it in which counters ran: they are multiplexed, being fewer than the events.
    pub coverage: BasisPoints,
    /// The nodes.
    pub nodes: Vec<Memory>,
    /// Accesses to memory: a row per requesting CPU node, in it a column per serving memory node.
    pub accesses: Vec<Vec<u64>>,
    /// Reads and writes of all nodes together.
    pub reads: Reads,
    /// Per-thread counts, if available.
    pub threads: Vec<Thread>,
}

impl Round {
    /// Accesses served by each node's memory.
    #[must_use]
    pub fn by_node(&self) -> Vec<u64> {
        let column = |node| {
            let cells = self.accesses.iter().filter_map(|row| row.get(node));
            cells.fold(0_u64, |sum, cell| sum.saturating_add(*cell))
        };
        (0..self.nodes.len()).map(column).collect()
    }

    /// Index of `node` in [`Round::nodes`].
    #[must_use]
    pub fn place_of(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|memory| memory.node == node)
    }
}

/// Samples of one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The node it is on.
    pub node: NodeId,
    /// Whether it is part of a huge page.
    pub huge: bool,
    /// Accesses by requesting CPU node.
    pub by: Vec<u32>,
    /// The number of writes among them.
    pub writes: u32,
}

impl Sampled {
    /// All accesses.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.by.iter().map(|samples| u64::from(*samples)).sum()
    }

    /// Index of the only node that accessed it; `None` if there are several.
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

/// One sample of a sensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The page.
    pub page: Page,
    /// The node it is on.
    pub node: NodeId,
    /// Whether it is part of a huge page.
    pub huge: bool,
    /// Index of the requesting CPU's node.
    pub cpu: usize,
    /// Whether it was a write.
    pub write: bool,
}

/// Sampled pages of a round, up to a limit, first come, first served; samples of further pages are dropped and counted.
#[derive(Clone, Debug)]
pub struct Table {
    pages: BTreeMap<Page, Sampled>,
    pages_max: usize,
    nodes: usize,
    lost: u64,
}

impl Table {
    /// An empty table for `pages_max` pages, on a machine with `nodes` nodes.
    #[must_use]
    pub const fn new(pages_max: usize, nodes: usize) -> Self {
        Self { pages: BTreeMap::new(), pages_max, nodes, lost: 0 }
    }

    /// Counts a sample. One from a CPU of an unknown node is dropped.
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

    /// Pages by process and number.
    #[must_use]
    pub const fn pages(&self) -> &BTreeMap<Page, Sampled> {
        &self.pages
    }

    /// Samples dropped so far.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// A copy with the pieces of each huge page summed up under its first page.
    #[must_use]
    pub fn whole_pages(&self) -> BTreeMap<Page, Sampled> {
        let mut whole: BTreeMap<Page, Sampled> = BTreeMap::new();
        for (page, sampled) in &self.pages {
            let page = if sampled.huge { page.whole() } else { *page };
            whole.entry(page).and_modify(|sum| sum.add(sampled)).or_insert_with(|| sampled.clone());
        }
        whole
    }

    /// Whether there are fewer than two samples per page, too few to tell which nodes share it.
    #[must_use]
    pub fn is_thin(&self) -> bool {
        let samples = self.pages.values().fold(0_u64, |sum, page| sum.saturating_add(page.all()));
        samples < 2 * u64::try_from(self.pages.len()).unwrap_or(u64::MAX / 2)
    }

    /// Records that `pages` pages from `page` on are on `node` now; pages without samples are ignored.
    pub fn placed(&mut self, page: Page, pages: u64, node: NodeId) {
        let end = Page { number: page.number.saturating_add(pages), ..page };
        self.pages.range_mut(page..end).for_each(|(_, sampled)| sampled.node = node);
    }

    /// Keeps the pages for one more round, with a new limit.
    pub const fn keep(&mut self, pages_max: usize) {
        (self.pages_max, self.lost) = (pages_max, 0);
    }

    /// Drops all pages, for a next round with this limit.
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
    fn a_full_table_counts_its_own_pages_and_drops_samples_of_others() {
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
    fn a_table_is_thin_below_two_samples_a_page_and_tracks_migrated_pages() {
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
    fn whole_pages_merges_the_pieces_of_a_huge_page_but_not_small_pages() {
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
    fn page_hashes_are_distinct_and_depend_on_the_seed() {
        let hashes: alloc::collections::BTreeSet<_> =
            (0..1000).map(|number| sample(number, 0).page.hash(1)).collect();
        assert_eq!(hashes.len(), 1000);
        assert_ne!(sample(1, 0).page.hash(1), sample(1, 0).page.hash(2));
    }
}
