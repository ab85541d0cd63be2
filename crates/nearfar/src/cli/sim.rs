//! `nearfar sim`: simulates memory traffic of modelled machines. All its figures are simulated.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use nearfar_sim::machine::Machine;
use nearfar_sim::policy::Policy;
use nearfar_sim::published::colloid;
use nearfar_sim::{Unable, Workload, compare, workload};

use nearfar_bench::pages::sim::validation::Validation;
use nearfar_bench::pages::sim::{Document, page, text};
use nearfar_bench::simulate::{self, antagonist::Wanted};
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::{new_file, output};

mod fleet;
mod tiers;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Sim,
}

#[derive(Debug, Subcommand)]
enum Sim {
    /// Compare policies on one workload
    Compare(CompareArgs),
    /// Two tiers with contention for the near one: controllers over time, against the optimal placement
    Tiers(tiers::Args),
    /// A day of many hosts of 1 TiB, by sampling: the gain of page migration over them, and hosts that become slower
    Fleet(fleet::Args),
    /// Compare the model with published figures; exit status 1 if one is out of bounds
    Validate(ShowArgs),
    /// Show machines, workloads and policies
    List(ShowArgs),
}

#[derive(Debug, clap::Args)]
struct CompareArgs {
    /// Machine: a name, or the path of a machine file with a table `traffic`
    #[arg(long, value_name = "NAME|FILE", default_value = simulate::FOUR_NODES)]
    machine: String,
    /// Workload: a name, or the path of a workload file (docs/sim.md, Workload files)
    #[arg(long, default_value = workload::NAMES[0].0, value_name = "NAME|FILE")]
    workload: String,
    /// Policies by name, separated by commas; nearfar sim list shows them
    #[arg(long, value_delimiter = ',', required = true, value_name = "POLICY,...")]
    policies: Vec<Policy>,
    /// Load of other programs on near memory, for workloads with contention: 1 is five cores
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = contention)]
    contention: f64,
    /// Reads of a node's memory by other programs, in GB/s or in per cent of its read bandwidth; may be repeated
    #[arg(long, value_name = "NODE=GBPS|PERCENT%")]
    antagonist: Vec<Wanted>,
    /// Seed of random numbers; the same seed gives the same result
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON (schema nearfar.sim/1)
    #[arg(long)]
    json: bool,
    /// Write an HTML page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the charts as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Refuses policies that only place pages, and have no results over time.
fn over_time(option: &str, policies: &[Policy]) -> anyhow::Result<()> {
    let places = |policy: &&Policy| policy.controller().is_none() && **policy != Policy::FirstTouch;
    let Some(policy) = policies.iter().find(places) else { return Ok(()) };
    let name = policy.name();
    Err(anyhow::anyhow!(
        "{option} {name}: it does not migrate pages; use one that does: colloid, balanced, carrefour"
    ))
    .ends_with(Exit::Usage)
}

fn contention(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "allowed is 0 to 100".to_owned())
}

/// Simulates.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Sim::Compare(args) => side_by_side(args),
        Sim::Tiers(args) => tiers::run(args),
        Sim::Fleet(args) => fleet::run(args),
        Sim::Validate(args) => validate(args),
        Sim::List(args) => list(args),
    }
}

fn side_by_side(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    new_file::check(args.html.iter().chain(&args.svg))?;
    let machine = simulate::machine(&args.machine).ends_with(Exit::Usage)?;
    let workload = loaded(args, &machine).ends_with(Exit::Usage)?;
    let found = match compare(&machine, &workload, &args.policies, args.seed) {
        Err(error @ Unable::Controller(_)) => return Err(error.into()),
        found => found.ends_with(Exit::Usage)?,
    };
    let document = Document::of((&machine, &workload), args.seed, args.contention, &found);
    if let Some(file) = &args.html {
        new_file::write(file, &page::html(&document))?;
    }
    if let Some(file) = &args.svg {
        new_file::write(file, &page::svg(&document))?;
    }
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&text::compared(&document))?;
    }
    Ok(Exit::Done.into())
}

/// The workload, with the traffic of others.
fn loaded(args: &CompareArgs, machine: &Machine) -> anyhow::Result<Workload> {
    let mut workload = simulate::file::find(&args.workload, machine)?;
    let is_built_in = !simulate::file::is_path(&args.workload);
    if args.contention > 0.0 && !(is_built_in && workload.name == "hot-set") {
        anyhow::bail!(
            "--contention {}: workload {} has no contention; hot-set has, and --antagonist is for any workload",
            args.contention,
            workload.name
        );
    }
    if is_built_in {
        workload = workload.contended(args.contention * colloid::CONTENDING_LINES);
    }
    for wanted in &args.antagonist {
        workload.antagonists.push(wanted.on(None, machine)?);
    }
    Ok(workload)
}

fn validate(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let validation =
        Validation::of(&simulate::machine(simulate::FOUR_NODES)?, &simulate::measured()?)?;
    if args.json {
        output::print_json(&validation)?;
    } else {
        output::print(&validation.text())?;
    }
    Ok(if validation.within() { Exit::Done } else { Exit::Failed }.into())
}

fn list(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let list = nearfar_bench::pages::sim::List::of(&simulate::machines()?);
    if args.json {
        output::print_json(&list)?;
    } else {
        output::print(&text::list(&list))?;
    }
    Ok(Exit::Done.into())
}
