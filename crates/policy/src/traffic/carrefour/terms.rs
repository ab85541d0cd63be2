//! Inputs and outputs of Carrefour: thresholds, actions and their reasons.
//!
//! [`Config`] has the published thresholds as defaults, [`Decision`] the result of a round: gates, actions with a
//! reason each, and the number of pages left in place by reason. Shares are in basis points, and of all accesses unless
//! stated otherwise. Not here: the rules themselves.

use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Nanoseconds, NodeId};

use crate::traffic::{Metrics, Page};

/// Thresholds and limits; [`Config::default`] has the published ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Least traffic at which any mechanism is used.
    pub busy: Busy,
    /// Replication: at least this share of fills unmodified by other caches,
    pub reads_of_fills: BasisPoints,
    /// or of lines read, if those are counted instead;
    pub reads_of_lines: BasisPoints,
    /// and at most this share of memory in use.
    pub in_use_most: BasisPoints,
    /// Relocation: less than this share of accesses is local.
    pub local_below: BasisPoints,
    /// Interleaving: the imbalance of controllers exceeds this.
    pub imbalance_above: BasisPoints,
    /// Per-process rule for replication; `None` to judge the whole machine.
    pub by_process: Option<ByProcess>,
    /// Least samples of a page to relocate it,
    pub samples_least: u32,
    /// and with interleaving on.
    pub samples_least_interleaving: u32,
    /// Least number of pages worth replicating in a round for the first replica. Later one is enough.
    pub replicas_first: usize,
    /// Capacity of the page table with dense and with sparse sampling.
    pub pages_max: (usize, usize),
    /// Fewer moves and replicas than this in a round make sampling sparse.
    pub executed_few: u64,
    /// Maximal moves of a page; 0 for no limit.
    pub moves_per_page: u32,
    /// Method of drawing destinations.
    pub draw: Draw,
    /// The extension for huge pages.
    pub huge: Option<Huge>,
    /// Length of a round.
    pub period: Nanoseconds,
}

/// Traffic threshold: memory accesses per millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// For the whole machine.
    Machine(u64),
    /// Per node.
    Node(u64),
}

/// Rule that allows replication process by process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByProcess {
    /// Rounds with a smaller share of counted time are ignored.
    pub coverage_least: BasisPoints,
    /// Threads that used less of a CPU are ignored.
    pub cpu_least: BasisPoints,
    /// A process is not replicated if any of its threads has a greater share of modified fills.
    pub modified_most: BasisPoints,
}

/// Method of drawing whether a page moves, and its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// A function of the page: the same each round, so that well-placed pages stay. The shares are those of random
    /// draws.
    ByPage,
    /// At random each round, as published, from this seed.
    Anew {
        /// The seed.
        seed: u64,
    },
}

/// The extension for huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Huge {
    /// All shared huge pages are split if that raises the local share of accesses by this much,
    pub split_gains: BasisPoints,
    /// unless moving them whole raises it by this much, relative to its present value.
    pub moving_gains: BasisPoints,
    /// Consecutive rounds in which this must hold.
    pub rounds: u32,
    /// With a smaller local share, samples do not represent memory accesses and are ignored.
    pub local_least: BasisPoints,
    /// A shared huge page with more than this share of all samples is split at once, and its pieces are spread over all
    /// nodes.
    pub hot_above: BasisPoints,
    /// Maximal share of a round spent on splitting,
    pub time_most: BasisPoints,
    /// and the duration of one split.
    pub split_takes: Nanoseconds,
    /// Huge pages are wanted again if page table walks take more than this share of time,
    pub walks_above: BasisPoints,
    /// or page faults at least this share of the worst core's time.
    pub faults_least: BasisPoints,
    /// An action was effective if locality rose, or imbalance fell, by this share of its former value;
    pub worth_least: BasisPoints,
    /// it was harmful if locality fell by more than this share of its former value.
    pub harm_above: BasisPoints,
    /// Length of a round after an ineffective action.
    pub period_long: Nanoseconds,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            busy: Busy::Machine(50_000),
            reads_of_fills: BasisPoints(9_500),
            reads_of_lines: BasisPoints(9_000),
            in_use_most: BasisPoints(2_500),
            local_below: BasisPoints(8_000),
            imbalance_above: BasisPoints(3_500),
            by_process: None,
            samples_least: 2,
            samples_least_interleaving: 1,
            replicas_first: 500,
            pages_max: (30_000, 10_000),
            executed_few: 10,
            moves_per_page: 0,
            draw: Draw::ByPage,
            huge: None,
            period: Nanoseconds(1_000_000_000),
        }
    }
}

impl Config {
    /// The published configuration of the version for huge pages.
    #[must_use]
    pub fn with_huge_pages() -> Self {
        Self { busy: Busy::Node(15_000), huge: Some(Huge::default()), ..Self::default() }
    }
}

impl Default for ByProcess {
    fn default() -> Self {
        Self {
            coverage_least: BasisPoints(1_500),
            cpu_least: BasisPoints(1_000),
            modified_most: BasisPoints(500),
        }
    }
}

impl Default for Huge {
    fn default() -> Self {
        Self {
            split_gains: BasisPoints(500),
            moving_gains: BasisPoints(1_500),
            rounds: 2,
            local_least: BasisPoints(1_000),
            hot_above: BasisPoints(600),
            time_most: BasisPoints(300),
            split_takes: Nanoseconds(100_000),
            walks_above: BasisPoints(500),
            faults_least: BasisPoints(500),
            worth_least: BasisPoints(1_000),
            harm_above: BasisPoints(500),
            period_long: Nanoseconds(5_000_000_000),
        }
    }
}

/// Cost of address translation, for the extension for huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// The share of time in page table walks.
    pub walks: BasisPoints,
    /// The share of the worst core's time in page faults.
    pub faults: BasisPoints,
}

/// Actions carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Pages moved.
    pub moves: u64,
    /// Pages replicated.
    pub replicas: u64,
}

/// State of the mechanisms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// Replication.
    pub replicate: bool,
    /// Interleaving.
    pub interleave: bool,
    /// Relocation.
    pub relocate: bool,
}

impl Gates {
    /// Whether any mechanism is on.
    #[must_use]
    pub const fn any(self) -> bool {
        self.replicate || self.interleave || self.relocate
    }
}

/// Sampling rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// High, while there is much to do: one sample in 65,528 cycles, as published.
    Dense,
    /// A quarter of that.
    Sparse,
}

/// An action to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Move the page to this node; the whole huge page, if this is its first page and it was not split.
    Move {
        /// The page.
        page: Page,
        /// The node.
        to: NodeId,
    },
    /// Give each of these nodes a copy, except the one that holds the page.
    Replicate {
        /// The page.
        page: Page,
        /// The nodes.
        on: Vec<NodeId>,
    },
    /// Split the huge page that begins here.
    Split {
        /// Its first page.
        page: Page,
    },
}

/// Reason of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Only the destination node accessed it.
    Lone {
        /// Number of samples.
        samples: u64,
    },
    /// Several nodes access it, and its own node serves this share of all accesses.
    Spread {
        /// The share.
        share: BasisPoints,
    },
    /// Several nodes read it, and none wrote.
    Read {
        /// Number of nodes.
        nodes: usize,
    },
    /// This mechanism moves small pages only.
    ForPieces,
    /// A huge page with this share of all samples.
    Hot {
        /// The share.
        share: BasisPoints,
    },
    /// Nodes use different pieces of shared huge pages; splitting raises the local share by this gain.
    FalselyShared {
        /// Of all accesses.
        gain: BasisPoints,
    },
}

/// Reason for leaving a page in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// It is on the node that uses it.
    Local,
    /// Another node uses it, but relocation and interleaving are off.
    RelocationOff,
    /// It has too few samples.
    TooFewSamples,
    /// Several nodes use it, but neither interleaving nor replication is on.
    SharingOff,
    /// It was not drawn.
    NotDrawn,
    /// Its own node was drawn.
    OwnDrawn,
    /// Worth replicating, but there are too few such pages for the first replica.
    TooFewToReplicate,
    /// It has reached its maximal number of moves.
    MovedOften,
    /// The destination has no memory, or none free.
    NoRoom,
    /// The time for splits was used up.
    NoTimeToSplit,
}

/// Reason for doing nothing in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing was counted.
    NoReading,
    /// Counters ran for too small a share of the time.
    Coverage(BasisPoints),
    /// The machine is below the traffic threshold.
    NotBusy,
    /// No mechanism is on.
    NothingOn,
    /// The last action was ineffective.
    NotWorthIt,
}

/// Effect of the last action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Locality or balance improved.
    Worth,
    /// No significant change.
    None,
    /// Locality fell.
    Harm,
}

/// Local share of accesses, by samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Locality {
    /// Present placement.
    pub now: BasisPoints,
    /// Every page where Carrefour would place it, huge pages whole.
    pub whole: BasisPoints,
    /// The same with huge pages split.
    pub split: BasisPoints,
}

/// A round's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Metrics of the round.
    pub metrics: Option<Metrics>,
    /// State of the mechanisms.
    pub gates: Gates,
    /// Reason for doing nothing; `None` if pages were decided on.
    pub hold: Option<Hold>,
    /// Actions with their reasons, process by process.
    pub actions: Vec<(Action, Why)>,
    /// Number of pages left in place, by reason.
    pub left: Vec<(Left, u64)>,
    /// Samples dropped because the table was full.
    pub lost: u64,
    /// Effect of the last action, if judged.
    pub effect: Option<Effect>,
    /// Estimated locality with and without huge pages, if computed.
    pub locality: Option<Locality>,
    /// Whether to use huge pages for new memory and join small ones.
    pub join: bool,
    /// Length of the next round.
    pub period: Nanoseconds,
}
