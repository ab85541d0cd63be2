//! What was seen since the last decision: accesses, samples, latencies; and what it comes to for a policy.

use nearfar_policy::traffic::balance::Observation;
use nearfar_policy::traffic::{Memory, PIECES, Reads, Round, Table};
use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds, NodeId};

use super::Placed;
use super::law::Counted;
use super::regions::{self, Part};
use crate::sense::{Reading, Whose};

const LINE: u128 = 64;
const SECOND_NS: u128 = 1_000_000_000;
/// Pages of the first round.
const PAGES_MAX: usize = 30_000;
/// Rounds that samples are remembered for where a page has hardly one a round: each time a page faults, say. Shared pages could
/// not be told from private ones by a round alone.
const ROUNDS_KEPT: u32 = 4;
/// What stays free on each node: two hundredths.
const KEPT_FREE: u64 = 50;

/// Which nodes there are, and how a model of the machine counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// All, in the order in which sensors count.
    pub nodes: Vec<NodeId>,
    /// Places of those with CPUs: the rows of the model.
    pub cpus: Vec<usize>,
    /// Places of those with memory: its columns.
    pub mems: Vec<usize>,
    /// For each of these the queue of its controller.
    pub controllers: Vec<usize>,
    /// Queues in all.
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

    /// The region of what the node at this place uses alone, or of what several use.
    pub(super) fn region(&self, owner: Option<usize>) -> usize {
        let row = owner.and_then(|owner| self.cpus.iter().position(|place| *place == owner));
        row.unwrap_or(self.cpus.len())
    }
}

/// What was seen.
#[derive(Debug)]
pub(super) struct Seen {
    table: Table,
    accesses: Vec<Vec<u64>>,
    elapsed: u64,
    /// Of that, in which it was looked.
    looked: u64,
    reads: Reads,
    counted: bool,
    nodes: Vec<Memory>,
    latency: Vec<Vec<Option<Nanoseconds>>>,
    /// Of these, those of the last reading, and the time since there were any.
    fresh: Vec<Vec<Option<Nanoseconds>>>,
    latency_age: u64,
    /// Rounds that the samples are of, before this one.
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

    /// Notes what became of a page.
    pub(super) fn placed(&mut self, placed: &Placed) {
        if let Some(node) = placed.on {
            let pages = if placed.asked.huge { PIECES } else { 1 };
            self.table.placed(placed.asked.page, pages, node);
        }
    }

    /// How nodes were when it was last asked.
    pub(super) fn nodes(&self) -> &[Memory] {
        &self.nodes
    }

    /// Whether sums are of accesses that happened.
    pub(super) const fn counts_lines(&self) -> bool {
        self.counted
    }

    /// Takes in a reading, and how nodes are now.
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

    /// Takes over what was measured anew.
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

    /// All of it as a round.
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

    /// Begins a round of so many pages.
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

    /// What a policy of prices is to know of a reading; of memory only if it is to decide.
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
            let kept = memory.map_or(0, |memory| memory.total.0 / KEPT_FREE);
            Bytes(memory.map_or(0, |memory| memory.free.0.saturating_sub(kept)))
        };
        Observation {
            elapsed: counted.elapsed,
            latency: layout.cpus.iter().map(latency).collect(),
            age: Nanoseconds(self.latency_age),
            used: used(layout, counted),
            own: own(layout, counted),
            reads: share_of_reads(counted.reading.reads),
            regions: parts.map_or_else(Vec::new, |parts| regions::regions(parts, layout)),
            room: layout.mems.iter().map(room).collect(),
        }
    }
}

/// What each queue carries, whoever asks: as its controller counts, or as accesses of everyone come to.
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

/// Traffic of those whose memory it is about, if that is known.
fn own(layout: &Layout, counted: &Counted<'_>) -> Option<Vec<Vec<BytesPerSecond>>> {
    let reading = counted.reading;
    let all = match (counted.whose, &reading.accesses) {
        (Whose::Machine, Some(accesses)) => accesses.clone(),
        (Whose::Processes(_), Some(accesses)) if !counted.everyone => accesses.clone(),
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

/// All are reads where nothing is known.
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
