//! The JSON of `nearfar weights`: `nearfar.weights/2`, and `nearfar.restore/1` for the results of --restore.

use std::path::PathBuf;

use nearfar_kernel::journal::{Recorded, Restored};
use nearfar_topology::{MemoryKind, Mix, NodeId};
use serde::Serialize;

use super::{Outcome, Plan, shown};

/// `nearfar.weights/2`.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    schema: &'static str,
    /// `probe`, `hmat`, a file, `kernel`, or `none`: no bandwidths are known.
    source: &'a str,
    /// Whether the user gave the weights.
    given: bool,
    /// Whether the bandwidths are of an emulated machine; null if the source does not say.
    emulated: Option<bool>,
    mix: Mix,
    tolerance_bp: u32,
    nodes: Vec<Node>,
    ideal_bytes_per_second: Option<u64>,
    near_alone_bytes_per_second: Option<u64>,
    /// The results of these weights, of 1:1 and of the kernel's current ones; null without bandwidths.
    chosen: Option<Reached>,
    even: Option<Reached>,
    kernel: Option<Reached>,
    /// Whether the kernel derives its weights itself; null if it does not support that.
    kernel_auto: Option<bool>,
    /// Whether the weights were set.
    applied: bool,
    writes: Vec<Write<'a>>,
}

/// A setting with its former and its new value.
#[derive(Debug, Serialize)]
struct Write<'a> {
    path: PathBuf,
    old: &'a str,
    new: &'a str,
}

impl<'a> From<&'a Recorded> for Write<'a> {
    fn from(recorded: &'a Recorded) -> Self {
        Self { path: shown(&recorded.path), old: &recorded.old, new: &recorded.new }
    }
}

#[derive(Debug, Serialize)]
struct Node {
    id: NodeId,
    kind: MemoryKind,
    bandwidth_bytes_per_second: Option<u64>,
    weight: Option<u8>,
    kernel_weight: Option<u8>,
}

#[derive(Debug, Serialize)]
struct Reached {
    weights: Vec<u8>,
    aggregate_bytes_per_second: u64,
    loss_bp: u32,
}

impl From<Outcome> for Reached {
    fn from(outcome: Outcome) -> Self {
        Self {
            weights: outcome.weights.iter().map(|(_, pages)| pages).collect(),
            aggregate_bytes_per_second: outcome.aggregate.0,
            loss_bp: outcome.loss.0,
        }
    }
}

impl<'a> Report<'a> {
    pub(super) fn of(plan: &'a Plan<'_>, writes: &'a [Recorded], applied: bool) -> Self {
        let figures = plan.figures.as_ref();
        let node = |id| Node {
            id,
            kind: plan.machine.nodes.get(&id).map(|node| node.kind).unwrap_or_default(),
            bandwidth_bytes_per_second: figures.and_then(|f| f.nodes.get(&id)).map(|b| b.0),
            weight: plan.weights.get(id),
            kernel_weight: plan.current.as_ref().and_then(|now| now.nodes.get(&id)).copied(),
        };
        Self {
            schema: "nearfar.weights/2",
            source: figures.map_or(if plan.is_given { "none" } else { "kernel" }, |of| &of.source),
            given: plan.is_given,
            emulated: figures.and_then(|figures| figures.emulated),
            mix: plan.mix,
            tolerance_bp: nearfar_policy::TOLERANCE.0,
            nodes: plan.nodes.iter().map(node).collect(),
            ideal_bytes_per_second: figures.map(|figures| figures.ideal().0),
            near_alone_bytes_per_second: plan.near_alone().map(|bandwidth| bandwidth.0),
            chosen: plan.chosen().map(Reached::from),
            even: plan.even().map(Reached::from),
            kernel: plan.kernel().map(Reached::from),
            kernel_auto: plan.current.as_ref().and_then(|now| now.auto).map(|auto| auto.is_on),
            applied,
            writes: writes.iter().map(Write::from).collect(),
        }
    }
}

/// `nearfar.restore/1`.
#[derive(Debug, Serialize)]
pub(super) struct Restoring<'a> {
    schema: &'static str,
    /// Whether the values were restored (false: `--dry-run`, or some were not: `conflicts`).
    done: bool,
    /// In order; `old` is the restored value, `new` the one found before.
    put_back: Vec<Write<'a>>,
    /// Batches whose values a restart of the machine had already undone.
    void: usize,
    /// Values that another process has changed since; they were not restored.
    conflicts: Vec<Conflict<'a>>,
}

#[derive(Debug, Serialize)]
struct Conflict<'a> {
    #[serde(flatten)]
    write: Write<'a>,
    found: &'a str,
}

impl<'a> Restoring<'a> {
    pub(super) fn of(report: &'a Restored, is_done: bool) -> Self {
        let conflict = |conflict: &'a nearfar_kernel::journal::Conflict| Conflict {
            write: Write::from(&conflict.recorded),
            found: &conflict.found,
        };
        Self {
            schema: "nearfar.restore/1",
            done: is_done && report.conflicts.is_empty(),
            put_back: report.put_back.iter().map(Write::from).collect(),
            void: report.void,
            conflicts: report.conflicts.iter().map(conflict).collect(),
        }
    }
}
