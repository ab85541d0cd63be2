//! `nearfar-bench heap`: compares heaps in the lab.

use std::process::ExitCode;

use super::comparison::OneBoot;
use crate::demo::beside;
use crate::demo::guest::{Lab, names};
use crate::heap::rows::Part;
use crate::heap::{self, Options};
use crate::pages::heap::{Document, html, text};
use nearfar_command::exit::Exit;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Parts to run [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,...")]
    parts: Vec<Part>,
    /// The lab's machine, by name or file
    #[arg(long, value_name = "NAME|FILE", default_value = "cxl-2tier-narrow")]
    machine: String,
    #[command(flatten)]
    frame: OneBoot,
}

/// Runs it; exit status 1 if a threshold is not reached.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = options(args);
    let found = args.frame.found(
        || heap::plan(&options),
        |dir, progress| heap::run(&options, dir, progress),
        // Refused here, because the guest would fail only after its boot.
        |_| beside::program("nearfar-load").map(drop),
        |dir| {
            let lab = Lab { machine: Some(args.machine.clone()), ..Lab::default() };
            args.frame.boot(lab, vec!["--parts".into(), names(&options.parts)], dir)
        },
    )?;
    let Some(document) = found.map(Document::of) else { return Ok(Exit::Done.into()) };
    args.frame.output.show(&document, &text(&document), &html(&document), document.reached())
}

fn options(args: &Args) -> Options {
    let parts = if args.parts.is_empty() { Part::ALL.into() } else { args.parts.clone() };
    Options { parts, smoke: args.frame.smoke }
}
