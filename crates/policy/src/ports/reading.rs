//! Readings of sensors: joined over sensors, appended over time, and converted to a policy's round and table of pages.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, BytesPerSecond, Nanoseconds};

use crate::traffic::{Memory, Process, Reads, Round, Sample, Table};

/// Counts of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Delivered.
    pub seen: u64,
    /// Lost, because they were not read in time.
    pub lost: u64,
    /// Times that the kernel or the sensor throttled sampling because of its cost.
    pub throttled: u64,
    /// Without a known page, process or CPU, for example because the process had ended.
    pub unplaced: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.seen = self.seen.saturating_add(other.seen);
        self.lost = self.lost.saturating_add(other.lost);
        self.throttled = self.throttled.saturating_add(other.throttled);
        self.unplaced = self.unplaced.saturating_add(other.unplaced);
    }
}

/// Measurements of a sensor since its last reading. Nodes are in the machine's order; unknown values are `None` or
/// empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The time covered.
    pub elapsed: Nanoseconds,
    /// The part of it in which the sensor observed.
    pub coverage: BasisPoints,
    /// Lines from memory: a row for each requesting node, with a column for each serving node.
    pub accesses: Option<Vec<Vec<u64>>>,
    /// Lines served by each node's memory, for all requesters.
    pub served: Vec<Option<u64>>,
    /// Reads and writes of all requesters.
    pub reads: Reads,
    /// Loaded latency: rows and columns as above.
    pub latency: Vec<Vec<Option<Nanoseconds>>>,
    /// Age of the oldest latency.
    pub latency_age: Nanoseconds,
    /// Latencies measured in this reading, not an earlier one; if empty, all are.
    pub latency_fresh: Vec<Vec<bool>>,
    /// Present traffic of each node's memory by all requesters, as estimated from latency.
    pub used: Vec<Option<BytesPerSecond>>,
    /// Sampled accesses.
    pub samples: Vec<Sample>,
    /// Accesses per sample, if known.
    pub per_sample: Option<u64>,
    /// Regions of memory with their present use.
    pub heat: Vec<Heat>,
    /// Counts of samples.
    pub counts: Counts,
}

/// A region of memory with uniform use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heat {
    /// Its process; `None` for physical addresses.
    pub process: Option<Process>,
    /// The first address.
    pub start: u64,
    /// The exclusive end.
    pub end: u64,
    /// The share of samples in which it was referenced.
    pub used: BasisPoints,
}

impl Reading {
    /// Adds another sensor's reading of the same time. If both have a value, the first is kept; samples are combined
    /// only if they are of one kind, otherwise the first's are kept. Time and coverage are those of the counted lines,
    /// else those of the samples.
    pub fn join(&mut self, other: Self) {
        let counts = other.counts;
        let counted = |one: &Self| one.accesses.is_some() || one.served.iter().any(Option::is_some);
        let sampled = self.per_sample.is_some() || !self.samples.is_empty();
        if !counted(self) && (counted(&other) || !sampled) {
            (self.elapsed, self.coverage) = (other.elapsed, other.coverage);
        }
        if self.accesses.is_none() {
            self.accesses = other.accesses;
        }
        fill(&mut self.served, other.served);
        if self.reads == Reads::Unknown {
            self.reads = other.reads;
        }
        fill(&mut self.used, other.used);
        self.heat.extend(other.heat);
        if self.latency.is_empty() {
            (self.latency, self.latency_age) = (other.latency, other.latency_age);
            self.latency_fresh = other.latency_fresh;
        } else {
            self.latency_age = self.latency_age.max(other.latency_age);
            self.latency_fresh =
                joined_fresh(&self.latency, [&self.latency_fresh, &other.latency_fresh]);
            for (mine, other) in self.latency.iter_mut().zip(other.latency) {
                fill(mine, other);
            }
        }
        // A sampler that met no access keeps its weight beside a sensor without samples.
        if self.samples.is_empty() && (self.per_sample.is_none() || !other.samples.is_empty()) {
            (self.samples, self.per_sample) = (other.samples, other.per_sample);
        } else if self.per_sample == other.per_sample {
            self.samples.extend(other.samples);
        }
        self.counts.add(counts);
    }

    /// Appends the same sensor's next reading: sums are over the time of both, latencies are the later ones.
    pub fn go_on(&mut self, later: Self) {
        let (mine, its) = (self.elapsed.0, later.elapsed.0);
        let looked = u128::from(mine) * u128::from(self.coverage.0)
            + u128::from(its) * u128::from(later.coverage.0);
        let share = looked / u128::from(mine.saturating_add(its)).max(1);
        self.coverage = BasisPoints(u32::try_from(share).unwrap_or(u32::MAX));
        self.elapsed = Nanoseconds(mine.saturating_add(its));
        if let (Some(mine), Some(its)) = (&mut self.accesses, &later.accesses) {
            let cells = mine.iter_mut().flatten().zip(its.iter().flatten());
            cells.for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        } else {
            self.accesses = self.accesses.take().or(later.accesses);
        }
        if self.served.is_empty() {
            self.served = later.served;
        } else {
            for (mine, its) in self.served.iter_mut().zip(later.served) {
                *mine = mine.zip(its).map(|(sum, more)| sum.saturating_add(more)).or(*mine).or(its);
            }
        }
        self.reads = self.reads.and(later.reads);
        if !later.latency.is_empty() {
            self.latency_fresh = if self.latency.is_empty() {
                later.latency_fresh
            } else {
                fresh(&self.latency_fresh, later.latency_fresh)
            };
            (self.latency, self.latency_age) = (later.latency, later.latency_age);
        }
        if !later.used.is_empty() {
            self.used = later.used;
        }
        if !later.heat.is_empty() {
            self.heat = later.heat;
        }
        self.per_sample = match (self.per_sample, later.per_sample) {
            // Of different weights: the average.
            (Some(mine), Some(its)) if mine != its => {
                let (ours, theirs) = (self.samples.len() as u128, later.samples.len() as u128);
                let all = ours * u128::from(mine) + theirs * u128::from(its);
                let mean = all.checked_div(ours + theirs);
                Some(mean.map_or(its, |mean| u64::try_from(mean).unwrap_or(u64::MAX)))
            }
            (mine, its) => mine.or(its),
        };
        self.samples.extend(later.samples);
        self.counts.add(later.counts);
    }

    /// The round of this reading, on a machine with these nodes.
    ///
    /// Lines are the counted ones. If there are only samples, each counts as the number of accesses it represents; if
    /// that is unknown, shares are valid and sums are not: then [`Reading::counts_lines`] returns false.
    #[must_use]
    pub fn round(&self, nodes: Vec<Memory>) -> Round {
        let accesses = match &self.accesses {
            Some(accesses) => accesses.clone(),
            None => self.sampled(&nodes),
        };
        let reads = if self.reads == Reads::Unknown { self.sampled_reads() } else { self.reads };
        let (elapsed, coverage) = (self.elapsed, self.coverage);
        Round { elapsed, coverage, nodes, accesses, reads, threads: Vec::new() }
    }

    /// Whether the sums in [`Reading::round`] are accesses that happened, not just samples.
    #[must_use]
    pub const fn counts_lines(&self) -> bool {
        self.accesses.is_some() || self.per_sample.is_some()
    }

    /// Adds samples to a table of pages.
    pub fn add_to(&self, table: &mut Table) {
        self.samples.iter().for_each(|sample| table.add(*sample));
    }

    fn sampled(&self, nodes: &[Memory]) -> Vec<Vec<u64>> {
        let mut accesses = vec![vec![0_u64; nodes.len()]; nodes.len()];
        for sample in &self.samples {
            let place = nodes.iter().position(|memory| memory.node == sample.node);
            let row = accesses.get_mut(sample.cpu);
            if let (Some(row), Some(place)) = (row, place) {
                row[place] = row[place].saturating_add(self.per_sample.unwrap_or(1));
            }
        }
        accesses
    }

    fn sampled_reads(&self) -> Reads {
        if self.samples.is_empty() {
            return Reads::Unknown;
        }
        let writes = self.samples.iter().filter(|sample| sample.write).count() as u64;
        Reads::Lines { reads: self.samples.len() as u64 - writes, writes }
    }
}

fn fill<T>(mine: &mut Vec<Option<T>>, other: Vec<Option<T>>) {
    if mine.is_empty() {
        *mine = other;
        return;
    }
    for (mine, other) in mine.iter_mut().zip(other) {
        if mine.is_none() {
            *mine = other;
        }
    }
}

/// The fresh values of two sensors together: of each latency as in the reading that has it, the first one's if both do;
/// empty means all.
fn joined_fresh(first: &[Vec<Option<Nanoseconds>>], fresh: [&[Vec<bool>]; 2]) -> Vec<Vec<bool>> {
    if fresh.iter().all(|fresh| fresh.is_empty()) {
        return Vec::new();
    }
    let is_fresh = |row: usize, (column, latency): (usize, &Option<Nanoseconds>)| {
        let rows = fresh[usize::from(latency.is_none())];
        rows.get(row).and_then(|row| row.get(column)).is_none_or(|fresh| *fresh)
    };
    let row = |(row, cells): (usize, &Vec<Option<Nanoseconds>>)| {
        cells.iter().enumerate().map(|cell| is_fresh(row, cell)).collect()
    };
    first.iter().enumerate().map(row).collect()
}

/// The fresh values of either reading; empty means all.
fn fresh(mine: &[Vec<bool>], mut its: Vec<Vec<bool>>) -> Vec<Vec<bool>> {
    if mine.is_empty() {
        return Vec::new();
    }
    for (its, mine) in its.iter_mut().zip(mine) {
        its.iter_mut().zip(mine).for_each(|(its, mine)| *its |= mine);
    }
    its
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Page;
    use nearfar_topology::{Bytes, NodeId};

    fn sample(cpu: usize, node: u16, write: bool) -> Sample {
        let page = Page { process: Process(7), number: u64::from(node) };
        Sample { page, node: NodeId(node), huge: false, cpu, write }
    }

    fn nodes() -> Vec<Memory> {
        let memory = |id| Memory { node: NodeId(id), total: Bytes(8), free: Bytes(4) };
        [0, 4].map(memory).into()
    }

    #[test]
    fn samples_replace_line_counts_that_are_unavailable() {
        let mut reading = Reading {
            samples: vec![sample(0, 4, true), sample(0, 4, false), sample(1, 4, false)],
            ..Reading::default()
        };
        let round = reading.round(nodes());
        assert_eq!(round.accesses, [[0, 2], [0, 1]]);
        assert_eq!(round.reads, Reads::Lines { reads: 2, writes: 1 });
        assert!(!reading.counts_lines());
        reading.per_sample = Some(100);
        assert_eq!(reading.round(nodes()).by_node(), [0, 300]);
        assert!(reading.counts_lines());
        reading.accesses = Some(vec![vec![5, 6], vec![7, 8]]);
        assert_eq!(reading.round(nodes()).by_node(), [12, 14]);
    }

    #[test]
    fn joined_readings_count_nothing_twice() {
        let mut first = Reading {
            elapsed: Nanoseconds(5),
            samples: vec![sample(0, 1, false)],
            latency: vec![vec![None, Some(Nanoseconds(90))]],
            counts: Counts { seen: 1, lost: 2, throttled: 0, unplaced: 1 },
            ..Reading::default()
        };
        first.join(Reading {
            elapsed: Nanoseconds(9),
            coverage: BasisPoints(10_000),
            served: vec![Some(3), None],
            latency: vec![vec![Some(Nanoseconds(70)), Some(Nanoseconds(1))]],
            samples: vec![sample(1, 0, true)],
            per_sample: Some(4),
            counts: Counts { seen: 1, lost: 1, throttled: 1, unplaced: 0 },
            ..Reading::default()
        });
        assert_eq!(first.latency, [[Some(Nanoseconds(70)), Some(Nanoseconds(90))]]);
        assert_eq!(first.samples, [sample(0, 1, false)], "those of another weight don't mix");
        assert_eq!(first.served, [Some(3), None]);
        assert_eq!(first.elapsed, Nanoseconds(9), "lines were counted over the second's time");
        assert_eq!(first.counts, Counts { seen: 2, lost: 3, throttled: 1, unplaced: 1 });
    }

    #[test]
    fn consecutive_readings_add_up_and_keep_the_latest_latency() {
        let lines = |reads, writes| Reads::Lines { reads, writes };
        let one = |at: u64, covered| Reading {
            elapsed: Nanoseconds(at),
            coverage: BasisPoints(covered),
            accesses: Some(vec![vec![at, 1]]),
            served: vec![Some(at), None],
            reads: lines(at, 1),
            latency: vec![vec![Some(Nanoseconds(at))]],
            samples: vec![sample(0, 1, true)],
            ..Reading::default()
        };
        let mut sum = one(100, 10_000);
        sum.go_on(one(300, 2_000));
        assert_eq!((sum.elapsed, sum.coverage), (Nanoseconds(400), BasisPoints(4_000)));
        assert_eq!(sum.accesses, Some(vec![vec![400, 2]]));
        assert_eq!((sum.served, sum.reads), (vec![Some(400), None], lines(400, 2)));
        assert_eq!((sum.latency, sum.samples.len()), (vec![vec![Some(Nanoseconds(300))]], 2));
        let weighs = |per_sample, samples| Reading {
            samples: vec![sample(0, 1, true); samples],
            per_sample: Some(per_sample),
            latency: vec![vec![Some(Nanoseconds(1)); 2]],
            latency_fresh: vec![vec![samples == 1, false]],
            ..Reading::default()
        };
        let mut sum = weighs(100, 3);
        sum.go_on(weighs(200, 1));
        assert_eq!((sum.per_sample, sum.samples.len()), (Some(125), 4));
        assert_eq!(sum.latency_fresh, [[true, false]]);
        let mut none = Reading::default();
        none.go_on(Reading { accesses: Some(vec![vec![3]]), ..Reading::default() });
        assert_eq!(none.accesses, Some(vec![vec![3]]));
    }

    #[test]
    fn a_reading_adds_its_samples_to_the_table() {
        let reading = Reading { samples: vec![sample(0, 1, true)], ..Reading::default() };
        let mut table = Table::new(10, 2);
        reading.add_to(&mut table);
        assert_eq!(table.pages().len(), 1);
    }

    #[test]
    fn time_and_coverage_come_from_the_line_counts_or_else_from_the_samples() {
        let timed = |elapsed, coverage| Reading {
            elapsed: Nanoseconds(elapsed),
            coverage: BasisPoints(coverage),
            ..Reading::default()
        };
        let samples = || Reading {
            samples: vec![sample(0, 4, false)],
            per_sample: Some(9),
            ..timed(7, 2_000)
        };
        let latency = || Reading { latency: vec![vec![Some(Nanoseconds(90))]], ..timed(8, 10_000) };
        let counted = || Reading { served: vec![Some(5)], ..timed(9, 5_000) };
        let joined = |readings: [Reading; 3]| {
            let mut all = readings.into_iter();
            let mut first = all.next().unwrap();
            all.for_each(|other| first.join(other));
            (first.elapsed.0, first.coverage.0)
        };
        // A sampler that observed a fifth of the time is not taken for one that observed all of it.
        assert_eq!(joined([samples(), latency(), latency()]), (7, 2_000));
        assert_eq!(joined([latency(), samples(), latency()]), (7, 2_000));
        for readings in [
            [counted(), samples(), latency()],
            [samples(), counted(), latency()],
            [latency(), samples(), counted()],
        ] {
            assert_eq!(joined(readings), (9, 5_000));
        }
        let silent = || Reading { samples: Vec::new(), ..samples() };
        assert_eq!(joined([silent(), latency(), latency()]), (7, 2_000), "it saw no access");
        for (mut first, other) in [(silent(), latency()), (latency(), silent())] {
            first.join(other);
            assert!(first.counts_lines(), "no sample of a known weight is a count of zero");
        }
    }

    /// Latencies of one row, each with whether it is fresh.
    fn latencies(row: [Option<(u64, bool)>; 3]) -> Reading {
        Reading {
            latency: vec![row.map(|cell| cell.map(|(ns, _)| Nanoseconds(ns))).to_vec()],
            latency_fresh: vec![row.map(|cell| cell.is_some_and(|(_, fresh)| fresh)).to_vec()],
            ..Reading::default()
        }
    }

    #[test]
    fn a_latency_joined_from_another_sensor_keeps_its_freshness() {
        let other = latencies([Some((1, true)), Some((2, true)), Some((3, false))]);
        let mut both = latencies([Some((9, false)), None, None]);
        both.join(other.clone());
        assert_eq!(both.latency, [[9, 2, 3].map(|ns| Some(Nanoseconds(ns)))]);
        assert_eq!(both.latency_fresh, [[false, true, false]]);
        // A sensor that marks none measures all it has in each reading.
        let mut all =
            Reading { latency_fresh: Vec::new(), ..latencies([Some((9, true)), None, None]) };
        all.join(other);
        assert_eq!(all.latency_fresh, [[true, true, false]]);
    }

    #[test]
    fn a_latency_measured_in_either_of_two_readings_is_fresh_in_their_sum() {
        let mut sum = latencies([Some((1, true)), Some((2, false)), None]);
        sum.go_on(latencies([Some((1, false)), Some((2, false)), Some((3, true))]));
        assert_eq!(sum.latency_fresh, [[true, false, true]]);
        // Nothing was measured before: only the later reading's marks count.
        let mut sum = Reading::default();
        sum.go_on(latencies([Some((1, true)), Some((2, false)), None]));
        assert_eq!(sum.latency_fresh, [[true, false, false]]);
    }
}
