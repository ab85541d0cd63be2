//! Inputs and outputs of the balance controller.

use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, Nanoseconds};

/// Law by which memory is balanced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Law {
    /// Maximal predicted throughput: equal marginal cost of a line on all nodes. Falls back to `Average` if own traffic
    /// is unknown.
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
    /// Maximal migration rate.
    pub rate: BytesPerSecond,
    /// Interval between decisions.
    pub period: Nanoseconds,
    /// A predicted gain above this starts migration,
    pub gain_start: BasisPoints,
    /// a remaining gain below this ends it. Both are halved once loads have been stable for [`Config::calm`].
    pub gain_stop: BasisPoints,
    /// Time after which loads count as stable.
    pub calm: Nanoseconds,
    /// Expected duration of loads until their duration has been observed.
    pub horizon: Nanoseconds,
    /// The largest share of a region's accesses that changes nodes per decision.
    pub trust: BasisPoints,
    /// A direction is reversed after this many consecutive requests beyond the first.
    pub confirmations: u32,
    /// Latencies older than this are ignored.
    pub age_most: Nanoseconds,
    /// Below this traffic nothing is done.
    pub traffic_least: BytesPerSecond,
    /// Average think time of programs between a line and the next request.
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

/// Memory with a uniform access pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The share of each CPU node's accesses that goes to it. For each CPU node the shares of all regions add up to
    /// one.
    pub by: Vec<BasisPoints>,
    /// The share of its accesses that each node serves now.
    pub at: Vec<BasisPoints>,
    /// The least share that each node may serve: pinned memory, or memory without exchange partners.
    pub least: Vec<BasisPoints>,
    /// The largest share that each node may serve.
    pub most: Vec<BasisPoints>,
    /// Bytes to migrate if all of it moved, hottest first.
    pub bytes: Bytes,
}

/// Input of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Time since the last step: 100 to 200 ms are usual.
    pub elapsed: Nanoseconds,
    /// Loaded latency by CPU node and memory node; `None` if not measured.
    pub latency: Vec<Vec<Option<Nanoseconds>>>,
    /// Age of the oldest latency.
    pub age: Nanoseconds,
    /// Traffic of each queue, ours and others', if counted.
    pub used: Vec<Option<BytesPerSecond>>,
    /// Own traffic by CPU node and memory node; `None` if unknown.
    pub own: Option<Vec<Vec<BytesPerSecond>>>,
    /// The share of reads in own traffic.
    pub reads: BasisPoints,
    /// The regions to place.
    pub regions: Vec<Region>,
    /// Bytes each node can receive: free memory above its reserve, and memory that can be exchanged.
    pub room: Vec<Bytes>,
}

/// A migration to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// The region, by its index in the observation.
    pub region: usize,
    /// Source node,
    pub from: usize,
    /// destination node, by index.
    pub to: usize,
    /// The share of the region's accesses that is migrated.
    pub share: BasisPoints,
    /// Its size, hottest pages first.
    pub bytes: Bytes,
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No decision is due yet.
    Sensing,
    /// Latencies are missing or too old.
    Stale,
    /// There is hardly any traffic.
    Quiet,
    /// The observation does not fit the machine.
    Mismatch,
    /// No possible migration gains enough.
    Settled {
        /// The gain available.
        gain: BasisPoints,
    },
    /// The credible gain does not repay the migration twice over while loads last.
    NotRepaid {
        /// The gain.
        gain: BasisPoints,
        /// Bytes to migrate.
        bytes: Bytes,
    },
    /// The last migration was in the opposite direction; waiting for confirmation.
    Reversing {
        /// Consecutive decisions that asked for it.
        wished: u32,
    },
    /// Migration is in progress.
    Moving {
        /// The predicted gain of the complete migration.
        gain: BasisPoints,
    },
    /// Latencies are being equalised: own traffic is unknown, or the law says so.
    Average,
    /// Predictions failed too often: the migration is being undone,
    Undoing,
    /// and after that nothing is done until loads change.
    Off,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The outcome and its reason.
    pub verdict: Verdict,
    /// Migrations to carry out.
    pub shifts: Vec<Shift>,
    /// The target placement of each region in parts of 64 by node: the weights for its new memory.
    pub weights: Vec<Vec<u8>>,
    /// Marginal cost of a line on each node, for each region.
    pub costs: Vec<Vec<Nanoseconds>>,
    /// Outstanding lines of others by queue: the inferred loads.
    pub foreign: Vec<u32>,
    /// Confidence in predictions.
    pub confidence: BasisPoints,
}
