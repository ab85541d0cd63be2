//! `nearfar tier`: starts, shows, configures and stops the service that promotes and demotes pages between near and far
//! memory.
//!
//! `start` runs the service in the background (or here, with `--foreground`) until `stop` or a signal ends it; all
//! changed settings are then restored. If it is killed, `stop` or the next `start` restores them. The service itself is
//! [`nearfar_daemon::tier`].

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use nearfar_kernel::journal::{Journal, OnConflict};
use nearfar_kernel::process::Identity;

use nearfar_command::exit::Exit;
use nearfar_command::output;
use nearfar_daemon::owner::{Service, Whom};
use nearfar_daemon::tier::state::{self, State};
use nearfar_daemon::{budget, end};

use super::background::StopArgs;

mod config;
mod start;

pub(crate) use start::for_run;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    tier: Tier,
}

#[derive(Debug, Subcommand)]
enum Tier {
    /// Start tiering; needs root
    ///
    /// Hot pages are promoted to near memory; cold ones are demoted to make room for them. Programs need no change.
    Start(Box<start::Args>),
    /// Show the activity of tiering, migrated pages and reasons
    Status(StatusArgs),
    /// Show or change the options of running tiering; write or check an options file
    Config(config::Args),
    /// Stop tiering and restore all settings, also after it was killed
    Stop(StopArgs),
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// Print JSON (schema nearfar.tier/1, of budgets nearfar.tier-budgets/1; if tiering is not running, with "running": false and "why")
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.tier {
        Tier::Start(args) => start::run(args),
        Tier::Status(args) => status(args),
        Tier::Config(args) => config::run(args),
        Tier::Stop(args) => stop(args),
    }
}

/// The running or starting process, with the state it has written, if that can be read.
fn running() -> Option<(Identity, anyhow::Result<State>)> {
    Service::Tier.described(state::read, |state| state.identity)
}

/// The state of the running service.
fn running_state() -> anyhow::Result<State> {
    let (process, state) = running().ok_or_else(not_running)?;
    state.with_context(|| {
        format!("tiering runs as process {}, but its state is missing", process.pid)
    })
}

/// The error that tiering is not running, with its reason and the command that starts it.
fn not_running() -> anyhow::Error {
    let dir = Journal::default_dir();
    let ended = state::read_ended(&dir);
    output::not_running("tier", state::path(&dir).exists(), ended.as_deref())
}

/// The reason with which tiering ended by itself, if it gave one.
pub(crate) fn why_ended() -> String {
    let why = state::read_ended(&Journal::default_dir());
    why.unwrap_or_else(|| "it was stopped or killed".into())
}

fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let budgets = Service::Tier.described(budget::state::read, |state| state.identity);
    if let Some((_, Ok(state))) = budgets {
        match args.json {
            true => output::print_json(&state)?,
            false => output::print(&state.text())?,
        }
        return Ok(Exit::Done.into());
    }
    output::status(running_state(), state::SCHEMA, args.json, |state| match args.json {
        true => output::print_json(state),
        false => output::print(&state.text()),
    })
}

fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    output::need_root("stopping tiering")?;
    let (on_conflict, whom) = (args.on_conflict(), args.whom());
    let (ended, restored) = end::tiering(whom, on_conflict, output::note_restored)?;
    if let (Whom::Nobody, Some((process, _))) = (whom, running()) {
        let pid = process.pid;
        output::print(&format!("Tiering runs as process {pid}; nothing was restored.\n"))?;
        return Ok(Exit::Done.into());
    }
    output::print(&match (ended, restored) {
        (Some(pid), _) => {
            format!("Tiering is stopped (process {pid}); all settings are as before.\n")
        }
        (None, true) => {
            "Tiering was not running; the settings of a killed process are restored.\n".into()
        }
        (None, false) => String::from("Tiering is not running; there was nothing to restore.\n"),
    })?;
    Ok(Exit::Done.into())
}

/// The process that tiers.
pub(crate) fn pid() -> Option<u32> {
    running().map(|(process, _)| process.pid)
}

/// Ends tiering, if it runs, and restores its settings, also those of a killed process. Returns the process that was
/// ended. The caller reports the restored settings.
pub(crate) fn end_any(on_conflict: OnConflict) -> anyhow::Result<Option<u32>> {
    end::tiering(Whom::Any, on_conflict, |_| ()).map(|(pid, _)| pid)
}

/// Ends this process, if it still runs, and restores the settings it had changed. A later process is left alone.
pub(crate) fn end_and_put_back(state: &State) -> anyhow::Result<()> {
    end::tiering(Whom::Only(state.identity), OnConflict::Refuse, output::note_restored).map(drop)
}
