//! The status of a running `nearfar balance`, in a file beside the journal: `nearfar.balance/1`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nearfar_kernel::process::Identity;
use serde::{Deserialize, Serialize};

use super::options::Options;
use crate::history::History;
use crate::tier::state::{Moves, put, read_as};

/// The `schema` of a [`State`].
pub const SCHEMA: &str = "nearfar.balance/1";

/// The status of balancing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    pub(crate) schema: String,
    /// The process that balances.
    #[serde(flatten)]
    pub identity: Identity,
    /// Seconds since its start.
    pub running_s: u64,
    /// The options in force.
    pub settings: Options,
    /// The memory to balance, as text.
    pub scope: String,
    /// The lab's description of the emulated machine; `None` on real machines.
    pub(crate) emulated: Option<serde_json::Value>,
    /// Excluded processes, with the reason.
    pub(crate) left_alone: Vec<String>,
    /// The sensors and their readings.
    pub sensors: Vec<Eye>,
    /// `dense` or `sparse`.
    pub(crate) sampling: String,
    /// Source of latencies and bandwidths: `probe`, `firmware`, `assumed`.
    pub(crate) model: String,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) nodes: Vec<Node>,
    /// The last decision.
    pub decision: Decided,
    pub(crate) effect: Effect,
    pub(crate) moves: Vec<Moves>,
    /// Number of pages by outcome of their migration; a huge page counts as one.
    pub pages: BTreeMap<String, u64>,
    pub(crate) retried: u64,
    pub(crate) waiting: u64,
    pub(crate) splits: Splits,
    /// The cost of balancing.
    pub cost: Cost,
    /// The last decisions.
    #[serde(default)]
    pub history: History,
}

/// A sensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Eye {
    /// Its name, as `nearfar doctor` lists it.
    pub name: String,
    /// `measured` or `emulated`.
    pub(crate) nature: String,
    pub(crate) seen: u64,
    pub(crate) lost: u64,
    pub(crate) throttled: u64,
    pub(crate) unplaced: u64,
    /// Reason why it is not working.
    pub(crate) failed: Option<String>,
}

/// Metrics of the last round as defined by Carrefour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Metrics {
    /// Whether accesses are counted; if they are only sampled, shares are valid and sums are not.
    pub(crate) counted: bool,
    pub(crate) accesses_per_ms: u64,
    pub(crate) local_access_ratio_bp: u32,
    pub(crate) controller_imbalance_bp: u32,
    /// Over pairs of different nodes, each direction separately, by the traffic between them.
    pub(crate) interconnect_imbalance_bp: Option<u32>,
    pub(crate) reads_bp: Option<u32>,
    pub(crate) memory_in_use_bp: u32,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    pub(crate) node: u16,
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    /// The share of all accesses served by its memory; `None` if there were none,
    pub(crate) share_bp: Option<u32>,
    /// and the share of its CPUs' accesses served by itself; `None` without CPUs or accesses.
    pub(crate) local_access_ratio_bp: Option<u32>,
    /// Loaded latency of its memory by CPU node, as far as measured.
    pub(crate) latency_ns: BTreeMap<u16, u64>,
    /// Marginal cost of a line there, for the last region, the memory shared by several nodes.
    pub(crate) price_ns: Option<u64>,
    /// Weight for new shared memory, in parts of 64.
    pub(crate) weight: Option<u8>,
}

/// The last decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decided {
    /// The outcome, as a word.
    pub what: String,
    /// The reason, as a sentence.
    pub(crate) why: String,
    /// Active mechanisms: `interleave`, `relocate`.
    pub(crate) gates: Vec<String>,
    /// The predicted gain.
    pub(crate) gain_bp: Option<u32>,
    pub(crate) confidence_bp: Option<u32>,
    /// Migrations requested, huge pages split, and pages that only their own program could replicate.
    pub(crate) moves: u64,
    pub(crate) splits: u64,
    pub(crate) worth_replicas: u64,
    /// Number of pages left in place, by reason.
    pub(crate) left: BTreeMap<String, u64>,
}

/// Effect of migration: metrics before the first migration of the present or last episode, and after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Effect {
    pub(crate) under_way: bool,
    pub(crate) moved_pages: u64,
    pub(crate) predicted_gain_bp: Option<u32>,
    pub(crate) before: Option<Metrics>,
    pub(crate) after: Option<Metrics>,
}

/// Huge pages split into small ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Splits {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    /// Reason why none can be split.
    pub(crate) unusable: Option<String>,
}

/// Cost of balancing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// CPU time of this process,
    pub cpu_ms: u64,
    /// and the part of it used by sensors.
    pub(crate) sensors_cpu_ms: u64,
    /// Interruptions of programs by sampling.
    pub(crate) interruptions: u64,
    /// System calls for migration.
    pub(crate) calls: u64,
}

impl State {
    /// Whether the process that wrote this still runs.
    pub fn is_running(&self) -> bool {
        self.identity.is_running()
    }
}

/// Path of the status file.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("balance.json")
}

/// Path of the file with the reason of an unexpected end.
pub fn ended_path(dir: &Path) -> PathBuf {
    dir.join("balance-ended.json")
}

/// Writes the status file atomically.
pub(crate) fn write(dir: &Path, state: &State) -> anyhow::Result<()> {
    put(&path(dir), state)
}

/// Reads the status file; `None` without one.
///
/// # Errors
/// The file cannot be read, or is of another version.
pub fn read(dir: &Path) -> anyhow::Result<Option<State>> {
    read_as(&path(dir), SCHEMA)
}

/// Records the reason of an unexpected end.
pub(crate) fn write_ended(dir: &Path, why: &str) -> anyhow::Result<()> {
    put(&ended_path(dir), &why)
}

/// The reason of an unexpected end; `None` if there was none.
pub fn read_ended(dir: &Path) -> Option<String> {
    serde_json::from_str(&std::fs::read_to_string(ended_path(dir)).ok()?).ok()
}
