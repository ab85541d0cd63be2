//! `nearfar-bench balance`: compares traffic management in the lab.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;

use super::comparison::OneBoot;
use crate::balance::results::Found;
use crate::balance::rows::{self, FULL, Kind, Program, Shape, Size};
use crate::balance::{self, Options, traffic};
use crate::demo::guest::{Lab, names};
use crate::pages::balance::{Document, html, text};
use crate::workload::programs;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::number::whole;

/// Run time of a program and the warm-up part of it; and the same for a smoke run.
const USUAL: [u64; 2] = [16, 12];
const SMOKE: [u64; 2] = [3, 1];
/// Programs of a smoke run.
const SMOKE_PROGRAMS: [Program; 2] = [Program::Streamcluster, Program::Settled];
const SMOKE_ROWS: [Kind; 4] =
    [Kind::FirstTouch, Kind::NumaBalancing, Kind::Carrefour, Kind::Balanced];

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Programs, all for one kind of machine [default: all for four nodes, or streamcluster,settled with --smoke]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PROGRAM,...")]
    programs: Vec<Program>,
    /// Rows; those without nodes on the machine are skipped [default: all, or
    /// first-touch,numa-balancing,carrefour,balanced with --smoke]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROW,...")]
    rows: Vec<Kind>,
    /// Run nearfar's rows with each of these sets of sensors: names (nearfar doctor lists them) joined by +, or full
    /// for balancing's default
    #[arg(long, value_delimiter = ',', value_name = "SET,...", default_value = FULL)]
    sensors: Vec<String>,
    /// Run time of each program, in the machine's time; for static placements all but one second of --settle is left
    /// out [default: 16, or 3 with --smoke]
    #[arg(long, value_name = "S", value_parser = whole::<u64>(1..=100_000))]
    seconds: Option<u64>,
    /// Warm-up part of the run time, which does not count [default: 12, or 1 with --smoke]
    #[arg(long, value_name = "S", value_parser = whole::<u64>(0..=100_000))]
    settle: Option<u64>,
    /// Runs of each row, all rows of a program before any is repeated; medians count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(1..=99))]
    rounds: u64,
    /// Factor on the default amount of memory, which is 16 to 64 MiB per program
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(1..=1024))]
    times: u64,
    /// Use huge pages
    #[arg(long)]
    thp: bool,
    /// The lab's machine, by name or file [default: numa-4node, or cxl-2tier for programs of near and far memory]
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    #[command(flatten)]
    frame: OneBoot,
}

/// Runs it; exit status 1 if a threshold is not reached.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = options(args).ends_with(Exit::Usage)?;
    let shape = options.shape().ends_with(Exit::Usage)?;
    let found = args.frame.found(
        || balance::plan(&options),
        |dir, progress| balance::run(&options, dir, progress),
        |dir| {
            // Refused here, because the guest would fail only after its boot.
            balance::load_generator(&options)?;
            programs::compile_teams(dir)
        },
        |dir| in_the_lab(args, &options, shape, dir),
    )?;
    let Some(document) = found.map(Document::of) else { return Ok(Exit::Done.into()) };
    args.frame.output.show(&document, &text(&document), &html(&document), document.reached())
}

fn options(args: &Args) -> anyhow::Result<Options> {
    let [seconds, settle_s] = if args.frame.smoke { SMOKE } else { USUAL };
    let (seconds, settle_s) = (args.seconds.unwrap_or(seconds), args.settle.unwrap_or(settle_s));
    if settle_s + 1 > seconds {
        bail!(
            "--settle {settle_s}: nothing of the {seconds} s is left to count; say a longer --seconds or a shorter --settle"
        );
    }
    let (programs, kinds): (&[Program], &[Kind]) =
        if args.frame.smoke { (&SMOKE_PROGRAMS, &SMOKE_ROWS) } else { (&Program::ALL, &Kind::ALL) };
    let kinds = if args.rows.is_empty() { kinds } else { &args.rows };
    Ok(Options {
        programs: if args.programs.is_empty() { programs.into() } else { args.programs.clone() },
        rows: rows::rows(kinds, &args.sensors)?,
        rounds: args.rounds,
        size: Size { seconds, times: args.times, huge: args.thp },
        settle_s,
        smoke: args.frame.smoke,
    })
}

/// One boot.
fn in_the_lab(args: &Args, options: &Options, shape: Shape, dir: &Path) -> anyhow::Result<Found> {
    let counts = dir.join(traffic::FILE);
    let machine = args.machine.as_deref().unwrap_or(shape.machine());
    let stats = Some((counts.clone(), traffic::EVERY_MS));
    let lab = Lab { machine: Some(machine.to_owned()), stats, ..Lab::default() };
    let mut found = args.frame.boot(lab, arguments(args, options), dir)?;
    traffic::fill_in(&mut found, &counts)?;
    Ok(found)
}

/// The same request as arguments for the binary in the guest.
fn arguments(args: &Args, options: &Options) -> Vec<String> {
    let kinds: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|kind| options.rows.iter().any(|row| row.kind == *kind))
        .collect();
    let Size { seconds, times, huge } = options.size;
    let options = [
        ("--programs", names(&options.programs)),
        ("--rows", names(&kinds)),
        ("--sensors", args.sensors.join(",")),
        ("--seconds", seconds.to_string()),
        ("--settle", options.settle_s.to_string()),
        ("--rounds", options.rounds.to_string()),
        ("--times", times.to_string()),
    ];
    let options = options.into_iter().flat_map(|(option, value)| [option.into(), value]);
    options.chain(huge.then(|| "--thp".into())).collect()
}
