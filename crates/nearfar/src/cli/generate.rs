//! `nearfar completions` and `nearfar man`: generated from the same definition as the help.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

/// Arguments of `nearfar completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETIONS)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

const COMPLETIONS: &str = "\
make install puts the scripts of bash, zsh and fish in place. By hand, for one user:

  nearfar completions bash > ~/.local/share/bash-completion/completions/nearfar
  nearfar completions fish > ~/.config/fish/completions/nearfar.fish
  nearfar completions zsh > DIR/_nearfar, where DIR is one of $fpath";

/// Arguments of `nearfar man`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Existing directory; nearfar.1, nearfar-topo.1 and so on are written there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints the completion script.
pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let script = super::complete::script(args.shell, super::Cli::command());
    match std::io::stdout().write_all(&script) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("completions: can't write to standard output")?;
        }
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for each command.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    for command in [super::Cli::command(), nearfar_bench::cli::command()] {
        super::pages::write(command, &args.directory).with_context(|| {
            format!(
                "man: can't write pages into {}; name an existing directory",
                args.directory.display()
            )
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
