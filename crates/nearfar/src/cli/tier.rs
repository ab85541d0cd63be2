//! `nearfar tier`: promotion and demotion between near and far memory, as a process of its own.
//!
//! `start` runs it in the background (or here, with `--foreground`) until `stop` or a signal ends it; whatever was set is
//! put back then. If it is killed, `stop` or the next `start` puts it back. What it does is in [`crate::tier`].

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use nearfar_kernel::cgroup::own;
use nearfar_kernel::damon;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, OnConflict};

use super::{background, output};
use crate::exit::Exit;
use crate::tier::service::{BY, refuse_conflicts, say_removed};
use crate::tier::state::{self, State};

mod config;
mod start;

pub(crate) use start::for_run;

/// As typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    tier: Tier,
}

#[derive(Debug, Subcommand)]
enum Tier {
    /// Start tiering; needs root
    ///
    /// Pages that are used move to near memory, pages that are not make room for them. Programs need no change.
    Start(start::Args),
    /// Show what tiering does, what it has moved and why
    Status(StatusArgs),
    /// Show or change the options of running tiering; write or check a file of them
    Config(config::Args),
    /// Stop tiering and put everything back, also after it was killed
    Stop(StopArgs),
}

#[derive(Debug, clap::Args)]
struct StopArgs {
    /// Put back also what someone else has changed since
    #[arg(long)]
    overwrite: bool,
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// Print JSON (schema nearfar.tier/1)
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

/// The process that runs, if one does.
fn running() -> anyhow::Result<Option<State>> {
    let state = state::read(&Journal::default_dir())?;
    Ok(state.filter(State::is_running))
}

/// Why none runs, and what to do.
fn not_running() -> anyhow::Error {
    let dir = Journal::default_dir();
    let killed = state::read(&dir).ok().flatten().map(|state| state.identity.pid);
    let why = state::read_ended(&dir);
    match (killed, why) {
        (Some(pid), _) => anyhow::anyhow!(
            "tiering is not running: process {pid} was killed, and what it had set may still be so; nearfar tier stop puts it \
             back, nearfar tier start does so as well and starts it"
        ),
        (None, Some(why)) => anyhow::anyhow!(
            "tiering is not running; it ended by itself: {why}; nearfar tier start starts it"
        ),
        (None, None) => {
            anyhow::anyhow!("tiering is not running; nearfar tier start starts it")
        }
    }
}

/// Why tiering ended by itself, as far as it said.
pub(crate) fn why_ended() -> String {
    let why = state::read_ended(&Journal::default_dir());
    why.unwrap_or_else(|| "it was stopped or killed".into())
}

fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let state = running()?.ok_or_else(not_running)?;
    if args.json {
        output::print_json(&state)?;
    } else {
        output::print(&state.text())?;
    }
    Ok(Exit::Done.into())
}

fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    let state = running()?;
    let on_conflict = if args.overwrite { OnConflict::Overwrite } else { OnConflict::Refuse };
    put_back_as(state.as_ref(), on_conflict)?;
    output::print("Tiering is stopped; everything it had set is as before.\n")?;
    Ok(Exit::Done.into())
}

/// Ends the process that runs, if one does, and puts back what is left to put back.
pub(crate) fn end_and_put_back(state: Option<&State>) -> anyhow::Result<()> {
    put_back_as(state.filter(|state| state.is_running()), OnConflict::Refuse)
}

fn put_back_as(state: Option<&State>, on_conflict: OnConflict) -> anyhow::Result<()> {
    if let Some(state) = state {
        background::end(state.identity)?;
    }
    // What a process that was killed has left.
    let (dir, fs) = (Journal::default_dir(), RootFs::live()?);
    let journal = Journal::new(dir.clone(), &fs, "/");
    let restored = [
        damon::recover(&journal, on_conflict).context("putting back what tiering has set")?,
        journal.restore(BY, on_conflict).context("putting back what tiering has set")?,
    ];
    if dir.exists() {
        let removed = own::Turn::take(&dir).and_then(|turn| turn.recover(&fs));
        removed
            .context("removing the cgroup of a program that was run")?
            .iter()
            .for_each(say_removed);
    }
    for gone in [state::path(&dir), state::ended_path(&dir)] {
        let _ = std::fs::remove_file(gone);
    }
    for recorded in restored.iter().flat_map(|restored| &restored.put_back) {
        output::note(format_args!("put back /{} to {}", recorded.path, recorded.old));
    }
    restored.iter().try_for_each(refuse_conflicts)
}
