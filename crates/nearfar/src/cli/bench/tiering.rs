//! `nearfar bench tiering`: tiering systems side by side in the lab.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use nearfar_lab::fetch::Cache;

use super::super::output;
use super::scratch;
use crate::bench::kept::kept;
use crate::bench::tiering::rows::{Programs, Row};
use crate::bench::tiering::{self, Wishes};
use crate::exit::Exit;
use crate::report::tiering::{Document, page, picture, text};

/// How long a phase is, and how much of it is left to settle; and the same of a smoke run.
const PHASE: [u64; 2] = [80, 60];
const SMOKE: [u64; 2] = [8, 4];
/// What is run unless told otherwise, and in a smoke run.
const WORKLOADS: [&str; 4] = ["redis-c", "gups-moving", "scan", "fits"];
const SMOKE_WORKLOADS: [&str; 2] = ["gups-moving", "scan"];
const SMOKE_ROWS: [Row; 4] = [Row::Dram, Row::None, Row::Balancing, Row::Nearfar];

/// As typed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Workloads, by built-in name or file (nearfar bench workload lists them) [default: redis-c,gups-moving,scan,fits, or
    /// gups-moving,scan with --smoke]
    #[arg(long, value_delimiter = ',', value_name = "NAME|FILE,...")]
    workload: Vec<String>,
    /// What to compare [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROW,...")]
    rows: Vec<Row>,
    /// The lab's machine, by name or file [default: each workload's]
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// The same machine with near memory for all, for the row of DRAM only [default: cxl-2tier-ample for cxl-2tier-small]
    #[arg(long, value_name = "NAME|FILE")]
    ample: Option<String>,
    /// The lab's kernel, by version or file
    #[arg(long, value_name = "VERSION|PATH")]
    kernel: Option<String>,
    /// How long a program runs with one hot set; twice where it moves [default: 80, or 8 with --smoke]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seconds: Option<u64>,
    /// How much of that is left to settle and not judged, from the start and from each move [default: 60, or 4 with --smoke]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(0..=100_000))]
    warm_up: Option<u64>,
    /// Programs work so much of every 10 ms; throughput is of that time [default: as each workload says, so that
    /// emulation takes bearably long]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=100))]
    busy_percent: Option<u64>,
    /// Another process gets the programs' CPU every so many milliseconds, so that it drops translations as real ones do, more
    /// often than the machine sees to by itself (`translations_ms` of its file); 0: none
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1000))]
    switch_ms: u64,
    /// Guests at once, each with two busy threads at times; a machine with more to do than CPUs to do it makes figures noisy
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Boots of each row, all rows before any again; medians count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=99))]
    boots: u64,
    /// The directory pip installed damo into [default: peers/damo in the cache, where scripts/setup puts it]
    #[arg(long, value_name = "DIR")]
    damo: Option<PathBuf>,
    /// A memtierd binary; its row is absent without
    #[arg(long, value_name = "PATH")]
    memtierd: Option<PathBuf>,
    /// A short look, not judged: gups-moving and scan, DRAM only, no tiering, NUMA balancing and nearfar
    #[arg(long)]
    smoke: bool,
    /// Print what would be run, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema nearfar.bench-tiering/1), all that was found with it
    #[arg(long)]
    json: bool,
    /// Also keep that JSON in a file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write a page with the table and pictures over time
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a picture of the first workload
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Run nothing: show a result that was kept
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "save"])]
    result: Option<PathBuf>,
}

/// Runs it; exit status 1 if something is not reached.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let found = match &args.result {
        Some(file) => kept(file)?,
        None => {
            let plan = tiering::plan(wishes(args)?)?;
            if args.dry_run {
                output::print(&plan.text())?;
                return Ok(Exit::Done.into());
            }
            let dir = scratch()?;
            plan.run(dir.path())?
        }
    };
    let document = Document::of(found);
    let json = serde_json::to_string_pretty(&document).context("writing figures as JSON")? + "\n";
    for (file, text) in [(&args.save, json), (&args.html, page::html(&document))] {
        if let Some(file) = file {
            std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
        }
    }
    if let Some(file) = &args.svg {
        let picture = picture::svg(&document)
            .context("no picture: no workload ran under two rows that can be compared")?;
        std::fs::write(file, picture).with_context(|| format!("writing {}", file.display()))?;
    }
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&text::text(&document))?;
    }
    let reached = document.found.smoke || document.checks.iter().all(|check| check.reached);
    let failed = |absent: &str| absent.starts_with("failed");
    let rows = || document.found.workloads.iter().flat_map(|of| &of.rows);
    let ran = rows().all(|row| !row.absent.as_deref().is_some_and(failed));
    Ok(if reached && ran { Exit::Done } else { Exit::Failed }.into())
}

fn wishes(args: &Args) -> anyhow::Result<Wishes> {
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
    Ok(Wishes {
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
    let nearfar = std::env::current_exe().context("looking for this binary")?;
    Ok(Programs { nearfar, damo, memtierd: args.memtierd.clone() })
}

fn has_damo(dir: &Path) -> bool {
    dir.join("damo/damo.py").is_file()
}
