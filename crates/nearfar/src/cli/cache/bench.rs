//! `nearfar cache bench`: runs a load on a cache and reports its results.
//!
//! Arguments become a configuration of crate load, for a cache in this process or a server; contradictions are refused
//! before the load starts. Not here: generating requests and measuring (crate load), the text of results.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::ValueEnum;
use nearfar_cache::evict::Eviction;
use nearfar_cache::mover::Movers;
use nearfar_cache::tiers::Memory;
use nearfar_cache::{Cache, Config, Making};
use nearfar_kernel::fs::RootFs;
use nearfar_load::requests::Spacing;
use nearfar_topology::Bytes;

use super::engine::{EngineArgs, item_size};
use nearfar_command::disturbance::Watch;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::number::whole;
use nearfar_command::{json, new_file, output};
use nearfar_load::cache::engine::{InProcess, resident};
use nearfar_load::cache::pages as report;
use nearfar_load::cache::plan::{Besides, Length, Loop, Plan};
use nearfar_load::cache::results::{Asking, Found, SCHEMA};
use nearfar_load::cache::run;
use nearfar_load::cache::server::address::Address;
use nearfar_load::cache::server::{PATIENCE, Server};
use nearfar_load::cache::spec::{ByteRange, Fill, Mix, Shape, Spec, Workload, key_bytes};

/// Length of a run in seconds, by default.
const SECONDS: f64 = 10.0;
/// Upper limit of a run's length in seconds, and of requests per second.
const SECONDS_MAX: f64 = 1e7;
const RATE_MAX: f64 = 1e9;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Workload: zipf:EXPONENT, uniform, trace:FILE (Meta's, Twitter's), oracle-general:FILE (libCacheSim's),
    /// csv:key=COLUMN,size=COLUMN:FILE (op= and ttl= are optional), or a directory (or file) of cachebench's; a FILE may be
    /// compressed by gzip or zstd, and - is standard input
    #[arg(long, value_name = "SPEC")]
    workload: Spec,
    /// Print the plan without running it
    #[arg(long, conflicts_with = "json")]
    dry_run: bool,
    /// Print JSON (schema nearfar.cache-bench/1)
    #[arg(long)]
    json: bool,
    /// Also save that JSON to a file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// A memcached server, HOST:PORT or unix:PATH [default: a cache in this process]
    #[arg(long, value_name = "ADDRESS", help_heading = SERVER, conflicts_with_all = EngineArgs::NAMES)]
    server: Option<Address>,
    /// Connections per thread
    #[arg(long, value_name = "N", requires = "server", default_value_t = 1, help_heading = SERVER,
        value_parser = whole::<u32>(1..=10_000))]
    connections: u32,
    /// Outstanding commands per connection; without --rate they are sent together, and the next batch when all were
    /// answered
    #[arg(long, value_name = "N", requires = "server", default_value_t = 1, help_heading = SERVER,
        value_parser = whole::<u32>(1..=10_000))]
    depth: u32,
    /// Reads combined into one command; with --rate, they are due together
    #[arg(long, value_name = "N", requires = "server", default_value_t = 1, help_heading = SERVER,
        value_parser = whole::<u32>(1..=1000))]
    multiget: u32,
    #[command(flatten)]
    here: HereArgs,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    load: LoadArgs,
}

const HERE: &str = "In this process";
const SERVER: &str = "Over a server";
const WORKLOAD: &str = "Workload";
const LOAD: &str = "Load";

/// Options of a cache in this process.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = HERE)]
struct HereArgs {
    /// Maximum item size, key and value, up to 16m [default: a quarter of the smallest tier]
    #[arg(short = 'I', long, value_name = "SIZE", value_parser = item_size, conflicts_with = "server")]
    item_max: Option<Bytes>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Options that modify the workload.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = WORKLOAD)]
struct ShapeArgs {
    /// Number of keys [default: 1000000, or as in cachebench's configuration]
    #[arg(long, value_name = "N")]
    keys: Option<u64>,
    /// Key size in bytes, with zipf and uniform [default: 16]
    #[arg(long, value_name = "BYTES", value_parser = key_bytes)]
    key_bytes: Option<u32>,
    /// Value size in bytes, or a range FROM-TO from which each key draws its own, with zipf and uniform [default: 64]
    #[arg(long, value_name = "BYTES")]
    value_bytes: Option<ByteRange>,
    /// Ratio of reads, stores and removals, with zipf and uniform, such as 90:10 or 90:9:1 [default: reads only]
    #[arg(long, value_name = "GET:SET[:DELETE]")]
    mix: Option<Mix>,
    /// Do not store an item after a read miss, even if the workload does
    #[arg(long)]
    no_fill: bool,
    /// Seed of all random numbers; the same seed gives the same requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Rate and length of the load.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = LOAD)]
struct LoadArgs {
    /// Client threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=1024))]
    threads: u32,
    /// Total requests per second, sent whether or not earlier ones were answered [default: each as soon as the previous
    /// one was answered]
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Arrival process of the requests of --rate
    #[arg(long, value_enum, requires = "rate", default_value_t)]
    arrivals: Arrivals,
    /// Measured seconds [default: 10, unless --operations is given; a trace runs to its end]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
    /// Warm-up seconds before the measurement
    #[arg(long, value_name = "S", default_value = "0", value_parser = warm_up)]
    warm_up: f64,
    /// Maximum number of requests, warm-up included
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..))]
    operations: Option<u64>,
    /// Store all keys first
    #[arg(long)]
    preload: bool,
    /// Check every value read; items stored earlier must have been stored with --verify, too
    #[arg(long)]
    verify: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Arrivals {
    /// Exponentially distributed intervals
    #[default]
    Poisson,
    /// Equal intervals
    Constant,
}

fn number(text: &str, least: f64, most: f64) -> Option<f64> {
    text.parse().ok().filter(|number| (least..=most).contains(number))
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, 1e-3, RATE_MAX).ok_or_else(|| {
        format!("requests a second are 0.001 to {RATE_MAX}; without --rate there is no limit")
    })
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.01, SECONDS_MAX).ok_or_else(|| format!("seconds are 0.01 to {SECONDS_MAX}"))
}

fn warm_up(text: &str) -> Result<f64, String> {
    number(text, 0.0, SECONDS_MAX).ok_or_else(|| format!("seconds are 0 to {SECONDS_MAX}"))
}

/// Runs the load; exit status 1 if a request had no reply, or a value was wrong.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = args.plan().ends_with(Exit::Usage)?;
    let found = match &args.server {
        Some(address) => args.over_server(address.clone(), &plan)?,
        None => args.in_process(&plan)?,
    };
    let Some(found) = found else { return Ok(Exit::Done.into()) };
    let json = json::text(&found).with_context(|| format!("writing {SCHEMA}"))?;
    if let Some(file) = &args.save {
        new_file::write(file, &(json + "\n"))?;
    }
    if let Some(file) = &args.html {
        new_file::write(file, &report::page::html(&found))?;
    }
    if args.json {
        output::print_json(&found)?;
    } else {
        output::print(&report::text::text(&found))?;
    }
    Ok(if found.is_right() { Exit::Done } else { Exit::Failed }.into())
}

impl Args {
    fn plan(&self) -> anyhow::Result<Plan> {
        new_file::check(self.save.iter().chain(&self.html))?;
        let ShapeArgs { keys, key_bytes, value_bytes, mix, no_fill, seed } = self.shape;
        let fill = if no_fill { Fill::Never } else { Fill::AsIs };
        let shape = Shape { keys, key_bytes, value_bytes, mix, fill };
        let workload = Workload::load(&self.workload, shape, seed)?;
        let load = &self.load;
        let spacing = match load.arrivals {
            Arrivals::Poisson => Spacing::Poisson,
            Arrivals::Constant => Spacing::Constant,
        };
        let ends = matches!(workload, Workload::Trace(..)) || load.operations.is_some();
        let seconds = load.seconds.or((!ends).then_some(SECONDS));
        let Self { connections, depth, multiget, .. } = *self;
        let plan = Plan {
            spec: self.workload.clone(),
            workload,
            seed,
            threads: load.threads,
            pace: load.rate.map_or(Loop::Closed, |rate| Loop::Open(rate, spacing)),
            length: Length { seconds, warm_up: load.warm_up, operations: load.operations },
            besides: Besides { preload: load.preload, verify: load.verify },
            server: self.server.is_some().then_some(Asking { connections, depth, multiget }),
        };
        plan.checked()
    }

    fn over_server(&self, address: Address, plan: &Plan) -> anyhow::Result<Option<Found>> {
        let Self { connections, depth, multiget, .. } = *self;
        let server = Server { address, connections, depth, multiget, patience: PATIENCE };
        if self.dry_run {
            return dry(&server.address, plan);
        }
        server.greet()?;
        run::run(plan, &server).map(Some)
    }

    fn in_process(&self, plan: &Plan) -> anyhow::Result<Option<Found>> {
        let HereArgs { engine, item_max } = &self.here;
        let (mut config, tiers) = engine.cache(*item_max)?;
        let movers = engine.movers();
        config.making = if movers > 0 { Making::Background } else { Making::Inline };
        let name = named(&config, &tiers, movers);
        if self.dry_run {
            return dry(&name, plan);
        }
        let resident_before = resident("self");
        let cache = Arc::new(Cache::new(&config)?);
        let movers = Movers::start(&cache, movers).context("starting movers")?;
        let fs = RootFs::live()?;
        let watch = Watch::start(&fs);
        let found = run::run(plan, &InProcess { name, engine: &*cache, resident_before });
        let disturbance = watch.end(&fs);
        drop(movers);
        cache.close().context("--disk")?;
        let mut found = found?;
        found.disturbance = disturbance;
        Ok(Some(found))
    }
}

/// The name of a cache in this process, for reports.
fn named(config: &Config, tiers: &[Memory], movers: usize) -> String {
    let mut tiers: Vec<_> =
        tiers.iter().map(|tier| format!("{} of {} memory", tier.bytes, tier.name)).collect();
    if let Some(disk) = &config.disk {
        tiers.push(format!("{} at {}", Bytes(disk.config.bytes), disk.path.display()));
    }
    let first = config.tiers.first().map(|tier| tier.eviction);
    let policy = Eviction::ALL.iter().find(|(_, policy)| Some(*policy) == first);
    let policy = policy.map_or("", |(name, _)| name);
    let movers = report::count(movers as u64, "mover");
    format!("in process: {}, {policy}, {movers}", tiers.join(" + "))
}

fn dry(target: &dyn std::fmt::Display, plan: &Plan) -> anyhow::Result<Option<Found>> {
    output::print(&format!("target {target}\n{plan}"))?;
    Ok(None)
}
