//! `nearfar dev sim-lab`: compares lab results with the model's.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use nearfar_bench::balance::results::Found;
use nearfar_bench::pages::sim::lab::{Document, text};
use nearfar_bench::saved::kept;
use nearfar_bench::simulate::lab;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::output;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Results of nearfar-bench balance, as written by --save, of one machine
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Seed of the controllers' random numbers; the same seed gives the same result
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON (schema nearfar.sim-lab/1)
    #[arg(long)]
    json: bool,
}

/// Exit status 1 if a figure is out of bounds, or if the order of rows differs.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let found: anyhow::Result<Vec<Found>> = args.files.iter().map(|file| kept(file)).collect();
    let found = found.ends_with(Exit::Usage)?;
    let of = |found: &Found| {
        let machine = found.machine.emulation.as_ref();
        (machine.map(|of| of.machine.clone()).unwrap_or_default(), found.machine.kernel.clone())
    };
    let first = found.first().map(of).unwrap_or_default();
    let mut cases = Vec::new();
    for (file, found) in args.files.iter().zip(&found) {
        if of(found).0 != first.0 {
            let other = of(found).0;
            let error = anyhow::anyhow!(
                "{}: machine {other}, but the first file is of {}; compare one machine at a time",
                file.display(),
                first.0
            );
            return Err(error).ends_with(Exit::Usage);
        }
        let more = lab::cases(found, args.seed).with_context(|| file.display().to_string());
        cases.extend(more.ends_with(Exit::Usage)?);
    }
    let document = Document::of((&first.0, &first.1), cases);
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&text(&document))?;
    }
    Ok(if document.is_within() { Exit::Done } else { Exit::Failed }.into())
}
