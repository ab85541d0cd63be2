//! Sums of readings since the last decision, and the inputs that policies get from them.
//!
//! [`Seen`] adds up accesses, samples and latencies. Carrefour gets them as a round with a table of pages; the
//! balancing controller gets an observation: latency, traffic, regions and free memory in the order of the model
//! ([`Layout`]). Values that no sensor measured are `None`. Not here: regions themselves (`regions.rs`).

use nearfar_policy::traffic::balance::Observation;
use nearfar_policy::traffic::{Memory, PIECES, Reads, Round, Table};
use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds, NodeId};

use super::Placed;
use super::law::Counted;
use super::part::Part;
use super::regions;
use nearfar_policy::ports::{Reading, Targets};

const LINE: u128 = 64;
const SECOND_NS: u128 = 1_000_000_000;
/// Pages of the first round.
const PAGES_MAX: usize = 30_000;
/// Rounds for which samples are kept if pages have hardly one per round (as with one fault each): a single round could
/// not distinguish shared pages from private ones.
const ROUNDS_KEPT: u32 = 4;
/// This part of a large node is kept free: 0.5 %. The kernel's high watermark is at about 0.2 % of a large node.
const KEPT_FREE: u64 = 200;
/// This part of a small node is kept free: 2 %,
const KEPT_FREE_SMALL: u64 = 50;
/// but no more than this many bytes.
const KEPT_FREE_BYTES: u64 = 256 << 20;

/// Nodes of the machine, and their order in its model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// All nodes, in the order of the sensors.
    pub nodes: Vec<NodeId>,
    /// Places of nodes with CPUs: the rows of the model.
    pub cpus: Vec<usize>,
    /// Places of nodes with memory: the columns of the model.
    pub mems: Vec<usize>,
    /// The queue of each column's memory controller.
    pub controllers: Vec<usize>,
    /// Number of queues.
    pub queues: usize,
}

impl Layout {
    /// The node of a column of the model.
    pub(super) fn memory(&self, column: usize) -> Option<NodeId> {
        self.nodes.get(*self.mems.get(column)?).copied()
    }

    /// The column of a node's memory.
    pub(super) fn place_of_memory(&self, node: NodeId) -> Option<usize> {
        self.mems.iter().position(|place| self.nodes.get(*place) == Some(&node))
    }

    /// The region of memory that the node at this place owns; the shared region if there is none.
    pub(super) fn region(&self, owner: Option<usize>) -> usize {
        let row = owner.and_then(|owner| self.cpus.iter().position(|place| *place == owner));
        row.unwrap_or(self.cpus.len())
    }
}

/// Sums since the last decision.
#[derive(Debug)]
pub(super) struct Seen {
    table: Table,
    accesses: Vec<Vec<u64>>,
    elapsed: u64,
    /// The part of it in which sensors observed.
    looked: u64,
    reads: Reads,
    counted: bool,
    nodes: Vec<Memory>,
    latency: Vec<Vec<Option<Nanoseconds>>>,
    /// Latencies of the last reading alone, and the nanoseconds since there were any.
    fresh: Vec<Vec<Option<Nanoseconds>>>,
    latency_age: u64,
    /// Earlier rounds with samples still in the table.
    kept: u32,
}

impl Seen {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            table: Table::new(PAGES_MAX, nodes),
            accesses: vec![vec![0; nodes]; nodes],
            elapsed: 0,
            looked: 0,
            reads: Reads::Unknown,
            counted: true,
            nodes: Vec::new(),
            latency: Vec::new(),
            fresh: Vec::new(),
            latency_age: 0,
            kept: 0,
        }
    }

    pub(super) const fn table(&self) -> &Table {
        &self.table
    }

    pub(super) fn latency(&self) -> &[Vec<Option<Nanoseconds>>] {
        &self.latency
    }

    /// Records the new node of a page.
    pub(super) fn placed(&mut self, placed: &Placed) {
        if let Some(node) = placed.on {
            let pages = if placed.asked.huge { PIECES } else { 1 };
            self.table.placed(placed.asked.page, pages, node);
        }
    }

    /// Memory of the nodes when it was last read.
    pub(super) fn nodes(&self) -> &[Memory] {
        &self.nodes
    }

    /// Whether sums are of counted accesses, not of samples.
    pub(super) const fn counts_lines(&self) -> bool {
        self.counted
    }

    /// Adds a reading, and the present memory of the nodes.
    pub(super) fn add(&mut self, reading: &Reading, nodes: Vec<Memory>) {
        let round = reading.round(nodes);
        for (sums, row) in self.accesses.iter_mut().zip(&round.accesses) {
            for (sum, more) in sums.iter_mut().zip(row) {
                *sum = sum.saturating_add(*more);
            }
        }
        let looked =
            u128::from(round.elapsed.0) * u128::from(round.coverage.0.min(10_000)) / 10_000;
        self.elapsed = self.elapsed.saturating_add(round.elapsed.0);
        self.looked = self.looked.saturating_add(u64::try_from(looked).unwrap_or(u64::MAX));
        self.reads = self.reads.and(round.reads);
        self.counted &= reading.counts_lines();
        self.nodes = round.nodes;
        reading.add_to(&mut self.table);
        self.latency_age = self.latency_age.saturating_add(round.elapsed.0);
        self.take_latency(reading);
    }

    /// Takes over new measurements.
    fn take_latency(&mut self, reading: &Reading) {
        let nodes = self.accesses.len();
        self.latency.resize(nodes, vec![None; nodes]);
        self.fresh = vec![vec![None; nodes]; nodes];
        for (from, row) in reading.latency.iter().enumerate().take(nodes) {
            for (to, latency) in row.iter().enumerate().take(nodes) {
                let is_fresh = reading.latency_fresh.get(from).is_none_or(|row| row[to]);
                if latency.is_some() && is_fresh {
                    self.latency[from][to] = *latency;
                    self.fresh[from][to] = *latency;
                    self.latency_age = 0;
                }
            }
        }
    }

    /// The sums as a round.
    pub(super) fn round(&self) -> Round {
        let coverage = u128::from(self.looked) * 10_000 / u128::from(self.elapsed.max(1));
        Round {
            elapsed: Nanoseconds(self.elapsed),
            coverage: BasisPoints(u32::try_from(coverage).unwrap_or(10_000)),
            nodes: self.nodes.clone(),
            accesses: self.accesses.clone(),
            reads: self.reads,
            threads: Vec::new(),
        }
    }

    /// Begins a round with at most `pages_max` pages.
    pub(super) fn clear(&mut self, pages_max: usize) {
        self.kept += 1;
        if self.kept < ROUNDS_KEPT && self.table.is_thin() {
            self.table.keep(pages_max);
        } else {
            self.kept = 0;
            self.table.clear(pages_max);
        }
        self.accesses.iter_mut().flatten().for_each(|sum| *sum = 0);
        (self.elapsed, self.looked, self.reads, self.counted) = (0, 0, Reads::Unknown, true);
    }

    /// The observation of the balancing controller, with regions if `parts` are given.
    pub(super) fn observation(
        &self,
        layout: &Layout,
        parts: Option<&[Part]>,
        counted: &Counted<'_>,
    ) -> Observation {
        let latency = |cpu: &usize| {
            let row = self.fresh.get(*cpu);
            let cell = |mem: &usize| row.and_then(|row| row.get(*mem).copied().flatten());
            layout.mems.iter().map(cell).collect()
        };
        let room = |place: &usize| {
            let memory = self.nodes.get(*place);
            let kept = memory.map_or(0, |memory| kept_free(memory.total.0));
            Bytes(memory.map_or(0, |memory| memory.free.0.saturating_sub(kept)))
        };
        Observation {
            elapsed: counted.elapsed,
            latency: layout.cpus.iter().map(latency).collect(),
            age: Nanoseconds(self.latency_age),
            used: used(layout, counted),
            own: own(layout, counted),
            reads: share_of_reads(counted.reading.reads),
            regions: parts.map_or_else(Vec::new, |parts| {
                let in_use = |node: &Memory| node.total.0.saturating_sub(node.free.0);
                let most = self.nodes.iter().map(in_use).fold(0, u64::saturating_add);
                regions::regions(parts, layout, Bytes(most))
            }),
            room: layout.mems.iter().map(room).collect(),
        }
    }
}

/// Bytes of a node of this size that are kept free.
fn kept_free(total: u64) -> u64 {
    (total / KEPT_FREE).max(KEPT_FREE_BYTES.min(total / KEPT_FREE_SMALL))
}

/// Traffic of each queue by all requesters: as counted by its controller, or summed up from the accesses of all
/// processes.
fn used(layout: &Layout, counted: &Counted<'_>) -> Vec<Option<BytesPerSecond>> {
    let reading = counted.reading;
    let mut used = vec![None; layout.queues];
    for (mem, queue) in layout.mems.iter().zip(&layout.controllers) {
        let served = reading.served.get(*mem).copied().flatten();
        let column = |all: &Vec<Vec<u64>>| all.iter().filter_map(|row| row.get(*mem)).sum::<u64>();
        let everyones = reading.accesses.as_ref().filter(|_| counted.everyone);
        let lines = served.or_else(|| everyones.map(column));
        if let (Some(place), Some(lines)) = (used.get_mut(*queue), lines) {
            *place = speed(lines, reading);
        }
    }
    used
}

/// Traffic of the processes in scope; `None` if unknown.
fn own(layout: &Layout, counted: &Counted<'_>) -> Option<Vec<Vec<BytesPerSecond>>> {
    let reading = counted.reading;
    let all = match (counted.targets, &reading.accesses) {
        (Targets::Machine, Some(accesses)) => accesses.clone(),
        (Targets::Processes(_), Some(accesses)) if !counted.everyone => accesses.clone(),
        _ => {
            let each = reading.per_sample?;
            let mut sums = vec![vec![0_u64; layout.nodes.len()]; layout.nodes.len()];
            for sample in &reading.samples {
                let place = layout.nodes.iter().position(|node| *node == sample.node);
                if let (Some(row), Some(place)) = (sums.get_mut(sample.cpu), place) {
                    row[place] = row[place].saturating_add(each);
                }
            }
            sums
        }
    };
    let cell = |cpu: &usize, mem: &usize| speed(*all.get(*cpu)?.get(*mem)?, reading);
    let row = |cpu: &usize| layout.mems.iter().map(|mem| cell(cpu, mem)).collect();
    layout.cpus.iter().map(row).collect()
}

fn speed(lines: u64, reading: &Reading) -> Option<BytesPerSecond> {
    let looked = u128::from(reading.elapsed.0) * u128::from(reading.coverage.0) / 10_000;
    let bytes = (u128::from(lines) * LINE * SECOND_NS).checked_div(looked)?;
    u64::try_from(bytes).ok().map(BytesPerSecond)
}

/// Counts all as reads if nothing is known.
fn share_of_reads(reads: Reads) -> BasisPoints {
    let share = |part: u64, of: u64| u128::from(part) * 10_000 / u128::from(of.max(1));
    let found = match reads {
        Reads::Lines { reads, writes } if reads > 0 || writes > 0 => {
            share(reads, reads.saturating_add(writes))
        }
        _ => 10_000,
    };
    BasisPoints(u32::try_from(found).unwrap_or(10_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_free_reserve_is_a_smaller_share_of_larger_nodes() {
        let kept = |gib: u64| kept_free(gib << 30) >> 20;
        assert_eq!([1, 4, 32, 1024].map(kept), [20, 81, 256, 5242]);
        assert_eq!(kept_free(0), 0);
    }
}
