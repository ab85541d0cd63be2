//! `nearfar tier`: starts, shows, configures and stops the service that promotes and demotes pages between near and far
//! memory.
//!
//! `start` runs the service in the background (or here, with `--foreground`) until `stop` or a signal ends it; all
//! changed settings are then restored. If it is killed, `stop` or the next `start` restores them. The service itself is
//! [`nearfar_daemon::tier`].

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use nearfar_kernel::cgroup::own;
use nearfar_kernel::damon;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, OnConflict, Restored};
use nearfar_kernel::process::Identity;

use nearfar_command::exit::Exit;
use nearfar_command::output;
use nearfar_daemon::owner::{Service, Whom};
use nearfar_daemon::tier::service::{BY, refuse_conflicts, say_removed};
use nearfar_daemon::tier::state::{self, State};
use nearfar_daemon::{budget, last};

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
struct StopArgs {
    /// Also restore settings that another process has changed since
    #[arg(long)]
    overwrite: bool,
    /// Only restore the settings of a process that was killed; a running one goes on
    #[arg(long)]
    if_dead: bool,
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
    let on_conflict = if args.overwrite { OnConflict::Overwrite } else { OnConflict::Refuse };
    let whom = if args.if_dead { Whom::Nobody } else { Whom::Any };
    let (ended, restored) = end(whom, on_conflict, output::note_restored)?;
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
    end(Whom::Any, on_conflict, |_| ()).map(|(pid, _)| pid)
}

/// Ends this process, if it still runs, and restores the settings it had changed. A later process is left alone.
pub(crate) fn end_and_put_back(state: &State) -> anyhow::Result<()> {
    end(Whom::Only(state.identity), OnConflict::Refuse, output::note_restored).map(drop)
}

/// Ends tiering, or the process named. Returns the process that was ended, and whether a killed one had left
/// settings changed.
fn end(
    whom: Whom,
    on_conflict: OnConflict,
    note: fn(&Restored),
) -> anyhow::Result<(Option<u32>, bool)> {
    let (dir, fs) = (Journal::default_dir(), RootFs::live()?);
    let journal = Journal::new(dir.clone(), &fs, "/");
    let ended = Service::Tier.end(&journal, whom)?;
    if ended.claim.is_none() && whom != Whom::Any {
        return Ok((ended.pid, false));
    }
    let recovered = damon::recover(&journal, on_conflict).map_err(anyhow::Error::from);
    // What can't be restored keeps nothing else from being restored.
    let mut failed = Vec::new();
    let mut restored = Restored::default();
    for part in [recovered, journal.restore(BY, on_conflict).map_err(anyhow::Error::from)] {
        match part.context("restoring the settings of tiering") {
            Ok(part) => restored.add(part),
            Err(error) => failed.push(error),
        }
    }
    let removed = own::Turn::take(&dir).and_then(|turn| turn.recover(&fs));
    let removed = removed.context("removing the cgroup of a program that was run");
    let removed = removed.unwrap_or_else(|error| {
        failed.push(error);
        None
    });
    removed.iter().for_each(say_removed);
    let mut left = removed.is_some() || !restored.put_back.is_empty();
    left |= last::retire(&state::path(&dir));
    for gone in [state::ended_path(&dir), budget::state::path(&dir)] {
        left |= std::fs::remove_file(gone).is_ok();
    }
    note(&restored);
    if let Some(first) = failed.pop() {
        failed.iter().for_each(|error| output::note(format_args!("{error:#}")));
        return Err(first);
    }
    refuse_conflicts(&restored)?;
    Ok((ended.pid, left))
}
