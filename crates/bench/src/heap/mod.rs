//! Compares heaps on an emulated machine: throughput of programs by the placement of malloc's memory.
//!
//! One boot; within it, one run of `nearfar-load inference` per row, as a user would type it. [`rows`] has the compared
//! uses and placements, [`results`] the results, [`acceptance`] the thresholds; text and page are in `pages/heap.rs`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::meminfo;
use nearfar_topology::{Bytes, NodeId};

pub mod acceptance;
pub mod results;
pub mod rows;
#[cfg(test)]
pub mod sample;

use crate::demo::line::Line;
use crate::demo::machine;
use crate::demo::process::Launcher;
use nearfar_command::progress::Progress;
use nearfar_kernel::clock::{self, Stopwatch};
use nearfar_report::model::{Machine, Resident};
use results::{Found, Outcome, Ran, SCHEMA, Tried};
use rows::{Part, Row};

/// Time limit of a row, on the machine it runs on.
const LIMIT: Duration = Duration::from_secs(600);
/// Polling interval for the end of a program, and for its residency.
const POLL: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_millis(150);
/// Near memory reserved for the system when instances are counted.
const LEFT: Bytes = Bytes(8 << 20);
/// The requested comparison.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Parts, in display order.
    pub(crate) parts: Vec<Part>,
    /// Whether it is a smoke run, which is not judged.
    pub(crate) smoke: bool,
}

/// Runs everything on this machine; `dir` receives the programs' output.
pub(crate) fn run(options: &Options, dir: &Path, progress: bool) -> anyhow::Result<Found> {
    let machine = machine::read()?;
    refuse_other_machines(&machine)?;
    let nearfar = crate::demo::beside::program("nearfar")?;
    let load = crate::demo::beside::program("nearfar-load")?.display().to_string();
    let stage = Stage { launcher: Launcher { nearfar: &nearfar, dir }, load, options };
    machine::drop_caches();
    let near_free = near_free(&machine)?;
    let steps = options.parts.iter().map(|part| part.rows().len()).sum();
    let mut progress = Progress::new(steps, progress);
    let mut parts = Vec::new();
    for part in &options.parts {
        let mut tried = Tried { part: *part, rows: Vec::new() };
        for row in part.rows() {
            progress.step(&format!("{part:?}, {}", row.name()));
            let instances = instances(*part, *row, near_free, machine.cpus);
            tried.rows.push(stage.run(*part, *row, instances));
        }
        parts.push(tried);
    }
    Ok(Found {
        schema: SCHEMA.into(),
        nearfar: env!("CARGO_PKG_VERSION").into(),
        smoke: options.smoke,
        machine,
        near_free_bytes: near_free.0,
        parts,
    })
}

/// The plan, as text.
pub(crate) fn plan(options: &Options) -> String {
    let mut out = String::new();
    for part in &options.parts {
        out += &format!("{}\n", part.description());
        for row in part.rows() {
            let program = part.program("nearfar-load", 1, part.seconds(*row, options.smoke));
            out += &format!("  {}: {}\n", row.name(), row.line(&program));
        }
    }
    out + "--instances is as many as CPUs, or as near memory has room for\n"
}

/// Rows name nodes, and ratios refer to one near node; other machines are refused.
fn refuse_other_machines(machine: &Machine) -> anyhow::Result<()> {
    let sides: Vec<_> = machine.nodes.iter().map(|node| (node.id, node.near)).collect();
    if sides != [(0, true), (1, false)] {
        bail!(
            "this machine's nodes with memory are {}; heaps are compared on one with near node 0 and far node 1, such as the \
             lab's cxl-2tier-narrow",
            machine.nodes.iter().map(|node| node.id.to_string()).collect::<Vec<_>>().join(", ")
        );
    }
    Ok(())
}

fn near_free(machine: &Machine) -> anyhow::Result<Bytes> {
    let fs = RootFs::live()?;
    let free = |node: u16| meminfo::of_node(&fs, NodeId(node)).map(|info| info.free.0);
    let near = machine.nodes.iter().filter(|node| node.near).filter_map(|node| free(node.id));
    Ok(Bytes(near.sum()))
}

/// Number of concurrent instances: usually one per CPU, but in near memory alone no more than fit.
fn instances(part: Part, row: Row, near_free: Bytes, cpus: u32) -> u64 {
    let most = u64::from(cpus).max(1);
    match (part, row) {
        (Part::Light, _) => 1,
        // Chains of loads on all CPUs would nearly saturate near memory.
        (Part::Lookups, _) => most.div_ceil(2),
        (Part::Instances, Row::Near) => {
            let [weights, context] = part.sizes_mib();
            let fit = near_free.0.saturating_sub(LEFT.0) / ((weights + context) << 20);
            fit.clamp(1, most)
        }
        _ => most,
    }
}

/// State shared by all rows.
struct Stage<'a> {
    launcher: Launcher<'a>,
    load: String,
    options: &'a Options,
}

impl Stage<'_> {
    fn run(&self, part: Part, row: Row, instances: u64) -> Ran {
        let program = part.program(&self.load, instances, part.seconds(row, self.options.smoke));
        let line = row.line(&program);
        machine::drop_caches();
        let name = format!("{part:?}-{row:?}.json").to_lowercase();
        let (outcome, residency, failed) = match self.measured(&line, &name) {
            Ok((outcome, residency)) => (Some(outcome), residency, None),
            Err(error) => (None, Vec::new(), Some(format!("{error:#}"))),
        };
        Ran { row, instances, command: line.to_string(), outcome, residency, failed }
    }

    /// The final output of the program, and the last sample of its residency.
    fn measured(&self, line: &Line, name: &str) -> anyhow::Result<(Outcome, Vec<Resident>)> {
        let mut program = self.launcher.start(line, name)?;
        let (started, mut due, mut residency) = (Stopwatch::start(), LOOK, Vec::new());
        while program.ended()?.is_none() {
            let now = started.elapsed();
            if now > LIMIT {
                bail!("`{line}` did not end within {} s", LIMIT.as_secs());
            }
            if now >= due {
                due = now + LOOK;
                // A program that is just ending has no memory left.
                let seen = machine::residency(program.pid()).unwrap_or_default();
                residency = if seen.iter().any(|of| of.bytes > 0) { seen } else { residency };
            }
            clock::sleep(POLL);
        }
        let said = program.output()?;
        let outcome = serde_json::from_str(&said)
            .with_context(|| format!("reading the output of `{line}`: {said}"))?;
        Ok((outcome, residency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_only_runs_as_many_instances_as_fit_in_near_memory() {
        let count = |row, mib: u64| instances(Part::Instances, row, Bytes(mib << 20), 4);
        assert_eq!([count(Row::Near, 160), count(Row::Near, 125), count(Row::Near, 20)], [2, 1, 1]);
        assert_eq!([count(Row::Near, 4096), count(Row::WeightsFar, 160)], [4, 4]);
        assert_eq!(instances(Part::Light, Row::Near, Bytes(1 << 40), 4), 1);
        assert_eq!(instances(Part::Saturating, Row::Near, Bytes(0), 6), 6);
        assert_eq!(instances(Part::Lookups, Row::Weighted, Bytes(0), 8), 4);
    }

    #[test]
    fn machines_that_rows_do_not_fit_are_refused() {
        let mut machine = sample::found().machine;
        assert!(refuse_other_machines(&machine).is_ok());
        machine.nodes[1].near = true;
        let why = refuse_other_machines(&machine).unwrap_err().to_string();
        assert!(why.contains("cxl-2tier-narrow"), "{why}");
    }
}
