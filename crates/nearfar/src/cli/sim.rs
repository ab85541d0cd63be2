//! `nearfar sim`: memory traffic of machines that are not there. Everything it says is simulated.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use nearfar_sim::policy::Policy;
use nearfar_sim::published::colloid;
use nearfar_sim::{compare, published, workload};

use super::output;
use crate::exit::{EndsWith as _, Exit};
use crate::report::sim::{Document, Validation, page, text};
use crate::simulate;

mod bench;
mod fleet;
mod lab;
mod tiers;

/// As typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Sim,
}

#[derive(Debug, Subcommand)]
enum Sim {
    /// Run a workload under several policies, side by side
    Compare(CompareArgs),
    /// Two tiers while others contend for the near one: controllers over time, against the best placement there is
    Tiers(tiers::Args),
    /// A day of many hosts of 1 TiB, by sampling: what moving pages gains over them, and whether any is worse off
    Fleet(fleet::Args),
    /// Stream accesses page by page: how many a second can be simulated, and what comes of them
    Bench(bench::Args),
    /// Put the model beside published figures; exit status 1 if one is out of bounds
    Validate(ShowArgs),
    /// Put the model beside what nearfar bench balance found in the lab; exit status 1 if a figure is out of bounds
    Lab(lab::Args),
    /// Show machines, workloads and policies
    List(ShowArgs),
}

#[derive(Debug, clap::Args)]
struct CompareArgs {
    /// A machine by name, or the path of a machine file that has a table `traffic`
    #[arg(long, default_value = simulate::FOUR_NODES)]
    machine: String,
    /// A workload by name
    #[arg(long, default_value = workload::NAMES[0].0)]
    workload: String,
    /// Policies by name, with commas between
    #[arg(long, value_delimiter = ',', required = true, value_name = "POLICY,...")]
    policies: Vec<Policy>,
    /// How much others ask of near memory, for workloads that know such others: 1 is five cores
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = contention)]
    contention: f64,
    /// What chance decides: the same number, the same result
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON (schema nearfar.sim/1)
    #[arg(long)]
    json: bool,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the charts as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
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
        Sim::Bench(args) => bench::run(args),
        Sim::Validate(args) => validate(args),
        Sim::Lab(args) => lab::run(args),
        Sim::List(args) => list(args),
    }
}

fn side_by_side(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    for file in [&args.html, &args.svg].into_iter().flatten() {
        super::demo::writable(file)?;
    }
    let machine = simulate::machine(&args.machine).ends_with(Exit::Usage)?;
    let workload = workload::find(&args.workload, &machine).ends_with(Exit::Usage)?;
    if args.contention > 0.0 && workload.antagonists.is_empty() {
        let error = anyhow::anyhow!(
            "--contention {}: workload {} has nobody who contends; hot-set has",
            args.contention,
            workload.name
        );
        return Err(error).ends_with(Exit::Usage);
    }
    let workload = workload.contended(args.contention * colloid::CONTENDING_LINES);
    let found = compare(&machine, &workload, &args.policies, args.seed).ends_with(Exit::Usage)?;
    let document = Document::of((&machine, &workload), args.seed, args.contention, &found);
    if let Some(file) = &args.html {
        super::demo::write(file, &page::html(&document))?;
    }
    if let Some(file) = &args.svg {
        super::demo::write(file, &page::svg(&document))?;
    }
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&text::compared(&document))?;
    }
    Ok(Exit::Done.into())
}

fn validate(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let validation = Validation::of(&published::rows(&simulate::machine(simulate::FOUR_NODES)?));
    if args.json {
        output::print_json(&validation)?;
    } else {
        output::print(&text::validation(&validation))?;
    }
    Ok(if validation.within() { Exit::Done } else { Exit::Failed }.into())
}

fn list(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let list = crate::report::sim::List::of(&simulate::machines()?);
    if args.json {
        output::print_json(&list)?;
    } else {
        output::print(&text::list(&list))?;
    }
    Ok(Exit::Done.into())
}
