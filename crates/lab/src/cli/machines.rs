//! `machines`: lists the available machines.

use std::process::ExitCode;

use super::{Failure, print};
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
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
