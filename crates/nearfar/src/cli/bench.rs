//! `nearfar bench`: benchmarks that print ratios, and the program they run.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use nearfar_topology::{Bytes, Mix};

mod balance;
mod cost;
mod heap;
mod tiering;
mod workload;

use super::output;
use crate::bench::{bandwidth, stream, verdict};
use crate::demo::guest::{self, Lab};
use crate::demo::machine;
use crate::exit::Exit;

/// Rounds of the benchmark, and of a smoke run, which is not judged.
const ROUNDS: u32 = 3;
/// The result in a guest's /out.
const RESULT: &str = "bandwidth.json";

/// As typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Bandwidth of -w auto against each node alone, 1:1 interleave and the kernel's weights, in the lab
    ///
    /// Exit status 1 if a threshold is not reached.
    Bandwidth(BandwidthArgs),
    /// Stream over plain memory: the program whose placement the benchmark and the demo compare
    ///
    /// It sets no memory policy, so run it under one: nearfar run -w auto -- nearfar bench stream --mix 2:1
    Stream(StreamArgs),
    /// Tiering systems side by side in the lab: the kernel's NUMA balancing, damo, memtierd and nearfar tier
    ///
    /// The same workloads on the same emulated machine and kernel, between DRAM only and no tiering: throughput over time, where
    /// the hot set is, pages moved and what that took. Exit status 1 if something that nearfar tier must reach is not.
    Tiering(tiering::Args),
    /// Heaps side by side in the lab: malloc by how busy memory is, by weights, and by what memory is for
    ///
    /// A stand-in for inference (nearfar-load inference) under each, as ratios to near memory alone in one run. Exit status 1 if
    /// something that is to be reached is not.
    Heap(heap::Args),
    /// Traffic management side by side in the lab: eight static placements, the kernel's NUMA balancing and nearfar balance
    ///
    /// Programs with a thread on each CPU under each: throughput once settled, where memory was asked for, pages moved and
    /// what that took. Exit status 1 if something that nearfar balance must reach is not.
    Balance(balance::Args),
    /// What tiering costs on a machine of any size: the daemon's CPU time and memory, and how far apart looks come
    ///
    /// Simulated: the daemon runs over files of a scratch directory, and the kernel's part is a model.
    TieringCost(cost::Args),
    /// Real programs larger than near memory, with throughput and residency over time: what tiering is tried with
    ///
    /// Without a name: the workloads there are. In the lab, each workload runs on the machine it is meant for.
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
    /// The lab's kernel, by version or file; the default derives weights of its own to compare with
    #[arg(long, value_name = "VERSION|PATH", default_value = "7.2")]
    kernel: String,
    /// Run on this machine, not in the lab
    #[arg(long, conflicts_with_all = ["machine", "kernel"])]
    here: bool,
    /// Write the figures and checks as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// One round, not judged: only whether it runs
    #[arg(long)]
    smoke: bool,
    /// Write the figures into this directory, and nothing else (how the lab's guest hands them over)
    #[arg(long, value_name = "DIR", hide = true, requires = "here")]
    out: Option<PathBuf>,
    /// Show progress even where standard error is no terminal
    #[arg(long, hide = true)]
    progress: bool,
}

#[derive(Debug, clap::Args)]
struct StreamArgs {
    /// Reads to writes, as memory sees them; no more writes than reads
    #[arg(long, default_value = "1:0", value_name = "R:W")]
    mix: Mix,
    /// Threads, one a CPU [default: all CPUs]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Size of the buffer, in MiB [default: outgrows the caches, at least 64]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    size_mib: Option<u64>,
    /// Print JSON (schema nearfar.stream/1)
    #[arg(long)]
    json: bool,
}

/// Runs a benchmark.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.bench {
        Bench::Bandwidth(args) => bandwidth(args),
        Bench::Stream(args) => stream(args),
        Bench::Heap(args) => heap::run(args),
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
        output::print(&bandwidth::text(found))?;
        if args.smoke {
            output::print("  smoke run: one round, thresholds not judged\n")?;
        } else {
            output::print(&verdict::text(&checks))?;
            reached &= checks.iter().all(|check| check.reached);
        }
        documents.push(verdict::Document { found, checks });
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&documents).context("writing figures as JSON")?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(if reached { Exit::Done } else { Exit::Failed }.into())
}

fn here(args: &BandwidthArgs, rounds: u32) -> anyhow::Result<bandwidth::Found> {
    let dir = scratch()?;
    bandwidth::run(machine::read()?, rounds, dir.path(), args.progress)
}

/// One boot a machine.
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
            ["bench", "bandwidth", "--here", "--out", guest::OUT].map(Into::into).into();
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
