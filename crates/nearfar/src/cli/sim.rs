//! `nearfar sim`: memory traffic of machines that are not there. Everything it says is simulated.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use nearfar_sim::policy::Policy;
use nearfar_sim::{compare, published, workload};

use super::output;
use crate::exit::{EndsWith as _, Exit};
use crate::report::sim::{Document, Validation, page, text};
use crate::simulate;

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
    /// Put the model beside published figures; exit status 1 if one is out of bounds
    Validate(ShowArgs),
    /// Show machines, workloads and policies
    List(ShowArgs),
}

#[derive(Debug, clap::Args)]
struct CompareArgs {
    /// A machine by name, or the path of a machine file that has a [traffic] table
    #[arg(long, default_value = simulate::FOUR_NODES)]
    machine: String,
    /// A workload by name
    #[arg(long, default_value = workload::NAMES[0].0)]
    workload: String,
    /// Policies by name, with commas between
    #[arg(long, value_delimiter = ',', required = true, value_name = "POLICY,...")]
    policies: Vec<Policy>,
    /// What chance decides: the same number, the same result
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON (schema nearfar.sim/1)
    #[arg(long)]
    json: bool,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Simulates.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Sim::Compare(args) => side_by_side(args),
        Sim::Validate(args) => validate(args),
        Sim::List(args) => list(args),
    }
}

fn side_by_side(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.html {
        super::demo::writable(file)?;
    }
    let machine = simulate::machine(&args.machine).ends_with(Exit::Usage)?;
    let workload = workload::find(&args.workload, &machine).ends_with(Exit::Usage)?;
    let found = compare(&machine, &workload, &args.policies, args.seed);
    let document = Document::of(&machine, &workload, args.seed, &found);
    if let Some(file) = &args.html {
        super::demo::write(file, &page::html(&document))?;
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
