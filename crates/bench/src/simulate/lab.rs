//! Lab results compared with simulation: the same machine file and the same programs in the simulator's model, which
//! shares no code with the lab's. The lab runs the program on a real kernel and times each access; the model describes
//! a program by two numbers.
//!
//! These two, outstanding cache lines and think time per CPU, are *fitted*: to the ratio of first touch to the best
//! static placement, and to the line rate of the latter. Throughput under all other rows, as a multiple of first
//! touch's, is *predicted*. All figures of the machine file that the lab uses count, and none of its table `traffic`,
//! which the lab does not use. The kernel's NUMA balancing is not modelled.

use anyhow::{Context as _, bail};
use nearfar_lab::machine::{Machine as Described, Traffic, catalog};
use nearfar_sim::compare::compare;
use nearfar_sim::flow::{Demand, solve};
use nearfar_sim::machine::{Machine, Waiting};
use nearfar_sim::policy::Policy;
use nearfar_sim::workload::{Region, Worker, Workload};
use serde::Serialize;

use crate::balance::results::{Found, Tried};
use crate::balance::rows::{Kind, Program, Row};

/// Maximum relative error of a figure.
pub(crate) const TOLERANCE: f64 = 0.1;
/// Rows closer than this in the lab or in the model have no order.
const ALIKE: f64 = 0.03;
/// Bytes of a page.
const PAGE: u64 = 4096;

/// A program's rows.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// The program.
    pub(crate) program: Program,
    /// Fitted: outstanding cache lines of each CPU,
    pub(crate) lines: f64,
    /// and its think time between a line and the next request.
    pub(crate) think_ns: f64,
    /// In display order.
    pub(crate) rows: Vec<Shown>,
    /// Whether the model has the lab's order of rows, ignoring rows that are equal in one of them.
    pub(crate) same_ranking: bool,
}

/// A row's throughput as a multiple of first touch's.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Shown {
    /// The row.
    pub(crate) row: String,
    /// Emulated.
    pub(crate) lab: f64,
    /// Simulated.
    pub(crate) simulated: f64,
    /// The relative error of the latter.
    pub(crate) difference: f64,
    /// Whether it was fitted to this figure.
    pub(crate) is_fitted: bool,
}

impl Case {
    /// Whether all figures are within bounds and the rows in order.
    pub(crate) fn is_within(&self) -> bool {
        self.same_ranking && self.rows.iter().all(|row| row.difference.abs() <= TOLERANCE)
    }
}

/// All programs that ran under first touch and another static row.
///
/// # Errors
/// A result from outside the lab, or without counts.
pub fn cases(found: &Found, seed: u64) -> anyhow::Result<Vec<Case>> {
    let Some(emulation) = &found.machine.emulation else {
        bail!("this was not run in the lab: there is no machine file to simulate");
    };
    let described = catalog::find(&emulation.machine)?;
    let machine = as_emulated(&described)?;
    let one = |tried: &Tried| {
        let model = Model::of(found, tried.program, (&described, &machine));
        model.case(tried, seed).with_context(|| format!("program {}", tried.program.name()))
    };
    let cases = found.programs.iter().map(one).collect::<anyhow::Result<Vec<_>>>()?;
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    if cases.is_empty() {
        bail!("no program was run under first touch and another placement that stays");
    }
    Ok(cases)
}

/// The machine as emulated: only figures that the lab uses, and its curve of loaded latency.
fn as_emulated(described: &Described) -> anyhow::Result<Machine> {
    let none = Traffic { clock_ghz: 1.0, concurrent_ns: 0.0, coherence_lines: 0.0 };
    let mut builder = (*super::simulated(described, none)?).clone();
    let processor = &described.processor;
    for (node, of) in builder.nodes.iter_mut().enumerate() {
        if matches!(of.waiting, Waiting::Points(_)) {
            continue;
        }
        let own = described.latency_ns.iter().map(|row| row[node]).fold(f64::MAX, f64::min);
        let factor_ns = processor.load_factor * own;
        of.waiting = Waiting::Curve { factor_ns, power: processor.load_power };
    }
    Ok(builder.build()?)
}

/// A program on a machine.
struct Model<'a> {
    machine: &'a Machine,
    program: Program,
    /// CPUs that run it, by row.
    cpus: Vec<f64>,
    lines_most: f64,
    pages: u32,
}

/// Outstanding cache lines of a CPU, and its think time.
#[derive(Clone, Copy)]
struct Loop {
    lines: f64,
    think_ns: f64,
}

impl<'a> Model<'a> {
    fn of(
        found: &Found,
        program: Program,
        (described, machine): (&Described, &'a Machine),
    ) -> Self {
        let cpus = |node: &usize| {
            let here = found.machine.nodes.iter().find(|of| usize::from(of.id) == *node);
            here.map_or(0.0, |of| f64::from(of.cpus))
        };
        let mut cpus: Vec<f64> = machine.cpu_nodes.iter().map(cpus).collect();
        if program == Program::Uncontended {
            cpus = vec![1.0; cpus.len()];
        }
        let pages = program.mib() * found.times * (1 << 20) / PAGE;
        Self {
            machine,
            program,
            cpus,
            lines_most: f64::from(described.processor.lines_in_flight),
            pages: u32::try_from(pages).unwrap_or(u32::MAX),
        }
    }

    fn case(&self, tried: &Tried, seed: u64) -> anyhow::Result<Option<Case>> {
        let Some(base) = tried.rate(Kind::FirstTouch) else { return Ok(None) };
        let Some((best, rate)) = tried.best_static_but(Some(Kind::FirstTouch)) else {
            return Ok(None);
        };
        let lines = best.median(|run| Some(run.traffic.as_ref()?.lines_per_us));
        let lines = lines.context("the lab counted no lines of memory for it")? / 1000.0;
        let fitted = self.fitted((best.row.kind, lines), rate / base);
        let first = self.rate(Kind::FirstTouch, fitted);
        let mut rows = Vec::new();
        for ran in &tried.rows {
            let (Some(rate), true) = (ran.rate(), ran.row.sensors.is_empty()) else { continue };
            let Some(simulated) = self.ratio(&ran.row, fitted, (first, seed))? else { continue };
            let lab = rate / base;
            rows.push(Shown {
                row: ran.row.name(),
                lab,
                simulated,
                difference: simulated / lab - 1.0,
                is_fitted: [Kind::FirstTouch, best.row.kind].contains(&ran.row.kind),
            });
        }
        let same_ranking = is_same_order(&rows);
        let Loop { lines, think_ns } = fitted;
        Ok(Some(Case { program: self.program, lines, think_ns, rows, same_ranking }))
    }

    /// Throughput of a row relative to first touch; `None` for rows that are not modelled.
    fn ratio(&self, row: &Row, at: Loop, (first, seed): (f64, u64)) -> anyhow::Result<Option<f64>> {
        let policy = match row.kind {
            Kind::Carrefour => Policy::Carrefour,
            Kind::Balanced => Policy::Balanced,
            Kind::NumaBalancing => return Ok(None),
            kind => return Ok(Some(self.rate(kind, at) / first)),
        };
        let found = compare(self.machine, &self.workload(at), &[policy], seed)?;
        Ok(found.first().map(|of| of.speedup))
    }

    /// The loop with which a row reaches this line rate (lines per nanosecond) and, as closely as possible, this
    /// multiple of first touch.
    fn fitted(&self, (kind, lines): (Kind, f64), gain: f64) -> Loop {
        let least = 1.0_f64.min(self.lines_most);
        let steps = 200;
        let loops = (0..=steps).map(|step| {
            let of = least + (self.lines_most - least) * f64::from(step) / f64::from(steps);
            self.with_lines(of, (kind, lines))
        });
        let off = |at: &Loop| {
            let came = self.rate(kind, *at);
            let gained = came / self.rate(Kind::FirstTouch, *at);
            (came / lines - 1.0).abs() + (gained / gain - 1.0).abs()
        };
        let best = loops.min_by(|a, b| off(a).total_cmp(&off(b)));
        best.unwrap_or(Loop { lines: self.lines_most, think_ns: 0.0 })
    }

    /// For this number of outstanding lines, the think time with which a row reaches this line rate.
    fn with_lines(&self, of: f64, (kind, lines): (Kind, f64)) -> Loop {
        let (mut low, mut high) = (0.0, 1e6);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if self.rate(kind, Loop { lines: of, think_ns: middle }) > lines {
                low = middle;
            } else {
                high = middle;
            }
        }
        Loop { lines: of, think_ns: f64::midpoint(low, high) }
    }

    /// Line rate of all CPUs, per nanosecond.
    fn rate(&self, kind: Kind, at: Loop) -> f64 {
        let demand = |(row, shares)| Demand {
            row,
            lines: at.lines * self.cpus[row],
            think_ns: at.think_ns,
            reads: self.reads(),
            shares,
        };
        let demands: Vec<Demand> = self.shares(kind).into_iter().enumerate().map(demand).collect();
        solve(self.machine, &demands, &[]).served.iter().map(|of| of.per_ns).sum()
    }

    /// The share of a row's lines on each node.
    fn shares(&self, kind: Kind) -> Vec<Vec<f64>> {
        let (rows, nodes) = (self.machine.cpu_nodes.len(), self.machine.nodes.len());
        let over = |which: &[usize]| -> Vec<f64> {
            let part = 1.0 / f64::from(u32::try_from(which.len()).unwrap_or(1));
            (0..nodes).map(|node| if which.contains(&node) { part } else { 0.0 }).collect()
        };
        let all: Vec<usize> = (0..nodes).collect();
        let own = || self.machine.cpu_nodes.iter().map(|node| over(&[*node])).collect();
        let of = match kind {
            Kind::FirstTouch if self.program == Program::Settled => return own(),
            Kind::Local if self.program.has_parts() => return own(),
            Kind::FirstTouch | Kind::Node0 => over(&[0]),
            Kind::Node3 => over(&[3]),
            Kind::Nodes01 => over(&[0, 1]),
            Kind::Nodes03 => over(&[0, 3]),
            Kind::Nodes123 => over(&[1, 2, 3]),
            Kind::Far => over(&[1]),
            Kind::Weighted => {
                let sum: f64 = self.machine.nodes.iter().map(|node| node.read_gbps).sum();
                self.machine.nodes.iter().map(|node| node.read_gbps / sum).collect()
            }
            Kind::Interleave | Kind::Local => over(&all),
            // Policies that migrate pages begin with this placement.
            Kind::NumaBalancing | Kind::Carrefour | Kind::Balanced => over(&[0]),
        };
        vec![of; rows]
    }

    /// The share of its lines that are reads.
    const fn reads(&self) -> f64 {
        // A row is read and the corresponding one of the other grid written, which is read first.
        if matches!(self.program, Program::Jacobi | Program::Settled) { 2.0 / 3.0 } else { 1.0 }
    }

    /// The workload for the simulated controllers.
    fn workload(&self, at: Loop) -> Workload {
        let rows = self.machine.cpu_nodes.len();
        let parts = if self.program.has_parts() { rows } else { 1 };
        let only = |row: usize| (0..rows).map(|at| if at == row { 1.0 } else { 0.0 }).collect();
        let region = |part: usize| Region {
            name: "data".into(),
            pages: self.pages / u32::try_from(parts).unwrap_or(1),
            hot_pages: 0,
            hot_share: 0.0,
            touched_by: only(if self.program == Program::Settled { part } else { 0 }),
            reads: self.reads(),
        };
        let worker = |row: usize| Worker {
            row,
            lines: at.lines * self.cpus[row],
            think_ns: at.think_ns,
            uses: if parts == 1 { vec![1.0] } else { only(row) },
        };
        Workload {
            name: self.program.name().into(),
            about: "a program as the lab ran it".into(),
            page_bytes: PAGE,
            regions: (0..parts).map(region).collect(),
            workers: (0..rows).map(worker).collect(),
            antagonists: Vec::new(),
            huge: false,
            stripe: 0,
            walk_ns: 0.0,
        }
    }
}

/// Whether no two rows that differ in both are in opposite order.
fn is_same_order(rows: &[Shown]) -> bool {
    let over = |one: f64, other: f64| one > other * (1.0 + ALIKE);
    let reversed = |a: &Shown, b: &Shown| over(a.lab, b.lab) && over(b.simulated, a.simulated);
    !rows.iter().any(|a| rows.iter().any(|b| reversed(a, b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::sample;

    #[test]
    fn fitting_two_rows_recovers_the_models_parameters() {
        let mut found = sample::found_of(&[Program::Kmeans]);
        let described = catalog::built_in("numa-4node").unwrap();
        let machine = as_emulated(&described).unwrap();
        let model = Model::of(&found, Program::Kmeans, (&described, &machine));
        let truth = Loop { lines: 6.0, think_ns: 40.0 };
        for ran in &mut found.programs[0].rows {
            let rate = model.rate(ran.row.kind, truth);
            for run in &mut ran.runs {
                run.operations_per_s = rate * 1e6;
                run.traffic.as_mut().unwrap().lines_per_us = rate * 1e3;
            }
        }
        let case = &cases(&found, 1).unwrap()[0];
        assert!((case.lines - 6.0).abs() < 0.2 && (case.think_ns - 40.0).abs() < 4.0, "{case:?}");
        let statics =
            case.rows.iter().filter(|row| !["carrefour", "balanced"].contains(&row.row.as_str()));
        assert!(
            statics.clone().count() == 8 && statics.clone().all(|row| row.difference.abs() < 0.01),
            "{case:?}"
        );
        // The controllers start from first touch's figures and improve on them.
        let balanced = case.rows.iter().find(|row| row.row == "balanced").unwrap();
        assert!(balanced.simulated > 1.9 && !case.same_ranking && !case.is_within(), "{case:?}");
    }

    #[test]
    fn results_without_a_machine_file_or_static_rows_are_rejected() {
        let mut found = sample::found_of(&[Program::Kmeans]);
        found.programs[0].rows.retain(|ran| !ran.row.kind.is_static());
        assert!(cases(&found, 1).unwrap_err().to_string().contains("first touch"));
        found.machine.emulation = None;
        assert!(cases(&found, 1).unwrap_err().to_string().contains("lab"));
    }

    #[test]
    fn rows_with_nearly_equal_rates_are_not_ordered() {
        let row = |lab: f64, simulated: f64| Shown {
            row: String::new(),
            lab,
            simulated,
            difference: 0.0,
            is_fitted: false,
        };
        assert!(is_same_order(&[row(1.0, 1.0), row(1.02, 0.9), row(2.0, 2.1)]));
        assert!(is_same_order(&[row(1.0, 1.0), row(1.1, 0.99)]));
        assert!(!is_same_order(&[row(1.0, 1.0), row(1.1, 0.95)]));
    }
}
