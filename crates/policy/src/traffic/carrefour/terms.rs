//! What Carrefour is told and what it says: thresholds, actions and their reasons.

use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Nanoseconds, NodeId};

use crate::traffic::{Metrics, Page};

/// Thresholds and limits; [`Config::default`] has the published ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Below this nothing is done.
    pub busy: Busy,
    /// Replication: at least this share of fills that no other cache had modified,
    pub reads_of_fills: BasisPoints,
    /// or of lines that are read, where these are counted instead;
    pub reads_of_lines: BasisPoints,
    /// and at most this share of memory in use.
    pub in_use_most: BasisPoints,
    /// Relocation: less than this share of accesses is local.
    pub local_below: BasisPoints,
    /// Interleaving: controllers are used more unevenly than this.
    pub imbalance_above: BasisPoints,
    /// Where threads are seen one by one: which processes may be replicated.
    pub by_process: Option<ByProcess>,
    /// Samples that a page needs to be relocated,
    pub samples_least: u32,
    /// and where interleaving is on.
    pub samples_least_interleaving: u32,
    /// Pages worth replicating that there must be in a round for a first replica. Later one is enough.
    pub replicas_first: usize,
    /// Pages that a table has while sampling is dense, and while it is sparse.
    pub pages_max: (usize, usize),
    /// Fewer moves and replicas than this in a round make sampling sparse.
    pub executed_few: u64,
    /// A page moves so many times at most; 0 is any.
    pub moves_per_page: u32,
    /// How destinations are drawn.
    pub draw: Draw,
    /// The extension for huge pages.
    pub huge: Option<Huge>,
    /// From round to round.
    pub period: Nanoseconds,
}

/// When a machine is busy: accesses to memory in a millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// So many on the whole machine.
    Machine(u64),
    /// So many for each node.
    Node(u64),
}

/// Replication allowed process by process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByProcess {
    /// Rounds in which counters counted less of the time tell nothing.
    pub coverage_least: BasisPoints,
    /// Threads with less of a CPU are not looked at.
    pub cpu_least: BasisPoints,
    /// A process with a thread for which a greater share of fills is modified has no replicas.
    pub modified_most: BasisPoints,
}

/// How it is drawn whether a page moves, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// By the page: the same each round, so that what is well placed stays. The shares are the same as by chance.
    ByPage,
    /// Anew each round, as published, from this seed.
    Anew {
        /// The seed.
        seed: u64,
    },
}

/// The extension for huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Huge {
    /// All shared huge pages are split if that makes so much more of all accesses local,
    pub split_gains: BasisPoints,
    /// unless moving them whole makes so much more local, as a share of what is.
    pub moving_gains: BasisPoints,
    /// It must look so for so many rounds.
    pub rounds: u32,
    /// Where less is local by samples, they are not of memory, and say nothing.
    pub local_least: BasisPoints,
    /// A shared huge page with more than this share of all samples is split at once, and its pieces go to all nodes in turn.
    pub hot_above: BasisPoints,
    /// The share of a round that splitting takes at most,
    pub time_most: BasisPoints,
    /// and what one takes.
    pub split_takes: Nanoseconds,
    /// Huge pages are wanted again if walks of page tables take more of the time than this,
    pub walks_above: BasisPoints,
    /// or page faults so much of the worst core's.
    pub faults_least: BasisPoints,
    /// An act was worth it if local accesses rose, or imbalance fell, by this share of what it was;
    pub worth_least: BasisPoints,
    /// it did harm if local accesses fell by more than this share of what they were.
    pub harm_above: BasisPoints,
    /// From round to round after an act that was not worth it.
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
    /// The version for huge pages.
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

/// What a program loses to translation, for the extension for huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// The share of time in walks of page tables.
    pub walks: BasisPoints,
    /// The share of the worst core's time in page faults.
    pub faults: BasisPoints,
}

/// What was done of what was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Pages moved.
    pub moves: u64,
    /// Pages replicated.
    pub replicas: u64,
}

/// Which mechanisms are on.
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
    /// Whether any is.
    #[must_use]
    pub const fn any(self) -> bool {
        self.replicate || self.interleave || self.relocate
    }
}

/// How many samples are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// Many: there is much to do. One in 65,528 cycles, as published.
    Dense,
    /// A quarter of that.
    Sparse,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The page goes to this node; all of it, if it is the first of a huge page that was not split.
    Move {
        /// The page.
        page: Page,
        /// The node.
        to: NodeId,
    },
    /// Each of these nodes gets a copy, unless it has the page.
    Replicate {
        /// The page.
        page: Page,
        /// The nodes.
        on: Vec<NodeId>,
    },
    /// The huge page that begins here becomes small ones.
    Split {
        /// Its first page.
        page: Page,
    },
}

/// Why something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Only the node that it goes to accessed it.
    Lone {
        /// In so many samples.
        samples: u64,
    },
    /// Several nodes access it, and its own serves this share of all accesses.
    Spread {
        /// The share.
        share: BasisPoints,
    },
    /// So many nodes read it, and none wrote.
    Read {
        /// Nodes.
        nodes: usize,
    },
    /// Small pages are what this mechanism moves.
    ForPieces,
    /// A huge page with this share of all samples.
    Hot {
        /// The share.
        share: BasisPoints,
    },
    /// Nodes share huge pages of which each uses other pieces: so much more is local when they are split.
    FalselyShared {
        /// Of all accesses.
        gain: BasisPoints,
    },
}

/// Why a page was left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// It is where it is used.
    Local,
    /// It is used from elsewhere, but relocation is off, and interleaving, too.
    RelocationOff,
    /// It was sampled too seldom.
    TooFewSamples,
    /// Several nodes use it, but neither interleaving nor replication is on.
    SharingOff,
    /// It was not drawn.
    NotDrawn,
    /// Its own node was drawn.
    OwnDrawn,
    /// Worth a replica, but there are too few of its kind to begin with.
    TooFewToReplicate,
    /// It has moved as often as it may.
    MovedOften,
    /// The node it should go to has no memory, or none free.
    NoRoom,
    /// There was no time to split it.
    NoTimeToSplit,
}

/// Why nothing is done in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing was counted.
    NoReading,
    /// Counters counted for too small a share of the time.
    Coverage(BasisPoints),
    /// The machine is not busy.
    NotBusy,
    /// No mechanism is on.
    NothingOn,
    /// The last act was not worth it.
    NotWorthIt,
}

/// How the last act turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// More is local, or controllers are used more evenly.
    Worth,
    /// Nothing much changed.
    None,
    /// Less is local.
    Harm,
}

/// The share of accesses that is local, by samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Locality {
    /// Now.
    pub now: BasisPoints,
    /// With each page where Carrefour would have it, huge ones whole.
    pub whole: BasisPoints,
    /// The same with huge pages split.
    pub split: BasisPoints,
}

/// A round's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What the round was like.
    pub metrics: Option<Metrics>,
    /// Which mechanisms are on.
    pub gates: Gates,
    /// Why nothing is done; `None` if pages were decided on.
    pub hold: Option<Hold>,
    /// What to do and why, process by process.
    pub actions: Vec<(Action, Why)>,
    /// Pages left as they are, by reason.
    pub left: Vec<(Left, u64)>,
    /// Samples that had no room in the table.
    pub lost: u64,
    /// How the last act turned out, where that is looked at.
    pub effect: Option<Effect>,
    /// What huge pages cost in locality, where that is looked at.
    pub locality: Option<Locality>,
    /// Whether huge pages are wanted for new memory, and small ones may be joined.
    pub join: bool,
    /// When the next round ends.
    pub period: Nanoseconds,
}
