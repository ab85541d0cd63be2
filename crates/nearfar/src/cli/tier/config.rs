//! `nearfar tier config`: shows and changes the options of running tiering; writes and checks option files.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_kernel::journal::Journal;
use serde_json::json;

use super::start::Limits;
use super::{not_running, running, running_state};
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::new_file::NewFile;
use nearfar_command::output;
use nearfar_daemon::owner::PATIENCE;
use nearfar_daemon::tier::change::Turn;
use nearfar_daemon::tier::options::{EffectiveOptions, Options};
use nearfar_daemon::tier::service::NAP;
use nearfar_daemon::tier::state::State;
use nearfar_kernel::clock::{Stopwatch, sleep};

/// The `schema` of the output of `--json`.
const SCHEMA: &str = "nearfar.tier-config/1";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    limits: Limits,
    /// Write the effective options, or the defaults if tiering is not running, to this file, for tier start --config
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Only check this file and show its effect
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "headroom", "traffic", "cpu"])]
    check: Option<PathBuf>,
    /// Print JSON (schema nearfar.tier-config/1)
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.check {
        let named = || format!("--check {}", path.display());
        let file = Options::read(path).with_context(named).ends_with(Exit::Usage)?;
        return show(args, &EffectiveOptions::new(Options::default(), file), None);
    }
    let changes = args.limits.options();
    let state = match running() {
        Some(_) if changes == Options::default() => Some(running_state()?),
        Some(_) => Some(change(&running_state()?, changes.clone())?),
        None => None,
    };
    let effective = match (&state, &args.save) {
        (Some(state), _) => state.settings.clone(),
        (None, Some(_)) => EffectiveOptions::new(changes, Options::default()),
        (None, None) => {
            return Err(anyhow::anyhow!(
                "{}; to write a file of options instead: nearfar tier config --save FILE",
                not_running()
            ));
        }
    };
    if let Some(path) = &args.save {
        save(path, &effective.options).with_context(|| format!("--save {}", path.display()))?;
        output::remark(format_args!(
            "wrote {}; nearfar tier start --config {0} takes it",
            path.display()
        ));
    }
    show(args, &effective, state.as_ref())
}

/// Sends `changes` to running tiering; returns its new state.
fn change(state: &State, changes: Options) -> anyhow::Result<State> {
    let dir = Journal::default_dir();
    let turn = Turn::wait(&dir)?;
    turn.ask(&dir, state, changes)?;
    let waited = Stopwatch::start();
    while !turn.is_heard(&dir) {
        if !state.is_running() {
            turn.give_up(&dir);
            return Err(not_running());
        }
        if waited.elapsed() >= PATIENCE {
            turn.give_up(&dir);
            anyhow::bail!(
                "process {} did not accept the change within {} s; nothing was changed",
                state.identity.pid,
                PATIENCE.as_secs()
            );
        }
        sleep(NAP);
    }
    running_state()
}

/// Writes the file atomically.
fn save(path: &Path, options: &Options) -> anyhow::Result<()> {
    let mut file = NewFile::begin(path, 0o644)?;
    file.write_all(options.text().as_bytes())?;
    Ok(file.finish()?)
}

fn show(
    args: &Args,
    effective: &EffectiveOptions,
    state: Option<&State>,
) -> anyhow::Result<ExitCode> {
    let entries = effective.entries();
    if args.json {
        let options: serde_json::Map<String, serde_json::Value> = entries
            .into_iter()
            .map(|(key, value, from)| (key.to_owned(), json!({"value": value, "from": from})))
            .collect();
        let pid = state.map(|state| state.identity.pid);
        output::print_json(&json!({"schema": SCHEMA, "pid": pid, "options": options}))?;
        return Ok(Exit::Done.into());
    }
    let mut text = match state {
        Some(state) => format!("Options of tiering that runs as process {}\n", state.identity.pid),
        None => String::from("Options of tiering\n"),
    };
    for (key, value, from) in entries.into_iter().filter(|(_, value, _)| !value.is_null()) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        text += &format!("  {key:<19} {value:<12} {}\n", from.word());
    }
    output::print(&text)?;
    Ok(Exit::Done.into())
}
