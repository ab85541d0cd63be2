//! `nearfar run`: runs a program with its memory and CPUs on given nodes. Option letters have numactl's meaning; nodes
//! may also be given by kind or as near and far, and `-w auto` computes weights.
//!
//! Without `--report`, `--tier` and `--balance` this process execs the program and no parent remains. With any of them,
//! a parent stays ([`watch`]).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::str::FromStr;

use anyhow::Context as _;
use nearfar_kernel::features::{Asked, Feature, Features};
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::mempolicy;
use nearfar_topology::{Mix, NodeExpr, NodeSet, NodeSetError, Topology};
use rustix::fs::Access;

use super::machine::MachineArgs;
use nearfar_command::exit::{EndsWith as _, Exit, WithExit};
use nearfar_command::output;
use nearfar_command::weighing::given::Given;
use nearfar_command::weighing::set::{ForARun, Setter};

mod balanced;
mod cpus;
mod heap;
mod plan;
mod report;
mod tiered;
mod watch;

use balanced::Balanced;
pub(crate) use cpus::{cpu_nodes, cpus_of};
pub(crate) use heap::{find as preload_library, find_beside, preload};
use plan::{Plan, Setting};
use tiered::Tiered;

/// Arguments of `nearfar run`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
#[command(group(clap::ArgGroup::new("policy").multiple(false)))]
pub(crate) struct Args {
    /// Allocate only from these nodes
    #[arg(short, long, value_name = "NODES", group = "policy")]
    membind: Option<Named>,
    /// Allocate from these nodes; fall back to others when they are full
    #[arg(short, long, value_name = "NODES", group = "policy")]
    preferred: Option<Named>,
    /// As -p, which numactl has for one node only
    #[arg(short = 'P', long, value_name = "NODES", group = "policy")]
    preferred_many: Option<Named>,
    /// Interleave memory over these nodes, page by page
    #[arg(short, long, value_name = "NODES", group = "policy")]
    interleave: Option<Named>,
    /// Interleave memory over these nodes by the machine's weights; `auto`: over all nodes, by weights from their
    /// bandwidths (nearfar weights), which are set if they differ and the user is root; 0=3,1=1: by weights of CMD's own,
    /// each that of one node
    #[arg(short, long, value_name = "NODES|auto|NODES=N", group = "policy")]
    weighted_interleave: Option<Weighted>,
    /// Allocate from the node of the allocating CPU; fall back to others when it is full
    #[arg(short, long, group = "policy")]
    localalloc: bool,
    /// Run on the CPUs of these nodes; local and remote are relative to them
    #[arg(short = 'N', long, value_name = "NODES", alias = "cpubind")]
    cpunodebind: Option<NodeExpr>,
    /// Run on these CPUs, as 0-3,8 or all; with -N they must be among its nodes' CPUs
    #[arg(short = 'C', long, value_name = "CPUS")]
    physcpubind: Option<cpus::CpuExpr>,
    /// With -w auto: the program's ratio of reads to writes [default: 2:1]
    #[arg(long, value_name = "R:W")]
    mix: Option<Mix>,
    /// Fall back to 1:1 interleaving, with a message, if weighted interleaving or weights for -w auto are unavailable
    #[arg(long, requires = "weighted_interleave")]
    fallback: bool,
    /// Stay as parent and report the peak and final memory of the program and its descendants per node, as text on
    /// standard error or as JSON (schema nearfar.run/1) in FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    report: Option<Option<PathBuf>>,
    /// Stay as parent and tier the memory of CMD and its descendants: hot pages near, cold ones far (nearfar tier);
    /// options from FILE (as for tier start --config). Needs root and cgroup version 2
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
        conflicts_with_all = ["membind", "interleave", "weighted_interleave"])]
    tier: Option<Option<PathBuf>>,
    /// Stay as parent and balance the memory traffic of CMD and its descendants (nearfar balance). Needs root
    #[arg(long, value_name = "POLICY", num_args = 0..=1, require_equals = true, default_missing_value = "balanced",
        value_enum, conflicts_with_all = ["membind", "interleave", "weighted_interleave", "tier"])]
    balance: Option<super::balance::PolicyArg>,
    /// Place memory from CMD's malloc and new on this memory kind (far, weighted:0=3,1=1, cxl;limit=4g;spill=near), by
    /// a preloaded library; or a configuration: "heap=far from=64k mmap=off"
    #[arg(long, value_name = "KIND|CONF")]
    heap: Option<String>,
    /// Print the plan without running CMD
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

const HELP: &str = "\
NODES are numbers (0,2-3), all, near, far, local, remote, dram, cxl, hbm, pmem, gpu, tier:N, or several of these joined by \
commas; '!0' is all but node 0, +0 the first node that this process may use, and same those of -N.

With --tier, pages move to the nodes that use them, so it can't be combined with -m, -i or -w; -p, -P and -l set where \
pages are allocated. CMD runs in a memory cgroup of its own until it and its children end; processes that they move \
into cgroups below it are not tiered. If CMD leaves processes running, tiering continues until they end. nearfar tier \
status, config and stop work as usual.

--heap works for programs that use the C library dynamically; statically linked and set-uid programs ignore it. Mappings \
that a program makes itself go to the kind from 1 MiB on (mmap=SIZE). A kind that is bound to nodes and has neither limit= nor \
spill= falls back to plain memory when these nodes are almost full (spill=default). docs/alloc.md lists all settings.

-w auto without --report sets the machine's weights until `nearfar weights --restore` or a restart, because no parent \
process remains that could restore them. With --report they are restored when CMD has ended.

-w 0=3,1=1 leaves the machine's weights alone: nearfar stays as parent until CMD ends, CMD and its descendants allocate \
evenly over these nodes, and their private pages then migrate to where these weights put them. Shared memory, hugetlbfs and \
files stay spread evenly. A weight is that of each node: with two near nodes and one far one, near=3,far=1 puts six pages near \
for one far.

Exit status: CMD's own (128 + the signal, if one ended it); 2 bad usage, 125 nearfar failed before CMD, 126 CMD can't \
be executed, 127 CMD was not found.";

/// Nodes for memory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Named {
    /// Those of `-N`.
    Same,
    Nodes(NodeExpr),
}

impl FromStr for Named {
    type Err = NodeSetError;

    fn from_str(text: &str) -> Result<Self, NodeSetError> {
        if text == "same" { Ok(Self::Same) } else { text.parse().map(Self::Nodes) }
    }
}

/// The value of `-w`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Weighted {
    Auto,
    Nodes(Named),
    /// Weights of the program's own.
    Own(Given),
}

impl FromStr for Weighted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        if text.contains('=') {
            return text.parse().map(Self::Own);
        }
        let nodes: Result<Named, NodeSetError> = text.parse();
        nodes
            .map(Self::Nodes)
            .map_err(|error| format!("{error}, or auto, or weights as near=3,far=1"))
    }
}

/// Runs the program; returns only if a parent stays, or if the program was not started.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    before_command(prepare_and_run(args))
}

/// Errors before CMD runs have exit status 125, unless they have their own.
fn before_command<T>(result: anyhow::Result<T>) -> anyhow::Result<T> {
    result.map_err(|error| match error.downcast::<WithExit>() {
        Ok(WithExit { exit: Exit::Failed, error }) | Err(error) => {
            WithExit { exit: Exit::BeforeCommand, error }.into()
        }
        Ok(with) => with.into(),
    })
}

fn prepare_and_run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = args.machine.select().open()?;
    let live = args.machine.select().is_live();
    if !live && !args.dry_run {
        let error = anyhow::anyhow!(
            "--sysfs names another machine, on which no program can run; add --dry-run"
        );
        return Err(WithExit { exit: Exit::Usage, error }.into());
    }
    let (machine, _) = args.machine.select().read(fs.as_ref())?;
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
    if plan.heap.is_some() {
        mempolicy::permitted().context("--heap")?;
    }
    look_for(&args.command[0]).map_err(|error| not_started(args, error))?;
    let setter = Setter::new(fs.as_ref(), args.machine.select().root_dir());
    if !plan.stays {
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

/// Sets the planned weights, for the duration of the run or permanently.
fn set_weights(
    plan: &Plan,
    setter: &Setter<'_>,
    for_a_run: bool,
) -> anyhow::Result<Option<ForARun>> {
    match &plan.setting {
        Setting::None | Setting::Own(_) => Ok(None),
        Setting::Suits => Ok(if for_a_run { setter.rely() } else { None }),
        Setting::Set(weights) if for_a_run => {
            let (_, lease) = setter.for_a_run(weights)?;
            output::remark(format_args!("set the machine's weights to {weights} until CMD ends"));
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

/// Refuses a program that is not there, before anything is set for it. The order is that of execvp(3).
fn look_for(program: &OsStr) -> io::Result<()> {
    let may_run = |file: &Path| rustix::fs::access(file, Access::EXEC_OK).map_err(io::Error::from);
    if program.as_bytes().contains(&b'/') {
        return may_run(Path::new(program));
    }
    let mut refused = io::Error::from(rustix::io::Errno::NOENT);
    for dir in std::env::split_paths(&std::env::var_os("PATH").unwrap_or("/bin:/usr/bin".into())) {
        match may_run(&dir.join(program)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refused = error,
            Err(_) => {}
        }
    }
    Err(refused)
}

/// The reason why CMD was not started, with a shell's status for it.
fn not_started(args: &Args, error: io::Error) -> anyhow::Error {
    let name = args.command.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    let exit = Exit::of_start(&error);
    let what = if exit == Exit::NotFound { "was not found" } else { "can't be executed" };
    let error = anyhow::Error::from(error).context(format!("`{name}` {what}"));
    WithExit { exit, error }.into()
}

/// Resolves nodes, of which relative numbers count those in `allowed`; bad usage names the option.
fn resolve(
    option: &str,
    nodes: &NodeExpr,
    machine: &Topology,
    (cpus, allowed): (&[nearfar_topology::CpuId], Option<&NodeSet>),
) -> anyhow::Result<NodeSet> {
    let named = nodes.resolve_among(machine, cpus, allowed);
    named.map_err(|error| anyhow::anyhow!("{option}: {error}")).ends_with(Exit::Usage)
}
