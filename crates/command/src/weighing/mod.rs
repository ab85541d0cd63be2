//! Interleave weights from bandwidths: the source of bandwidths ([`source`], [`file`](mod@file)), the weights and their aggregate
//! bandwidth, and setting them ([`set`]). Used by `nearfar weights`, `nearfar run -w auto` and the services.

use std::collections::BTreeMap;

use nearfar_kernel::weights::Current;
use nearfar_policy::{Unweighable, Weights};
use nearfar_topology::{BasisPoints, BytesPerSecond, Mix, NodeId, NodeSet};

pub mod file;
pub mod given;
pub mod set;
pub mod source;

/// Default read:write mix: two reads for each write, as in much traffic.
pub const MIX: Mix = Mix::TWO_TO_ONE;

/// Bandwidths of nodes at one mix, and their source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Bytes per second, by node.
    pub nodes: BTreeMap<NodeId, BytesPerSecond>,
    /// In a few words: `probe of 2026-11-20`, `HMAT`.
    pub source: String,
    /// Whether they are of an emulated machine; `None` if the source does not say.
    pub emulated: Option<bool>,
    /// The CPU nodes between which the bandwidth of links is not known; empty where that does not matter.
    pub unknown_links: NodeSet,
}

/// The performance of one choice of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The weights.
    pub weights: Weights,
    /// Aggregate bandwidth of all nodes.
    pub aggregate: BytesPerSecond,
    /// Loss against the sum of all bandwidths.
    pub loss: BasisPoints,
}

/// Refuses to weigh one node.
///
/// # Errors
/// There is only one.
pub fn refuse_one(nodes: &NodeSet) -> anyhow::Result<()> {
    anyhow::ensure!(
        nodes.len() > 1,
        "node {nodes} is the only one to interleave over, so there is nothing to weigh; nearfar lab run -- nearfar weights \
         shows a machine with two"
    );
    Ok(())
}

impl Figures {
    /// A remark if these figures lack the bandwidth of links between sockets.
    #[must_use]
    pub fn about_links(&self) -> Option<String> {
        let from = (!self.unknown_links.is_empty()).then_some(&self.unknown_links)?;
        Some(format!(
            "CPUs of nodes {from} would use each other's memory, and the bandwidth of the links between them is not known \
             ({} does not give it): run `nearfar probe`, name the CPUs and the memory of one socket, or use the kernel's present \
             weights with `nearfar run -w all`",
            self.source
        ))
    }

    /// The sum over all nodes.
    #[must_use]
    pub fn ideal(&self) -> BytesPerSecond {
        self.sum(self.nodes.keys().copied())
    }

    /// The sum over some nodes.
    pub fn sum(&self, nodes: impl Iterator<Item = NodeId>) -> BytesPerSecond {
        let of = |node| self.nodes.get(&node).map_or(0, |bandwidth| bandwidth.0);
        BytesPerSecond(nodes.map(of).fold(0, u64::saturating_add))
    }

    /// The outcome of `weights` with these bandwidths.
    #[must_use]
    pub fn outcome(&self, weights: Weights) -> Option<Outcome> {
        let aggregate = weights.aggregate(&self.nodes)?;
        let loss = weights.loss(&self.nodes)?;
        Some(Outcome { weights, aggregate, loss })
    }

    /// The smallest weights within the tolerance.
    ///
    /// # Errors
    /// No weights exist for these bandwidths.
    pub fn best(&self) -> Result<Outcome, Unweighable> {
        let weights = nearfar_policy::weights(&self.nodes, nearfar_policy::TOLERANCE)?;
        self.outcome(weights).ok_or(Unweighable::NoNodes)
    }

    /// The outcome of equal weights.
    #[must_use]
    pub fn even(&self) -> Option<Outcome> {
        self.outcome(Weights::even(self.nodes.keys().copied())?)
    }

    /// The outcome of the kernel's current weights.
    #[must_use]
    pub fn kernel(&self, current: &Current) -> Option<Outcome> {
        self.outcome(current.over(self.nodes.keys().copied())?)
    }
}
