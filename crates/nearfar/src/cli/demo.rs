//! `nearfar demo`: shows the main uses, on this machine if it has two tiers, else in the lab.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;

use nearfar_bench::demo::guest::{self, Lab};
use nearfar_bench::demo::here::{self, Part};
use nearfar_bench::demo::machine;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::interrupt;
use nearfar_command::progress::StatusLine;
use nearfar_command::{new_file, output};
use nearfar_lab::fetch::{FetchError, SERIES};
use nearfar_lab::machine::catalog;
use nearfar_report::model::{Report, SCHEMA};
use nearfar_report::{page, picture, text};

/// File name of the result in `--out`.
const RESULT: &str = "demo.json";

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run in the lab, even if this machine has two tiers
    #[arg(long, conflicts_with = "here")]
    lab: bool,
    /// Run on this machine, never in the lab
    #[arg(long)]
    here: bool,
    /// The lab's machine, by name or file
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "here")]
    machine: Option<String>,
    /// The lab's kernel, by version or file
    #[arg(long, value_name = "VERSION|PATH", conflicts_with = "here")]
    kernel: Option<String>,
    /// Run only these parts
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "PART,...",
        default_value = "bandwidth,redis,memcached"
    )]
    only: Vec<Part>,
    /// Write the report as one HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the bandwidth chart as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the result as JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Save the result (demo.json) and the output of every program in this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Show a saved result (demo.json of an earlier run) instead of running anything
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lab", "here", "machine", "kernel", "out", "only"])]
    from: Option<PathBuf>,
    /// Show progress even if standard error is not a terminal
    #[arg(long, hide = true)]
    progress: bool,
}

/// The place where the demo runs.
#[derive(Debug)]
enum Plan {
    /// Not at all: a saved result is shown.
    Saved(PathBuf),
    /// On this machine.
    Here(nearfar_report::model::Machine),
    /// In the lab.
    Lab(Lab),
}

/// Runs the demo, or shows a saved one.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    new_file::check(args.html.iter().chain(&args.svg))?;
    interrupt::listen()?;
    let report = match plan(args)? {
        Plan::Saved(path) => saved(&path)?,
        Plan::Here(machine) => {
            let (_temporary, dir) = directory(args)?;
            let report = here::run(machine, &args.only, &dir, args.progress)?;
            guest::hand_over(&dir, RESULT, &report)?;
            report
        }
        Plan::Lab(lab) => {
            let (_temporary, dir) = directory(args)?;
            let progress = args.progress || StatusLine::new().is_shown();
            output::remark(
                "booting an emulated machine (nearfar lab); the demo takes some minutes there",
            );
            lab.run(&guest::demo_arguments(&args.only, progress), &dir)?;
            saved(&dir.join(RESULT))?
        }
    };
    show(args, &report)?;
    Ok(Exit::Done.into())
}

fn plan(args: &Args) -> anyhow::Result<Plan> {
    if let Some(path) = &args.from {
        return Ok(Plan::Saved(path.clone()));
    }
    let lab = || {
        Plan::Lab(Lab {
            machine: args.machine.clone(),
            kernel: args.kernel.clone(),
            ..Lab::default()
        })
    };
    if args.lab || args.machine.is_some() || args.kernel.is_some() {
        // Before anything is started.
        if let Some(machine) = &args.machine {
            catalog::find(machine).context("--machine").ends_with(Exit::Usage)?;
        }
        if let Some(kernel) = &args.kernel {
            let is_known = SERIES.contains(&kernel.as_str()) || Path::new(kernel).exists();
            let unknown = || FetchError::UnknownKernel(kernel.clone());
            is_known.then_some(()).ok_or_else(unknown).ends_with(Exit::Usage)?;
        }
        return Ok(lab());
    }
    let machine = machine::read()?;
    match machine::has_two_tiers(&machine) {
        true => Ok(Plan::Here(machine)),
        false if args.here => {
            let has = machine.nodes.iter().map(nearfar_report::words::node).collect::<Vec<_>>();
            let has = if has.is_empty() { "no nodes".into() } else { has.join("; ") };
            Err(anyhow::anyhow!(
                "demo --here compares near with far memory, and this machine has one tier ({has}); \
                 leave out --here to run in the lab"
            ))
            .ends_with(Exit::Usage)
        }
        false => Ok(lab()),
    }
}

/// The directory of `--out`, or a temporary one that is removed when the first value is dropped.
fn directory(args: &Args) -> anyhow::Result<(Option<tempfile::TempDir>, PathBuf)> {
    if let Some(dir) = &args.out {
        let no_directory = || anyhow::anyhow!("--out {}: it is not a directory", dir.display());
        let is_other = dir.exists() && !dir.is_dir();
        (!is_other).then_some(()).ok_or_else(no_directory).ends_with(Exit::Usage)?;
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        return Ok((None, dir.clone()));
    }
    let temporary = tempfile::Builder::new().prefix("nearfar-demo-").tempdir();
    let temporary = temporary.context("creating a temporary directory for the programs' output")?;
    let dir = temporary.path().to_path_buf();
    Ok((Some(temporary), dir))
}

fn saved(path: &Path) -> anyhow::Result<Report> {
    let asked = || format!("showing the result in {}", path.display());
    let text = nearfar_kernel::fs::read_input(path, 64 << 20)
        .with_context(asked)
        .ends_with(Exit::Usage)?;
    let report: Report = serde_json::from_str(&text)
        .with_context(|| format!("it is not a {SCHEMA} document"))
        .with_context(asked)
        .ends_with(Exit::Usage)?;
    if report.schema != SCHEMA {
        let found = &report.schema;
        return Err(anyhow::anyhow!("its schema is {found}, this version reads {SCHEMA}"))
            .with_context(asked)
            .ends_with(Exit::Usage);
    }
    Ok(report)
}

fn show(args: &Args, report: &Report) -> anyhow::Result<()> {
    if args.json {
        output::print_json(report)?;
    } else {
        output::print(&format!("{}{}", text::table(report), text::commands(report)))?;
    }
    if let Some(path) = &args.html {
        new_file::write(path, &page::html(report))?;
    }
    if let Some(path) = &args.svg {
        let picture =
            picture::svg(report).context("no picture: the bandwidth kernels were left out")?;
        new_file::write(path, &picture)?;
    }
    Ok(())
}
