//! The content of a record: a header, and frames in the order they were written.

use nearfar_topology::NodeId;

/// Addresses from `start` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl Range {
    /// Its length in bytes; 0 for a range that ends before it starts.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Bytes it shares with `other`.
    #[must_use]
    pub fn shared(self, other: Self) -> u64 {
        self.end.min(other.end).saturating_sub(self.start.max(other.start))
    }
}

/// The monitored target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All of the machine's memory.
    Machine,
    /// The processes of a memory cgroup, by its path below the mount point.
    Cgroup(String),
    /// One process.
    Process {
        /// Its process id at the time of the recording.
        pid: u32,
        /// Its command, if known.
        command: String,
    },
    /// Missing in an imported record.
    Unknown,
}

/// Type of the addresses: DAMON's operation sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// Virtual addresses of a process; mappings are followed as they change.
    Virtual,
    /// Virtual addresses of a process in fixed ranges.
    FixedVirtual,
    /// Physical addresses.
    Physical,
    /// Missing in an imported record.
    Unknown,
}

/// The monitoring intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Microseconds between two samples of a region.
    pub sample_us: u64,
    /// Microseconds over which samples are counted.
    pub aggregation_us: u64,
}

impl Intervals {
    /// The most accesses a region can have: the number of samples in one aggregation, at least one.
    #[must_use]
    pub fn samples_max(self) -> u64 {
        (self.aggregation_us / self.sample_us.max(1)).max(1)
    }

    /// `accesses` of [`Self::samples_max`], in thousandths, at most 1000.
    #[must_use]
    pub fn rate_permille(self, accesses: u32) -> u64 {
        (u64::from(accesses) * 1000 / self.samples_max()).min(1000)
    }

    /// An age counted in aggregations, in nanoseconds.
    #[must_use]
    pub fn age_ns(self, age: u32) -> u64 {
        self.aggregation_us.saturating_mul(1000).saturating_mul(u64::from(age))
    }
}

/// A node of the recorded machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Type of memory, as topology prints it.
    pub kind: String,
    /// Whether it was near.
    pub near: bool,
    /// Its physical addresses, if known.
    pub ranges: Vec<Range>,
}

/// Properties of the whole record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The program that wrote it, with its version.
    pub writer: String,
    /// The machine's name (product), empty if unknown.
    pub machine: String,
    /// The machine's fingerprint, empty if unknown.
    pub fingerprint: String,
    /// The kernel's release, empty if unknown.
    pub kernel: String,
    /// Whether the machine was emulated: then no value in the record is a measurement.
    pub emulated: bool,
    /// Nanoseconds since 1970 at which the record begins; 0 if unknown.
    pub started_unix_ns: u64,
    /// The monitored target.
    pub target: Target,
    /// Type of the addresses.
    pub operations: Operations,
    /// The intervals at the start; each snapshot carries its own.
    pub intervals: Intervals,
    /// The machine's nodes with memory, by id.
    pub nodes: Vec<Node>,
}

/// A range of addresses whose pages are assumed to have the same access frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its addresses; never empty.
    pub range: Range,
    /// Samples of the last aggregation that found an access.
    pub accesses: u32,
    /// Aggregations for which its access frequency has been about the same.
    pub age: u32,
}

/// The regions of one monitored target, sorted, without overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Number of the target.
    pub target: u32,
    /// Its regions.
    pub regions: Vec<Region>,
}

/// Accesses at one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Nanoseconds since the record began.
    pub at_ns: u64,
    /// The intervals at that time.
    pub intervals: Intervals,
    /// Each target once.
    pub targets: Vec<Snapshot>,
}

/// Resident bytes on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The node.
    pub node: NodeId,
    /// Bytes of the target there.
    pub bytes: u64,
}

/// Location of the target's pages at one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Nanoseconds since the record began.
    pub at_ns: u64,
    /// Bytes per node.
    pub nodes: Vec<Resident>,
}

/// Bytes migrated from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Source node.
    pub from: NodeId,
    /// Target node.
    pub to: NodeId,
    /// Bytes migrated.
    pub bytes: u64,
    /// Bytes that failed to migrate.
    pub failed_bytes: u64,
}

/// Migrations since the last such frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Nanoseconds since the record began.
    pub at_ns: u64,
    /// Node pairs.
    pub pairs: Vec<Pair>,
}

/// An event: a setting changed, the workload entered a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Nanoseconds since the record began.
    pub at_ns: u64,
    /// Its description.
    pub text: String,
}

/// A process that is a target of its own from here on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Nanoseconds since the record began.
    pub at_ns: u64,
    /// Number of the target.
    pub target: u32,
    /// Its id.
    pub pid: u32,
    /// Its command, if known.
    pub command: String,
}

/// The end of a record that was completed, and the cost of recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Nanoseconds since the record began.
    pub at_ns: u64,
    /// CPU time of the kernel's monitoring threads, nanoseconds.
    pub kernel_cpu_ns: u64,
    /// CPU time of the recording program, nanoseconds.
    pub own_cpu_ns: u64,
}

/// A whole record. Each list is sorted by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Properties of the whole record.
    pub header: Header,
    /// Accesses.
    pub accesses: Vec<Access>,
    /// Residency.
    pub residency: Vec<Residency>,
    /// Migrations.
    pub moved: Vec<Moved>,
    /// Notes.
    pub notes: Vec<Note>,
    /// The processes of the targets; empty if the record does not name them.
    pub processes: Vec<Process>,
    /// Its ending; `None` if it was cut off, or is still being written.
    pub ending: Option<Ending>,
}

impl Record {
    /// An empty record.
    #[must_use]
    pub fn new(header: Header) -> Self {
        Self {
            header,
            accesses: Vec::new(),
            residency: Vec::new(),
            moved: Vec::new(),
            notes: Vec::new(),
            processes: Vec::new(),
            ending: None,
        }
    }

    /// Nanoseconds from its start to its last frame.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        let lasts = [
            self.accesses.last().map(|frame| frame.at_ns),
            self.residency.last().map(|frame| frame.at_ns),
            self.moved.last().map(|frame| frame.at_ns),
            self.notes.last().map(|frame| frame.at_ns),
            self.processes.last().map(|frame| frame.at_ns),
            self.ending.map(|frame| frame.at_ns),
        ];
        lasts.into_iter().flatten().max().unwrap_or(0)
    }
}
