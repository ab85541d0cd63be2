//! `nearfar why`: the last decisions of tiering and balancing; [`nearfar_daemon::why`] reads and describes them.

use std::process::ExitCode;

use nearfar_command::exit::Exit;
use nearfar_command::output;
use nearfar_daemon::why;

/// Arguments of `nearfar why`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema nearfar.why/1)
    #[arg(long)]
    json: bool,
}

/// Prints the decisions.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = why::report();
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&why::text(&report))?;
    }
    Ok(Exit::Done.into())
}
