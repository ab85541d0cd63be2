//! The oracle: no policy with one copy of each page beats it by more than half a per cent.
//!
//! `carrefour-replicate` is excluded: it has pages on several nodes at once, which the oracle does not. So is `tiering`, for the
//! time that it takes; `sim tiers` has it beside the oracle.

use nearfar_sim::compare::compare;
use nearfar_sim::machine::{Machine, Waiting};
use nearfar_sim::published::colloid;
use nearfar_sim::workload::{self, Region, Worker, Workload};
use nearfar_sim::{Policy, policy::POLICIES};

use crate::machines::{builder, node, region, ring, workload as drawn};

/// A policy with replicas, and one that moves a few pages a second and needs minutes of CPU time.
const EXCLUDED: [Policy; 2] = [Policy::CarrefourReplicate, Policy::Tiering];
/// A policy may be this much better than the oracle.
const MOST: f64 = 1.005;

/// Runs every policy that the machine supports; returns the oracle's speedup.
#[track_caller]
fn leads(name: &str, machine: &Machine, workload: &Workload) -> f64 {
    let policies: Vec<Policy> = POLICIES
        .iter()
        .map(|(_, policy, _)| *policy)
        .filter(|policy| !EXCLUDED.contains(policy) && policy.suits(machine).is_ok())
        .collect();
    let found = compare(machine, workload, &policies, 1).unwrap();
    let oracle = found.iter().find(|of| of.policy == Policy::Oracle).unwrap().speedup;
    for of in &found {
        assert!(of.speedup <= MOST * oracle, "{name}: {of:?}, oracle {oracle}");
    }
    oracle
}

/// Streamcluster on a ring, with this share of reads.
fn shared(machine: &Machine, reads: f64) -> Workload {
    let mut of = workload::find("streamcluster", machine).unwrap();
    of.regions[0].reads = reads;
    of
}

#[test]
fn no_policy_beats_the_oracle_on_a_built_in_workload() {
    let four = ring(4, &[8.0]);
    for (name, _) in workload::NAMES.iter().filter(|(name, _)| *name != "hot-set") {
        let found = leads(name, &four, &workload::find(name, &four).unwrap());
        // Interleaved it is 2.03: each region needs a node of its own.
        assert!(*name != "private" || found > 2.2, "{found}");
    }
    for contention in [1.0, 3.0] {
        let tiers = colloid::machine(135.0).unwrap();
        let hot_set = workload::find("hot-set", &tiers).unwrap();
        leads("hot-set", &tiers, &hot_set.contended(contention * colloid::CONTENDING_LINES));
    }
}

#[test]
fn no_policy_beats_the_oracle_with_unequal_links_or_writes() {
    for (name, gbps, reads) in
        [("unequal links", &[8.0, 2.0, 4.0][..], 1.0), ("writes", &[2.0, 8.0, 4.0], 0.3)]
    {
        let four = ring(4, gbps);
        leads(name, &four, &shared(&four, reads));
    }
}

#[test]
fn no_policy_beats_the_oracle_on_eight_nodes() {
    let eight = ring(8, &[8.0]);
    leads("eight nodes", &eight, &shared(&eight, 1.0));
}

#[test]
fn no_policy_beats_the_oracle_for_three_programs() {
    let four = ring(4, &[8.0]);
    let mut of = drawn(vec![region(16_384, 0, 4), region(8_192, 0, 4), region(4_096, 3, 4)], 4);
    let worker = |row, lines: f64, region: usize| Worker {
        row,
        lines,
        think_ns: 20.0,
        uses: (0..3).map(|at| if at == region { 1.0 } else { 0.0 }).collect(),
    };
    of.workers =
        vec![worker(0, 20.0, 0), worker(1, 20.0, 0), worker(2, 13.0, 1), worker(3, 4.0, 2)];
    leads("three programs", &four, &of);
}

#[test]
fn no_policy_beats_the_oracle_on_three_tiers() {
    let mut tiers = builder(vec![
        node(1 << 14, 200.0, Waiting::Queue),
        node(1 << 16, 54.9, Waiting::Queue),
        node(1 << 16, 27.0, Waiting::Queue),
    ]);
    (tiers.cpu_nodes, tiers.latency_ns) = (vec![0], vec![vec![130.0, 116.0, 250.0]]);
    tiers.routes.truncate(1);
    let machine = tiers.build().unwrap();
    let hot = Region { hot_pages: 1 << 13, hot_share: 0.8, ..region(1 << 15, 0, 1) };
    let mut of = drawn(vec![hot], 1);
    of.workers[0].lines = 300.0;
    leads("three tiers", &machine, &of);
}
