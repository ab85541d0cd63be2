//! Policies by name: static placements, and controllers that start from first touch.
//!
//! A new controller needs a variant, a row of [`POLICIES`], an arm of [`Policy::controller`] and, if it does not
//! support every machine, a case in [`Policy::suits`].

use crate::live::Controller;
use crate::live::balancing::{Balancing, Decides};
use crate::live::carrefour::Carrefour;
use crate::live::colloid::Colloid;
use crate::live::tiering::Tiering;
use crate::machine::Machine;
use crate::oracle;
use crate::pages::Pages;
use crate::workload::{Unsuited, Workload};

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Each page on the node of the CPUs that touch it first: the kernel's default.
    FirstTouch,
    /// Pages in turn on all nodes.
    Interleave,
    /// Carrefour on stock kernels: pages are relocated and interleaved.
    Carrefour,
    /// Carrefour as published: read-only pages are also replicated.
    CarrefourReplicate,
    /// Colloid's search for equal latencies of two tiers.
    Colloid,
    /// The balance controller: equal marginal cost of a line on all nodes, as far as the gain repays the migration.
    Balanced,
    /// The tiering loop: referenced pages of far memory change places with idle ones of near memory.
    Tiering,
    /// The best placement with one copy of each page, found by search with all heat known: an upper bound unavailable to
    /// real systems. Policies that replicate pages may exceed it.
    Oracle,
}

/// Names with their policies and descriptions.
pub const POLICIES: [(&str, Policy, &str); 8] = [
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
    (
        "tiering",
        Policy::Tiering,
        "scans accessed bits; referenced far pages change places with idle near ones, as nearfar tier does",
    ),
    ("colloid", Policy::Colloid, "hot pages move until two tiers have the same loaded latency"),
    (
        "oracle",
        Policy::Oracle,
        "the best placement with one copy of each page, by search over weights for each region: no system can know it",
    ),
];

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {0}; there are {names}", names = POLICIES.map(|(name, ..)| name).join(", "))]
pub struct UnknownPolicy(pub String);

impl std::str::FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let known = POLICIES.iter().find(|(name, ..)| *name == text);
        known.map(|(_, policy, _)| *policy).ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

impl Policy {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        POLICIES.iter().find(|(_, policy, _)| *policy == self).map_or("", |(name, ..)| name)
    }

    /// Whether it supports such a machine.
    ///
    /// # Errors
    /// [`Unsuited::Policy`], with the supported machines.
    pub fn suits(self, machine: &Machine) -> Result<(), Unsuited> {
        if !matches!(self, Self::Colloid | Self::Tiering) || is_tiered(machine) {
            return Ok(());
        }
        let wanted = "machines of two nodes of which one has CPUs";
        Err(Unsuited::Policy { policy: self.name(), machine: machine.name.clone(), wanted })
    }

    /// The controller that migrates pages; `None` for static placements.
    #[must_use]
    pub fn controller(self) -> Option<Box<dyn Controller>> {
        match self {
            Self::Carrefour => Some(Box::new(Balancing::new(Decides::Carrefour))),
            Self::CarrefourReplicate => Some(Box::new(Carrefour::default())),
            Self::Balanced => Some(Box::new(Balancing::new(Decides::Balance))),
            Self::Tiering => Some(Box::new(Tiering::default())),
            Self::Colloid => Some(Box::new(Colloid::default())),
            Self::FirstTouch | Self::Interleave | Self::Oracle => None,
        }
    }

    /// Places all pages initially.
    pub fn place(self, pages: &mut Pages, workload: &Workload, machine: &Machine) {
        match self {
            Self::FirstTouch
            | Self::Carrefour
            | Self::CarrefourReplicate
            | Self::Colloid
            | Self::Balanced
            | Self::Tiering => pages.first_touch(workload, machine),
            Self::Interleave => pages.interleave(&vec![1; machine.nodes.len()], machine),
            Self::Oracle => oracle::place(pages, workload, machine),
        }
    }
}

/// Whether there are two nodes, of which only the first has CPUs.
fn is_tiered(machine: &Machine) -> bool {
    machine.cpu_nodes == [0] && machine.nodes.len() == 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::ring;

    #[test]
    fn every_controller_starts_from_first_touch() {
        let machine = ring();
        let workload = crate::workload::find("pca", &machine).unwrap();
        let placed = |policy: Policy| {
            let mut pages = Pages::of(&workload, 5);
            policy.place(&mut pages, &workload, &machine);
            pages
        };
        let first_touch = placed(Policy::FirstTouch);
        for (name, policy, _) in
            POLICIES.iter().filter(|(_, policy, _)| policy.controller().is_some())
        {
            assert_eq!(placed(*policy), first_touch, "{name}");
        }
        assert_ne!(placed(Policy::Interleave), first_touch);
    }

    #[test]
    fn only_the_tiering_loop_reads_accessed_bits_and_it_needs_no_samples() {
        for (name, policy, _) in POLICIES {
            let Some(controller) = policy.controller() else { continue };
            let is_tiering = policy == Policy::Tiering;
            assert_eq!(controller.scans(), is_tiering, "{name}");
            assert_eq!(controller.sampling() > 0.0, !is_tiering, "{name}");
        }
    }

    #[test]
    fn a_tiered_machine_has_two_nodes_and_cpus_on_the_first_alone() {
        let tiers = crate::published::colloid::machine(135.0).unwrap();
        assert!(is_tiered(&tiers) && !is_tiered(&ring()));
        let mut swapped = (*tiers).clone();
        swapped.cpu_nodes = vec![1];
        assert!(!is_tiered(&swapped.build().unwrap()));
    }
}
