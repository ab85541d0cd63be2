//! `nearfar tier start`: runs tiering here, or in the background by starting this command again with `--foreground`.
//!
//! Problem: the process in the background must get the same options, with those of a file resolved in the same directory.
//! Approach: it gets the arguments as they were typed, and is awaited until its state file appears. Limits: the options of
//! a program that is tiered alone (`nearfar run --tier`) are those of a file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use nearfar_kernel::fs::RootFs;
use nearfar_topology::NodeExpr;

use super::super::background;
use super::super::machine::MachineArgs;
use super::running;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::number::{percent, whole};
use nearfar_command::output;
use nearfar_daemon::budget;
use nearfar_daemon::budget::groups::{Limit, Limits as Budgets};
use nearfar_daemon::owner::Service;
use nearfar_daemon::tier::options::{EffectiveOptions, HEADROOM_MAX, Options, PID_MAX, SHARE_MAX};
use nearfar_daemon::tier::plan::TierExpr;
use nearfar_daemon::tier::state::State;
use nearfar_daemon::tier::{preview, service};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Stay in the foreground and print each scan, until a signal ends it
    #[arg(long)]
    foreground: bool,
    /// Print the effects of a start, and change nothing; also for a recording
    #[arg(long, conflicts_with = "foreground")]
    dry_run: bool,
    /// Take options from this file (TOML; nearfar tier config --save writes one); options on the command line override
    /// them
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Near nodes, of two tiers [default: all tiers of the machine]
    #[arg(long, value_name = "NODES")]
    near: Option<NodeExpr>,
    /// Far nodes, of two tiers [default: all others with memory]
    #[arg(long, value_name = "NODES")]
    far: Option<NodeExpr>,
    /// All tiers, fastest first, each a set of nodes: hbm/dram/cxl or 1/0/2-3 [default: the machine's]
    #[arg(long, value_name = "NODES/NODES/...", conflicts_with_all = ["near", "far"])]
    tiers: Option<TierExpr>,
    /// Only the memory of this cgroup, without its descendants
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    cgroup: Option<String>,
    /// Only the memory of this process and its descendants, which must be the only ones in their cgroup, as those of a
    /// service or container are
    #[arg(long, value_name = "PID", value_parser = whole::<u32>(1..=PID_MAX))]
    pid: Option<u32>,
    /// Keep the near memory of a cgroup and its descendants at or below SIZE, by demoting its pages; without PATH, of
    /// that of --cgroup. May be repeated; in place of the exchange of hot and cold pages
    #[arg(long, value_name = "[PATH=]SIZE", conflicts_with_all = BUDGETS_EXCLUDE)]
    near_max: Vec<Limit>,
    /// Promote pages of a cgroup up to SIZE of near memory, and demote none below it
    #[arg(long, value_name = "[PATH=]SIZE", conflicts_with_all = BUDGETS_EXCLUDE)]
    near_min: Vec<Limit>,
    /// Also keep the budgets of cgroups with the extended attributes user.nearfar.near_max and user.nearfar.near_min
    /// (cgroup version 2)
    #[arg(long, conflicts_with_all = BUDGETS_EXCLUDE)]
    near_attributes: bool,
    #[command(flatten)]
    limits: Limits,
    /// Refuse to start while the kernel's damon_stat holds DAMON [default: pause it while tiering runs]
    #[arg(long)]
    keep_damon_stat: bool,
    /// Leave the kernel's NUMA balancing on, which migrates pages too; by default it is off while tiering runs
    #[arg(long)]
    keep_numa_balancing: bool,
    /// Record residency and migrations into this file, for nearfar report
    #[arg(long, value_name = "FILE")]
    record: Option<String>,
    /// Create a cgroup for a program that the starting process runs in it
    #[arg(long, hide = true)]
    for_run: bool,
    /// Standard input is the exclusive claim, inherited from the process that starts this one
    #[arg(long, hide = true)]
    claimed: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Options that budgets do not have.
const BUDGETS_EXCLUDE: [&str; 9] =
    ["config", "near", "far", "tiers", "pid", "headroom", "traffic", "cpu", "record"];

/// Options that can be changed while tiering runs.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Limits {
    /// Share of near memory kept free for new pages, in per cent [default: 2]
    #[arg(long, value_name = "PERCENT", value_parser = percent::<u32>(0..=HEADROOM_MAX))]
    headroom: Option<u32>,
    /// Maximum share of far memory's bandwidth for migration, in per cent [default: 10]
    #[arg(long, value_name = "PERCENT", value_parser = percent::<u32>(1..=SHARE_MAX))]
    traffic: Option<u32>,
    /// Maximum share of one CPU for scanning and migrating pages, in per cent [default: 5]
    #[arg(long, value_name = "PERCENT", value_parser = percent::<u32>(1..=SHARE_MAX))]
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
            keep_damon_stat: self.keep_damon_stat.then_some(true),
            keep_numa_balancing: self.keep_numa_balancing.then_some(true),
            record: self.record.clone(),
            kind: self.machine.select().stated_kinds(),
            ..self.limits.options()
        }
    }

    fn budgets(&self) -> Budgets {
        Budgets {
            cgroup: self.cgroup.clone(),
            max: self.near_max.clone(),
            min: self.near_min.clone(),
            attributes: self.near_attributes,
        }
    }

    /// These options over those of the file.
    fn effective_options(&self) -> anyhow::Result<EffectiveOptions> {
        let file = self.config.as_ref().map(|path| {
            let named = || format!("--config {}", path.display());
            Options::read(path).with_context(named).ends_with(Exit::Usage)
        });
        Ok(EffectiveOptions::new(self.options(), file.transpose()?.unwrap_or_default()))
    }

    /// The same arguments, as they would be typed.
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
        let budgets = [("--near-max", &self.near_max), ("--near-min", &self.near_min)];
        let budgets = budgets.into_iter().flat_map(|(option, limits)| {
            limits.iter().flat_map(move |limit| [option.into(), limit.to_string().into()])
        });
        let flags = [
            ("--keep-damon-stat", self.keep_damon_stat),
            ("--keep-numa-balancing", self.keep_numa_balancing),
            ("--near-attributes", self.near_attributes),
        ];
        let flags = flags.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag.into());
        let config = self.config.iter().flat_map(|path| ["--config".into(), path.into()]);
        texts
            .flatten()
            .chain(flags)
            .chain(budgets)
            .chain(config)
            .chain(self.machine.select().as_arguments())
            .collect()
    }
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (machine, budgets) = (args.machine.select(), args.budgets());
    anyhow::ensure!(
        machine.is_live() || args.dry_run && budgets.is_empty(),
        "tier start --sysfs: a recording has no pages to move; leave --sysfs out, or add --dry-run"
    );
    if args.dry_run && machine.is_live() {
        Service::Tier.check_free(&RootFs::live()?)?;
    }
    if !budgets.is_empty() {
        return run_budgets(args, &budgets);
    }
    let effective = args.effective_options()?;
    if args.dry_run {
        return output::dry_run(&preview(&machine, &effective)?);
    }
    output::need_root("tiering")?;
    if args.foreground {
        let claim = Service::Tier.begin(args.claimed)?;
        service::serve(&machine, effective, args.for_run, claim)?;
        return Ok(Exit::Done.into());
    }
    let state = in_background(&args.as_arguments())?;
    output::print(&format!(
        "Tiering has started: nodes {}, near over far, process {}; nearfar tier status shows its activity, nearfar tier stop ends it.\n",
        state.order(),
        state.identity.pid
    ))?;
    Ok(Exit::Done.into())
}

/// Keeps budgets, here or in the background.
fn run_budgets(args: &Args, budgets: &Budgets) -> anyhow::Result<ExitCode> {
    let machine = args.machine.select();
    if args.dry_run {
        let keep = args.keep_numa_balancing;
        return output::dry_run(&budget::service::preview(&machine, budgets, keep)?);
    }
    output::need_root("keeping budgets")?;
    if args.foreground {
        let claim = Service::Tier.begin(args.claimed)?;
        budget::service::serve(&machine, budgets, args.keep_numa_balancing, claim)?;
        return Ok(Exit::Done.into());
    }
    let state = background::start(Service::Tier, &args.as_arguments(), |pid| {
        let found = Service::Tier.described(budget::state::read, |state| state.identity);
        found.and_then(|(_, state)| state.ok()).filter(|state| state.identity.pid == pid)
    })?;
    output::print(&format!(
        "{}nearfar tier status shows them, nearfar tier stop ends it.\n",
        state.text()
    ))?;
    Ok(Exit::Done.into())
}

/// Starts tiering of a cgroup in which the caller starts a program; it ends when the cgroup is empty, and removes it.
pub(crate) fn for_run(config: Option<&Path>) -> anyhow::Result<State> {
    let config = config.into_iter().flat_map(|path| ["--config".into(), path.into()]);
    in_background(
        &[std::ffi::OsString::from("--for-run")].into_iter().chain(config).collect::<Vec<_>>(),
    )
}

/// Starts the process that does the work and waits until it is ready.
fn in_background(arguments: &[std::ffi::OsString]) -> anyhow::Result<State> {
    background::start(Service::Tier, arguments, |pid| {
        running().and_then(|(_, state)| state.ok()).filter(|state| state.identity.pid == pid)
    })
}
