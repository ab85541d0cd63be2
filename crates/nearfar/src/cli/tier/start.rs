//! `nearfar tier start`: here, or in the background by starting this very command once more with `--foreground`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_topology::NodeExpr;

use super::super::background::{self, Background};
use super::super::machine::MachineArgs;
use super::super::output;
use super::running;
use crate::exit::{EndsWith as _, Exit};
use crate::tier::options::{HEADROOM_MAX, InForce, Options, PID_MAX, SHARE_MAX};
use crate::tier::plan::TierExpr;
use crate::tier::service;
use crate::tier::state::State;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Stay in the foreground and show each look, until a signal ends it
    #[arg(long)]
    foreground: bool,
    /// Take options from this file (TOML; nearfar tier config --save writes one); those given here are stronger
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The near nodes, of two tiers [default: all tiers of the machine]
    #[arg(long, value_name = "NODES")]
    near: Option<NodeExpr>,
    /// The far nodes, of two tiers [default: all others with memory]
    #[arg(long, value_name = "NODES")]
    far: Option<NodeExpr>,
    /// All tiers, fastest first, each a set of nodes: hbm/dram/cxl or 1/0/2-3 [default: the machine's]
    #[arg(long, value_name = "NODES/NODES/...", conflicts_with_all = ["near", "far"])]
    tiers: Option<TierExpr>,
    /// Only the memory of this cgroup, not that of cgroups below it
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    cgroup: Option<String>,
    /// Only the memory of this process and what it has started, which must have a cgroup to themselves, as a service or
    /// a container has
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..=PID_MAX))]
    pid: Option<u32>,
    #[command(flatten)]
    limits: Limits,
    /// Pause the kernel's damon_stat, which would hold DAMON, while tiering runs
    #[arg(long)]
    pause_damon_stat: bool,
    /// Leave the kernel's NUMA balancing on, which moves pages too; else it is off while tiering runs
    #[arg(long)]
    keep_numa_balancing: bool,
    /// Record where memory is and what is moved into this file, for nearfar report
    #[arg(long, value_name = "FILE")]
    record: Option<String>,
    /// Make a cgroup for a program that the process which starts this runs in it
    #[arg(long, hide = true)]
    for_run: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

/// What can be changed while it runs.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Limits {
    /// Share of near memory kept free for new pages, in per cent [default: 2]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=HEADROOM_MAX))]
    headroom: Option<u32>,
    /// Share of far memory's bandwidth that moving pages may take, in per cent [default: 10]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=SHARE_MAX))]
    traffic: Option<u32>,
    /// Share of one CPU that looking at pages and moving them may take, in per cent [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=SHARE_MAX))]
    cpu: Option<u32>,
}

impl Limits {
    /// The same as options.
    pub(super) fn options(&self) -> Options {
        Options {
            headroom_percent: self.headroom,
            traffic_percent: self.traffic,
            cpu_percent: self.cpu,
            ..Options::default()
        }
    }
}

impl Args {
    fn options(&self) -> Options {
        Options {
            near: self.near.clone(),
            far: self.far.clone(),
            tiers: self.tiers.clone(),
            cgroup: self.cgroup.clone(),
            pid: self.pid,
            pause_damon_stat: self.pause_damon_stat.then_some(true),
            keep_numa_balancing: self.keep_numa_balancing.then_some(true),
            record: self.record.clone(),
            kind: self.machine.stated_kinds(),
            ..self.limits.options()
        }
    }

    /// With the file's.
    fn in_force(&self) -> anyhow::Result<InForce> {
        let file = self.config.as_ref().map(|path| {
            let named = || format!("--config {}", path.display());
            Options::read(path).with_context(named).ends_with(Exit::Usage)
        });
        Ok(InForce::new(self.options(), file.transpose()?.unwrap_or_default()))
    }

    /// The same, as it would be typed.
    fn as_arguments(&self) -> Vec<std::ffi::OsString> {
        let Limits { headroom, traffic, cpu } = &self.limits;
        let numbers = [
            ("--headroom", headroom),
            ("--traffic", traffic),
            ("--cpu", cpu),
            ("--pid", &self.pid),
        ];
        let numbers = numbers.map(|(option, value)| (option, value.map(|value| value.to_string())));
        let nodes = [("--near", &self.near), ("--far", &self.far)];
        let nodes = nodes.map(|(option, nodes)| (option, nodes.as_ref().map(ToString::to_string)));
        let tiers = self.tiers.as_ref().map(ToString::to_string);
        let names = [
            ("--tiers", tiers),
            ("--cgroup", self.cgroup.clone()),
            ("--record", self.record.clone()),
        ];
        let texts = numbers.into_iter().chain(nodes).chain(names);
        let texts = texts.filter_map(|(option, value)| Some([option.into(), value?.into()]));
        let flags = [
            ("--pause-damon-stat", self.pause_damon_stat),
            ("--keep-numa-balancing", self.keep_numa_balancing),
        ];
        let flags = flags.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag.into());
        let config = self.config.iter().flat_map(|path| ["--config".into(), path.into()]);
        texts.flatten().chain(flags).chain(config).chain(self.machine.as_arguments()).collect()
    }
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(state) = running()?.filter(|state| state.identity.pid != std::process::id()) {
        return Err(already(&state));
    }
    anyhow::ensure!(
        args.machine.is_live(),
        "tier start --sysfs: a recording has no pages to move; leave --sysfs out"
    );
    let force = args.in_force()?;
    if args.foreground {
        service::serve(&args.machine, force, args.for_run)?;
        return Ok(Exit::Done.into());
    }
    let state = in_background(&args.as_arguments())?;
    output::print(&format!(
        "Tiering nodes {}, near over far, runs as process {}; nearfar tier status shows what it does, nearfar tier stop \
         ends it.\n",
        state.order(),
        state.identity.pid
    ))?;
    Ok(Exit::Done.into())
}

/// Starts tiering of a cgroup that the caller is to start a program in; it ends when the cgroup is empty, and removes it.
pub(crate) fn for_run(config: Option<&Path>) -> anyhow::Result<State> {
    if let Some(state) = running()? {
        return Err(already(&state));
    }
    let config = config.into_iter().flat_map(|path| ["--config".into(), path.into()]);
    in_background(
        &[std::ffi::OsString::from("--for-run")].into_iter().chain(config).collect::<Vec<_>>(),
    )
}

/// Tiering runs already.
fn already(state: &State) -> anyhow::Error {
    let whose = state.cgroup.as_ref().map(|path| format!(" (of cgroup {path})"));
    anyhow::anyhow!(
        "tiering{} is already running as process {}; nearfar tier stop ends it",
        whose.unwrap_or_default(),
        state.identity.pid
    )
}

/// Starts the process that does the work, and waits until it does.
fn in_background(arguments: &[std::ffi::OsString]) -> anyhow::Result<State> {
    let started = Background { command: "tier", what: "tiering", arguments };
    background::start(&started, |pid| Ok(running()?.filter(|state| state.identity.pid == pid)))
}
