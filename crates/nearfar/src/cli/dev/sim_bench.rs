//! `nearfar dev sim-bench`: accesses drawn one by one, and their rate.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_sim::machine::Machine;
use nearfar_sim::pages::Pages;
use nearfar_sim::stream::{self, Options, Source, Streamed};
use nearfar_sim::{Policy, Workload, workload};
use serde::Serialize;

use nearfar_bench::pages::sim::SIMULATED;
use nearfar_bench::simulate::{self, trace};
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::number::whole;
use nearfar_command::output;
use nearfar_kernel::clock::Stopwatch;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Machine: a name, or the path of a machine file with a table `traffic`
    #[arg(long, default_value = simulate::FOUR_NODES)]
    machine: String,
    /// Placement of pages
    #[arg(long, default_value = "interleave", value_name = "POLICY")]
    policy: Policy,
    /// Distribution of accesses over pages
    #[arg(long, value_enum, default_value_t = Kind::Zipf)]
    source: Kind,
    /// Accesses as in this record of nearfar record or damo
    #[arg(long, value_name = "FILE", conflicts_with = "source")]
    trace: Option<PathBuf>,
    /// Number of accesses, in millions
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = whole::<u64>(1..=1_000_000))]
    millions: u64,
    /// Generator threads [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1024))]
    threads: Option<u32>,
    /// Seed of random numbers; the same seed gives the same accesses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON (schema nearfar.sim-bench/1)
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    /// All pages equally often
    Uniform,
    /// Zipf's law with exponent 0.99 over pages in random order
    Zipf,
    /// Nine tenths of the accesses to one tenth of the pages, a different tenth every second
    HotSet,
}

/// The pages of generators: 1 GiB.
const PAGES: u32 = 1 << 18;
/// Length of an epoch.
const EPOCH_MS: u32 = 10;

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    simulated: bool,
    machine: String,
    policy: &'static str,
    source: String,
    seed: u64,
    threads: u32,
    pages: u32,
    accesses: u64,
    epochs: u64,
    pages_touched_in_last_epoch: u64,
    seconds: f64,
    accesses_per_second: f64,
    controller_imbalance: f64,
    throughput_gbps: f64,
}

/// Runs the stream.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = simulate::machine(&args.machine).ends_with(Exit::Usage)?;
    args.policy.suits(&machine).ends_with(Exit::Usage)?;
    let (source, name) = source(args)?;
    let (workload, pages) = placed(args, &machine, &source)?;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = args.threads.unwrap_or_else(|| u32::try_from(cpus).unwrap_or(1));
    let options = Options {
        accesses: args.millions * 1_000_000,
        epoch_ms: EPOCH_MS,
        threads,
        seed: args.seed,
    };
    let watch = Stopwatch::start();
    let streamed = stream::run(&machine, &workload, &pages, &source, options);
    let seconds = watch.elapsed().as_secs_f64();
    let document = document(args, (name, source.pages(), threads), &streamed, seconds);
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&text(&document))?;
    }
    Ok(Exit::Done.into())
}

fn source(args: &Args) -> anyhow::Result<(Source, String)> {
    if let Some(file) = &args.trace {
        let asked = || format!("reading {}", file.display());
        let loaded =
            nearfar_report::access::load::load(file).with_context(asked).ends_with(Exit::Usage)?;
        for finding in &loaded.findings {
            output::note(format_args!("{}: {finding}", loaded.name));
        }
        let source =
            trace::source(&loaded.record, EPOCH_MS).with_context(asked).ends_with(Exit::Usage)?;
        return Ok((source, loaded.name));
    }
    Ok(match args.source {
        Kind::Uniform => (Source::uniform(PAGES)?, "uniform".into()),
        Kind::Zipf => (Source::zipf(PAGES, 0.99, args.seed)?, "zipf".into()),
        Kind::HotSet => (Source::hot_set(PAGES, PAGES / 10, 0.9, 100)?, "hot-set".into()),
    })
}

/// Places as many pages as the source has, accessed by streamcluster's threads or by the hot set's.
fn placed(args: &Args, machine: &Machine, source: &Source) -> anyhow::Result<(Workload, Pages)> {
    let name = if machine.cpu_nodes.len() > 1 { "streamcluster" } else { "hot-set" };
    let mut workload = workload::find(name, machine).ends_with(Exit::Usage)?;
    workload.page_bytes = trace::PAGE_BYTES;
    workload.regions.truncate(1);
    for region in &mut workload.regions {
        (region.pages, region.hot_pages) = (source.pages(), 0);
    }
    for worker in &mut workload.workers {
        worker.uses = vec![1.0];
    }
    let mut pages = Pages::of(&workload, args.seed);
    args.policy.place(&mut pages, &workload, machine);
    Ok((workload, pages))
}

fn document(
    args: &Args,
    (source, pages, threads): (String, u32, u32),
    streamed: &Streamed,
    seconds: f64,
) -> Document {
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let accesses = streamed.accesses as f64;
    Document {
        schema: "nearfar.sim-bench/1",
        simulated: true,
        machine: args.machine.clone(),
        policy: args.policy.name(),
        source,
        seed: args.seed,
        threads,
        pages,
        accesses: streamed.accesses,
        epochs: streamed.epochs,
        pages_touched_in_last_epoch: streamed.touched,
        seconds,
        accesses_per_second: accesses / seconds.max(1e-9),
        controller_imbalance: streamed.figures.controller_imbalance,
        throughput_gbps: streamed.figures.gbps,
    }
}

fn text(of: &Document) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "SIMULATED machine {}, {} over {} pages, {}",
        of.machine, of.source, of.pages, of.policy
    );
    let _ = writeln!(
        out,
        "{:.1} million simulated page accesses a second: {} in {:.2} s on {} threads, {} epochs of {EPOCH_MS} ms",
        of.accesses_per_second / 1e6,
        of.accesses,
        of.seconds,
        of.threads,
        of.epochs,
    );
    let _ = writeln!(
        out,
        "controllers differ by {:.1} %, throughput {:.2} GB/s",
        of.controller_imbalance * 100.0,
        of.throughput_gbps
    );
    output::wrapped(&mut out, "", SIMULATED, 0);
    out
}
