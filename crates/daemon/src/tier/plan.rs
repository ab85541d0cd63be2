//! The tiering plan: tiers of nodes, fastest first, and the limits of migration between neighbouring tiers.
//!
//! Tiers are those the user names, or else the machine's; nodes without memory are left out. Each boundary gets goals
//! from the user's limits and the bandwidth of its slower tier, which is assumed if unknown. A plan does not change
//! the system.

use std::collections::BTreeMap;

use anyhow::Context as _;
use nearfar_policy::tiering::Goals;
use nearfar_topology::{
    BasisPoints, BytesPerSecond, Mix, NodeExpr, NodeId, NodeSet, NodeSetError, Topology,
};

use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::output;
use nearfar_command::weighing::source::{self, Wanted};
use nearfar_policy::tiering::targets::MigrationTarget;

/// Assumed far bandwidth if neither firmware nor a probe reports it.
const BANDWIDTH_ASSUMED: BytesPerSecond = BytesPerSecond(10_000_000_000);

/// Most migration targets of a node for each direction: each takes a scheme.
const WAYS: usize = 8;

/// The user's request, resolved against the machine.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Fastest first; at least two.
    pub(crate) tiers: Vec<NodeSet>,
    /// Between each tier and the next.
    pub boundaries: Vec<Boundary>,
    /// As reported by firmware, by origin and target.
    distances: BTreeMap<NodeId, BTreeMap<NodeId, u32>>,
}

/// The limits of migration between two neighbouring tiers.
#[derive(Clone, Copy, Debug)]
pub struct Boundary {
    /// Targets and limits of the loop for this boundary.
    pub goals: Goals,
    /// Bandwidth of the slower tier, and whether it is known.
    pub(crate) far_bandwidth: BytesPerSecond,
    pub(crate) assumed: bool,
}

impl Plan {
    /// Adopts other limits; the nodes stay the same.
    pub(crate) fn change(&mut self, limits: Limits) {
        let limits = limits.shared_by(self.boundaries.len());
        for boundary in &mut self.boundaries {
            boundary.goals = goals(boundary.far_bandwidth, limits);
        }
    }

    /// A plan for tiers of a machine that does not exist.
    pub fn imagined(tiers: Vec<NodeSet>, limits: Limits) -> Self {
        let far_bandwidth = BANDWIDTH_ASSUMED;
        let boundary =
            Boundary { goals: goals(far_bandwidth, limits), far_bandwidth, assumed: true };
        let boundaries = vec![boundary; tiers.len().saturating_sub(1)];
        Self { tiers, boundaries, distances: BTreeMap::new() }
    }

    /// All nodes, fastest first.
    pub(crate) fn nodes(&self) -> NodeSet {
        self.tiers.iter().flat_map(NodeSet::iter).collect()
    }

    /// Migration targets of a node: the nearest nodes of the next faster and the next slower tier.
    pub(super) fn ways(&self, node: NodeId, tier: usize) -> Vec<MigrationTarget> {
        let to = |tier: Option<usize>, up| {
            let nodes = tier.and_then(|tier| self.tiers.get(tier));
            // Far, if firmware does not report it.
            let row = self.distances.get(&node);
            let distance = |to| row.and_then(|row| row.get(&to)).copied().unwrap_or(u32::MAX);
            let ways = nodes.into_iter().flat_map(NodeSet::iter);
            let mut ways: Vec<MigrationTarget> =
                ways.map(|to| MigrationTarget::new(to, up, distance(to))).collect();
            ways.sort_by_key(|way| (way.distance, way.to));
            ways.truncate(WAYS);
            ways
        };
        [to(tier.checked_sub(1), true), to(tier.checked_add(1), false)].concat()
    }

    /// Two neighbouring tiers if every node of the upper one is slower than those of the lower one, by the machine's own
    /// tiers.
    fn inverted(&self, machine: &Topology) -> Option<(&NodeSet, &NodeSet)> {
        let tier = |node| machine.tiers.iter().position(|tier| tier.nodes.contains(node));
        self.tiers.iter().zip(self.tiers.iter().skip(1)).find(|(upper, lower)| {
            let best = upper.iter().filter_map(tier).min();
            best.zip(lower.iter().filter_map(tier).max()).is_some_and(|(best, worst)| best > worst)
        })
    }

    /// Notes on assumed figures, and on an order of tiers that is probably a mistake.
    pub(crate) fn note_doubts(&self, machine: &Topology) {
        if let Some(boundary) = self.boundaries.iter().find(|boundary| boundary.assumed) {
            output::note(format_args!(
                "far bandwidth is not known (no probe, no HMAT); {} assumed for the limit on traffic; nearfar probe measures it",
                boundary.far_bandwidth
            ));
        }
        if let Some((upper, lower)) = self.inverted(machine) {
            output::note(format_args!(
                "hot pages will move to node {upper}, which is slower than node {lower} by this machine's tiers; nearfar topo shows them"
            ));
        }
    }

    /// For people: `1 over 0 over 2`.
    pub fn order(&self) -> String {
        self.tiers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" over ")
    }
}

/// The limits that a user may set.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Share of near memory kept free.
    pub headroom: BasisPoints,
    /// Share of far bandwidth.
    pub traffic: BasisPoints,
    /// Share of one CPU.
    pub cpu: BasisPoints,
}

impl Limits {
    /// Limits of each boundary: all boundaries share the allowed CPU time.
    fn shared_by(self, boundaries: usize) -> Self {
        let share = u32::try_from(boundaries).unwrap_or(u32::MAX).max(1);
        Self { cpu: BasisPoints((self.cpu.0 / share).max(1)), ..self }
    }
}

/// The nodes that the user names in place of the machine's tiers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Named<'a> {
    pub(crate) near: Option<&'a NodeExpr>,
    pub(crate) far: Option<&'a NodeExpr>,
    pub(crate) tiers: Option<&'a TierExpr>,
}

/// Tiers as the user writes them, fastest first: node sets with `/` between them, `hbm/dram/cxl` or `1/0/2-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierExpr(Vec<NodeExpr>);

impl std::str::FromStr for TierExpr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = |part: &str| part.parse().map_err(|error: NodeSetError| error.to_string());
        let tiers: Vec<NodeExpr> = text.split('/').map(parse).collect::<Result<_, _>>()?;
        if tiers.len() < 2 {
            return Err(
                "that is one tier; write the fastest first and / between tiers, as in hbm/dram/cxl"
                    .into(),
            );
        }
        Ok(Self(tiers))
    }
}

impl std::fmt::Display for TierExpr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tiers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&tiers.join("/"))
    }
}

impl Named<'_> {
    /// Whether the user names nodes.
    pub(crate) fn any(self) -> bool {
        self.near.is_some() || self.far.is_some() || self.tiers.is_some()
    }

    /// Tiers, fastest first: those named, else the machine's. If only one of two sides is named, the other one is all
    /// other nodes with memory.
    fn resolve(self, machine: &Topology) -> anyhow::Result<Vec<NodeSet>> {
        let resolve = |nodes: &NodeExpr, option| {
            nodes.resolve(machine, &[]).context(option).ends_with(Exit::Usage)
        };
        if let Some(tiers) = self.tiers {
            let sets = tiers.0.iter().map(|nodes| resolve(nodes, "--tiers"));
            return apart(sets.collect::<Result<_, _>>()?, &format!("--tiers {tiers}"));
        }
        let others = |nodes: &NodeSet| -> NodeSet { machine.memory_nodes().without(nodes) };
        let near = self.near.map(|nodes| resolve(nodes, "--near")).transpose()?;
        let far = self.far.map(|nodes| resolve(nodes, "--far")).transpose()?;
        let (near, far) = match (near, far) {
            (None, None) => return Ok(tiers_of(machine)),
            (Some(near), None) => (near.clone(), others(&near)),
            (None, Some(far)) => (others(&far), far),
            (Some(near), Some(far)) => (near, far),
        };
        let said = format!("--near {near} --far {far}");
        apart(vec![near, far], &said)
    }
}

/// The machine's own tiers, as far as they have memory.
fn tiers_of(machine: &Topology) -> Vec<NodeSet> {
    let present = machine.memory_nodes();
    let tiers = machine.tiers.iter().map(|tier| among(&tier.nodes, &present));
    tiers.filter(|nodes| !nodes.is_empty()).collect()
}

/// Those of `nodes` that are `present`.
fn among(nodes: &NodeSet, present: &NodeSet) -> NodeSet {
    nodes.iter().filter(|node| present.contains(*node)).collect()
}

/// The same tiers, if no node is in two.
fn apart(tiers: Vec<NodeSet>, said: &str) -> anyhow::Result<Vec<NodeSet>> {
    let mut seen = NodeSet::new();
    let twice = tiers.iter().flat_map(NodeSet::iter).find(|node| !seen.insert(*node));
    let Some(both) = twice else { return Ok(tiers) };
    Err(anyhow::anyhow!("{said}: node {both} can't be both")).ends_with(Exit::Usage)
}

/// Resolves the options against a machine.
///
/// # Errors
/// Bad usage: a node that does not exist or is named twice; a machine with one tier.
pub fn plan(machine: &Topology, limits: Limits, named: Named<'_>) -> anyhow::Result<Plan> {
    of(machine, limits, named.resolve(machine)?)
}

/// The same after memory hotplug: of named nodes, those of `first` that have memory now.
pub(crate) fn again(
    machine: &Topology,
    limits: Limits,
    named: Named<'_>,
    first: &Plan,
) -> anyhow::Result<Plan> {
    let present = machine.memory_nodes();
    let tiers = if named.any() {
        let tiers = first.tiers.iter().map(|nodes| among(nodes, &present));
        tiers.filter(|nodes| !nodes.is_empty()).collect()
    } else {
        tiers_of(machine)
    };
    let gone: NodeSet = first.nodes().without(&present);
    of(machine, limits, tiers).with_context(|| {
        format!(
            "node {gone} has no memory online any more, and without it there is nothing to tier"
        )
    })
}

fn of(machine: &Topology, limits: Limits, tiers: Vec<NodeSet>) -> anyhow::Result<Plan> {
    if tiers.len() < 2 || tiers.iter().any(NodeSet::is_empty) {
        let has = machine.inventory();
        return Err(anyhow::anyhow!(
            "tier: all memory of this machine is in one tier; it has {has}; nearfar tier start --near NODES --far NODES \
             states them; nearfar lab shell gives a machine with two"
        ))
        .ends_with(Exit::Failed);
    }
    let limits = limits.shared_by(tiers.len() - 1);
    let boundaries = tiers.iter().skip(1).map(|far| boundary(machine, limits, far)).collect();
    Ok(Plan { tiers, boundaries, distances: machine.distances.clone() })
}

fn boundary(machine: &Topology, limits: Limits, far: &NodeSet) -> Boundary {
    let wanted = Wanted { machine, nodes: far, cpu_nodes: None, mix: Mix::TWO_TO_ONE };
    let known = source::figures(None, wanted).ok().map(|figures| figures.ideal());
    let far_bandwidth = known.unwrap_or(BANDWIDTH_ASSUMED);
    Boundary { goals: goals(far_bandwidth, limits), far_bandwidth, assumed: known.is_none() }
}

/// Goals by the user's limits, for this far bandwidth.
fn goals(far_bandwidth: BytesPerSecond, limits: Limits) -> Goals {
    let traffic = u128::from(far_bandwidth.0) * u128::from(limits.traffic.0) / 10_000;
    let traffic = BytesPerSecond(u64::try_from(traffic).unwrap_or(u64::MAX).max(1));
    Goals { headroom: limits.headroom, cpu: limits.cpu, ..Goals::with_traffic(traffic) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::MemoryKind;
    use nearfar_topology::testkit::{machine, node};

    const LIMITS: Limits =
        Limits { headroom: BasisPoints(200), traffic: BasisPoints(1000), cpu: BasisPoints(500) };

    fn three() -> Topology {
        machine([
            node(0).cpus(0..2),
            node(1).kind(MemoryKind::Hbm),
            node(2).kind(MemoryKind::Cxl),
            node(3).kind(MemoryKind::Cxl),
        ])
    }

    fn tiers(named: Named<'_>) -> Result<String, String> {
        plan(&three(), LIMITS, named).map(|plan| plan.order()).map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn by_default_all_tiers_are_managed_and_share_the_cpu_budget() {
        let plan = plan(&three(), LIMITS, Named::default()).unwrap();
        assert_eq!(plan.order(), "1 over 0 over 2-3");
        let cpu: Vec<u32> = plan.boundaries.iter().map(|one| one.goals.cpu.0).collect();
        assert_eq!(cpu, [250, 250]);
    }

    #[test]
    fn named_tiers_are_in_the_order_in_which_they_are_named() {
        let expr: TierExpr = "0/hbm/3".parse().unwrap();
        assert_eq!(expr.to_string(), "0/hbm/3");
        let named = Named { tiers: Some(&expr), ..Named::default() };
        assert_eq!(tiers(named).unwrap(), "0 over 1 over 3");
        let near: NodeExpr = "0-1".parse().unwrap();
        let named = Named { near: Some(&near), ..Named::default() };
        assert_eq!(tiers(named).unwrap(), "0-1 over 2-3", "--near names one boundary");
    }

    #[test]
    fn inverted_tiers_are_detected() {
        let inverted = |text: &str| {
            let expr: TierExpr = text.parse().unwrap();
            let named = Named { tiers: Some(&expr), ..Named::default() };
            let plan = plan(&three(), LIMITS, named).unwrap();
            let found = plan.inverted(&three());
            found.map(|(upper, lower)| format!("{upper} over {lower}"))
        };
        for (text, wanted) in [
            ("1/0/2-3", None),
            ("0/2", None),
            ("2/3", None),
            ("1,2/0", None),
            ("2/0", Some("2 over 0")),
            ("0/2/1", Some("2 over 1")),
        ] {
            assert_eq!(inverted(text).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn invalid_tiers_are_rejected() {
        for (text, says) in [("0", "one tier"), ("0//1", "empty"), ("0/x", "`x`")] {
            let error = text.parse::<TierExpr>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        let twice: TierExpr = "0/1/all".parse().unwrap();
        let error = tiers(Named { tiers: Some(&twice), ..Named::default() }).unwrap_err();
        assert!(error.contains("--tiers 0/1/all: node 0 can't be both"), "{error}");
    }

    #[test]
    fn offline_nodes_are_dropped_and_losing_the_last_far_node_is_an_error() {
        let far: NodeExpr = "2,3".parse().unwrap();
        let named = Named { far: Some(&far), ..Named::default() };
        let first = plan(&three(), LIMITS, named).unwrap();
        let left = machine([
            node(0).cpus(0..2),
            node(1).kind(MemoryKind::Hbm),
            node(2).kind(MemoryKind::Cxl),
        ]);
        assert_eq!(again(&left, LIMITS, named, &first).unwrap().order(), "0-1 over 2");
        assert_eq!(
            again(&left, LIMITS, Named::default(), &first).unwrap().order(),
            "1 over 0 over 2"
        );
        let none = machine([node(0).cpus(0..2), node(1).kind(MemoryKind::Hbm)]);
        let error = format!("{:#}", again(&none, LIMITS, named, &first).unwrap_err());
        assert!(error.contains("node 2-3 has no memory online"), "{error}");
    }
}
