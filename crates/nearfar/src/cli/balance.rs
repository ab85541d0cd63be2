//! `nearfar balance`: memory traffic spread over controllers and links, as a process of its own.
//!
//! `start` runs it in the background (or here, with `--foreground`) until `stop` or a signal ends it; whatever was set is
//! put back then. If it is killed, `stop` or the next `start` puts it back. What it does is in [`crate::balance`].

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, OnConflict};

use super::background::{self, Background};
use super::machine::MachineArgs;
use super::output;
use crate::balance::options::{Options, Policy, RATE, RATE_MAX};
use crate::balance::service;
use crate::balance::state::{self, State};
use crate::exit::{EndsWith as _, Exit};
use crate::tier::options::PID_MAX;
use crate::tier::service::refuse_conflicts;

/// As typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    balance: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Start balancing; needs root
    ///
    /// Pages move to the nodes that use them; pages that several nodes use are spread, so that no memory controller is full
    /// while others idle. Programs need no change.
    Start(StartArgs),
    /// Show what traffic is like, what balancing does and why, and what came of it
    Status(StatusArgs),
    /// Stop balancing and put back all settings, also after it was killed; pages stay where they are
    Stop(StopArgs),
}

#[derive(Debug, clap::Args)]
struct StartArgs {
    /// Stay in the foreground and tell each second, until a signal ends it
    #[arg(long)]
    foreground: bool,
    /// Who decides
    #[arg(long, value_enum, default_value_t)]
    policy: Policy,
    /// Only processes in this cgroup and in those below it
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    cgroup: Option<String>,
    /// Only this process and what it has started
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..=PID_MAX))]
    pid: Option<u32>,
    /// Moved at most, in megabytes a second
    #[arg(long, value_name = "MBPS", default_value_t = RATE, value_parser = clap::value_parser!(u32).range(1..=RATE_MAX))]
    rate: u32,
    /// See by this sensor, by the name that nearfar doctor gives it; may be given again [default: those that can be used]
    #[arg(long = "sensor", value_name = "NAME")]
    sensors: Vec<String>,
    /// Leave the kernel's NUMA balancing on, which moves pages too; else it is off while balancing runs, unless it is
    /// what a sensor sees by
    #[arg(long)]
    keep_numa_balancing: bool,
    /// With carrefour: act only while all memory together answers more than so many cache lines in a microsecond, if
    /// that is counted [default: 50, as published for four sockets]
    #[arg(long, value_name = "LINES")]
    busy_above: Option<u32>,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// Print JSON (schema nearfar.balance/1)
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct StopArgs {
    /// Put back also what someone else has changed since
    #[arg(long)]
    overwrite: bool,
}

impl StartArgs {
    fn options(&self) -> Options {
        Options {
            policy: self.policy,
            rate_mbps: self.rate,
            sensors: self.sensors.clone(),
            cgroup: self.cgroup.clone(),
            pid: self.pid,
            keep_numa_balancing: self.keep_numa_balancing,
            busy_above: self.busy_above,
        }
    }

    /// The same, as it would be typed.
    fn as_arguments(&self) -> Vec<std::ffi::OsString> {
        let mut all: Vec<String> = ["--policy", self.policy.word()].map(String::from).into();
        all.extend(["--rate".into(), self.rate.to_string()]);
        let named = [
            ("--cgroup", self.cgroup.clone()),
            ("--pid", self.pid.map(|pid| pid.to_string())),
            ("--busy-above", self.busy_above.map(|lines| lines.to_string())),
        ];
        let named = named.into_iter().filter_map(|(option, value)| Some((option, value?)));
        let sensors = self.sensors.iter().map(|name| ("--sensor", name.clone()));
        all.extend(named.chain(sensors).flat_map(|(option, value)| [option.into(), value]));
        all.extend(self.keep_numa_balancing.then(|| "--keep-numa-balancing".into()));
        all.into_iter().map(Into::into).chain(self.machine.as_arguments()).collect()
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.balance {
        What::Start(args) => start(args),
        What::Status(args) => status(args),
        What::Stop(args) => stop(args),
    }
}

/// The process that runs, if one does.
fn running() -> anyhow::Result<Option<State>> {
    Ok(state::read(&Journal::default_dir())?.filter(State::is_running))
}

/// An error if one runs that is not this process.
fn refuse_second() -> anyhow::Result<()> {
    match running()?.filter(|state| state.identity.pid != std::process::id()) {
        None => Ok(()),
        Some(state) => Err(anyhow::anyhow!(
            "balancing (of {}) is already running as process {}; nearfar balance stop ends it",
            state.scope,
            state.identity.pid
        )),
    }
}

fn in_background(arguments: &[std::ffi::OsString]) -> anyhow::Result<State> {
    let runs = |pid| Ok(running()?.filter(|state| state.identity.pid == pid));
    background::start(&Background { command: "balance", what: "balancing", arguments }, runs)
}

/// Starts balancing of what this process will start; by `policy` or as usual.
pub(super) fn for_run(policy: Policy) -> anyhow::Result<State> {
    refuse_second()?;
    let us = std::process::id().to_string();
    in_background(&["--policy", policy.word(), "--pid", &us].map(Into::into))
}

/// Ends it, and puts back what it had set.
pub(super) fn end_and_put_back(state: &State) -> anyhow::Result<()> {
    if state.is_running() {
        background::end(state.identity)?;
    }
    put_back(OnConflict::Refuse)
}

/// Why it ended by itself, as far as it said.
pub(super) fn why_ended() -> String {
    let why = state::read_ended(&Journal::default_dir());
    why.unwrap_or_else(|| "it was stopped or killed".into())
}

fn start(args: &StartArgs) -> anyhow::Result<ExitCode> {
    if args.busy_above.is_some() && args.policy != Policy::Carrefour {
        return Err(anyhow::anyhow!(
            "--busy-above is a threshold of --policy carrefour; {} weighs what moving gains instead",
            args.policy.word()
        ))
        .ends_with(Exit::Usage);
    }
    refuse_second()?;
    anyhow::ensure!(
        args.machine.is_live(),
        "balance start --sysfs: a recording has no pages to move; leave --sysfs out"
    );
    if args.foreground {
        service::serve(&args.machine, &args.options())?;
        return Ok(Exit::Done.into());
    }
    let state = in_background(&args.as_arguments())?;
    output::print(&format!(
        "Balancing {} by {}, seen by {}, runs as process {}; nearfar balance status shows what it does, nearfar balance stop \
         ends it.\n",
        state.scope,
        state.settings.policy.word(),
        state.sensors.iter().map(|eye| eye.name.as_str()).collect::<Vec<_>>().join(", "),
        state.identity.pid
    ))?;
    Ok(Exit::Done.into())
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

/// Why none runs, and what to do.
fn not_running() -> anyhow::Error {
    let dir = Journal::default_dir();
    let killed = state::read(&dir).ok().flatten().map(|state| state.identity.pid);
    match (killed, state::read_ended(&dir)) {
        (Some(pid), _) => anyhow::anyhow!(
            "balancing is not running: process {pid} was killed, and what it had set may still be so; nearfar balance stop puts \
             it back, nearfar balance start does so as well and starts it"
        ),
        (None, Some(why)) => anyhow::anyhow!(
            "balancing is not running; it ended by itself: {why}; nearfar balance start starts it"
        ),
        (None, None) => {
            anyhow::anyhow!("balancing is not running; nearfar balance start starts it")
        }
    }
}

fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    if let Some(state) = running()? {
        background::end(state.identity)?;
    }
    put_back(if args.overwrite { OnConflict::Overwrite } else { OnConflict::Refuse })?;
    output::print(
        "Balancing is stopped; all it had set is as before, and pages stay where they are.\n",
    )?;
    Ok(Exit::Done.into())
}

/// Puts back what a process that was killed has left.
fn put_back(on_conflict: OnConflict) -> anyhow::Result<()> {
    let (dir, fs) = (Journal::default_dir(), RootFs::live()?);
    let journal = Journal::new(dir.clone(), &fs, "/");
    let restored =
        service::put_back(&journal, on_conflict).context("putting back what balancing has set")?;
    for gone in [state::path(&dir), state::ended_path(&dir)] {
        let _ = std::fs::remove_file(gone);
    }
    for recorded in &restored.put_back {
        output::note(format_args!("put back /{} to {}", recorded.path, recorded.old));
    }
    refuse_conflicts(&restored)
}
