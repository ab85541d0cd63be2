//! `nearfar bench heap`: heaps side by side in the lab.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueEnum as _;

use super::super::output;
use super::scratch;
use crate::bench::heap::found::Found;
use crate::bench::heap::rows::Part;
use crate::bench::heap::{self, Wishes};
use crate::bench::kept::kept;
use crate::demo::guest::{self, Lab};
use crate::exit::Exit;
use crate::report::heap::{Document, html, text};

/// The result in a guest's /out.
const RESULT: &str = "heap.json";

/// As typed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to compare [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,...")]
    parts: Vec<Part>,
    /// The lab's machine, by name or file
    #[arg(long, value_name = "NAME|FILE", default_value = "cxl-2tier-narrow")]
    machine: String,
    /// The lab's kernel, by version or file
    #[arg(long, value_name = "VERSION|PATH")]
    kernel: Option<String>,
    /// Run on this machine, not in the lab
    #[arg(long, conflicts_with_all = ["machine", "kernel"])]
    here: bool,
    /// A short look, not judged
    #[arg(long)]
    smoke: bool,
    /// Print what would be run, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON (schema nearfar.bench-heap/1)
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
    /// Write what was found into this directory, and nothing else (how the lab's guest hands it over)
    #[arg(long, value_name = "DIR", hide = true, requires = "here")]
    out: Option<PathBuf>,
    /// Show progress even where standard error is no terminal
    #[arg(long, hide = true)]
    progress: bool,
}

/// Runs it; exit status 1 if something is not reached.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let wishes = wishes(args);
    if args.dry_run {
        output::print(&heap::plan(&wishes))?;
        return Ok(Exit::Done.into());
    }
    if let Some(out) = &args.out {
        let found = heap::run(&wishes, out, args.progress)?;
        guest::hand_over(out, RESULT, &found)?;
        return Ok(Exit::Done.into());
    }
    let document = Document::of(match &args.result {
        Some(file) => kept(file)?,
        None if args.here => heap::run(&wishes, scratch()?.path(), args.progress)?,
        None => in_the_lab(args, &wishes)?,
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

fn wishes(args: &Args) -> Wishes {
    let parts = if args.parts.is_empty() { Part::ALL.into() } else { args.parts.clone() };
    Wishes { parts, smoke: args.smoke }
}

/// One boot.
fn in_the_lab(args: &Args, wishes: &Wishes) -> anyhow::Result<Found> {
    // What a guest would miss after a boot is better missed now.
    heap::load_generator()?;
    let dir = scratch()?;
    let lab =
        Lab { machine: Some(args.machine.clone()), kernel: args.kernel.clone(), ..Lab::default() };
    let names: Vec<_> = wishes
        .parts
        .iter()
        .filter_map(|part| Some(part.to_possible_value()?.get_name().to_string()))
        .collect();
    let mut arguments: Vec<String> =
        ["bench", "heap", "--here", "--out", guest::OUT, "--parts"].map(Into::into).into();
    arguments.push(names.join(","));
    arguments.extend(args.smoke.then(|| "--smoke".into()));
    let progress = args.progress || std::io::stderr().is_terminal();
    arguments.extend(progress.then(|| "--progress".into()));
    lab.result(&arguments, dir.path(), RESULT)
        .with_context(|| format!("the figures of machine {}", args.machine))
}
