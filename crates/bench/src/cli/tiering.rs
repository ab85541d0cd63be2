//! `nearfar-bench tiering`: compares tiering systems in the lab.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use nearfar_lab::fetch::Cache;

use super::comparison::Output;
use super::scratch;
use crate::pages::tiering::{Document, page, picture, text};
use crate::saved::kept;
use crate::tiering::rows::{Programs, Row};
use crate::tiering::{self, Options};
use nearfar_command::exit::Exit;
use nearfar_command::number::{percent, whole};
use nearfar_command::{new_file, output};

/// Length of a phase and its warm-up part; and the same for a smoke run.
const PHASE: [u64; 2] = [80, 60];
const SMOKE: [u64; 2] = [8, 4];
/// Default workloads, and those of a smoke run.
const WORKLOADS: [&str; 4] = ["redis-c", "gups-moving", "scan", "fits"];
const SMOKE_WORKLOADS: [&str; 2] = ["gups-moving", "scan"];
const SMOKE_ROWS: [Row; 4] = [Row::Dram, Row::None, Row::Balancing, Row::Nearfar];

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Workloads, by built-in name or file (nearfar-bench workload lists them) [default: redis-c,gups-moving,scan,fits,
    /// or gups-moving,scan with --smoke]
    #[arg(long, value_delimiter = ',', value_name = "NAME|FILE,...")]
    workload: Vec<String>,
    /// Rows to run [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROW,...")]
    rows: Vec<Row>,
    /// The lab's machine, by name or file [default: each workload's]
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// The same machine with enough near memory for everything, for the row of DRAM only [default: cxl-2tier-ample for
    /// cxl-2tier-small]
    #[arg(long, value_name = "NAME|FILE")]
    ample: Option<String>,
    /// The lab's kernel, by version or file
    #[arg(long, value_name = "VERSION|PATH")]
    kernel: Option<String>,
    /// Run time of a program with one hot set; doubled where it moves [default: 80, or 8 with --smoke]
    #[arg(long, value_name = "S", value_parser = whole::<u64>(1..=100_000))]
    seconds: Option<u64>,
    /// Warm-up part of that, not judged, from the start and from each move [default: 60, or 4 with --smoke]
    #[arg(long, value_name = "S", value_parser = whole::<u64>(0..=100_000))]
    warm_up: Option<u64>,
    /// Percentage of every 10 ms in which programs work; throughput is relative to that time [default: by workload, to
    /// keep emulation short]
    #[arg(long, value_name = "PERCENT", value_parser = percent::<u64>(1..=100))]
    busy_percent: Option<u64>,
    /// Interval in milliseconds at which another process gets the programs' CPU, so that it drops translations as real
    /// ones do, in addition to the machine's own interval (`translations_ms` of its file); 0: none
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = whole::<u64>(0..=1000))]
    switch_ms: u64,
    /// Concurrent guests, each with up to two busy threads; more busy threads than CPUs make the figures noisy
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole::<u64>(1..=64))]
    jobs: u64,
    /// Boots of each row, all rows before any is repeated; medians count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(1..=99))]
    boots: u64,
    /// The directory into which pip installed damo [default: peers/damo in the cache, as by scripts/setup]
    #[arg(long, value_name = "DIR")]
    damo: Option<PathBuf>,
    /// A memtierd binary; without it, its row is skipped
    #[arg(long, value_name = "PATH")]
    memtierd: Option<PathBuf>,
    /// Short smoke run, not judged: gups-moving and scan, DRAM only, no tiering, NUMA balancing and nearfar
    #[arg(long)]
    smoke: bool,
    /// Print the plan without running it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
    /// Write an SVG picture of the first workload
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Show a saved result instead of running anything
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "save"])]
    result: Option<PathBuf>,
}

/// Runs it; exit status 1 if a threshold is not reached.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    new_file::check(args.output.files().chain(&args.svg))?;
    let found = match &args.result {
        Some(file) => kept(file)?,
        None => {
            let plan = tiering::plan(options(args)?)?;
            if args.dry_run {
                output::print(&plan.text())?;
                return Ok(Exit::Done.into());
            }
            let dir = scratch()?;
            plan.run(dir.path())?
        }
    };
    let document = Document::of(found);
    let reached = document.found.smoke || document.checks.iter().all(|check| check.reached);
    let failed = |absent: &str| absent.starts_with("failed");
    let rows = || document.found.workloads.iter().flat_map(|of| &of.rows);
    let ran = rows().all(|row| !row.absent.as_deref().is_some_and(failed));
    let (text, page) = (text::text(&document), page::html(&document));
    let status = args.output.show(&document, &text, &page, reached && ran)?;
    if let Some(file) = &args.svg {
        let picture = picture::svg(&document)
            .context("no picture: no workload ran under two rows that can be compared")?;
        new_file::write(file, &picture)?;
    }
    Ok(status)
}

fn options(args: &Args) -> anyhow::Result<Options> {
    let [phase_s, warm_up_s] = if args.smoke { SMOKE } else { PHASE };
    let (phase_s, warm_up_s) = (args.seconds.unwrap_or(phase_s), args.warm_up.unwrap_or(warm_up_s));
    if warm_up_s >= phase_s {
        bail!(
            "--warm-up {warm_up_s}: all of the {phase_s} s with one hot set, so nothing is left to judge; say a longer --seconds or a shorter --warm-up"
        );
    }
    let usual: (&[&str], &[Row]) =
        if args.smoke { (&SMOKE_WORKLOADS, &SMOKE_ROWS) } else { (&WORKLOADS, &Row::ALL) };
    let usual_workloads = || usual.0.iter().map(|name| (*name).into()).collect();
    Ok(Options {
        workloads: if args.workload.is_empty() { usual_workloads() } else { args.workload.clone() },
        rows: if args.rows.is_empty() { usual.1.into() } else { args.rows.clone() },
        machine: args.machine.clone(),
        ample: args.ample.clone(),
        kernel: args.kernel.clone(),
        phase_s,
        warm_up_s,
        busy_percent: args.busy_percent,
        switch_ms: args.switch_ms,
        jobs: usize::try_from(args.jobs).unwrap_or(1),
        boots: usize::try_from(args.boots).unwrap_or(1),
        smoke: args.smoke,
        programs: programs(args)?,
    })
}

fn programs(args: &Args) -> anyhow::Result<Programs> {
    if let Some(memtierd) = args.memtierd.as_deref().filter(|file| !file.is_file()) {
        bail!("--memtierd {}: there is no such file", memtierd.display());
    }
    let damo = match &args.damo {
        Some(dir) if !has_damo(dir) => bail!(
            "--damo {}: no damo in it; pip install --target {} damo installs it there",
            dir.display(),
            dir.display()
        ),
        Some(dir) => Some(dir.clone()),
        None => Some(Cache::from_env()?.dir().join("peers/damo")).filter(|dir| has_damo(dir)),
    };
    let nearfar = crate::demo::beside::program("nearfar")?;
    Ok(Programs { nearfar, damo, memtierd: args.memtierd.clone() })
}

fn has_damo(dir: &Path) -> bool {
    dir.join("damo/damo.py").is_file()
}
