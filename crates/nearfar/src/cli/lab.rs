//! `nearfar lab`: calls the lab's library and maps its errors to exit statuses.

use std::process::ExitCode;

pub(crate) use nearfar_lab::cli::Args;

use nearfar_command::exit::{Exit, WithExit};

/// Runs the lab's command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    nearfar_lab::cli::run(args, &["lab"]).map_err(|failure| {
        let exit = match failure.status {
            2 => Exit::Usage,
            125 => Exit::BeforeCommand,
            126 => Exit::NotExecutable,
            127 => Exit::NotFound,
            _ => Exit::Failed,
        };
        WithExit { exit, error: failure.into() }.into()
    })
}
