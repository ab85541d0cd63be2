//! `nearfar balance`: starts, shows and stops the service that balances memory traffic over controllers and links.
//!
//! `start` runs the service in the background (or here, with `--foreground`) until `stop` or a signal ends it; all
//! changed settings are then restored. If it is killed, `stop` or the next `start` restores them. The service itself is
//! [`nearfar_daemon::balance`].

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, OnConflict};
use nearfar_kernel::process::Identity;

use super::background::{self, StopArgs};
use super::machine::MachineArgs;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::number::whole;
use nearfar_command::output;
use nearfar_daemon::balance::options::{Options, Policy, RATE, RATE_MAX};
use nearfar_daemon::balance::service;
use nearfar_daemon::balance::state::{self, State};
use nearfar_daemon::end;
use nearfar_daemon::owner::{Service, Whom};
use nearfar_daemon::tier::options::PID_MAX;
use nearfar_topology::Bytes;

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    balance: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Start balancing; needs root
    ///
    /// Pages migrate to the nodes that use them; pages used by several nodes are interleaved, so that no memory
    /// controller is saturated while others idle. Programs need no change.
    Start(StartArgs),
    /// Show memory traffic, the decisions of balancing with their reasons, and their effect
    Status(StatusArgs),
    /// Stop balancing and restore all settings, also after it was killed; pages stay where they are
    Stop(StopArgs),
}

/// A policy as an argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct PolicyArg(pub(super) Policy);

impl clap::ValueEnum for PolicyArg {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self(Policy::Balanced), Self(Policy::Carrefour), Self(Policy::Colloid)]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let help = match self.0 {
            Policy::Balanced => {
                "Equalise marginal memory cost across nodes; migrate only if the gain exceeds the cost"
            }
            Policy::Carrefour => "Per-page thresholds, as published; no prediction",
            Policy::Colloid => "Equalise latencies by a search of bounds, as published",
        };
        Some(clap::builder::PossibleValue::new(self.0.word()).help(help))
    }
}

/// A number of megabytes, or a size, in whole megabytes rounded up.
fn megabytes(text: &str) -> Result<u32, String> {
    let number = text.parse::<u64>().ok();
    let size = || text.parse::<Bytes>().ok().map(|size| size.0.div_ceil(1_000_000));
    let rate = number
        .or_else(size)
        .filter(|rate| (1..=RATE_MAX).contains(&i64::try_from(*rate).unwrap_or(0)));
    rate.and_then(|rate| u32::try_from(rate).ok())
        .ok_or_else(|| format!("write MB a second, 1 to {RATE_MAX}, or a size such as 200m"))
}

#[derive(Debug, clap::Args)]
struct StartArgs {
    /// Stay in the foreground and print a line each second, until a signal ends it
    #[arg(long)]
    foreground: bool,
    /// Print the effects of a start, and change nothing
    #[arg(long, conflicts_with = "foreground")]
    dry_run: bool,
    /// Policy that decides which pages migrate
    #[arg(long, value_enum, default_value = Policy::Balanced.word())]
    policy: PolicyArg,
    /// Only processes in this cgroup and its descendants
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    cgroup: Option<String>,
    /// Only this process and its descendants
    #[arg(long, value_name = "PID", value_parser = whole::<u32>(1..=PID_MAX))]
    pid: Option<u32>,
    /// Maximum migration a second, in MB or as a size such as 200m
    #[arg(long, value_name = "MB|SIZE", default_value_t = RATE, value_parser = megabytes)]
    rate: u32,
    /// Use this sensor (names: nearfar doctor); may be repeated [default: the first usable one of each kind]
    #[arg(long = "sensor", value_name = "NAME")]
    sensors: Vec<String>,
    /// Leave the kernel's NUMA balancing on, which migrates pages too; by default it is off while balancing runs,
    /// unless a sensor needs it
    #[arg(long)]
    keep_numa_balancing: bool,
    /// With carrefour: act only above this total memory traffic, in cache lines per microsecond, if traffic is counted
    /// [default: 50, as published for four sockets]
    #[arg(long, value_name = "LINES")]
    busy_above: Option<u32>,
    /// Standard input is the exclusive claim, inherited from the process that starts this one
    #[arg(long, hide = true)]
    claimed: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// Print JSON (schema nearfar.balance/1; if balancing is not running, with "running": false and "why")
    #[arg(long)]
    json: bool,
}

impl StartArgs {
    fn options(&self) -> Options {
        Options {
            policy: self.policy.0,
            rate_mbps: self.rate,
            sensors: self.sensors.clone(),
            cgroup: self.cgroup.clone(),
            pid: self.pid,
            keep_numa_balancing: self.keep_numa_balancing,
            busy_above: self.busy_above,
        }
    }

    /// The same arguments, as they would be typed.
    fn as_arguments(&self) -> Vec<std::ffi::OsString> {
        let mut all: Vec<String> = ["--policy", self.policy.0.word()].map(String::from).into();
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
        all.into_iter().map(Into::into).chain(self.machine.select().as_arguments()).collect()
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

/// The running or starting process, with the state it has written, if that can be read.
fn running() -> Option<(Identity, anyhow::Result<State>)> {
    Service::Balance.described(state::read, |state| state.identity)
}

fn in_background(arguments: &[std::ffi::OsString]) -> anyhow::Result<State> {
    background::start(Service::Balance, arguments, |pid| {
        running().and_then(|(_, state)| state.ok()).filter(|state| state.identity.pid == pid)
    })
}

/// Starts balancing of the processes that this process will start, by `policy`.
pub(super) fn for_run(policy: Policy) -> anyhow::Result<State> {
    let us = std::process::id().to_string();
    in_background(&["--policy", policy.word(), "--pid", &us].map(Into::into))
}

/// Ends this process, if it still runs, and restores the settings it had changed. A later process is left alone.
pub(super) fn end_and_put_back(state: &State) -> anyhow::Result<()> {
    end::balancing(Whom::Only(state.identity), OnConflict::Refuse, output::note_restored).map(drop)
}

/// The reason with which the service ended by itself, if it gave one.
pub(super) fn why_ended() -> String {
    let why = state::read_ended(&Journal::default_dir());
    why.unwrap_or_else(|| "it was stopped or killed".into())
}

fn start(args: &StartArgs) -> anyhow::Result<ExitCode> {
    if args.busy_above.is_some() && args.policy.0 != Policy::Carrefour {
        return Err(anyhow::anyhow!(
            "--busy-above is a threshold of --policy carrefour; {} compares the gain of migration with its cost instead",
            args.policy.0.word()
        ))
        .ends_with(Exit::Usage);
    }
    anyhow::ensure!(
        args.machine.select().is_live(),
        "balance start --sysfs: a recording has no pages to move; leave --sysfs out"
    );
    if args.dry_run {
        Service::Balance.check_free(&RootFs::live()?)?;
        return output::dry_run(&service::preview(&args.machine.select(), &args.options())?);
    }
    output::need_root("balancing")?;
    if args.foreground {
        let claim = Service::Balance.begin(args.claimed)?;
        service::serve(&args.machine.select(), &args.options(), claim)?;
        return Ok(Exit::Done.into());
    }
    let state = in_background(&args.as_arguments())?;
    output::print(&format!(
        "Balancing has started: {}, policy {}, sensors {}, process {}; nearfar balance status shows its activity, nearfar balance stop ends it.\n",
        state.scope,
        state.settings.policy.word(),
        state.sensors.iter().map(|eye| eye.name.as_str()).collect::<Vec<_>>().join(", "),
        state.identity.pid
    ))?;
    Ok(Exit::Done.into())
}

fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    output::status(running_state(), state::SCHEMA, args.json, |state| match args.json {
        true => output::print_json(state),
        false => output::print(&state.text()),
    })
}

/// The state of the running service.
fn running_state() -> anyhow::Result<State> {
    let (process, state) = running().ok_or_else(not_running)?;
    state.with_context(|| {
        format!("balancing runs as process {}, but its state is missing", process.pid)
    })
}

/// The error that balancing is not running, with its reason and the command that starts it.
fn not_running() -> anyhow::Error {
    let dir = Journal::default_dir();
    let ended = state::read_ended(&dir);
    output::not_running("balance", state::path(&dir).exists(), ended.as_deref())
}

fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    output::need_root("stopping balancing")?;
    let (on_conflict, whom) = (args.on_conflict(), args.whom());
    let (ended, restored) = end::balancing(whom, on_conflict, output::note_restored)?;
    if let (Whom::Nobody, Some((process, _))) = (whom, running()) {
        let pid = process.pid;
        output::print(&format!("Balancing runs as process {pid}; nothing was restored.\n"))?;
        return Ok(Exit::Done.into());
    }
    output::print(&match (ended, restored) {
        (Some(pid), _) => format!(
            "Balancing is stopped (process {pid}); all settings are as before, and pages stay where they are.\n"
        ),
        (None, true) => {
            "Balancing was not running; the settings of a killed process are restored.\n".into()
        }
        (None, false) => String::from("Balancing is not running; there was nothing to restore.\n"),
    })?;
    Ok(Exit::Done.into())
}

/// The process that balances.
pub(crate) fn pid() -> Option<u32> {
    running().map(|(process, _)| process.pid)
}

/// Ends balancing, if it runs, and restores its settings, also those of a killed process. Returns the process that was
/// ended. The caller reports the restored settings.
pub(crate) fn end_any(on_conflict: OnConflict) -> anyhow::Result<Option<u32>> {
    end::balancing(Whom::Any, on_conflict, |_| ()).map(|(pid, _)| pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_parse_as_megabytes_or_sizes() {
        let of = |text| megabytes(text).ok();
        assert_eq!([of("200"), of("200m"), of("1g"), of("1")], [200, 210, 1074, 1].map(Some));
        assert_eq!([of("0"), of("much"), of("-1"), of("10000000"), of("")], [None; 5]);
    }
}
