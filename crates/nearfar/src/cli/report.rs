//! `nearfar report`: shows access records as text, JSON, pictures and HTML; imports records of damo; converts to
//! Parquet.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use nearfar_record::reduce::areas::Which;
use nearfar_record::{Ending, Writer};

use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::machine::Machine;
use nearfar_command::number::{percent, whole};
use nearfar_command::{new_file, output, terminal};
use nearfar_report::access::{self, Kind, Loaded, Options, Screen};

use super::record::parquet::{LabelArgs, summary_text};

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Report,
}

#[derive(Debug, Subcommand)]
enum Report {
    /// Access frequency by time and address
    Heatmap(MapArgs),
    /// Working set size: percentiles over the snapshots, and the hot set
    Wss(WssArgs),
    /// Amount of memory by access frequency and age
    Temperature(ShowArgs),
    /// Memory by node, and migrated pages
    Residency(ShowArgs),
    /// Contents of a record: machine, target, duration, notes, damage
    Info(InfoArgs),
    /// Convert a record of damo (its damon.data, or its JSON) to nearfar's format
    Import(ImportArgs),
    /// Write a record as Parquet, partitioned by host, date and workload
    Parquet(ParquetArgs),
}

/// A record, and how to show it.
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Record of nearfar or damo (damon.data, or JSON)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write this report as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write all reports into one HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct MapArgs {
    #[command(flatten)]
    show: ShowArgs,
    /// Show all addresses that were monitored, not only those with accesses
    #[arg(long)]
    all: bool,
    /// Columns of the map [default: those that fit]
    #[arg(long, value_name = "N", value_parser = whole::<u16>(16..=2000))]
    columns: Option<u16>,
    /// Maximum rows of the map [default: those that fit]
    #[arg(long, value_name = "N", value_parser = whole::<u16>(1..=2000))]
    rows: Option<u16>,
}

#[derive(Debug, clap::Args)]
struct WssArgs {
    #[command(flatten)]
    show: ShowArgs,
    /// Least share of access checks that found an access, in per cent, for memory to count; 0: any access at all
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = percent::<u64>(0..=100))]
    threshold: u64,
}

#[derive(Debug, clap::Args)]
struct InfoArgs {
    /// Record of nearfar or damo
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON (schema nearfar.record-info/1)
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct ImportArgs {
    /// Record of damo: damon.data, or JSON
    #[arg(value_name = "DAMO")]
    file: PathBuf,
    /// Record to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

#[derive(Debug, clap::Args)]
struct ParquetArgs {
    /// Record of nearfar or damo
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Directory of the dataset; created if needed, existing parts are kept
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    labels: LabelArgs,
}

/// Shows, imports or converts a record.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let usual =
        Options { columns: None, rows: None, which: Which::Accessed, threshold_permille: 0 };
    match &args.command {
        Report::Heatmap(map) => {
            let which = if map.all { Which::Monitored } else { Which::Accessed };
            let (columns, rows) = (map.columns.map(usize::from), map.rows.map(usize::from));
            show(&map.show, Kind::Heatmap, Options { columns, rows, which, ..usual })?;
        }
        Report::Wss(wss) => {
            let options = Options { threshold_permille: wss.threshold * 10, ..usual };
            show(&wss.show, Kind::Wss, options)?;
        }
        Report::Temperature(args) => show(args, Kind::Temperature, usual)?,
        Report::Residency(args) => show(args, Kind::Residency, usual)?,
        Report::Info(args) => info(args)?,
        Report::Import(args) => import(args)?,
        Report::Parquet(args) => parquet(args)?,
    }
    Ok(Exit::Done.into())
}

fn show(args: &ShowArgs, kind: Kind, options: Options) -> anyhow::Result<()> {
    new_file::check(args.html.iter().chain(&args.svg))?;
    for file in args.html.iter().chain(&args.svg) {
        other_than(&args.file, file)?;
    }
    let loaded = load(&args.file)?;
    if let Some(path) = &args.svg {
        let picture = access::picture::svg(&loaded, kind, options).with_context(|| {
            format!(
                "no picture: {} contains no data for it; nearfar report info shows its contents",
                loaded.name
            )
        })?;
        new_file::write(path, &picture)?;
    }
    if let Some(path) = &args.html {
        new_file::write(path, &access::page::html(&loaded, options))?;
    }
    for path in args.html.iter().chain(&args.svg) {
        output::remark(format_args!("wrote {}", path.display()));
    }
    if args.json {
        output::print_json(&access::json::report(&loaded, kind, options))
    } else {
        output::print_coloured(&access::text::report(&loaded, kind, options, screen()))
    }
}

fn info(args: &InfoArgs) -> anyhow::Result<()> {
    let loaded = load(&args.file)?;
    if args.json {
        output::print_json(&access::json::info(&loaded))
    } else {
        output::print(&access::text::info(&loaded, screen()))
    }
}

fn import(args: &ImportArgs) -> anyhow::Result<()> {
    new_file::check([&args.output])?;
    other_than(&args.file, &args.output)?;
    let asked = || format!("importing {}", args.file.display());
    let loaded = access::load::load_damo(&args.file).with_context(asked).ends_with(Exit::Usage)?;
    findings(&loaded);
    let record = &loaded.record;
    let writing = || format!("writing {}", args.output.display());
    let mut writer = Writer::create(&args.output, &record.header).with_context(writing)?;
    writer.all(record).with_context(writing)?;
    let ending = Ending { at_ns: record.duration_ns(), kernel_cpu_ns: 0, own_cpu_ns: 0 };
    let file = writer.end(ending).with_context(writing)?;
    file.sync_all().with_context(writing)
}

fn parquet(args: &ParquetArgs) -> anyhow::Result<()> {
    let loaded = load(&args.file)?;
    let fs = Machine::default().open()?;
    let mut dataset = args.labels.open(fs.as_ref(), &args.dir, &loaded.record.header)?;
    dataset.all(&loaded.record)?;
    output::remark(summary_text(&args.dir, dataset.end()?));
    Ok(())
}

fn load(path: &Path) -> anyhow::Result<Loaded> {
    let asked = || format!("reading {}", path.display());
    let loaded = access::load::load(path).with_context(asked).ends_with(Exit::Usage)?;
    findings(&loaded);
    Ok(loaded)
}

fn findings(loaded: &Loaded) {
    for finding in &loaded.findings {
        output::note(format_args!("{}: {finding}", loaded.name));
    }
}

/// Refuses to overwrite the input file.
fn other_than(read: &Path, written: &Path) -> anyhow::Result<()> {
    let same = read.canonicalize().ok().zip(written.canonicalize().ok());
    if same.is_some_and(|(read, written)| read == written) {
        let name = written.display();
        return Err(anyhow::anyhow!("{name} is the input record; give another output file"))
            .ends_with(Exit::Usage);
    }
    Ok(())
}

/// Width and colours of standard output.
fn screen() -> Screen {
    let terminal = terminal::get();
    Screen { columns: terminal.columns, colour: terminal.colours }
}
