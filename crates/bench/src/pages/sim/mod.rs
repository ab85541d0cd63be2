//! Simulation results as JSON, as text and as a page with charts. Each of them states that it is simulated.

use nearfar_lab::machine::Machine as Described;
use nearfar_sim::machine::Machine;
use nearfar_sim::policy::POLICIES;
use nearfar_sim::workload::Antagonist;
use nearfar_sim::{Compared, Workload, workload};
use serde::Serialize;

use crate::simulate;

pub mod fleet;
pub mod lab;
pub mod page;
pub mod text;
pub mod tiers;
pub mod validation;

/// Caveat on the figures.
pub const SIMULATED: &str = "Simulated: these are figures of a queueing model of the machine, fitted to \
     published measurements (nearfar sim validate shows how well), and no claim about any hardware.";

/// A comparison of policies: JSON `nearfar.sim/1`.
#[derive(Debug, Serialize)]
pub struct Document {
    schema: &'static str,
    simulated: bool,
    nearfar: &'static str,
    machine: String,
    workload: String,
    about: String,
    contention: f64,
    antagonists: Vec<Other>,
    seed: u64,
    results: Vec<Result>,
}

/// Traffic of other programs.
#[derive(Debug, Serialize)]
struct Other {
    /// The node that is read, and that of the CPUs.
    node: usize,
    cpus_of_node: usize,
    lines: f64,
}

/// One policy's figures; ratios as fractions.
#[derive(Debug, Serialize)]
struct Result {
    policy: &'static str,
    local_access_ratio: f64,
    latency_cycles: f64,
    controller_imbalance: f64,
    interconnect_imbalance: f64,
    speedup_vs_first_touch: f64,
    throughput_gbps: f64,
    busiest_controller: f64,
    moved_bytes: u64,
}

impl Document {
    /// The document of a comparison.
    pub fn of(
        (machine, workload): (&Machine, &Workload),
        seed: u64,
        contention: f64,
        found: &[Compared],
    ) -> Self {
        let other = |of: &Antagonist| Other {
            node: of.node,
            cpus_of_node: machine.cpu_nodes[of.row],
            lines: of.lines,
        };
        let result = |of: &Compared| Result {
            policy: of.policy.name(),
            local_access_ratio: of.figures.local_access_ratio,
            latency_cycles: machine.cycles(of.figures.latency_ns),
            controller_imbalance: of.figures.controller_imbalance,
            interconnect_imbalance: of.figures.interconnect_imbalance,
            speedup_vs_first_touch: of.speedup,
            throughput_gbps: of.figures.gbps,
            busiest_controller: of.figures.busiest_controller,
            moved_bytes: of.moved_bytes,
        };
        Self {
            schema: "nearfar.sim/1",
            simulated: true,
            nearfar: env!("CARGO_PKG_VERSION"),
            machine: machine.name.clone(),
            workload: workload.name.clone(),
            about: workload.about.clone(),
            contention,
            antagonists: workload.antagonists.iter().map(other).collect(),
            seed,
            results: found.iter().map(result).collect(),
        }
    }
}

/// Available machines, workloads and policies: JSON `nearfar.sim-list/1`.
#[derive(Debug, Serialize)]
pub struct List {
    schema: &'static str,
    machines: Vec<Named>,
    studies: Vec<Named>,
    workloads: Vec<Named>,
    policies: Vec<Named>,
}

/// A name with its description.
#[derive(Debug, Serialize)]
struct Named {
    name: String,
    about: String,
}

impl List {
    /// With these machines.
    pub fn of(machines: &[Described]) -> Self {
        let named =
            |name: &str, about: &str| Named { name: name.to_owned(), about: about.to_owned() };
        Self {
            schema: "nearfar.sim-list/1",
            machines: machines.iter().map(|of| named(&of.name, &of.description)).collect(),
            studies: simulate::studies()
                .iter()
                .map(|(_, name)| named(name, simulate::STUDIED))
                .collect(),
            workloads: workload::NAMES.iter().map(|(name, about)| named(name, about)).collect(),
            policies: POLICIES.iter().map(|(name, _, about)| named(name, about)).collect(),
        }
    }
}
