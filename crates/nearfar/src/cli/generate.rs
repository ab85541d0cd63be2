//! `nearfar completions` and `nearfar man`: made from the same definition as the help.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

/// What `nearfar completions` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// What `nearfar man` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// An existing directory; nearfar.1, nearfar-topo.1 and so on are written there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints the completion script.
pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "nearfar", &mut script);
    std::io::stdout().write_all(&script).context("completions: standard output is closed")?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for each command.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    clap_mangen::generate_to(super::Cli::command(), &args.directory).with_context(|| {
        format!(
            "man: can't write pages into {}; name an existing directory",
            args.directory.display()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
