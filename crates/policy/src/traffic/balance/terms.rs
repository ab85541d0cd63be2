//! What the balance controller is told and what it says.

use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};

/// By which law memory is balanced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Law {
    /// Predicted throughput is best: what a line more costs is the same everywhere. Where own traffic is not known, as below.
    #[default]
    Marginal,
    /// Latencies are equal: Colloid's bounds search.
    Average,
}

/// Limits. All have a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The law.
    pub law: Law,
    /// The most that moves.
    pub rate: BytesPerSecond,
    /// From decision to decision.
    pub period: Nanoseconds,
    /// A predicted gain above this is gone for,
    pub gain_start: BasisPoints,
    /// until what is left of it is below this. Both are half as much once loads have been the same for [`Config::calm`].
    pub gain_stop: BasisPoints,
    /// See above.
    pub calm: Nanoseconds,
    /// Loads are thought to last so long until it is seen how long they do.
    pub horizon: Nanoseconds,
    /// The largest share of a region's accesses that changes nodes in a decision.
    pub trust: BasisPoints,
    /// A direction is reversed when it has been wished so many times in a row after the first.
    pub confirmations: u32,
    /// Latencies older than this are not acted upon.
    pub age_most: Nanoseconds,
    /// Less traffic than this is left alone.
    pub traffic_least: BytesPerSecond,
    /// What programs do between a line and the next request, on average.
    pub think: Nanoseconds,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            law: Law::Marginal,
            rate: BytesPerSecond(2_000_000_000),
            period: Nanoseconds(500_000_000),
            gain_start: BasisPoints(150),
            gain_stop: BasisPoints(75),
            calm: Nanoseconds(10_000_000_000),
            horizon: Nanoseconds(30_000_000_000),
            trust: BasisPoints(1_000),
            confirmations: 2,
            age_most: Nanoseconds(600_000_000),
            traffic_least: BytesPerSecond(1_000_000_000),
            think: Nanoseconds(0),
        }
    }
}

/// Memory that is used alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The share of each CPU node's accesses that goes to it. Over all regions a CPU node's shares add up to the whole.
    pub by: Vec<BasisPoints>,
    /// The share of its accesses that each node serves now.
    pub at: Vec<BasisPoints>,
    /// The least that each may serve: what is pinned there, or what nothing can be exchanged for.
    pub least: Vec<BasisPoints>,
    /// The most.
    pub most: Vec<BasisPoints>,
    /// What all of it would be to move, hottest first.
    pub bytes: Bytes,
}

/// What is seen at a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Time since the last step: 100 to 200 ms are usual.
    pub elapsed: Nanoseconds,
    /// What a load takes now, by CPU node and memory node; `None` where that is not probed.
    pub latency: Vec<Vec<Option<Nanoseconds>>>,
    /// How old the oldest of these is.
    pub age: Nanoseconds,
    /// What each queue carries, ours and others', where that is counted.
    pub used: Vec<Option<BytesPerSecond>>,
    /// Our own traffic by CPU node and memory node, if it is known.
    pub own: Option<Vec<Vec<BytesPerSecond>>>,
    /// The share of reads in it.
    pub reads: BasisPoints,
    /// What there is to place.
    pub regions: Vec<Region>,
    /// What each node has room for: free memory above what is kept free, and what may be exchanged.
    pub room: Vec<Bytes>,
}

/// Something to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// The region, by its place in the observation.
    pub region: usize,
    /// From this node,
    pub from: usize,
    /// to this.
    pub to: usize,
    /// The share of the region's accesses that goes along.
    pub share: BasisPoints,
    /// How much that is, hottest first.
    pub bytes: Bytes,
}

/// What was decided, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not time yet.
    Sensing,
    /// Latencies are missing or too old.
    Stale,
    /// There is hardly any traffic.
    Quiet,
    /// The observation does not fit the machine.
    Mismatch,
    /// Nothing that can be done gains enough.
    Settled {
        /// What could be gained.
        gain: BasisPoints,
    },
    /// The gain, as far as it can be believed, does not repay moving so much twice over while loads last.
    NotRepaid {
        /// The gain.
        gain: BasisPoints,
        /// What would move.
        bytes: Bytes,
    },
    /// The last move went the other way; wait until that is confirmed.
    Reversing {
        /// Decisions in a row that wished it.
        wished: u32,
    },
    /// It moves.
    Moving {
        /// The gain once all has moved.
        gain: BasisPoints,
    },
    /// It moves, by equal latencies: own traffic is not known, or that is the law.
    Average,
    /// Predictions were wrong too often: what was moved is moved back,
    Undoing,
    /// and nothing is done until loads change.
    Off,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What, and why.
    pub verdict: Verdict,
    /// What to move.
    pub shifts: Vec<Shift>,
    /// Where it is to come to: parts of 64 by node, for each region. The weights for its new memory.
    pub weights: Vec<Vec<u8>>,
    /// What a line more costs on each node, for each region.
    pub costs: Vec<Vec<Nanoseconds>>,
    /// Lines of others outstanding, by queue: loads as they are made out.
    pub foreign: Vec<u32>,
    /// How much predictions are trusted.
    pub confidence: BasisPoints,
}
