//! `nearfar lab`: calls the lab's library and maps its errors to exit statuses.

use std::process::ExitCode;

use nearfar_command::exit::{Exit, WithExit};
pub(crate) use nearfar_lab::cli::Args;
use nearfar_lab::cli::{self, Check, Failure};

/// The arguments that make this program a lab, also where a lab starts it in a guest.
const REENTER: &[&str] = &["lab"];

/// Runs the lab's command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cli::run(args, REENTER).map_err(with_exit)
}

/// Checks the lab.
pub(crate) fn check(check: &Check) -> anyhow::Result<ExitCode> {
    cli::check(check, REENTER).map_err(with_exit)
}

fn with_exit(failure: Failure) -> anyhow::Error {
    let exit = match failure.status {
        2 => Exit::Usage,
        125 => Exit::BeforeCommand,
        126 => Exit::NotExecutable,
        127 => Exit::NotFound,
        _ => Exit::Failed,
    };
    WithExit { exit, error: failure.into() }.into()
}
