//! What was simulated, as JSON, as text and as a page with charts. Each of them says that it was simulated.

use nearfar_lab::machine::Machine as Described;
use nearfar_sim::machine::Machine;
use nearfar_sim::policy::POLICIES;
use nearfar_sim::published::Row;
use nearfar_sim::{Compared, Workload, workload};
use serde::Serialize;

use crate::simulate;

pub(crate) mod fleet;
pub(crate) mod lab;
pub(crate) mod page;
pub(crate) mod text;
pub(crate) mod tiers;

/// What the figures are, and are not.
pub(crate) const SIMULATED: &str = "Simulated: these are figures of a queueing model of the machine, fitted to \
     published measurements (nearfar sim validate shows how well), and no claim about any hardware.";

/// A comparison of policies: JSON `nearfar.sim/1`.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    schema: &'static str,
    simulated: bool,
    nearfar: &'static str,
    machine: String,
    workload: String,
    about: &'static str,
    contention: f64,
    seed: u64,
    results: Vec<Result>,
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
    /// What `found` comes to.
    pub(crate) fn of(
        (machine, workload): (&Machine, &Workload),
        seed: u64,
        contention: f64,
        found: &[Compared],
    ) -> Self {
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
            about: workload.about,
            contention,
            seed,
            results: found.iter().map(result).collect(),
        }
    }
}

/// Published figures and the model's: JSON `nearfar.sim-validation/1`.
#[derive(Debug, Serialize)]
pub(crate) struct Validation {
    schema: &'static str,
    simulated: bool,
    within_bounds: bool,
    rows: Vec<Checked>,
}

/// One of them.
#[derive(Debug, Serialize)]
struct Checked {
    table: &'static str,
    what: String,
    unit: &'static str,
    paper: f64,
    model: f64,
    difference: f64,
    tolerance: f64,
    how: &'static str,
    within_bounds: bool,
}

impl Validation {
    /// Of these rows; without any, nothing is validated.
    pub(crate) fn of(rows: &[Row]) -> Self {
        let checked = |row: &Row| Checked {
            table: row.table,
            what: row.what.clone(),
            unit: row.unit.word(),
            paper: row.paper,
            model: row.model,
            difference: row.difference(),
            tolerance: row.tolerance,
            how: row.how.word(),
            within_bounds: row.within(),
        };
        Self {
            schema: "nearfar.sim-validation/1",
            simulated: true,
            within_bounds: !rows.is_empty() && rows.iter().all(Row::within),
            rows: rows.iter().map(checked).collect(),
        }
    }

    /// Whether every row is within its bounds.
    pub(crate) fn within(&self) -> bool {
        self.within_bounds
    }
}

/// What there is to simulate: JSON `nearfar.sim-list/1`.
#[derive(Debug, Serialize)]
pub(crate) struct List {
    schema: &'static str,
    machines: Vec<Named>,
    studies: Vec<Named>,
    workloads: Vec<Named>,
    policies: Vec<Named>,
}

/// A name, and what goes by it.
#[derive(Debug, Serialize)]
struct Named {
    name: String,
    about: String,
}

impl List {
    /// With these machines.
    pub(crate) fn of(machines: &[Described]) -> Self {
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
