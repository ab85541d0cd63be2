//! `nearfar run`: a program with its memory and CPUs where the user says. The letters mean what they mean to numactl;
//! nodes may also be named by kind or by near and far, and `-w auto` weighs them.
//!
//! Without `--report`, `--tier` and `--balance` we become the program: no parent is left. With any a parent stays ([`watch`]).

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::str::FromStr;

use nearfar_kernel::features::{Asked, Feature, Features};
use nearfar_kernel::fs::RootFs;
use nearfar_topology::{Mix, NodeExpr, NodeSet, NodeSetError, Topology};

use super::machine::MachineArgs;
use super::output;
use crate::balance::options::Policy;
use crate::exit::{EndsWith as _, Exit, WithExit};
use crate::weighing::MIX;
use crate::weighing::set::{ForARun, Setter};

mod balanced;
mod cpus;
mod heap;
mod plan;
mod report;
mod tiered;
mod watch;

use balanced::Balanced;
pub(crate) use cpus::{cpu_nodes, cpus_of};
use plan::{Plan, Setting};
use tiered::Tiered;

/// What `nearfar run` takes.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
#[command(group(clap::ArgGroup::new("policy").multiple(false)))]
pub(crate) struct Args {
    /// Memory from these nodes only
    #[arg(short, long, value_name = "NODES", group = "policy")]
    membind: Option<NodeExpr>,
    /// Memory from this node, others when it is full
    #[arg(short, long, value_name = "NODE", group = "policy")]
    preferred: Option<NodeExpr>,
    /// Memory from these nodes, others when they are full
    #[arg(short = 'P', long, value_name = "NODES", group = "policy")]
    preferred_many: Option<NodeExpr>,
    /// Memory from these nodes in turn, page by page
    #[arg(short, long, value_name = "NODES", group = "policy")]
    interleave: Option<NodeExpr>,
    /// Memory from these nodes in turn, by the machine's weights; `auto`: from all nodes, by weights for their
    /// bandwidths (nearfar weights), which are set if they are not so yet and we are root
    #[arg(short, long, value_name = "NODES|auto", group = "policy")]
    weighted_interleave: Option<Weighted>,
    /// Memory from the node of the CPU that asks for it, others when it is full
    #[arg(short, long, group = "policy")]
    localalloc: bool,
    /// Run on the CPUs of these nodes; near and far are as these see it
    #[arg(short = 'N', long, value_name = "NODES")]
    cpunodebind: Option<NodeExpr>,
    /// Run on these CPUs, as 0-3,8 or all; with -N they must be among its nodes' CPUs
    #[arg(short = 'C', long, value_name = "CPUS")]
    physcpubind: Option<cpus::CpuExpr>,
    /// With -w auto: the program's reads and writes to memory
    #[arg(long, value_name = "R:W", default_value_t = MIX)]
    mix: Mix,
    /// Where weighted interleave, or weights for -w auto, can't be had: interleave 1:1, and say so
    #[arg(long, requires = "weighted_interleave")]
    fallback: bool,
    /// Stay, and tell at the end how much memory of the program and all it started lay on which node, at most and at
    /// last: as text on standard error, or as JSON (schema nearfar.run/1) in FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    report: Option<Option<PathBuf>>,
    /// Stay, and have the memory of CMD and all it starts tiered meanwhile: used pages near, unused ones far (nearfar tier);
    /// with options from FILE (as for tier start --config). Needs root and cgroup version 2
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
        conflicts_with_all = ["membind", "interleave", "weighted_interleave"])]
    tier: Option<Option<PathBuf>>,
    /// Stay, and have memory traffic of CMD and all it starts balanced meanwhile: pages towards those who use them, shared ones
    /// spread (nearfar balance). Needs root
    #[arg(long, value_name = "POLICY", num_args = 0..=1, require_equals = true, default_missing_value = "balanced",
        value_enum, conflicts_with_all = ["membind", "interleave", "weighted_interleave", "tier"])]
    balance: Option<Policy>,
    /// Memory that CMD gets by malloc and new goes to this memory kind (far, weighted:0=3,1=1, cxl;limit=4g;spill=near), by a
    /// library that is preloaded; or a configuration: "heap=far from=64k mmap=off"
    #[arg(long, value_name = "KIND|CONF")]
    heap: Option<String>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const HELP: &str = "\
NODES are numbers (0,2-3), all, near, far, dram, cxl, hbm, pmem, tier:N, or several of these joined by commas.

With --tier, pages move to where they are used, so it is not for memory that -m, -i or -w keep in its place; -p, -P and -l say
where it is at first. CMD is in a memory cgroup of its own as long as it and what it starts run; what they move into cgroups
below that is not tiered. If CMD leaves something running, tiering goes on with it. nearfar tier status, config and stop
work as ever.

--heap is for programs that are linked with the C library dynamically; those that aren't, and those that run with other rights
than ours, ignore it. Memory they map themselves goes to the kind from 1 MiB on (mmap=SIZE). docs/alloc.md has all settings.

-w auto without --report: the weights it sets are the machine's, and stay until `nearfar weights --restore` or a
restart, as no parent is left that could put them back. With --report they are put back when CMD has ended.

Exit status: CMD's own (128 + the signal, if one ended it); 2 bad usage, 125 nearfar failed before CMD, 126 CMD can't
be executed, 127 CMD was not found.";

/// What `-w` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Weighted {
    Auto,
    Nodes(NodeExpr),
}

impl FromStr for Weighted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let nodes: Result<NodeExpr, NodeSetError> = text.parse();
        nodes.map(Self::Nodes).map_err(|error| format!("{error}, or auto"))
    }
}

/// Runs the program; returns only if it was watched, or was not started.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    before_command(prepare_and_run(args))
}

/// What fails before CMD runs ends with 125, unless it says otherwise.
fn before_command<T>(result: anyhow::Result<T>) -> anyhow::Result<T> {
    result.map_err(|error| match error.downcast_ref::<WithExit>() {
        Some(_) => error,
        None => WithExit { exit: Exit::BeforeCommand, error }.into(),
    })
}

fn prepare_and_run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = args.machine.open()?;
    let live = args.machine.is_live();
    if !live && !args.dry_run {
        let error =
            anyhow::anyhow!("--sysfs names another machine: nothing can run there; add --dry-run");
        return Err(WithExit { exit: Exit::Usage, error }.into());
    }
    let (machine, _) = args.machine.read(fs.as_ref())?;
    let asked = if live { Asked::Live } else { Asked::Recorded };
    let needed = [Feature::WeightedInterleave, Feature::PreferredMany];
    let features = Features::detect_some(fs.as_ref(), asked, &needed);
    let plan = plan::plan(args, &machine, &features, fs.as_ref())?;
    if args.dry_run {
        output::print(&plan.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for note in &plan.notes {
        output::note(note);
    }
    let setter = Setter::new(fs.as_ref(), args.machine.root());
    if args.report.is_none() && args.tier.is_none() && args.balance.is_none() {
        set_weights(&plan, &setter, false)?;
        return become_command(args, &plan);
    }
    let fs = &RootFs::live()?;
    let sink = args.report.as_ref().map(|file| report::Sink::open(file.as_deref())).transpose()?;
    let tiered = args.tier.as_ref().map(|file| Tiered::start(fs, file.as_deref())).transpose()?;
    let balanced = args.balance.map(Balanced::start).transpose()?;
    let lease = set_weights(&plan, &setter, true)?;
    let after = watch::After { fs, sink, setter: &setter, lease, tiered, balanced };
    watch::run(args, &plan, &machine, after)
}

/// Sets the weights the plan wants, for the time of the run or to stay.
fn set_weights(
    plan: &Plan,
    setter: &Setter<'_>,
    for_a_run: bool,
) -> anyhow::Result<Option<ForARun>> {
    match &plan.setting {
        Setting::None => Ok(None),
        Setting::Suits => Ok(if for_a_run { setter.rely() } else { None }),
        Setting::Set(weights) if for_a_run => {
            let (_, lease) = setter.for_a_run(weights)?;
            output::note(format_args!("set the machine's weights to {weights} until CMD ends"));
            Ok(Some(lease))
        }
        Setting::Set(weights) => {
            setter.keep(weights)?;
            output::note(format_args!(
                "set the machine's weights to {weights}; they stay until `nearfar weights --restore`"
            ));
            Ok(None)
        }
    }
}

fn become_command(args: &Args, plan: &Plan) -> anyhow::Result<ExitCode> {
    plan.placement.apply()?;
    let refused = command(args, plan).exec();
    Err(not_started(args, refused))
}

fn command(args: &Args, plan: &Plan) -> Command {
    let mut words = args.command.iter();
    let mut command = Command::new(words.next().map_or(OsString::new(), OsString::clone));
    command.args(words);
    if let Some(heap) = &plan.heap {
        heap.prepare(&mut command);
    }
    command
}

/// Why CMD was not started, with a shell's status for it.
fn not_started(args: &Args, error: std::io::Error) -> anyhow::Error {
    let name = args.command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    let exit = Exit::of_start(&error);
    let what = if exit == Exit::NotFound { "was not found" } else { "can't be executed" };
    let error = anyhow::Error::from(error).context(format!("`{name}` {what}"));
    WithExit { exit, error }.into()
}

/// Nodes resolved, or bad usage that names the option.
fn resolve(
    option: &str,
    nodes: &NodeExpr,
    machine: &Topology,
    cpus: &[nearfar_topology::CpuId],
) -> anyhow::Result<NodeSet> {
    let named = nodes.resolve(machine, cpus);
    named.map_err(|error| anyhow::anyhow!("{option}: {error}")).ends_with(Exit::Usage)
}
