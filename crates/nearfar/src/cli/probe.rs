//! `nearfar probe`: measures the machine's memory and saves the figures for other commands.
//!
//! It needs no privilege. By default, figures are saved only if they cover the whole machine at the default mixes: a
//! partial report must not replace a complete one, on which `nearfar weights` and `nearfar run -w auto` rely.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_kernel::affinity;
use nearfar_probe::{Identity, Plan, PlanError, ProbeReport, Request, marker, measure, store};
use nearfar_topology::{Mix, NodeExpr, NodeSet, Topology};

use super::machine::MachineArgs;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::progress::Progress;
use nearfar_command::weighing::source;
use nearfar_command::{new_file, output, probed};

/// The default mixes; a report that lacks one of these is incomplete.
const MIXES: [Mix; 3] = [Mix::READS, Mix::TWO_TO_ONE, Mix::ONE_TO_ONE];

/// Arguments of `nearfar probe`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema nearfar.probe/1)
    #[arg(long)]
    json: bool,
    /// Measure for a few seconds instead of up to a minute
    #[arg(long)]
    quick: bool,
    /// Show the saved report of this machine, or that in FILE, without measuring
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
        conflicts_with_all = ["quick", "save", "no_save", "nodes", "cpu_nodes", "mixes", "cpus", "dry_run"])]
    show: Option<Option<PathBuf>>,
    /// Write the report to FILE instead of the directory that other commands read (/var/lib/nearfar for root, else
    /// ~/.local/state/nearfar)
    #[arg(long, value_name = "FILE", conflicts_with = "no_save")]
    save: Option<PathBuf>,
    /// Do not save the report
    #[arg(long)]
    no_save: bool,
    /// Memory nodes to measure, such as 0,2-3, near, cxl
    #[arg(long, value_name = "NODES", default_value = "all")]
    nodes: NodeExpr,
    /// Nodes from whose CPUs to measure, such as 0,2-3 [default: all nodes with CPUs]
    #[arg(long, value_name = "LIST", value_parser = node_list)]
    cpu_nodes: Option<NodeSet>,
    /// Read:write mixes, with no more writes than reads
    #[arg(long, value_name = "MIX,...", value_delimiter = ',', default_value = "1:0,2:1,1:1")]
    mixes: Vec<Mix>,
    /// Use at most this many CPUs per node
    #[arg(long, value_name = "NUMBER")]
    cpus: Option<usize>,
    /// Print the plan without measuring
    #[arg(long, conflicts_with = "json")]
    dry_run: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

fn node_list(text: &str) -> Result<NodeSet, String> {
    let nodes = NodeSet::parse_list(text).filter(|nodes| !nodes.is_empty());
    nodes.ok_or_else(|| "write node numbers as 0 or 0,2-3".into())
}

/// Measures, saves and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = args.machine.select().open()?;
    let (machine, _) = args.machine.select().read(fs.as_ref())?;
    if let Some(file) = &args.show {
        return print(args, &saved(file.as_deref(), &machine)?, &machine);
    }
    if !args.machine.select().is_live() && !args.dry_run {
        return usage(anyhow::anyhow!(
            "probe: only the running machine can be measured; add --dry-run to --sysfs to show the plan"
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
    new_file::check(&args.save).context("--save")?;
    let report = carry_out(&plan, &machine);
    anyhow::ensure!(!report.pairs.is_empty(), "probe: {}", probed::failures(&report.skipped));
    print(args, &report, &machine)?;
    keep(args, &report, whole && report.skipped.is_empty())?;
    Ok(ExitCode::SUCCESS)
}

/// The report in a file, or the saved one of this machine.
fn saved(file: Option<&Path>, machine: &Topology) -> anyhow::Result<ProbeReport> {
    match file {
        Some(file) => store::load_file(file).context("--show").ends_with(Exit::Usage),
        None => source::saved(machine)?.context(
            "no probe of this machine is saved; nearfar probe measures it and saves the figures",
        ),
    }
}

fn print(args: &Args, report: &ProbeReport, machine: &Topology) -> anyhow::Result<ExitCode> {
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&probed::of(report, machine))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn usage<T>(error: anyhow::Error) -> anyhow::Result<T> {
    Err(error).ends_with(Exit::Usage)
}

/// The request, with its nodes resolved against the machine.
fn request(args: &Args, machine: &Topology) -> anyhow::Result<Request> {
    let nodes = args.nodes.resolve(machine, &[]).context("--nodes").ends_with(Exit::Usage)?;
    let running = args.machine.select().is_live();
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
        // If the kernel does not report the allowed CPUs, it refuses them one by one.
        cpus_allowed: allowed.map(|cpus| cpus.into_iter().collect()),
        lab: lab.map_err(anyhow::Error::msg)?,
    })
}

/// Whether a report on `request` contains all figures that other commands need.
fn is_whole(request: &Request, machine: &Topology) -> bool {
    request.nodes == machine.memory_nodes()
        && request.cpu_nodes == machine.cpu_nodes()
        && request.cpus_max.is_none()
        && request.cpus_allowed.as_ref().is_none_or(|allowed| {
            machine.nodes.values().flat_map(|node| &node.cpus).all(|cpu| allowed.contains(cpu))
        })
        && MIXES.iter().all(|mix| request.mixes.contains(mix))
}

/// Measures, and shows progress: each step on the terminal, elsewhere a line for each pair of nodes.
fn carry_out(plan: &Plan, machine: &Topology) -> ProbeReport {
    let identity = Identity {
        fingerprint: machine.fingerprint(),
        kernel: machine.kernel.clone().unwrap_or_else(|| "unknown".into()),
    };
    let steps = Progress::new(plan.steps(), false);
    let mut last = None;
    let mut show = |progress: nearfar_probe::Progress<'_>| {
        let nearfar_probe::Progress { done, cpu_node, memory_node, what } = progress;
        let pair = format!("CPU node {cpu_node}, memory node {memory_node}");
        if steps.is_line() {
            steps.at(done, &format!("{pair}: {what}"));
        } else if last.replace((cpu_node, memory_node)) != Some((cpu_node, memory_node)) {
            steps.at(done, &pair);
        }
    };
    measure(plan, identity, &mut show)
}

/// Saves the report to `--save`, or to the directory that other commands read. A failure is an error only if `--save`
/// was given.
fn keep(args: &Args, report: &ProbeReport, whole: bool) -> anyhow::Result<()> {
    if let Some(file) = &args.save {
        return store::save_file(file, report).context("--save");
    }
    if args.no_save {
        return Ok(());
    }
    if !whole {
        output::note(
            "not saved, as it covers only part of the machine; --save FILE saves it nevertheless",
        );
        return Ok(());
    }
    match store::state_dir().and_then(|dir| store::save(&dir, report)) {
        Ok(path) => output::remark(format_args!("kept in {}", path.display())),
        Err(error) => output::note(format_args!(
            "not saved for other commands: {error}; --save FILE saves it elsewhere, --no-save not at all"
        )),
    }
    Ok(())
}
