//! `machines`: lists the available machines.

use std::io::Write as _;
use std::process::ExitCode;

use super::Failure;
use crate::machine::{catalog, report};

/// Arguments of `machines`.
#[derive(Debug, clap::Args)]
pub(super) struct MachinesArgs {
    /// Machines to show, by name or file [default: all built-in ones]
    #[arg(value_name = "NAME|FILE")]
    names: Vec<String>,
    /// As JSON of the schema nearfar.machines/1
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &MachinesArgs) -> Result<ExitCode, Failure> {
    let machines = if args.names.is_empty() {
        catalog::all()?
    } else {
        args.names.iter().map(|name| catalog::find(name)).collect::<Result<_, _>>()?
    };
    let text = if args.json { report::json(&machines) } else { report::table(&machines) };
    // A reader that closes the pipe early is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}
