//! `nearfar bench balance`: traffic management side by side in the lab.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::ValueEnum;

use super::super::output;
use super::scratch;
use crate::bench::balance::found::Found;
use crate::bench::balance::rows::{self, FULL, Kind, Program, Shape, Size};
use crate::bench::balance::{self, Wishes, traffic};
use crate::bench::kept::kept;
use crate::bench::workload::programs;
use crate::demo::guest::{self, Lab};
use crate::exit::{EndsWith as _, Exit};
use crate::report::balance::{Document, html, text};

/// The result in a guest's /out.
const RESULT: &str = "balance.json";
/// How long a program runs and how much of that is left to settle; and the same of a smoke run.
const USUAL: [u64; 2] = [16, 12];
const SMOKE: [u64; 2] = [3, 1];
/// What a smoke run has.
const SMOKE_PROGRAMS: [Program; 2] = [Program::Streamcluster, Program::Settled];
const SMOKE_ROWS: [Kind; 4] =
    [Kind::FirstTouch, Kind::NumaBalancing, Kind::Carrefour, Kind::Balanced];

/// As typed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to run: programs for one kind of machine [default: all for four nodes, or streamcluster,settled with --smoke]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PROGRAM,...")]
    programs: Vec<Program>,
    /// What to compare: of these what the machine has nodes for [default: all, or first-touch,numa-balancing,carrefour,balanced
    /// with --smoke]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROW,...")]
    rows: Vec<Kind>,
    /// Rows of nearfar by each of these sets of sensors: names (nearfar doctor has them) with + between them, or full for those
    /// that balancing chooses itself
    #[arg(long, value_delimiter = ',', value_name = "SET,...", default_value = FULL)]
    sensors: Vec<String>,
    /// How long each program runs, in the machine's time; where pages stay it is less by all but one second of --settle
    /// [default: 16, or 3 with --smoke]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seconds: Option<u64>,
    /// How much of that is left to settle and does not count [default: 12, or 1 with --smoke]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(0..=100_000))]
    settle: Option<u64>,
    /// Runs of each row, all rows of a program before any again; medians count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: u64,
    /// So many times the usual memory, which is 16 to 64 MiB a program
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    times: u64,
    /// In huge pages
    #[arg(long)]
    thp: bool,
    /// The lab's machine, by name or file [default: numa-4node, or cxl-2tier for programs of near and far memory]
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// The lab's kernel, by version or file
    #[arg(long, value_name = "VERSION|PATH")]
    kernel: Option<String>,
    /// Run on this machine, not in the lab; needs root
    #[arg(long, conflicts_with_all = ["machine", "kernel"])]
    here: bool,
    /// A short look, not judged
    #[arg(long)]
    smoke: bool,
    /// Print what would be run, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema nearfar.bench-balance/1)
    #[arg(long)]
    json: bool,
    /// Also keep that JSON in a file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write a page with the tables
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Run nothing: show a result that was kept
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "save", "here"])]
    result: Option<PathBuf>,
    /// The compiled programs are in this directory; write what was found into it, and nothing else (how the lab's guest hands it
    /// over)
    #[arg(long, value_name = "DIR", hide = true, requires = "here")]
    out: Option<PathBuf>,
    /// Show progress even where standard error is no terminal
    #[arg(long, hide = true)]
    progress: bool,
}

/// Runs it; exit status 1 if something is not reached.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let wishes = wishes(args).ends_with(Exit::Usage)?;
    let shape = wishes.shape().ends_with(Exit::Usage)?;
    if args.dry_run {
        output::print(&balance::plan(&wishes))?;
        return Ok(Exit::Done.into());
    }
    if let Some(out) = &args.out {
        let found = balance::run(&wishes, out, args.progress)?;
        guest::hand_over(out, RESULT, &found)?;
        return Ok(Exit::Done.into());
    }
    let document = Document::of(match &args.result {
        Some(file) => kept(file)?,
        None if args.here => here(args, &wishes)?,
        None => in_the_lab(args, &wishes, shape)?,
    });
    let json = serde_json::to_string_pretty(&document).context("writing figures as JSON")? + "\n";
    for (file, text) in [(&args.save, json), (&args.html, html(&document))] {
        if let Some(file) = file {
            std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
        }
    }
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&text(&document))?;
    }
    Ok(if document.reached() { Exit::Done } else { Exit::Failed }.into())
}

fn wishes(args: &Args) -> anyhow::Result<Wishes> {
    let [seconds, settle_s] = if args.smoke { SMOKE } else { USUAL };
    let (seconds, settle_s) = (args.seconds.unwrap_or(seconds), args.settle.unwrap_or(settle_s));
    if settle_s + 1 > seconds {
        bail!(
            "--settle {settle_s}: nothing of the {seconds} s is left to count; say a longer --seconds or a shorter --settle"
        );
    }
    let (programs, kinds): (&[Program], &[Kind]) =
        if args.smoke { (&SMOKE_PROGRAMS, &SMOKE_ROWS) } else { (&Program::ALL, &Kind::ALL) };
    let kinds = if args.rows.is_empty() { kinds } else { &args.rows };
    Ok(Wishes {
        programs: if args.programs.is_empty() { programs.into() } else { args.programs.clone() },
        rows: rows::rows(kinds, &args.sensors)?,
        rounds: args.rounds,
        size: Size { seconds, times: args.times, huge: args.thp },
        settle_s,
        smoke: args.smoke,
    })
}

fn here(args: &Args, wishes: &Wishes) -> anyhow::Result<Found> {
    let dir = scratch()?;
    programs::compile_teams(dir.path())?;
    balance::run(wishes, dir.path(), args.progress || std::io::stderr().is_terminal())
}

/// One boot.
fn in_the_lab(args: &Args, wishes: &Wishes, shape: Shape) -> anyhow::Result<Found> {
    // What a guest would miss after a boot is better missed now.
    balance::load_generator(wishes)?;
    let dir = scratch()?;
    programs::compile_teams(dir.path())?;
    let counts = dir.path().join(traffic::FILE);
    let machine = args.machine.as_deref().unwrap_or(shape.machine());
    let lab = Lab {
        machine: Some(machine.to_owned()),
        kernel: args.kernel.clone(),
        stats: Some((counts.clone(), traffic::EVERY_MS)),
        ..Lab::default()
    };
    let mut found: Found = lab
        .result(&arguments(args, wishes), dir.path(), RESULT)
        .with_context(|| format!("the figures of machine {machine}"))?;
    traffic::fill_in(&mut found, &counts)?;
    Ok(found)
}

/// The same wishes to the binary in the guest.
fn arguments(args: &Args, wishes: &Wishes) -> Vec<String> {
    let mut all: Vec<String> =
        ["bench", "balance", "--here", "--out", guest::OUT].map(Into::into).into();
    let kinds: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|kind| wishes.rows.iter().any(|row| row.kind == *kind))
        .collect();
    let Size { seconds, times, huge } = wishes.size;
    for (option, value) in [
        ("--programs", names(&wishes.programs)),
        ("--rows", names(&kinds)),
        ("--sensors", args.sensors.join(",")),
        ("--seconds", seconds.to_string()),
        ("--settle", wishes.settle_s.to_string()),
        ("--rounds", wishes.rounds.to_string()),
        ("--times", times.to_string()),
    ] {
        all.extend([option.into(), value]);
    }
    let progress = args.progress || std::io::stderr().is_terminal();
    for (option, on) in [("--thp", huge), ("--smoke", wishes.smoke), ("--progress", progress)] {
        all.extend(on.then(|| option.into()));
    }
    all
}

fn names<T: ValueEnum>(values: &[T]) -> String {
    let names =
        values.iter().filter_map(|value| Some(value.to_possible_value()?.get_name().into()));
    names.collect::<Vec<String>>().join(",")
}
