//! `nearfar daemon`: measures the load of each node's memory and publishes it to allocators.
//!
//! It runs in the foreground until a signal ends it, as service managers expect, and then removes the files it has
//! created. If it is killed, its next start or `--recover` removes them. The service itself is
//! [`nearfar_daemon::advice`].

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::{advice, chase, tierd};

use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::machine::Machine;
use nearfar_command::output;
use nearfar_daemon::advice::options::{INTERVAL_MS_MAX, INTERVAL_MS_MIN, Options};
use nearfar_daemon::advice::{service, status};

/// The sampling interval in milliseconds, as in the file of options.
fn milliseconds(text: &str) -> Result<u32, String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let text = if is_number { format!("{text}ms") } else { text.to_owned() };
    let [least, most] =
        [INTERVAL_MS_MIN, INTERVAL_MS_MAX].map(|ms| Duration::from_millis(ms.unsigned_abs()));
    let time = super::record::time(&text, least, most)?;
    Ok(u32::try_from(time.as_millis()).unwrap_or(u32::MAX))
}

/// Arguments as typed.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Daemon>,
    /// Take options from this file (TOML, docs/daemon.md); options on the command line override them
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sampling interval, 10ms to 60s; a number alone is in milliseconds [default: 200ms]; lengthened where sampling takes
    /// over 0.1 % of a CPU
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    interval: Option<u32>,
    /// The file of the advice page [default: $NEARFAR_ADVICE, else /run/nearfar/advice]
    #[arg(long, value_name = "FILE")]
    advice: Option<PathBuf>,
    /// Also write the files of SMDK's daemon, below DIR
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = tierd::DIR)]
    tierd: Option<PathBuf>,
    /// Sample a few times, show the result without publishing it, and end; needs no write permission
    #[arg(long, conflicts_with_all = ["tierd", "recover"])]
    once: bool,
    /// Print JSON with --once (schema nearfar.daemon/2)
    #[arg(long, requires = "once")]
    json: bool,
    /// Remove files left by a killed daemon, and end
    #[arg(long, conflicts_with_all = ["interval", "tierd"])]
    recover: bool,
}

#[derive(Debug, Subcommand)]
enum Daemon {
    /// Show the advice that the daemon publishes for each node
    Status(StatusArgs),
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// The file of the advice page [default: $NEARFAR_ADVICE, else /run/nearfar/advice]
    #[arg(long, value_name = "FILE")]
    advice: Option<PathBuf>,
    /// Print JSON (schema nearfar.daemon/2; if the daemon is not running, with "running": false and "why")
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(Daemon::Status(args)) = &args.command {
        let path = args.advice.clone().unwrap_or_else(advice::default_path);
        let page = status::read(&path, chase::now);
        return output::status(page, status::SCHEMA, args.json, |page| show(page, args.json));
    }
    let options = options(args)?;
    if args.recover {
        let removed = service::recover(&options.advice())?;
        service::say_removed(&removed);
        if removed.is_empty() {
            output::remark("nothing was left to remove");
        }
    } else if args.once {
        show(&service::once(&options)?, args.json)?;
    } else {
        service::serve(&options)?;
    }
    Ok(Exit::Done.into())
}

/// Options on the command line override those in the file.
fn options(args: &Args) -> anyhow::Result<Options> {
    let file = args.config.as_ref().map(|path| {
        let named = || format!("--config {}", path.display());
        Options::read(path).with_context(named).ends_with(Exit::Usage)
    });
    let Args { interval, advice, tierd, .. } = args;
    let typed = Options { interval_ms: *interval, advice: advice.clone(), tierd: tierd.clone() };
    Ok(typed.over(file.transpose()?.unwrap_or_default()))
}

fn show(page: &nearfar_policy::advice::Page, is_json: bool) -> anyhow::Result<()> {
    let lab = Machine::default().lab(&RootFs::live()?);
    if is_json {
        output::print_json(&status::json(page, lab.as_ref()))
    } else {
        output::print(&status::text(page, lab.as_ref()))
    }
}
