//! `nearfar tier`: promotion and demotion between near and far memory, as a process of its own.
//!
//! `start` runs the loop in the background (or here, with `--foreground`) until `stop` or a signal ends it; whatever was
//! set is put back then. If it is killed, `stop` or the next `start` puts it back.

use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use nearfar_control::tiering::{Loop, Pages as _};
use nearfar_kernel::balancing::{NumaBalancing, numa_balancing, set_numa_balancing};
use nearfar_kernel::damon::{self, DamonError, DamonStat, Session};
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, OnConflict, Restored};
use nearfar_kernel::ranges;
use nearfar_topology::{BasisPoints, Nanoseconds, NodeExpr, NodeId};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use super::machine::MachineArgs;
use super::output;
use crate::clock::{Stopwatch, sleep};
use crate::exit::Exit;
use crate::tier::damon::{Damon, Group, specification};
use crate::tier::plan::{self, Named, Plan, Wishes};
use crate::tier::state::{self, More, State};

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
    Start(StartArgs),
    /// Show what tiering does, what it has moved and why
    Status(StatusArgs),
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
struct StartArgs {
    /// Stay in the foreground and show each look, until a signal ends it
    #[arg(long)]
    foreground: bool,
    /// The near nodes [default: the fastest tier]
    #[arg(long, value_name = "NODES")]
    near: Option<NodeExpr>,
    /// The far nodes [default: all others with memory]
    #[arg(long, value_name = "NODES")]
    far: Option<NodeExpr>,
    /// Only the memory of this cgroup, not that of cgroups below it
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// Share of near memory kept free for new pages, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=50))]
    headroom: u32,
    /// Share of far memory's bandwidth that moving pages may take, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    traffic: u32,
    /// Share of one CPU that looking at pages and moving them may take, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    cpu: u32,
    /// Pause the kernel's damon_stat, which would hold DAMON, while tiering runs
    #[arg(long)]
    pause_damon_stat: bool,
    /// Leave the kernel's NUMA balancing on, which moves pages too; else it is off while tiering runs
    #[arg(long)]
    keep_numa_balancing: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// Print JSON (schema nearfar.tier/1)
    #[arg(long)]
    json: bool,
}

/// Whose changes these are, for the journal.
const BY: &str = "tier";
/// How long starting and stopping may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon a signal is heeded.
const NAP: Duration = Duration::from_millis(50);

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.tier {
        Tier::Start(args) if args.foreground => foreground(args),
        Tier::Start(args) => background(args),
        Tier::Status(args) => status(args),
        Tier::Stop(args) => stop(args),
    }
}

/// The process that runs, if one does.
fn running() -> anyhow::Result<Option<State>> {
    let state = state::read(&Journal::default_dir())?;
    Ok(state.filter(State::is_running))
}

fn foreground(args: &StartArgs) -> anyhow::Result<ExitCode> {
    if let Some(state) = running()?.filter(|state| state.pid != std::process::id()) {
        anyhow::bail!(
            "tiering is already running as process {}; nearfar tier stop ends it",
            state.pid
        );
    }
    anyhow::ensure!(
        args.machine.is_live(),
        "tier start --sysfs: a recording has no pages to move; leave --sysfs out"
    );
    let fs = RootFs::live()?;
    let (machine, _) = args.machine.read(&fs)?;
    let percent = |percent: u32| BasisPoints(percent * 100);
    let wishes = Wishes {
        headroom: percent(args.headroom),
        traffic: percent(args.traffic),
        cpu: percent(args.cpu),
    };
    let named = Named { near: args.near.as_ref(), far: args.far.as_ref() };
    let plan = plan::plan(&machine, wishes, named)?;
    let group = args.cgroup.as_deref().map(|name| Group::find(&fs, name)).transpose()?;
    if plan.assumed {
        output::note(format_args!(
            "far bandwidth is not known (no probe, no HMAT); {} assumed for the limit on traffic; nearfar probe measures it",
            plan.far_bandwidth
        ));
    }
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    // What a process that was killed has left.
    journal.restore(BY, OnConflict::Refuse).context("putting back what was set before")?;
    let (nodes, specifications) = specifications(&fs, &plan, group.as_ref())?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("listening for signals")?;
    }
    let damon_stat = if args.pause_damon_stat { DamonStat::Pause } else { DamonStat::Keep };
    let session = Session::start(&fs, &journal, &specifications, damon_stat).map_err(held)?;
    if !args.keep_numa_balancing
        && numa_balancing(&fs)?.is_some_and(|mode| mode != NumaBalancing::OFF)
    {
        set_numa_balancing(&journal, BY, NumaBalancing::OFF)
            .context("turning the kernel's NUMA balancing off")?;
    }
    let mut pages =
        Damon { fs: &fs, session, nodes, group, total: nearfar_control::tiering::Count::default() };
    let ended = keep_going(&mut pages, &plan, &stop);
    let restored = pages.session.stop();
    let balancing = journal.restore(BY, OnConflict::Refuse);
    let _ = std::fs::remove_file(state::path(&Journal::default_dir()));
    ended?;
    restored.context(
        "tiering has stopped, but not everything was put back; nearfar tier stop tries again",
    )?;
    refuse_conflicts(&balancing.context("putting back the kernel's NUMA balancing")?)?;
    Ok(Exit::Done.into())
}

/// Fails if something was left alone because someone else had changed it.
fn refuse_conflicts(restored: &Restored) -> anyhow::Result<()> {
    output::refuse_conflicts(restored, "it was left as it is", "nearfar tier stop --overwrite")
}

fn held(error: DamonError) -> anyhow::Error {
    let is_stat = error.to_string().contains("damon_stat");
    let error = anyhow::Error::from(error).context("tiering can't start");
    if is_stat {
        error.context("--pause-damon-stat lets tiering have DAMON while it runs")
    } else {
        error
    }
}

/// A kdamond for each node, near ones demoting to the first far node and far ones promoting to the first near one.
fn specifications(
    fs: &RootFs,
    plan: &Plan,
    group: Option<&Group>,
) -> anyhow::Result<(Vec<crate::tier::node::Watched>, Vec<nearfar_kernel::damon::spec::Kdamond>)> {
    let ranges = ranges::of_nodes(fs).context("finding each node's memory")?;
    let of = |node: NodeId, to: Option<NodeId>, near: bool| {
        let ranges = ranges.get(&node).filter(|ranges| !ranges.is_empty());
        Some(specification(node, to?, near, ranges?, group))
    };
    let near = plan.near.iter().filter_map(|node| of(node, plan.far.iter().next(), true));
    let far = plan.far.iter().filter_map(|node| of(node, plan.near.iter().next(), false));
    let all: Vec<_> = near.chain(far).collect();
    anyhow::ensure!(
        all.len() > 1,
        "no physical memory of nodes {} and {} is online",
        plan.near,
        plan.far
    );
    Ok(all.into_iter().unzip())
}

/// Ticks until told to stop.
fn keep_going(pages: &mut Damon<'_>, plan: &Plan, stop: &AtomicBool) -> anyhow::Result<()> {
    let dir = Journal::default_dir();
    let clock = Stopwatch::start();
    let mut tiering = Loop::new(plan.goals, pages.count()?);
    let (mut due, mut shown) = (Duration::ZERO, None);
    let pages_group = pages.group.as_ref().map(|group| group.path.clone());
    let more = |clock: Stopwatch| More {
        cgroup: pages_group.clone(),
        near: plan.near.to_string(),
        far: plan.far.to_string(),
        traffic: plan.goals.traffic.0,
        running_s: clock.elapsed().as_secs(),
    };
    while !stop.load(Ordering::Relaxed) {
        let now = clock.elapsed();
        if now < due {
            sleep((due - now).min(NAP));
            continue;
        }
        let now = Nanoseconds(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        // If the cgroup has gone, the kernel says all sorts of things.
        let wait = tiering.tick(now, pages).map_err(|error| pages.gone().err().unwrap_or(error))?;
        due = clock.elapsed().saturating_add(Duration::from_nanos(wait.0));
        // Once a look, and when pages have been moved.
        let moved: u64 = pages.nodes.iter().map(|node| node.moved.0).sum();
        if shown != Some((*tiering.seen(), moved)) {
            shown = Some((*tiering.seen(), moved));
            let state = State::of(&tiering, &pages.total, &pages.nodes, &more(clock));
            state::write(&dir, &state)?;
            output::print(&state.text())?;
        }
    }
    Ok(())
}

fn background(args: &StartArgs) -> anyhow::Result<ExitCode> {
    if let Some(state) = running()? {
        anyhow::bail!(
            "tiering is already running as process {}; nearfar tier stop ends it",
            state.pid
        );
    }
    let exe = std::env::current_exe().context("looking for this binary")?;
    let mut command = Command::new(exe);
    let number = |value: u32| value.to_string();
    command.args(["tier", "start", "--foreground", "--headroom", &number(args.headroom)]);
    command.args(["--traffic", &number(args.traffic), "--cpu", &number(args.cpu)]);
    if args.pause_damon_stat {
        command.arg("--pause-damon-stat");
    }
    for (option, nodes) in [("--near", &args.near), ("--far", &args.far)] {
        command.args(nodes.iter().flat_map(|nodes| [option.to_string(), nodes.to_string()]));
    }
    if let Some(cgroup) = &args.cgroup {
        command.args(["--cgroup", cgroup]);
    }
    if args.keep_numa_balancing {
        command.arg("--keep-numa-balancing");
    }
    command.args(args.machine.as_arguments());
    let log = tempfile::tempfile().context("creating a file for messages")?;
    let messages = log.try_clone().context("keeping messages")?;
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
    let mut child = command.spawn().context("starting the process that does the work")?;
    let waited = Stopwatch::start();
    while waited.elapsed() < PATIENCE {
        if let Some(state) = running()?.filter(|state| state.pid == child.id()) {
            output::print(&format!(
                "Tiering between near nodes {} and far nodes {} runs as process {}; nearfar tier status shows what it does, \
                 nearfar tier stop ends it.\n",
                state.near.nodes, state.far.nodes, state.pid
            ))?;
            return Ok(Exit::Done.into());
        }
        if let Some(status) = child.try_wait().context("waiting for the process to start")? {
            output::print_error(&said(log)?);
            return Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)));
        }
        sleep(NAP);
    }
    let _ = child.kill();
    anyhow::bail!(
        "tiering did not start within {} s; nearfar tier start --foreground shows why",
        PATIENCE.as_secs()
    )
}

fn said(mut log: std::fs::File) -> anyhow::Result<String> {
    use std::io::{Read as _, Seek as _};
    let mut text = String::new();
    log.rewind()
        .and_then(|()| log.read_to_string(&mut text))
        .context("reading what the process said")?;
    Ok(text)
}

fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let Some(state) = running()? else {
        anyhow::bail!("tiering is not running; nearfar tier start starts it");
    };
    if args.json {
        output::print_json(&state)?;
    } else {
        output::print(&state.text())?;
    }
    Ok(Exit::Done.into())
}

fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    let dir = Journal::default_dir();
    if let Some(state) = running()? {
        let pid = i32::try_from(state.pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("the state names no process")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .with_context(|| format!("ending process {}", state.pid))?;
        let waited = Stopwatch::start();
        while state.is_running() {
            anyhow::ensure!(waited.elapsed() < PATIENCE, "process {} does not end", state.pid);
            sleep(NAP);
        }
    }
    // What a process that was killed has left.
    let fs = RootFs::live()?;
    let journal = Journal::new(dir.clone(), &fs, "/");
    let on_conflict = if args.overwrite { OnConflict::Overwrite } else { OnConflict::Refuse };
    let restored = [
        damon::recover(&journal, on_conflict).context("putting back what tiering has set")?,
        journal.restore(BY, on_conflict).context("putting back what tiering has set")?,
    ];
    let _ = std::fs::remove_file(state::path(&dir));
    for recorded in restored.iter().flat_map(|restored| &restored.put_back) {
        output::note(format_args!("put back /{} to {}", recorded.path, recorded.old));
    }
    restored.iter().try_for_each(refuse_conflicts)?;
    output::print("Tiering is stopped; everything it had set is as before.\n")?;
    Ok(Exit::Done.into())
}
