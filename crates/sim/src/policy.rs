//! Where pages go: placements that stay, by name.

use crate::compare::steady;
use crate::machine::Machine;
use crate::pages::Pages;
use crate::workload::Workload;

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each page on the node of the CPUs that touch it first: what the kernel does when nobody says otherwise.
    FirstTouch,
    /// Pages in turn on all nodes.
    Interleave,
    /// The best weights of all, found by trying: what no system can know beforehand.
    Oracle,
}

/// Names, with what they are.
pub const POLICIES: [(&str, Policy, &str); 3] = [
    ("first-touch", Policy::FirstTouch, "each page on the node of the CPUs that touch it first"),
    ("interleave", Policy::Interleave, "pages in turn on all nodes"),
    (
        "oracle",
        Policy::Oracle,
        "the weights of interleaving that turn out best, by search: no system can know them",
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

    /// Places all pages.
    pub fn place(self, pages: &mut Pages, workload: &Workload, machine: &Machine) {
        match self {
            Self::FirstTouch => pages.first_touch(workload, machine),
            Self::Interleave => pages.interleave(&vec![1; machine.nodes.len()]),
            Self::Oracle => {
                let weights = best_weights(pages, workload, machine);
                pages.interleave(&weights);
            }
        }
    }
}

/// Weights of which none can be changed by a page for the better: from even ones, pages of a round of 32 go from node to
/// node while throughput rises.
fn best_weights(pages: &Pages, workload: &Workload, machine: &Machine) -> Vec<u32> {
    const ROUND: u32 = 32;
    let nodes = machine.nodes.len();
    let mut tried = pages.clone();
    let mut gbps = |weights: &[u32]| {
        tried.interleave(weights);
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
