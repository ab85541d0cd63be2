//! Sensors: how traffic is seen, whoever sees it.
//!
//! A [`Sensor`] is built for a machine, and counts nodes in that machine's order. It says what it can see ([`Sees`]), tests
//! itself ([`Sensor::check`]) because some interfaces succeed and report nothing, and from [`Sensor::start`] on gives
//! [`Reading`]s, each of what was since the one before. Several sensors' readings are taken together ([`Reading::join`]) and
//! become what policies know: a [`Round`] and a [`Table`] of sampled pages. Nothing is made up: what a sensor does not see
//! stays `None`, and what it saw but could not tell is counted ([`Counts`]).
//!
//! Not here: the sensors. The live system's are in the command, over crate kernel.

use std::collections::BTreeSet;
use std::fmt;

use nearfar_policy::traffic::carrefour::Sampling;
use nearfar_policy::traffic::{Memory, Process, Reads, Round, Sample, Table};
use nearfar_topology::{BasisPoints, Nanoseconds};

/// Whose traffic a sensor sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everyone's, without telling whose.
    Machine,
    /// That of chosen processes, or everyone's with its process.
    Processes,
    /// Its own alone: a probe.
    Own,
}

/// What tells addresses apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// None are seen.
    None,
    /// Stretches of memory.
    Regions,
    /// Pages.
    Pages,
}

/// How true what it shows is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// It comes from the machine itself.
    Measured,
    /// It comes from the lab's model of a machine.
    Emulated,
}

/// What a sensor can see. A sensor that has not been started says what its kind sees at best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Sees {
    /// Addresses.
    pub addresses: Grain,
    /// Whether an access read or wrote.
    pub writes: bool,
    /// The node whose CPU asked.
    pub cpu: bool,
    /// How many lines each node's memory serves.
    pub traffic: bool,
    /// What a load takes.
    pub latency: bool,
    /// Whose.
    pub scope: Scope,
    /// How true.
    pub nature: Nature,
}

/// Why a sensor can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The machine or its kernel has no such thing.
    Absent,
    /// It is there, but not for us.
    Forbidden,
    /// Someone else has it, or sets what it needs.
    Taken,
    /// It can be used and shows nothing, or what is known not to be so.
    Mute,
    /// It was in use and is no longer.
    Failed,
}

impl Why {
    /// One word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Forbidden => "forbidden",
            Self::Taken => "taken",
            Self::Mute => "mute",
            Self::Failed => "failed",
        }
    }
}

/// A sensor that can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// In a word.
    pub why: Why,
    /// What was asked and what was found.
    pub found: String,
    /// The way out; empty if there is none.
    pub remedy: String,
}

impl Unusable {
    /// One without a way out.
    #[must_use]
    pub fn new(why: Why, found: impl Into<String>) -> Self {
        Self { why, found: found.into(), remedy: String::new() }
    }

    /// The same with a way out.
    #[must_use]
    pub fn but(self, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..self }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.found)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

impl std::error::Error for Unusable {}

/// Whom to look at. What a sensor sees of others is left out, where it can tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Whose {
    /// Everyone.
    #[default]
    Machine,
    /// These processes, with all their threads.
    Processes(BTreeSet<Process>),
}

impl Whose {
    /// Whether a process is among them.
    #[must_use]
    pub fn has(&self, process: Process) -> bool {
        match self {
            Self::Machine => true,
            Self::Processes(these) => these.contains(&process),
        }
    }
}

/// What became of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Handed on.
    pub seen: u64,
    /// Lost on the way: nobody read them in time.
    pub lost: u64,
    /// Times that the kernel or the sensor itself held sampling back because it cost too much.
    pub throttled: u64,
    /// Of a page, a process or a CPU that could not be told, as when it was gone by then.
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

/// What a sensor saw since its last reading. Nodes are in the machine's order; what is not seen is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// How long that is.
    pub elapsed: Nanoseconds,
    /// The share of it in which it was looked.
    pub coverage: BasisPoints,
    /// Lines from memory: a row for each node whose CPUs asked, in it a column for each that answered.
    pub accesses: Option<Vec<Vec<u64>>>,
    /// Lines that each node's memory served, whoever asked.
    pub served: Vec<Option<u64>>,
    /// Reads and writes of all.
    pub reads: Reads,
    /// What a load takes now: rows and columns as above.
    pub latency: Vec<Vec<Option<Nanoseconds>>>,
    /// Accesses one by one.
    pub samples: Vec<Sample>,
    /// How many accesses each of them stands for, if that is known.
    pub per_sample: Option<u64>,
    /// What became of samples.
    pub counts: Counts,
}

impl Reading {
    /// Takes another sensor's reading of the same time in. What both see is kept as the first has it; samples are taken
    /// from both only where they are of one kind, else the first's.
    pub fn join(&mut self, other: Self) {
        let counts = other.counts;
        if self.accesses.is_none() && self.served.iter().all(Option::is_none) {
            (self.elapsed, self.coverage) = (other.elapsed, other.coverage);
        }
        if self.accesses.is_none() {
            self.accesses = other.accesses;
        }
        fill(&mut self.served, other.served);
        if self.reads == Reads::Unknown {
            self.reads = other.reads;
        }
        if self.latency.is_empty() {
            self.latency = other.latency;
        } else {
            for (mine, other) in self.latency.iter_mut().zip(other.latency) {
                fill(mine, other);
            }
        }
        if self.samples.is_empty() {
            (self.samples, self.per_sample) = (other.samples, other.per_sample);
        } else if self.per_sample == other.per_sample {
            self.samples.extend(other.samples);
        }
        self.counts.add(counts);
    }

    /// The round of this reading, on a machine with these nodes.
    ///
    /// Lines are those that were counted. Where only samples were seen, these are counted instead, each for as many
    /// accesses as it stands for; where that is not known, shares are true and sums are not: then
    /// [`Reading::counts_lines`] says so.
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

/// What a sensor has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// CPU time of ours, since it was started.
    pub cpu: Nanoseconds,
    /// Times that programs were interrupted for it: samples, hinting faults.
    pub interruptions: u64,
}

/// Something that sees traffic.
pub trait Sensor {
    /// Its name, in lower case.
    fn name(&self) -> &'static str;

    /// What it can see.
    fn sees(&self) -> Sees;

    /// Tests whether it can be used here and shows what it should of accesses that the test itself makes. Changes no
    /// setting of the system, and leaves nothing open.
    ///
    /// # Errors
    /// [`Unusable`]: why it can't be used.
    fn check(&mut self) -> Result<(), Unusable>;

    /// Starts looking, after [`Sensor::check`]; settings of the system that it needs are journaled and written. The first
    /// reading counts from here. A sensor that is at work is told whom to look at from now on.
    ///
    /// # Errors
    /// [`Unusable`]; all is as before then.
    fn start(&mut self, whose: &Whose, now: Nanoseconds) -> Result<(), Unusable>;

    /// What was seen since the last reading.
    ///
    /// # Errors
    /// [`Unusable`], if it is not at work any more, or was not started. It may be started again.
    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable>;

    /// How many samples to take from now on. A sensor that takes none does not mind.
    ///
    /// # Errors
    /// [`Unusable`]; it goes on as before.
    fn set_sampling(&mut self, _sampling: Sampling) -> Result<(), Unusable> {
        Ok(())
    }

    /// What it has cost since it was started.
    fn cost(&self) -> Cost;

    /// Stops looking and puts back what it set. One that is not at work does not mind.
    ///
    /// # Errors
    /// [`Unusable`]: what could not be put back is in the journal still.
    fn stop(&mut self) -> Result<(), Unusable>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_policy::traffic::Page;
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
    fn samples_stand_for_lines_where_none_are_counted_and_say_so() {
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
    fn readings_are_taken_together_and_nothing_is_counted_twice() {
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
    fn a_table_gets_the_samples_and_an_error_its_way_out() {
        let reading = Reading { samples: vec![sample(0, 1, true)], ..Reading::default() };
        let mut table = Table::new(10, 2);
        reading.add_to(&mut table);
        assert_eq!(table.pages().len(), 1);
        let lacking = Unusable::new(Why::Absent, "no /sys/x");
        assert_eq!(lacking.to_string(), "no /sys/x");
        assert_eq!(lacking.but("load y").to_string(), "no /sys/x; load y");
        assert!(Whose::Machine.has(Process(1)) && !Whose::Processes([].into()).has(Process(1)));
    }
}
