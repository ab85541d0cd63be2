//! `nearfar probe`: measures the machine's memory and keeps the figures for other commands.
//!
//! Needs no privilege. Figures are kept by default only if they cover the whole machine at the usual mixes: a part
//! must not take the place of the whole, which `nearfar weights` and `nearfar run -w auto` rely on.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_kernel::affinity;
use nearfar_probe::{
    Identity, Plan, PlanError, ProbeReport, Progress, Request, marker, measure, store,
};
use nearfar_topology::{Mix, NodeExpr, NodeSet, Topology};

use super::machine::MachineArgs;
use super::output;
use crate::exit::{EndsWith as _, Exit};

mod text;

/// Mixes measured unless others are asked for; without one of these a report is not whole.
const MIXES: [Mix; 3] = [Mix::READS, Mix::TWO_TO_ONE, Mix::ONE_TO_ONE];

/// What `nearfar probe` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema nearfar.probe/1)
    #[arg(long)]
    json: bool,
    /// A few seconds in place of up to a minute
    #[arg(long)]
    quick: bool,
    /// Write the report to FILE in place of the directory where other commands look for it
    #[arg(long, value_name = "FILE", conflicts_with = "no_save")]
    save: Option<PathBuf>,
    /// Do not keep the report
    #[arg(long)]
    no_save: bool,
    /// Memory nodes to measure, such as 0,2-3, near, cxl
    #[arg(long, value_name = "NODES", default_value = "all")]
    nodes: NodeExpr,
    /// Nodes from whose CPUs to measure, such as 0,2-3; all that have CPUs unless given
    #[arg(long, value_name = "LIST", value_parser = node_list)]
    cpu_nodes: Option<NodeSet>,
    /// Read:write mixes, with no more writes than reads
    #[arg(long, value_name = "MIXES", value_delimiter = ',', default_values_t = MIXES)]
    mixes: Vec<Mix>,
    /// Use at most this many CPUs of a node
    #[arg(long, value_name = "NUMBER")]
    cpus: Option<usize>,
    /// Print what would be measured and stop
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

fn node_list(text: &str) -> Result<NodeSet, String> {
    let nodes = NodeSet::parse_list(text).filter(|nodes| !nodes.is_empty());
    nodes.ok_or_else(|| "write node numbers as 0 or 0,2-3".into())
}

/// Measures, keeps and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = args.machine.open()?;
    let (machine, _) = args.machine.read(fs.as_ref())?;
    if !args.machine.is_live() && !args.dry_run {
        return usage(anyhow::anyhow!(
            "probe: only the running machine can be measured; --sysfs goes with --dry-run, which shows the plan"
        ));
    }
    let request = request(args, &machine)?;
    let whole = is_whole(&request, &machine);
    let plan = match Plan::new(&machine, fs.as_ref(), request) {
        Err(error @ PlanError::Nothing(_)) => return Err(error).context("probe"),
        Err(error) => return usage(anyhow::Error::new(error).context("probe")),
        Ok(plan) => plan,
    };
    if args.dry_run {
        output::print(&plan.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = carry_out(&plan, &machine);
    anyhow::ensure!(!report.pairs.is_empty(), "probe: {}", text::failures(&report.skipped));
    if args.json {
        output::print(&report.to_json()?)?;
    } else {
        output::print(&text::of(&report, &machine))?;
    }
    keep(args, &report, whole)?;
    Ok(ExitCode::SUCCESS)
}

fn usage<T>(error: anyhow::Error) -> anyhow::Result<T> {
    Err(error).ends_with(Exit::Usage)
}

/// The request, its nodes resolved against the machine.
fn request(args: &Args, machine: &Topology) -> anyhow::Result<Request> {
    let nodes = args.nodes.resolve(machine, &[]).context("--nodes").ends_with(Exit::Usage)?;
    let running = args.machine.is_live();
    let lab = if running { marker::read() } else { Ok(None) };
    let allowed = if running { affinity::get().ok() } else { None };
    let mut mixes = args.mixes.clone();
    let mut seen = BTreeSet::new();
    mixes.retain(|mix| seen.insert(*mix));
    Ok(Request {
        nodes,
        cpu_nodes: args.cpu_nodes.clone().unwrap_or_else(|| machine.cpu_nodes()),
        mixes,
        quick: args.quick,
        cpus_max: args.cpus,
        // A kernel that won't tell will refuse CPUs one by one.
        cpus_allowed: allowed.map(|cpus| cpus.into_iter().collect()),
        lab: lab.map_err(anyhow::Error::msg)?,
    })
}

/// Whether a report on `request` says all that other commands look for.
fn is_whole(request: &Request, machine: &Topology) -> bool {
    request.nodes == machine.memory_nodes()
        && request.cpu_nodes == machine.cpu_nodes()
        && request.cpus_max.is_none()
        && MIXES.iter().all(|mix| request.mixes.contains(mix))
}

/// Measures, with a line on the terminal that says what and how far; nothing is shown in a pipe.
fn carry_out(plan: &Plan, machine: &Topology) -> ProbeReport {
    let identity = Identity {
        fingerprint: machine.fingerprint(),
        kernel: machine.kernel.clone().unwrap_or_else(|| "unknown".into()),
    };
    let terminal = io::stderr().is_terminal();
    let steps = plan.steps();
    let mut show = |progress: Progress<'_>| {
        if terminal {
            let Progress { done, cpu_node, memory_node, what } = progress;
            let line = format!(
                "[{}/{steps}] CPU node {cpu_node}, memory node {memory_node}: {what}",
                done + 1
            );
            let _ = write!(io::stderr().lock(), "\r\x1b[K{line}");
        }
    };
    let report = measure(plan, identity, &mut show);
    if terminal {
        let _ = write!(io::stderr().lock(), "\r\x1b[K");
    }
    report
}

/// Keeps the report where the user or other commands look for it. Only a failure to do what was asked for is one.
fn keep(args: &Args, report: &ProbeReport, whole: bool) -> anyhow::Result<()> {
    if let Some(file) = &args.save {
        return store::save_file(file, report).context("--save");
    }
    if args.no_save {
        return Ok(());
    }
    if !whole {
        output::note(
            "not kept, since it covers part of the machine only; --save FILE keeps it all the same",
        );
        return Ok(());
    }
    match store::state_dir().and_then(|dir| store::save(&dir, report)) {
        Ok(path) => output::note(format_args!("kept in {}", path.display())),
        Err(error) => output::note(format_args!(
            "not kept for other commands: {error}; --save FILE keeps it elsewhere, --no-save asks for nothing"
        )),
    }
    Ok(())
}
