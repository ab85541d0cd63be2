//! The command line: one definition, from which help, man pages and completions come.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod background;
mod balance;
mod bench;
mod cache;
mod daemon;
mod demo;
mod doctor;
mod generate;
mod lab;
pub(crate) mod machine;
pub(crate) mod output;
mod probe;
mod record;
mod report;
mod run;
mod sense;
mod sim;
mod tier;
mod topo;
mod weights;

/// Near and far memory for Linux: find it, measure it, place data over it.
#[derive(Debug, Parser)]
#[command(name = "nearfar", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

// One line a command, in the order of the help; each module has `Args` and `run(Args) -> Result<ExitCode>`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Show nodes, kinds of memory, tiers, CXL regions and devices, firmware's figures
    Topo(topo::Args),
    /// Tell what this kernel and machine can do, what is missing and how to get it
    Doctor(doctor::Args),
    /// Measure idle latency, bandwidth and loaded latency of every CPU node and memory node
    Probe(probe::Args),
    /// Weights that use several nodes' bandwidth to its measure: show them, set them, put the old ones back
    Weights(weights::Args),
    /// Run a program with its memory and CPUs where you say, as numactl does, but by kind of memory too
    Run(run::Args),
    /// Record which memory is accessed how often, and where it is, over time
    Record(record::Args),
    /// Show what a record of memory accesses says: heatmap, working set, temperature, residency
    Report(report::Args),
    /// Move used pages to near memory and unused ones to far memory, for programs that need no change
    Tier(tier::Args),
    /// Spread memory traffic over controllers and links, pages towards those who use them, for programs that need no change
    Balance(balance::Args),
    /// Show what sensors of memory traffic see: where accesses come from and go to, what a load takes
    Sense(sense::Args),
    /// Measure how busy each node's memory is and say so to allocators, as a service
    Daemon(daemon::Args),
    /// Serve a cache over near and far memory by memcached's protocol
    Cache(cache::Args),
    /// Run commands on an emulated machine with near and far memory, under a real kernel
    Lab(lab::Args),
    /// Simulate memory traffic: placements side by side on machines that are not there
    Sim(sim::Args),
    /// Show what near and far memory do for unmodified programs, here or in the lab
    Demo(demo::Args),
    /// Measure what the project promises, as ratios in one run
    Bench(bench::Args),
    /// Print a completion script for a shell
    Completions(generate::CompletionsArgs),
    /// Write the man pages into a directory
    Man(generate::ManArgs),
}

impl Cli {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Topo(args) => topo::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Probe(args) => probe::run(&args),
            Command::Record(args) => record::run(&args),
            Command::Report(args) => report::run(&args),
            Command::Lab(args) => lab::run(args),
            Command::Weights(args) => weights::run(&args),
            Command::Run(args) => run::run(&args),
            Command::Tier(args) => tier::run(&args),
            Command::Balance(args) => balance::run(&args),
            Command::Sense(args) => sense::run(&args),
            Command::Daemon(args) => daemon::run(&args),
            Command::Cache(args) => cache::run(&args),
            Command::Sim(args) => sim::run(&args),
            Command::Demo(args) => demo::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Completions(args) => generate::completions(&args),
            Command::Man(args) => generate::man(&args),
        }
    }
}
