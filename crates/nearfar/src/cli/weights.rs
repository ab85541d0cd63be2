//! `nearfar weights`: computes weights for weighted interleave from bandwidths, compares them with 1:1 and the
//! kernel's, sets them and restores the previous ones.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::journal::{OnConflict, Recorded};
use nearfar_kernel::weights::{self, Current, WeightsError};
use nearfar_policy::{Unweighable, Weights};
use nearfar_topology::{Mix, NodeExpr, NodeSet, Topology};

use super::machine::MachineArgs;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::output;
use nearfar_command::weighing::given::Given;
use nearfar_command::weighing::set::Setter;
use nearfar_command::weighing::source::{self, From, Wanted};
use nearfar_command::weighing::{Figures, MIX, Outcome, refuse_one};

mod json;
mod text;

/// Arguments of `nearfar weights`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = FILE_HELP)]
pub(crate) struct Args {
    /// These weights in place of computed ones, as 0=3,1=1 or near=3,far=1: pages a round for each node
    #[arg(value_name = "NODES=WEIGHT,...", conflicts_with_all = ["nodes", "restore"])]
    given: Option<Given>,
    /// Source of bandwidths: `probe` (saved by nearfar probe), `hmat` (firmware), `kernel` (no bandwidths: its current
    /// weights), or a FILE [default: probe if one of this machine is saved, else hmat]
    #[arg(long, value_name = "probe|hmat|kernel|FILE")]
    from: Option<From>,
    /// The program's ratio of reads to writes
    #[arg(long, value_name = "R:W", default_value_t = MIX)]
    mix: Mix,
    /// Nodes to interleave over
    #[arg(long, value_name = "NODES", default_value = "all")]
    nodes: NodeExpr,
    /// Bandwidths as seen by the CPUs of these nodes [default: each node as seen by its best CPUs]
    #[arg(short = 'N', long, value_name = "NODES")]
    cpunodebind: Option<NodeExpr>,
    /// Set the weights, for the whole machine and until --restore or a restart; programs use them that have a policy of
    /// weighted interleave (nearfar run -w all); needs root
    #[arg(long, group = "change")]
    apply: bool,
    /// Restore the weights from before nearfar set them
    #[arg(long, group = "change", conflicts_with_all = ["from", "mix", "nodes", "cpunodebind"])]
    restore: bool,
    /// With --restore: also overwrite weights that another process has changed since
    #[arg(long, requires = "restore")]
    overwrite: bool,
    /// With --apply or --restore: only print the values that would be written
    #[arg(long, requires = "change")]
    dry_run: bool,
    /// Print JSON (schema nearfar.weights/2)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

const FILE_HELP: &str = "\
FILE is a report of `nearfar probe`, or JSON such as
  {\"schema\": \"nearfar.bandwidth/1\", \"nodes\": [
    {\"id\": 0, \"read_bytes_per_second\": 40000000000, \"write_bytes_per_second\": 30000000000},
    {\"id\": 1, \"mixes\": [{\"mix\": \"1:0\", \"bytes_per_second\": 27000000000},
                        {\"mix\": \"1:1\", \"bytes_per_second\": 40000000000}]}]}

The weights are the smallest whole numbers, at most 64 pages a round, that lose at most 2 % of the sum of all nodes' \
bandwidths. They help programs that need more bandwidth than near memory has; other programs only get slower pages.";

/// The complete output, resolved against the machine.
#[derive(Debug)]
struct Plan<'a> {
    machine: &'a Topology,
    nodes: NodeSet,
    mix: Mix,
    /// Whether the user gave the weights.
    is_given: bool,
    /// `None` if the kernel's own weights were requested, and for given ones if no bandwidths are known.
    figures: Option<Figures>,
    /// The proposed weights.
    weights: Weights,
    /// The kernel's weights; `None` without weighted interleave.
    current: Option<Current>,
    pending: Vec<Recorded>,
}

impl Plan<'_> {
    fn chosen(&self) -> Option<Outcome> {
        self.figures.as_ref()?.outcome(self.weights.clone())
    }

    fn even(&self) -> Option<Outcome> {
        self.figures.as_ref()?.even()
    }

    fn kernel(&self) -> Option<Outcome> {
        self.figures.as_ref()?.kernel(self.current.as_ref()?)
    }

    /// The near ones of the nodes.
    fn near(&self) -> NodeSet {
        let near = self.machine.near();
        self.nodes.iter().filter(|node| near.contains(*node)).collect()
    }

    /// The bandwidth of the near nodes alone.
    fn near_alone(&self) -> Option<nearfar_topology::BytesPerSecond> {
        let near = self.near();
        let some_are_far = near.len() < self.nodes.len() && !near.is_empty();
        self.figures.as_ref().filter(|_| some_are_far).map(|figures| figures.sum(near.iter()))
    }
}

/// Shows, sets or restores weights.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fs = args.machine.select().open()?;
    let setter = Setter::new(fs.as_ref(), args.machine.select().root_dir());
    if args.restore {
        return restore(args, &setter);
    }
    let (machine, _) = args.machine.select().read(fs.as_ref())?;
    let plan = plan(args, &machine, fs.as_ref(), &setter)?;
    let writes = if args.apply { apply(args, &plan, &setter)? } else { Vec::new() };
    if args.json {
        output::print_json(&json::Report::of(&plan, &writes, args.apply && !args.dry_run))?;
    } else {
        output::print(&text::of(&plan, args.apply))?;
        if args.apply {
            output::print("\n")?;
            output::print(&text::written(&writes, args.dry_run))?;
            if !args.dry_run {
                output::print("Programs use them with: nearfar run -w all -- CMD\n")?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn plan<'a>(
    args: &Args,
    machine: &'a Topology,
    fs: &dyn Fs,
    setter: &Setter<'_>,
) -> anyhow::Result<Plan<'a>> {
    let cpu_nodes =
        args.cpunodebind.as_ref().map(|of| super::run::cpu_nodes(of, machine)).transpose()?;
    let cpus = cpu_nodes.as_ref().map(|of| super::run::cpus_of(of, machine)).unwrap_or_default();
    let cpus: Vec<_> = cpus.into_iter().collect();
    let given =
        args.given.as_ref().map(|given| given.resolve(machine, (&cpus, None))).transpose()?;
    let nodes = match &given {
        Some(weights) => weights.iter().map(|(node, _)| node).collect(),
        None => args.nodes.resolve(machine, &cpus).context("--nodes").ends_with(Exit::Usage)?,
    };
    let current = match weights::read(fs) {
        Ok(current) => Some(current),
        Err(WeightsError::Unsupported) if !args.apply && args.from != Some(From::Kernel) => None,
        Err(error) => return Err(error.into()),
    };
    let wanted = Wanted { machine, nodes: &nodes, cpu_nodes: cpu_nodes.as_ref(), mix: args.mix };
    let is_given = given.is_some();
    let (mut figures, weights) = if let Some(weights) = given {
        let figures = source::figures(args.from.as_ref(), wanted);
        (if args.from.is_some() { Some(figures?) } else { figures.ok() }, weights)
    } else if args.from == Some(From::Kernel) {
        let current = current.as_ref().and_then(|current| current.over(nodes.iter()));
        (
            None,
            current
                .with_context(|| format!("the kernel has no weights for all of nodes {nodes}"))?,
        )
    } else {
        if !matches!(args.from, Some(From::File(_))) {
            refuse_one(&nodes)?;
        }
        let figures = source::figures(args.from.as_ref(), wanted)?;
        if let Some(why) = figures.about_links() {
            output::note(why);
        }
        let best =
            figures.best().map_err(|error| unweighable(&error, &nodes)).ends_with(Exit::Failed)?;
        (Some(figures), best.weights)
    };
    // Firmware does not say whether it is the lab's.
    let firmware = figures.as_mut().filter(|figures| figures.source == "hmat");
    if let Some(figures) = firmware {
        figures.emulated = Some(args.machine.select().lab(fs).is_some());
    }
    let pending = setter.pending().unwrap_or_default();
    Ok(Plan { machine, nodes, mix: args.mix, is_given, figures, weights, current, pending })
}

/// Adds to the error the command that leaves the node out.
fn unweighable(error: &Unweighable, nodes: &NodeSet) -> anyhow::Error {
    if let Unweighable::Hinders { node, .. } = error {
        let rest: NodeSet = nodes.iter().filter(|id| id != node).collect();
        return anyhow::anyhow!("weights for {}: {error} with --nodes {rest}", nodes.named());
    }
    anyhow::anyhow!("weights for {}: {error}", nodes.named())
}

/// Sets the weights; returns the values written, or under `--dry-run` those that would be.
fn apply(args: &Args, plan: &Plan<'_>, setter: &Setter<'_>) -> anyhow::Result<Vec<Recorded>> {
    if !args.dry_run {
        return setter.keep(&plan.weights);
    }
    let current = plan.current.as_ref().context("the kernel has no weights")?;
    let old = |path: &str| {
        let node = path.rsplit_once("/node").and_then(|(_, id)| id.parse().ok());
        let weight = node.and_then(|id| current.nodes.get(&nearfar_topology::NodeId(id)));
        weight.map_or_else(|| "true".into(), u8::to_string)
    };
    let changes = weights::changes(current, &plan.weights)?;
    Ok(changes
        .into_iter()
        .map(|change| Recorded { old: old(&change.path), path: change.path, new: change.new })
        .collect())
}

fn restore(args: &Args, setter: &Setter<'_>) -> anyhow::Result<ExitCode> {
    let on_conflict = if args.overwrite { OnConflict::Overwrite } else { OnConflict::Refuse };
    let (report, what) = match args.dry_run {
        true => (setter.planned(on_conflict)?, "the weights would be left unchanged"),
        false => (setter.restore(on_conflict)?, "the weights were left unchanged"),
    };
    if args.json {
        output::print_json(&json::Restoring::of(&report, !args.dry_run))?;
    } else {
        output::print(&text::restored(&report, args.dry_run))?;
    }
    output::refuse_conflicts(&report, what, "--restore --overwrite")?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the kernel's weights differ from these and can be set.
fn to_be_set(plan: &Plan<'_>) -> bool {
    let changes = plan.current.as_ref().map(|current| weights::changes(current, &plan.weights));
    changes.is_some_and(|changes| changes.is_ok_and(|changes| !changes.is_empty()))
}

/// The path of a file for messages.
fn shown(path: &str) -> PathBuf {
    PathBuf::from("/").join(path)
}
