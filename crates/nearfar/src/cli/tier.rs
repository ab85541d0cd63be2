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
use nearfar_control::turns::{Boundaries as _, Turns};
use nearfar_kernel::balancing::{NumaBalancing, numa_balancing, set_numa_balancing};
use nearfar_kernel::damon::{self, DamonError, DamonStat, Session};
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, OnConflict, Restored};
use nearfar_topology::{BasisPoints, Nanoseconds, NodeExpr};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use super::machine::MachineArgs;
use super::output;
use crate::clock::{Stopwatch, sleep};
use crate::exit::Exit;
use crate::tier::damon::{Damon, Group};
use crate::tier::plan::{self, Named, Plan, TierExpr, Wishes};
use crate::tier::state::{self, Ledger, More, State};

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

impl StartArgs {
    fn wishes(&self) -> Wishes {
        let percent = |percent: u32| BasisPoints(percent * 100);
        Wishes {
            headroom: percent(self.headroom),
            traffic: percent(self.traffic),
            cpu: percent(self.cpu),
        }
    }

    fn named(&self) -> Named<'_> {
        Named { near: self.near.as_ref(), far: self.far.as_ref(), tiers: self.tiers.as_ref() }
    }
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
    let plan = plan::plan(&machine, args.wishes(), args.named())?;
    let group = args.cgroup.as_deref().map(|name| Group::find(&fs, name)).transpose()?;
    if let Some(boundary) = plan.boundaries.iter().find(|boundary| boundary.assumed) {
        output::note(format_args!(
            "far bandwidth is not known (no probe, no HMAT); {} assumed for the limit on traffic; nearfar probe measures it",
            boundary.far_bandwidth
        ));
    }
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    // What a process that was killed has left.
    journal.restore(BY, OnConflict::Refuse).context("putting back what was set before")?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("listening for signals")?;
    }
    let tiering = Tiering { args, fs: &fs, journal: &journal, group, first: plan };
    let ended = tiering.run(&stop);
    let balancing = journal.restore(BY, OnConflict::Refuse);
    let _ = std::fs::remove_file(state::path(&Journal::default_dir()));
    ended?;
    refuse_conflicts(&balancing.context("putting back the kernel's NUMA balancing")?)?;
    Ok(Exit::Done.into())
}

/// Tiering, however often nodes come and go.
struct Tiering<'a> {
    args: &'a StartArgs,
    fs: &'a RootFs,
    journal: &'a Journal<'a>,
    group: Option<Group>,
    /// As the machine was when it began.
    first: Plan,
}

impl Tiering<'_> {
    /// Until it is told to stop, or nothing is left to tier.
    fn run(&self, stop: &AtomicBool) -> anyhow::Result<()> {
        let clock = Stopwatch::start();
        let (mut plan, mut ledger) = (self.first.clone(), Ledger::default());
        loop {
            let mut pages = self.begin(&plan)?;
            let ended = keep_going(&mut pages, &plan, &ledger, (clock, stop));
            ledger.close(&pages);
            let restored = pages.session.stop();
            ended?;
            restored.context(
                "tiering has stopped, but not everything was put back; nearfar tier stop tries again",
            )?;
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let (machine, _) = self.args.machine.read(self.fs)?;
            plan = plan::again(&machine, self.args.wishes(), self.args.named(), &self.first)?;
            let now = plan.nodes();
            ledger.gone = self.first.nodes().iter().filter(|node| !now.contains(*node)).collect();
            output::note(format_args!(
                "nodes have come or gone; it goes on with nodes {}",
                plan.order()
            ));
        }
    }

    /// Has DAMON watch the nodes of `plan`, with nothing moving yet.
    fn begin(&self, plan: &Plan) -> anyhow::Result<Damon<'_>> {
        let (nodes, specifications) =
            crate::tier::damon::specifications(self.fs, plan, self.group.as_ref())?;
        let damon_stat =
            if self.args.pause_damon_stat { DamonStat::Pause } else { DamonStat::Keep };
        let session =
            Session::start(self.fs, self.journal, &specifications, damon_stat).map_err(held)?;
        let pages = Damon::new(self.fs, session, nodes, self.group.clone(), plan);
        if !self.args.keep_numa_balancing
            && numa_balancing(self.fs)?.is_some_and(|mode| mode != NumaBalancing::OFF)
        {
            set_numa_balancing(self.journal, BY, NumaBalancing::OFF)
                .context("turning the kernel's NUMA balancing off")?;
        }
        Ok(pages)
    }
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

/// Ticks until told to stop, or until nodes come or go.
fn keep_going(
    pages: &mut Damon<'_>,
    plan: &Plan,
    ledger: &Ledger,
    (clock, stop): (Stopwatch, &AtomicBool),
) -> anyhow::Result<()> {
    let dir = Journal::default_dir();
    let mut loops = Vec::new();
    for (at, boundary) in plan.boundaries.iter().enumerate() {
        pages.turn_to(at)?;
        loops.push(Loop::new(boundary.goals, pages.count()?));
    }
    let mut turns = Turns::new(loops);
    let (mut due, mut shown) = (Duration::ZERO, None);
    while !stop.load(Ordering::Relaxed) && !pages.has_changed() {
        let now = clock.elapsed();
        if now < due {
            sleep((due - now).min(NAP));
            continue;
        }
        let now = Nanoseconds(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        // If the cgroup has gone, the kernel says all sorts of things.
        let wait = turns.tick(now, pages).map_err(|error| pages.gone().err().unwrap_or(error))?;
        due = clock.elapsed().saturating_add(Duration::from_nanos(wait.0));
        // Once a look, and when pages have been moved.
        let news = (turns.loops().map(|one| *one.seen()).collect::<Vec<_>>(), pages.moved());
        if shown.as_ref() != Some(&news) {
            shown = Some(news);
            let more = More { plan, ledger, running_s: clock.elapsed().as_secs() };
            let state = State::of(&turns, pages, &more);
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
    if let Some(tiers) = &args.tiers {
        command.args(["--tiers", &tiers.to_string()]);
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
                "Tiering nodes {}, near over far, runs as process {}; nearfar tier status shows what it does, nearfar tier stop \
                 ends it.\n",
                state.order(),
                state.pid
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
