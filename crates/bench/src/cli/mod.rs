//! `nearfar-bench`: benchmarks that print ratios, and the stream program that they run under each placement.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};
use nearfar_topology::{Bytes, Mix};

mod balance;
mod comparison;
mod cost;
mod heap;
mod tiering;
mod vm;
mod workload;

use crate::demo::guest::{self, Lab};
use crate::demo::machine;
use crate::{bandwidth, stream, verdict};
use nearfar_command::exit::{self, Exit};
use nearfar_command::number::whole;
use nearfar_command::{json, output};

/// Number of rounds, and of those in a smoke run, which is not judged.
const ROUNDS: u32 = 3;
/// File name of the result in a guest's /out.
const RESULT: &str = "bandwidth.json";

/// Measure the promises of nearfar, as ratios to named peers in one run.
#[derive(Debug, Parser)]
#[command(name = "nearfar-bench", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Bandwidth of -w auto against each node alone, 1:1 interleave and the kernel's weights, in the lab
    ///
    /// Exit status 1 if a threshold is not reached.
    Bandwidth(BandwidthArgs),
    /// Stream over plain memory: the program that the benchmark and the demo run under each placement
    ///
    /// It sets no memory policy, so run it under one: nearfar run -w auto -- nearfar-bench stream --mix 2:1
    Stream(StreamArgs),
    /// Compare tiering systems in the lab: the kernel's NUMA balancing, damo, memtierd and nearfar tier
    ///
    /// The same workloads on the same emulated machine and kernel, between DRAM only and no tiering: throughput over
    /// time, residency of the hot set, migrated pages and overhead. Exit status 1 if nearfar tier misses a threshold.
    Tiering(tiering::Args),
    /// Compare heaps in the lab: malloc by load of memory, by weights, and by use of memory
    ///
    /// A stand-in for inference (nearfar-load inference) under each, as ratios to near memory alone in one run. Exit
    /// status 1 if a threshold is not reached.
    Heap(heap::Args),
    /// Measure the memory of a virtual machine in the lab: DRAM, CXL memory as a node, and as a type-3 device; then Redis in
    /// DRAM, in CXL memory, and tiered
    ///
    /// Latency and bandwidth of each as a guest of the lab measures them, beside the figures published with the proposal
    /// of host-mem-type for QEMU.
    Vm(vm::Args),
    /// Compare traffic management in the lab: eight static placements, the kernel's NUMA balancing and nearfar balance
    ///
    /// Programs with a thread on each CPU under each: throughput after the warm-up, memory traffic, migrated pages and
    /// overhead. Exit status 1 if nearfar balance misses a threshold. --here needs root.
    Balance(balance::Args),
    /// Cost of tiering on a machine of any size: the daemon's CPU time and memory, and the interval of scans
    ///
    /// Simulated: the daemon runs on files of a scratch directory, and the kernel's part is a model.
    TieringCost(cost::Args),
    /// Run real programs larger than near memory, with throughput and residency over time: test cases for tiering
    ///
    /// Without a name: list the workloads. In the lab, each workload runs on the machine it is meant for.
    Workload(workload::Args),
}

#[derive(Debug, clap::Args)]
struct BandwidthArgs {
    /// The lab's machines, by name or file
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "cxl-2tier,hbm-dram-cxl",
        value_name = "NAME|FILE,..."
    )]
    machine: Vec<String>,
    /// The lab's kernel, by version or file; the default derives its own weights, for comparison
    #[arg(long, value_name = "VERSION|PATH", default_value = "7.2")]
    kernel: String,
    /// Run on this machine, not in the lab
    #[arg(long, conflicts_with_all = ["machine", "kernel"])]
    here: bool,
    /// Print JSON: for each machine, its figures and checks (schema nearfar.bench-bandwidth/1)
    #[arg(long)]
    json: bool,
    /// Also write that JSON to a file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// One round, not judged: only checks that it runs
    #[arg(long)]
    smoke: bool,
    /// Write the figures into this directory and nowhere else (used in the lab's guest)
    #[arg(long, value_name = "DIR", hide = true, requires = "here")]
    out: Option<PathBuf>,
    /// Show progress even if standard error is not a terminal
    #[arg(long, hide = true)]
    progress: bool,
}

#[derive(Debug, clap::Args)]
struct StreamArgs {
    /// Ratio of reads to writes in memory; no more writes than reads
    #[arg(long, default_value = "1:0", value_name = "R:W")]
    mix: Mix,
    /// Number of threads, one per CPU [default: all CPUs]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Size of the buffer, in MiB [default: larger than the caches, at least 64]
    #[arg(long, value_name = "MIB", value_parser = whole::<u64>(1..=1 << 24))]
    size_mib: Option<u64>,
    /// Print JSON (schema nearfar.stream/1)
    #[arg(long)]
    json: bool,
}

/// The definition of the command line, for man pages.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// The command: its arguments and its exit status are the process's.
#[must_use]
pub fn main() -> ExitCode {
    output::set_program("nearfar-bench");
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refused) => {
            let _ = refused.print();
            return if refused.use_stderr() { Exit::Usage } else { Exit::Done }.into();
        }
    };
    match run(&cli.bench) {
        Ok(code) => code,
        Err(error) => {
            output::note(exit::text(&error));
            exit::of_error(&error).into()
        }
    }
}

/// Runs a benchmark.
fn run(bench: &Bench) -> anyhow::Result<ExitCode> {
    match bench {
        Bench::Bandwidth(args) => bandwidth(args),
        Bench::Stream(args) => stream(args),
        Bench::Heap(args) => heap::run(args),
        Bench::Vm(args) => vm::run(args),
        Bench::Balance(args) => balance::run(args),
        Bench::Tiering(args) => tiering::run(args),
        Bench::TieringCost(args) => cost::run(args),
        Bench::Workload(args) => workload::run(args),
    }
}

fn stream(args: &StreamArgs) -> anyhow::Result<ExitCode> {
    let size = args.size_mib.map(|mib| Bytes(mib << 20));
    let request = nearfar_probe::inherited::Request { mix: args.mix, threads: args.threads, size };
    let found = stream::run(request)?;
    if args.json {
        output::print_json(&found)?;
    } else {
        output::print(&stream::text(&found))?;
    }
    Ok(Exit::Done.into())
}

fn bandwidth(args: &BandwidthArgs) -> anyhow::Result<ExitCode> {
    let rounds = if args.smoke { 1 } else { ROUNDS };
    if let Some(out) = &args.out {
        let found = bandwidth::run(machine::read()?, rounds, out, args.progress)?;
        guest::hand_over(out, RESULT, &found)?;
        return Ok(Exit::Done.into());
    }
    let results = if args.here { vec![here(args, rounds)?] } else { in_the_lab(args)? };
    let mut reached = true;
    let mut documents = Vec::new();
    for found in &results {
        let checks = verdict::checks(found);
        if !args.json {
            output::print(&bandwidth::text(found))?;
            output::print(&match args.smoke {
                true => "  smoke run: one round, thresholds not judged\n".into(),
                false => verdict::text(&checks),
            })?;
        }
        reached &= args.smoke || checks.iter().all(|check| check.reached);
        documents.push(verdict::Document { found, checks });
    }
    let json = json::text(&documents).context("writing figures as JSON")? + "\n";
    if args.json {
        output::print(&json)?;
    }
    if let Some(path) = &args.save {
        std::fs::write(path, json).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(if reached { Exit::Done } else { Exit::Failed }.into())
}

fn here(args: &BandwidthArgs, rounds: u32) -> anyhow::Result<bandwidth::Found> {
    let dir = scratch()?;
    bandwidth::run(machine::read()?, rounds, dir.path(), args.progress)
}

/// One boot per machine.
fn in_the_lab(args: &BandwidthArgs) -> anyhow::Result<Vec<bandwidth::Found>> {
    let mut results = Vec::new();
    for machine in &args.machine {
        let dir = scratch()?;
        let lab = Lab {
            machine: Some(machine.clone()),
            kernel: Some(args.kernel.clone()),
            ..Lab::default()
        };
        let mut arguments: Vec<String> =
            ["bandwidth", "--here", "--out", guest::OUT].map(Into::into).into();
        arguments.extend(args.smoke.then(|| "--smoke".into()));
        let progress = args.progress || std::io::stderr().is_terminal();
        arguments.extend(progress.then(|| "--progress".into()));
        let found = lab.result(&arguments, dir.path(), RESULT);
        results.push(found.with_context(|| format!("the figures of machine {machine}"))?);
    }
    Ok(results)
}

fn scratch() -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("nearfar-bench-")
        .tempdir()
        .context("creating a temporary directory for the programs' output")
}
