//! What is to be tiered: near nodes, far nodes, and what tiering may cost.

use anyhow::Context as _;
use nearfar_policy::tiering::Goals;
use nearfar_topology::{BasisPoints, BytesPerSecond, Mix, NodeExpr, NodeSet, Topology};

use crate::exit::{EndsWith as _, Exit};
use crate::weighing::source::{self, Wanted};

/// Far bandwidth where neither firmware nor a probe tells.
const BANDWIDTH_ASSUMED: BytesPerSecond = BytesPerSecond(10_000_000_000);

/// What was asked for, resolved against the machine.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) near: NodeSet,
    pub(crate) far: NodeSet,
    pub(crate) goals: Goals,
    /// Far bandwidth, and whether it is known.
    pub(crate) far_bandwidth: BytesPerSecond,
    pub(crate) assumed: bool,
}

/// What the user may set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    pub(crate) headroom: BasisPoints,
    /// Of far bandwidth.
    pub(crate) traffic: BasisPoints,
    pub(crate) cpu: BasisPoints,
}

/// The nodes that the user names, in place of those that the machine's tiers tell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Named<'a> {
    pub(crate) near: Option<&'a NodeExpr>,
    pub(crate) far: Option<&'a NodeExpr>,
}

impl Named<'_> {
    /// Near nodes and far nodes. Who names one side means all other nodes with memory by the other.
    fn resolve(self, machine: &Topology) -> anyhow::Result<[NodeSet; 2]> {
        let resolve = |nodes: &NodeExpr, option| {
            nodes.resolve(machine, &[]).context(option).ends_with(Exit::Usage)
        };
        let others = |nodes: &NodeSet| -> NodeSet {
            machine.memory_nodes().iter().filter(|node| !nodes.contains(*node)).collect()
        };
        let near = self.near.map(|nodes| resolve(nodes, "--near")).transpose()?;
        let far = self.far.map(|nodes| resolve(nodes, "--far")).transpose()?;
        let (near, far) = match (near, far) {
            (None, None) => (machine.near(&[]), machine.far(&[])),
            (Some(near), None) => (near.clone(), others(&near)),
            (None, Some(far)) => (others(&far), far),
            (Some(near), Some(far)) => (near, far),
        };
        if let Some(both) = near.iter().find(|node| far.contains(*node)) {
            return Err(anyhow::anyhow!("--near {near} --far {far}: node {both} can't be both"))
                .ends_with(Exit::Usage);
        }
        Ok([near, far])
    }
}

/// Resolves.
pub(crate) fn plan(machine: &Topology, wishes: Wishes, named: Named<'_>) -> anyhow::Result<Plan> {
    let [near, far] = named.resolve(machine)?;
    if near.is_empty() || far.is_empty() {
        let has = machine.inventory();
        return Err(anyhow::anyhow!(
            "tier: all memory of this machine is in one tier; it has {has}; name --near and --far nodes if you know better; \
             nearfar lab shell gives a machine with two"
        ))
        .ends_with(Exit::Failed);
    }
    let wanted = Wanted { machine, nodes: &far, cpu_nodes: None, mix: Mix::TWO_TO_ONE };
    let known = source::figures(None, wanted).ok().map(|figures| figures.ideal());
    let far_bandwidth = known.unwrap_or(BANDWIDTH_ASSUMED);
    let traffic = u128::from(far_bandwidth.0) * u128::from(wishes.traffic.0) / 10_000;
    let traffic = BytesPerSecond(u64::try_from(traffic).unwrap_or(u64::MAX).max(1));
    let goals =
        Goals { headroom: wishes.headroom, cpu: wishes.cpu, ..Goals::with_traffic(traffic) };
    Ok(Plan { near, far, goals, far_bandwidth, assumed: known.is_none() })
}
