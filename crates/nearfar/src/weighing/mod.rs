//! Weighing nodes: from where bandwidths come ([`source`], [`file`](mod@file)) to weights and what they reach, and
//! setting them ([`set`]). Shared by `nearfar weights` and `nearfar run -w auto`.

use std::collections::BTreeMap;

use nearfar_kernel::weights::Current;
use nearfar_policy::{Unweighable, Weights};
use nearfar_topology::{BasisPoints, BytesPerSecond, Mix, NodeId};

pub(crate) mod file;
pub(crate) mod set;
pub(crate) mod source;

/// The mix weights are made for unless told otherwise: two reads for each write, as much traffic is.
pub(crate) const MIX: Mix = Mix::TWO_TO_ONE;

/// Bandwidths of nodes at one mix, and where they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Bytes per second, by node.
    pub(crate) nodes: BTreeMap<NodeId, BytesPerSecond>,
    /// In a few words: `probe of 2026-11-20`, `HMAT`.
    pub(crate) source: String,
    /// Whether they are of an emulated machine; `None` if the source does not say.
    pub(crate) emulated: Option<bool>,
}

/// How well one choice of weights does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The weights.
    pub(crate) weights: Weights,
    /// What all nodes reach together.
    pub(crate) aggregate: BytesPerSecond,
    /// What is missing to the ideal.
    pub(crate) loss: BasisPoints,
}

impl Figures {
    /// The sum of all nodes.
    pub(crate) fn ideal(&self) -> BytesPerSecond {
        self.sum(self.nodes.keys().copied())
    }

    /// The sum of some.
    pub(crate) fn sum(&self, nodes: impl Iterator<Item = NodeId>) -> BytesPerSecond {
        let of = |node| self.nodes.get(&node).map_or(0, |bandwidth| bandwidth.0);
        BytesPerSecond(nodes.map(of).fold(0, u64::saturating_add))
    }

    /// How `weights` do on these bandwidths.
    pub(crate) fn outcome(&self, weights: Weights) -> Option<Outcome> {
        let aggregate = weights.aggregate(&self.nodes)?;
        let loss = weights.loss(&self.nodes)?;
        Some(Outcome { weights, aggregate, loss })
    }

    /// The smallest weights within the tolerance.
    pub(crate) fn best(&self) -> Result<Outcome, Unweighable> {
        let weights = nearfar_policy::weights(&self.nodes, nearfar_policy::TOLERANCE)?;
        self.outcome(weights).ok_or(Unweighable::NoNodes)
    }

    /// What 1:1 does.
    pub(crate) fn even(&self) -> Option<Outcome> {
        self.outcome(Weights::even(self.nodes.keys().copied())?)
    }

    /// What the kernel's present weights do.
    pub(crate) fn kernel(&self, current: &Current) -> Option<Outcome> {
        self.outcome(current.over(self.nodes.keys().copied())?)
    }
}
