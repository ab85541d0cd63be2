//! `nearfar daemon`: says how busy each node's memory is, to allocators and to who asks.
//!
//! It runs in the foreground until a signal ends it, as a service manager wants it; what it has made is removed then. If it is
//! killed, its next start or `--recover` does that. What it does is in [`crate::daemon`].

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::{advice, chase, tierd};

use super::machine::MachineArgs;
use super::output;
use crate::daemon::options::{INTERVAL_MS_MAX, INTERVAL_MS_MIN, Options};
use crate::daemon::{service, status};
use crate::exit::{EndsWith as _, Exit};

/// As typed.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Daemon>,
    /// Take options from this file (TOML, docs/daemon.md); those given here are stronger
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Look this often: 10 to 60000 [default: 200]; less often where that takes over 0.1 % of a CPU
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(INTERVAL_MS_MIN..=INTERVAL_MS_MAX))]
    interval: Option<u32>,
    /// The file of the advice page [default: $NEARFAR_ADVICE, else /run/nearfar/advice]
    #[arg(long, value_name = "FILE")]
    advice: Option<PathBuf>,
    /// Write the files of SMDK's daemon as well, below DIR
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = tierd::DIR)]
    tierd: Option<PathBuf>,
    /// Look a few times, show what would be published, and end; needs no right to write
    #[arg(long, conflicts_with_all = ["tierd", "recover"])]
    once: bool,
    /// Print JSON with --once (schema nearfar.daemon/1)
    #[arg(long, requires = "once")]
    json: bool,
    /// Remove what a daemon that was killed has left, and end
    #[arg(long, conflicts_with_all = ["interval", "tierd"])]
    recover: bool,
}

#[derive(Debug, Subcommand)]
enum Daemon {
    /// Show what the daemon says of each node
    Status(StatusArgs),
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// The file of the advice page [default: $NEARFAR_ADVICE, else /run/nearfar/advice]
    #[arg(long, value_name = "FILE")]
    advice: Option<PathBuf>,
    /// Print JSON (schema nearfar.daemon/1)
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(Daemon::Status(args)) = &args.command {
        let path = args.advice.clone().unwrap_or_else(advice::default_path);
        return show(&status::read(&path, chase::now)?, args.json);
    }
    let options = options(args)?;
    if args.recover {
        let removed = service::recover(&options.advice())?;
        service::say_removed(&removed);
        if removed.is_empty() {
            output::note("nothing was left to remove");
        }
    } else if args.once {
        return show(&service::once(&options)?, args.json);
    } else {
        service::serve(&options)?;
    }
    Ok(Exit::Done.into())
}

/// What is typed, over what is in the file.
fn options(args: &Args) -> anyhow::Result<Options> {
    let file = args.config.as_ref().map(|path| {
        let named = || format!("--config {}", path.display());
        Options::read(path).with_context(named).ends_with(Exit::Usage)
    });
    let Args { interval, advice, tierd, .. } = args;
    let typed = Options { interval_ms: *interval, advice: advice.clone(), tierd: tierd.clone() };
    Ok(typed.over(file.transpose()?.unwrap_or_default()))
}

fn show(page: &nearfar_policy::advice::Page, is_json: bool) -> anyhow::Result<ExitCode> {
    let lab = MachineArgs::default().lab(&RootFs::live()?);
    if is_json {
        output::print_json(&status::json(page, lab.as_ref()))?;
    } else {
        output::print(&status::text(page, lab.as_ref()))?;
    }
    Ok(Exit::Done.into())
}
