//! Heaps side by side on an emulated machine: what programs gain by where malloc has their memory.
//!
//! One boot; within it, one run of `nearfar-load inference` a row, as a user would type it. [`rows`] says what is compared,
//! [`found`] what is kept, [`judge`] what is to be reached; text and page are in `report/heap`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::meminfo;
use nearfar_topology::{Bytes, NodeId};

pub(crate) mod found;
pub(crate) mod judge;
pub(crate) mod rows;
#[cfg(test)]
pub(crate) mod sample;

use crate::clock::{self, Stopwatch};
use crate::demo::line::Line;
use crate::demo::machine;
use crate::demo::process::Launcher;
use crate::demo::progress::Progress;
use crate::report::model::{Machine, Resident};
use found::{Found, Outcome, Ran, SCHEMA, Tried};
use rows::{Part, Row};

/// How long a row may take, on the machine it runs on.
const LIMIT: Duration = Duration::from_secs(600);
/// Between two looks at whether a program has ended, and at where its memory is.
const POLL: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_millis(150);
/// Near memory that is left to the system when instances are counted.
const LEFT: Bytes = Bytes(8 << 20);
/// Cached files are dropped before each row, so that all begin alike.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wishes {
    /// Parts, in the order shown.
    pub(crate) parts: Vec<Part>,
    /// Too short to be judged.
    pub(crate) smoke: bool,
}

/// `nearfar-load`, which is installed beside this binary.
pub(crate) fn load_generator() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("looking for this binary")?;
    let beside = this.with_file_name("nearfar-load");
    if !beside.is_file() {
        bail!(
            "{}: not there; make build makes it, and it belongs beside nearfar",
            beside.display()
        );
    }
    Ok(beside)
}

/// Runs everything on this machine; `dir` gets what programs print.
pub(crate) fn run(wishes: &Wishes, dir: &Path, progress: bool) -> anyhow::Result<Found> {
    let machine = machine::read()?;
    refuse_other_machines(&machine)?;
    let nearfar = std::env::current_exe().context("looking for this binary")?;
    let load = load_generator()?.display().to_string();
    let stage = Stage { launcher: Launcher { nearfar: &nearfar, dir }, load, wishes };
    drop_caches();
    let near_free = near_free(&machine)?;
    let steps = wishes.parts.iter().map(|part| part.rows().len()).sum();
    let mut progress = Progress::new(steps, progress);
    let mut parts = Vec::new();
    for part in &wishes.parts {
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
        smoke: wishes.smoke,
        machine,
        near_free_bytes: near_free.0,
        parts,
    })
}

/// For people: what would be run.
pub(crate) fn plan(wishes: &Wishes) -> String {
    let mut out = String::new();
    for part in &wishes.parts {
        out += &format!("{}\n", part.description());
        for row in part.rows() {
            let program = part.program("nearfar-load", 1, part.seconds(*row, wishes.smoke));
            out += &format!("  {}: {}\n", row.name(), row.line(&program));
        }
    }
    out + "--instances is as many as CPUs, or as near memory has room for\n"
}

/// Rows name nodes, and ratios refer to one near node.
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

/// Needs root; without, rows begin with the caches that there are.
fn drop_caches() {
    let _ = std::fs::write(DROP_CACHES, "3");
}

fn near_free(machine: &Machine) -> anyhow::Result<Bytes> {
    let fs = RootFs::live()?;
    let free = |node: u16| meminfo::of_node(&fs, NodeId(node)).map(|info| info.free.0);
    let near = machine.nodes.iter().filter(|node| node.near).filter_map(|node| free(node.id));
    Ok(Bytes(near.sum()))
}

/// Instances at once: mostly one a CPU, but in near memory alone no more than it has room for.
fn instances(part: Part, row: Row, near_free: Bytes, cpus: u32) -> u64 {
    let most = u64::from(cpus).max(1);
    match (part, row) {
        (Part::Light, _) => 1,
        // Chains of loads on all CPUs would come near to what near memory gives.
        (Part::Lookups, _) => most.div_ceil(2),
        (Part::Instances, Row::Near) => {
            let [weights, context] = part.sizes_mib();
            let fit = near_free.0.saturating_sub(LEFT.0) / ((weights + context) << 20);
            fit.clamp(1, most)
        }
        _ => most,
    }
}

/// What all rows share.
struct Stage<'a> {
    launcher: Launcher<'a>,
    load: String,
    wishes: &'a Wishes,
}

impl Stage<'_> {
    fn run(&self, part: Part, row: Row, instances: u64) -> Ran {
        let program = part.program(&self.load, instances, part.seconds(row, self.wishes.smoke));
        let line = row.line(&program);
        drop_caches();
        let name = format!("{part:?}-{row:?}.json").to_lowercase();
        let (outcome, residency, failed) = match self.measured(&line, &name) {
            Ok((outcome, residency)) => (Some(outcome), residency, None),
            Err(error) => (None, Vec::new(), Some(format!("{error:#}"))),
        };
        Ran { row, instances, command: line.to_string(), outcome, residency, failed }
    }

    /// What the program said in the end, and where its memory was when that was last seen.
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
                // One that ends just now has no memory left to look at.
                let seen = machine::residency(program.pid()).unwrap_or_default();
                residency = if seen.iter().any(|of| of.bytes > 0) { seen } else { residency };
            }
            clock::sleep(POLL);
        }
        let said = program.said()?;
        let outcome = serde_json::from_str(&said)
            .with_context(|| format!("understanding what `{line}` said: {said}"))?;
        Ok((outcome, residency))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_memory_alone_runs_as_many_instances_as_it_has_room_for() {
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
