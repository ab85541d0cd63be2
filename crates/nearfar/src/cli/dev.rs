//! `nearfar dev`: checks of the emulation and of the simulator, for those who change them.

use std::process::ExitCode;

use clap::Subcommand;
use nearfar_lab::cli::Check;

use super::lab;

mod sim_bench;
mod sim_lab;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Dev,
}

#[derive(Debug, Subcommand)]
enum Dev {
    #[command(flatten)]
    Lab(Check),
    /// Stream accesses page by page: simulated accesses per second, and their results
    SimBench(sim_bench::Args),
    /// Compare the model with lab results of nearfar-bench balance; exit status 1 if a figure is out of bounds
    SimLab(sim_lab::Args),
}

/// Checks.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Dev::Lab(check) => lab::check(check),
        Dev::SimBench(args) => sim_bench::run(args),
        Dev::SimLab(args) => sim_lab::run(args),
    }
}
