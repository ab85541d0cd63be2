//! Where pages go, by name: placements that stay, and controllers that start from first touch.
//!
//! A new controller is a variant, a row of [`POLICIES`], an arm of [`Policy::controller`] and, if it is not for every
//! machine, one of [`Policy::suits`].

use crate::compare::steady;
use crate::live::Controller;
use crate::live::balanced::Balanced;
use crate::live::carrefour::{Carrefour, Replicas};
use crate::live::colloid::Colloid;
use crate::machine::Machine;
use crate::pages::Pages;
use crate::workload::{Unsuited, Workload};

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each page on the node of the CPUs that touch it first: what the kernel does when nobody says otherwise.
    FirstTouch,
    /// Pages in turn on all nodes.
    Interleave,
    /// Carrefour as stock kernels can do it: pages relocated and interleaved.
    Carrefour,
    /// Carrefour as published: pages that are only read are also replicated.
    CarrefourReplicate,
    /// Colloid's search for equal latencies of two tiers.
    Colloid,
    /// The balance controller: what a line more costs is the same everywhere, as far as getting there repays.
    Balanced,
    /// The best placement of all, found by trying: what no system can know beforehand.
    Oracle,
}

/// Names, with what they are.
pub const POLICIES: [(&str, Policy, &str); 7] = [
    (
        "first-touch",
        Policy::FirstTouch,
        "each page on the node of the CPUs that touch it first; a full node spills to the next",
    ),
    ("interleave", Policy::Interleave, "pages in turn on all nodes"),
    (
        "carrefour",
        Policy::Carrefour,
        "pages of uneven controllers are interleaved, pages of one node's CPUs go there, as stock kernels can do it",
    ),
    (
        "carrefour-replicate",
        Policy::CarrefourReplicate,
        "the same as published: pages that are only read get a copy on each node that reads them",
    ),
    (
        "balanced",
        Policy::Balanced,
        "pages move until a cache line more would cost the same everywhere, as far as getting there repays",
    ),
    ("colloid", Policy::Colloid, "hot pages move until two tiers have the same loaded latency"),
    (
        "oracle",
        Policy::Oracle,
        "the placement that turns out best, by search over weights or near shares: no system can know it",
    ),
];

/// There is no such policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy {0}: there is none; there are {names}", names = POLICIES.map(|(name, ..)| name).join(", "))]
pub struct UnknownPolicy(pub String);

impl std::str::FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let known = POLICIES.iter().find(|(name, ..)| *name == text);
        known.map(|(_, policy, _)| *policy).ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

impl Policy {
    /// The name it goes by.
    #[must_use]
    pub fn name(self) -> &'static str {
        POLICIES.iter().find(|(_, policy, _)| *policy == self).map_or("", |(name, ..)| name)
    }

    /// Whether it can do something with such a machine.
    ///
    /// # Errors
    /// [`Unsuited::Policy`], with what it takes.
    pub fn suits(self, machine: &Machine) -> Result<(), Unsuited> {
        if self != Self::Colloid || is_tiered(machine) {
            return Ok(());
        }
        let wanted = "machines of two nodes of which one has CPUs";
        Err(Unsuited::Policy { policy: self.name(), machine: machine.name.clone(), wanted })
    }

    /// Who moves pages once they are placed; none if they stay.
    #[must_use]
    pub fn controller(self) -> Option<Box<dyn Controller>> {
        match self {
            Self::Carrefour => Some(Box::new(Carrefour::new(Replicas::None))),
            Self::CarrefourReplicate => Some(Box::new(Carrefour::new(Replicas::Made))),
            Self::Balanced => Some(Box::new(Balanced::default())),
            Self::Colloid => Some(Box::new(Colloid::default())),
            Self::FirstTouch | Self::Interleave | Self::Oracle => None,
        }
    }

    /// Places all pages.
    pub fn place(self, pages: &mut Pages, workload: &Workload, machine: &Machine) {
        match self {
            Self::FirstTouch
            | Self::Carrefour
            | Self::CarrefourReplicate
            | Self::Colloid
            | Self::Balanced => pages.first_touch(workload, machine),
            Self::Interleave => pages.interleave(&vec![1; machine.nodes.len()], machine),
            Self::Oracle if is_tiered(machine) => {
                let near = best_near(pages, workload, machine);
                pages.hottest_near(workload, machine, near);
            }
            Self::Oracle => {
                let weights = best_weights(pages, workload, machine);
                pages.interleave(&weights, machine);
            }
        }
    }
}

/// Two nodes, one of them with CPUs and first.
fn is_tiered(machine: &Machine) -> bool {
    machine.cpu_nodes == [0] && machine.nodes.len() == 2
}

/// The near share of accesses that is best, in steps of a hundredth.
fn best_near(pages: &Pages, workload: &Workload, machine: &Machine) -> f64 {
    let mut tried = pages.clone();
    let shares = (0..=100).map(|share| f64::from(share) / 100.0);
    let found = shares.map(|near| {
        tried.hottest_near(workload, machine, near);
        (near, steady(machine, workload, &tried).gbps)
    });
    found.fold((0.0, 0.0), |best, now| if now.1 > best.1 { now } else { best }).0
}

/// Weights of which none can be changed by a page for the better: from even ones, pages of a round of 32 go from node to
/// node while throughput rises.
fn best_weights(pages: &Pages, workload: &Workload, machine: &Machine) -> Vec<u32> {
    const ROUND: u32 = 32;
    let nodes = machine.nodes.len();
    let mut tried = pages.clone();
    let mut gbps = |weights: &[u32]| {
        tried.interleave(weights, machine);
        steady(machine, workload, &tried).gbps
    };
    let share = ROUND / u32::try_from(nodes).unwrap_or(ROUND);
    let mut best = vec![share.max(1); nodes];
    let mut found = gbps(&best);
    for step in [4, 1] {
        loop {
            let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
            let mut better = None;
            for (from, to) in pairs.filter(|(from, to)| from != to) {
                if best[from] < step {
                    continue;
                }
                let mut weights = best.clone();
                weights[from] -= step;
                weights[to] += step;
                let now = gbps(&weights);
                if now > found * (1.0 + 1e-9) {
                    (found, better) = (now, Some(weights));
                }
            }
            let Some(weights) = better else { break };
            best = weights;
        }
    }
    best
}
