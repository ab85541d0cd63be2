//! What is known of a running `nearfar balance`, in a file beside the journal: `nearfar.balance/1`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::options::Options;
use crate::tier::state::{Identity, Moves, put, read_as};

/// The `schema` of a [`State`].
pub(crate) const SCHEMA: &str = "nearfar.balance/1";

/// What balancing does and has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    pub(crate) schema: String,
    #[serde(flatten)]
    pub(crate) identity: Identity,
    pub(crate) running_s: u64,
    pub(crate) settings: Options,
    /// Whose memory, in words.
    pub(crate) scope: String,
    /// What the lab says of the emulated machine that this is; nothing elsewhere.
    pub(crate) emulated: Option<serde_json::Value>,
    /// Whose pages are left alone, and why.
    pub(crate) left_alone: Vec<String>,
    pub(crate) sensors: Vec<Eye>,
    /// `dense` or `sparse`.
    pub(crate) sampling: String,
    /// Where latencies and bandwidths are from: `probe`, `firmware`, `assumed`.
    pub(crate) model: String,
    pub(crate) metrics: Metrics,
    pub(crate) nodes: Vec<Node>,
    pub(crate) decision: Decided,
    pub(crate) effect: Effect,
    pub(crate) moves: Vec<Moves>,
    /// Pages by what became of them; a huge page is one.
    pub(crate) pages: BTreeMap<String, u64>,
    pub(crate) retried: u64,
    pub(crate) waiting: u64,
    pub(crate) splits: Splits,
    pub(crate) cost: Cost,
}

/// A sensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Eye {
    pub(crate) name: String,
    /// `measured` or `emulated`.
    pub(crate) nature: String,
    pub(crate) seen: u64,
    pub(crate) lost: u64,
    pub(crate) throttled: u64,
    pub(crate) unplaced: u64,
    /// Why it is not at work.
    pub(crate) failed: Option<String>,
}

/// The last round as the published system's metrics have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Metrics {
    /// Whether accesses are counted; else they are sampled, shares are true and sums are not.
    pub(crate) counted: bool,
    pub(crate) accesses_per_ms: u64,
    pub(crate) local_access_ratio_bp: u32,
    pub(crate) controller_imbalance_bp: u32,
    /// Over pairs of different nodes, each way: what passes between them.
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
    /// The share of all accesses that its memory served,
    pub(crate) share_bp: u32,
    /// and of its CPUs' accesses those that it served itself; nothing if it has no CPUs, or these asked for nothing.
    pub(crate) local_access_ratio_bp: Option<u32>,
    /// What a load of its memory takes, by CPU node: nothing where that is not measured.
    pub(crate) latency_ns: BTreeMap<u16, u64>,
    /// What a line more costs there, as the last region of memory that is used by several nodes has it.
    pub(crate) price_ns: Option<u64>,
    /// Of new shared memory, so many parts of 64 should be there.
    pub(crate) weight: Option<u8>,
}

/// The last decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Decided {
    /// In a word.
    pub(crate) what: String,
    /// Why, in a sentence.
    pub(crate) why: String,
    /// Mechanisms that are on: `interleave`, `relocate`.
    pub(crate) gates: Vec<String>,
    /// What is predicted to be gained.
    pub(crate) gain_bp: Option<u32>,
    pub(crate) confidence_bp: Option<u32>,
    /// Pages asked to be moved, huge pages split, and pages that only their own program could replicate.
    pub(crate) moves: u64,
    pub(crate) splits: u64,
    pub(crate) worth_replicas: u64,
    /// Pages left as they are, by reason.
    pub(crate) left: BTreeMap<String, u64>,
}

/// What came of moving: before the first move of the present or last episode, and after.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Effect {
    pub(crate) under_way: bool,
    pub(crate) moved_pages: u64,
    pub(crate) predicted_gain_bp: Option<u32>,
    pub(crate) before: Option<Metrics>,
    pub(crate) after: Option<Metrics>,
}

/// Huge pages made small.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Splits {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    /// Why none can be.
    pub(crate) unusable: Option<String>,
}

/// What it costs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Cost {
    /// CPU time of this process,
    pub(crate) cpu_ms: u64,
    /// of it for sensors.
    pub(crate) sensors_cpu_ms: u64,
    /// Times that programs were interrupted to be seen.
    pub(crate) interruptions: u64,
    /// Calls that move pages.
    pub(crate) calls: u64,
}

impl State {
    /// Whether the process that wrote this still runs.
    pub(crate) fn is_running(&self) -> bool {
        self.identity.is_running()
    }
}

/// Where it is.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join("balance.json")
}

/// Where it is said why balancing ended by itself.
pub(crate) fn ended_path(dir: &Path) -> PathBuf {
    dir.join("balance-ended.json")
}

/// Writes it whole.
pub(crate) fn write(dir: &Path, state: &State) -> anyhow::Result<()> {
    put(&path(dir), state)
}

/// Reads it; `None` if there is none.
pub(crate) fn read(dir: &Path) -> anyhow::Result<Option<State>> {
    read_as(&path(dir), SCHEMA, "nearfar balance")
}

/// Says why it ended by itself.
pub(crate) fn write_ended(dir: &Path, why: &str) -> anyhow::Result<()> {
    put(&ended_path(dir), &why)
}

/// Why it ended by itself; nothing if it did not.
pub(crate) fn read_ended(dir: &Path) -> Option<String> {
    serde_json::from_str(&std::fs::read_to_string(ended_path(dir)).ok()?).ok()
}
