//! nearfar-load: YCSB's workloads against Redis or memcached, and the memory accesses of inference. Here: the command
//! line, and checks before any request is sent.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use nearfar_load::drive::{self, Common, Moves, Run};
use nearfar_load::popularity::Popularity;
use nearfar_load::records::Shape;
use nearfar_load::report::{self, Line, Report, Window};
use nearfar_load::store::{Memcached, Redis, Store, StoreError};
use nearfar_load::workload::{Kind, Mix};

mod infer;

/// YCSB's workloads A to F for Redis and memcached, with throughput over time and a hot set that can move; and a stand-in for
/// inference.
#[derive(Debug, Parser)]
#[command(name = "nearfar-load", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    phase: Phase,
}

#[derive(Debug, Subcommand)]
enum Phase {
    /// Write the records
    Load(LoadArgs),
    /// Run a workload over the records written before
    Run(RunArgs),
    /// Access memory as inference with a language model does: stream over weights and contexts, token by token
    ///
    /// Memory comes from plain malloc, so run it under a placement: nearfar run --heap far -- nearfar-load inference
    Inference(infer::Args),
}

#[derive(Debug, clap::Args)]
struct CommonArgs {
    /// A Redis server
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "memcached")]
    redis: Option<String>,
    /// A memcached server
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "redis")]
    memcached: Option<String>,
    /// Number of records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    records: u64,
    /// Fields per record (of a Redis hash; one value in memcached)
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=1024))]
    fields: u32,
    /// Bytes of a field
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    field_bytes: u32,
    /// A single plain value of this size instead of fields
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["fields", "field_bytes"], value_parser = clap::value_parser!(u32).range(1..=512 << 20))]
    value_bytes: Option<u32>,
    /// Requests sent at once
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pipeline: u64,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Length of a window of throughput
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    window_ms: u32,
    /// Print JSON (schema nearfar.load/1)
    #[arg(long)]
    json: bool,
    /// Print a line of JSON for each window as it ends, and one for the whole
    #[arg(long, conflicts_with = "json")]
    lines: bool,
}

#[derive(Debug, clap::Args)]
struct LoadArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Prepare for this workload too: E needs an index of all keys
    #[arg(long, value_name = "A..F")]
    workload: Option<Mix>,
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// YCSB's workload: A update heavy, B read mostly, C read only, D read latest, E short ranges, F read-modify-write
    #[arg(long, value_name = "A..F")]
    workload: Mix,
    /// Request distribution: zipfian, scrambled (YCSB's zipfian), latest, uniform, hotspot[:SET:SHARE] in per cent
    /// [default: the workload's]
    #[arg(long, value_name = "NAME")]
    popularity: Option<Popularity>,
    /// End after this many operations
    #[arg(long, value_name = "N", required_unless_present = "seconds", value_parser = clap::value_parser!(u64).range(1..))]
    operations: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "S", value_parser = positive)]
    seconds: Option<f64>,
    /// Make other records popular after this many operations each time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    move_every: Option<u64>,
    /// Make other records popular after this many seconds each time
    #[arg(long, value_name = "S", conflicts_with = "move_every", value_parser = positive)]
    move_every_s: Option<f64>,
    /// Duty cycle: work this per cent of every 10 ms and sleep for the rest; throughput is of the time at work
    #[arg(long, value_name = "PERCENT", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=100))]
    busy_percent: u32,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("{text} is no number of seconds above 0"))
}

fn main() -> ExitCode {
    // clap exits with status 2 for bad usage.
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the one place errors are shown")]
            {
                // A server's reply may be in it.
                let text = format!("{error:#}").replace(|c: char| c.is_control() && c != '\n', "?");
                eprintln!("nearfar-load: {text}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let (args, mix) = match &cli.phase {
        Phase::Load(args) => (&args.common, args.workload),
        Phase::Run(args) => (&args.common, Some(args.workload)),
        Phase::Inference(args) => return infer::run(args),
    };
    let scans = mix.is_some_and(|mix| mix.has(Kind::Scan));
    let (mut store, shape, name) = connect(args, scans)?;
    let common = Common {
        records: args.records,
        shape,
        pipeline: args.pipeline,
        seed: args.seed,
        window_s: f64::from(args.window_ms) / 1000.0,
    };
    let mut each = |window: &Window| show_window(args, window);
    let report = match &cli.phase {
        Phase::Load(_) => drive::load(store.as_mut(), &common, &mut each)?,
        Phase::Run(args) => drive::run(store.as_mut(), &common, &planned(args), &mut each)?,
        Phase::Inference(_) => return Ok(()),
    };
    let report = Report { store: name, ..report };
    show(args, &report)?;
    if report.missed == report.operations && report.phase == "run" {
        bail!("no read found anything; load first: nearfar-load load, with the same --records");
    }
    Ok(())
}

fn planned(args: &RunArgs) -> Run {
    let in_seconds = args.move_every_s.map_or(Moves::Never, Moves::Seconds);
    Run {
        mix: args.workload,
        popularity: args.popularity.unwrap_or(args.workload.popularity),
        operations: args.operations,
        seconds: args.seconds,
        moves: args.move_every.map_or(in_seconds, Moves::Operations),
        busy_percent: args.busy_percent,
    }
}

/// The store, the composition of records in it, and its name.
fn connect(args: &CommonArgs, scans: bool) -> anyhow::Result<(Box<dyn Store>, Shape, String)> {
    let fields = Shape::Fields { count: args.fields, bytes: args.field_bytes };
    let shape = args.value_bytes.map_or(fields, |bytes| Shape::Value { bytes });
    if let Some(address) = &args.memcached {
        if scans {
            return Err(StoreError::NoScans { store: "memcached" }.into());
        }
        let shape = shape.joined();
        return Ok((Box::new(Memcached::connect(address)?), shape, format!("memcached {address}")));
    }
    let Some(address) = &args.redis else {
        bail!("no store was named; say --redis or --memcached")
    };
    Ok((Box::new(Redis::connect(address, shape, scans)?), shape, format!("redis {address}")))
}

/// Prints windows as they end, but not in the middle of a JSON document; ignores a closed pipe.
fn show_window(args: &CommonArgs, window: &Window) {
    let text = if args.lines {
        serde_json::to_string(&Line::window(window)).unwrap_or_default() + "\n"
    } else if args.json {
        return;
    } else {
        report::window_text(window)
    };
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn show(args: &CommonArgs, report: &Report) -> anyhow::Result<()> {
    let text = if args.lines {
        // The windows were printed as lines of their own.
        let whole = Report { windows: Vec::new(), ..report.clone() };
        serde_json::to_string(&Line::done(&whole)).context("writing JSON")? + "\n"
    } else if args.json {
        nearfar_command::json::text(report).context("writing JSON")? + "\n"
    } else {
        report::text(report)
    };
    std::io::stdout().write_all(text.as_bytes()).context("writing to standard output")
}
