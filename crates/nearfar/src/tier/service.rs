//! Tiering as a process: everything is resolved, then set, then looked at and moved until it is told to stop or what is
//! tiered has gone; then all is put back.
//!
//! What is refused is refused before anything is set. Options that can change while it runs are asked for by a file
//! ([`super::change`]), for which it looks as often as it looks for signals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_control::tiering::{Loop, Pages as _};
use nearfar_control::turns::{Boundaries as _, Turns};
use nearfar_kernel::balancing::{NumaBalancing, numa_balancing, set_numa_balancing};
use nearfar_kernel::cgroup::own;
use nearfar_kernel::damon::{DamonError, DamonStat, Session};
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, OnConflict, Restored};
use nearfar_topology::Nanoseconds;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use super::change;
use super::damon::{Damon, specifications};
use super::log::Log;
use super::options::InForce;
use super::plan::{self, Plan};
use super::scope::Whose;
use super::state::{self, Identity, Ledger, More, State};
use crate::balance::rivals;
use crate::cli::machine::MachineArgs;
use crate::cli::output;
use crate::clock::{Stopwatch, sleep};

/// Whose changes these are, for the journal.
pub(crate) const BY: &str = "tier";
/// How soon a signal is heeded.
pub(crate) const NAP: Duration = Duration::from_millis(50);

/// Tiers until it is told to stop.
///
/// `for_run` is tiering of a cgroup that is made for whoever started this; it ends when that is empty.
pub(crate) fn serve(machine: &MachineArgs, force: InForce, for_run: bool) -> anyhow::Result<()> {
    let dir = Journal::default_dir();
    let _ = std::fs::remove_file(state::ended_path(&dir));
    let served = set_and_serve(machine, force, for_run);
    if let Err(error) = &served {
        // Who asks later should learn of it, if it can be written.
        let _ = state::write_ended(&dir, &format!("{error:#}"));
    }
    served
}

fn set_and_serve(machine: &MachineArgs, force: InForce, for_run: bool) -> anyhow::Result<()> {
    let fs = RootFs::live()?;
    let machine = machine.with_kinds(force.options.kind.as_deref().unwrap_or_default());
    let (topology, _) = machine.read(&fs)?;
    let options = &force.options;
    let plan = plan::plan(&topology, options.wishes(), options.named())?;
    if let Some(boundary) = plan.boundaries.iter().find(|boundary| boundary.assumed) {
        output::note(format_args!(
            "far bandwidth is not known (no probe, no HMAT); {} assumed for the limit on traffic; nearfar probe measures it",
            boundary.far_bandwidth
        ));
    }
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    journal.make_dir()?;
    let _claim = rivals::claim(&fs, journal.dir())?;
    let turn = own::Turn::take(journal.dir())?;
    // What a process that was killed has left.
    turn.recover(&fs).context("removing the cgroup that a run before had")?;
    journal.restore(BY, OnConflict::Refuse).context("putting back what was set before")?;
    let made = for_run.then(|| turn.make(&fs, &run_name())).transpose()?;
    let whose = match &made {
        Some(own) => Whose::run(&fs, own.path())?,
        None => Whose::find(&fs, options)?,
    };
    let log = options.record.as_ref().map(|name| Log::create(name, &machine, &fs, &whose));
    let log = log.transpose()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("listening for signals")?;
    }
    let (us, clock) = (Identity::own(), Stopwatch::start());
    let (ledger, first) = (Ledger::default(), plan.clone());
    let mut service = Service {
        fs: &fs,
        journal: &journal,
        machine,
        first,
        plan,
        force,
        whose,
        log,
        ledger,
        us,
        clock,
    };
    let ended = service.run(&stop);
    let balancing = journal.restore(BY, OnConflict::Refuse);
    let _ = std::fs::remove_file(state::path(journal.dir()));
    change::remove(journal.dir());
    if let Some(log) = service.log.take() {
        log.end(&fs, service.ledger.cpu());
    }
    let removed = made.map(own::Own::remove).transpose();
    ended?;
    removed.context("removing the program's cgroup; nearfar tier stop tries again")?;
    refuse_conflicts(&balancing.context("putting back the kernel's NUMA balancing")?)
}

/// The cgroup of a run, by the process that is in charge of it.
fn run_name() -> String {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    format!("nearfar-run-{parent}")
}

/// Says what was removed, and what stays.
pub(crate) fn say_removed(removed: &own::Removed) {
    let own::Removed { path, moved, stays_on } = removed;
    let still = if *moved == 0 {
        String::new()
    } else {
        format!("; what was still in it runs on where it was started from ({moved})")
    };
    output::note(format_args!("removed cgroup {path}{still}"));
    if let Some(parent) = stays_on {
        output::note(format_args!(
            "the memory controller stays on below cgroup {parent}: cgroups have been made there since"
        ));
    }
}

/// Fails if something was left alone because someone else had changed it.
pub(crate) fn refuse_conflicts(restored: &Restored) -> anyhow::Result<()> {
    output::refuse_conflicts(restored, "it was left as it is", "nearfar tier stop --overwrite")
}

fn held(error: DamonError) -> anyhow::Error {
    let is_stat = error.to_string().contains("damon_stat");
    let error = anyhow::Error::from(error).context("tiering can't start");
    if is_stat {
        error.context(
            "--pause-damon-stat (pause_damon_stat = true in a file) lets tiering have DAMON while it runs",
        )
    } else {
        error
    }
}

/// Tiering, however often nodes come and go.
struct Service<'a> {
    fs: &'a RootFs,
    journal: &'a Journal<'a>,
    machine: MachineArgs,
    /// As the machine was when it began, and as it is now.
    first: Plan,
    plan: Plan,
    force: InForce,
    whose: Whose,
    log: Option<Log>,
    ledger: Ledger,
    us: Identity,
    clock: Stopwatch,
}

impl Service<'_> {
    /// Until it is told to stop, or nothing is left to tier.
    fn run(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        loop {
            let mut pages = self.begin()?;
            let ended = self.keep_going(&mut pages, stop);
            self.ledger.close(&pages);
            let restored = pages.session.stop();
            let changed = ended?;
            restored.context(
                "tiering has stopped, but not everything was put back; nearfar tier stop tries again",
            )?;
            if !changed {
                return Ok(());
            }
            let (machine, _) = self.machine.read(self.fs)?;
            let options = &self.force.options;
            self.plan = plan::again(&machine, options.wishes(), options.named(), &self.first)?;
            let now = self.plan.nodes();
            self.ledger.gone =
                self.first.nodes().iter().filter(|node| !now.contains(*node)).collect();
            output::note(format_args!(
                "nodes have come or gone; it goes on with nodes {}",
                self.plan.order()
            ));
        }
    }

    /// Has DAMON watch the nodes there are, with nothing moving yet.
    fn begin<'a>(&self) -> anyhow::Result<Damon<'a>>
    where
        Self: 'a,
    {
        let (nodes, specifications) = specifications(self.fs, &self.plan, self.whose.group())?;
        let pause = self.force.options.pause_damon_stat == Some(true);
        let damon_stat = if pause { DamonStat::Pause } else { DamonStat::Keep };
        let session =
            Session::start(self.fs, self.journal, &specifications, damon_stat).map_err(held)?;
        let pages = Damon::new(self.fs, session, nodes, self.whose.group().cloned(), &self.plan);
        let keep = self.force.options.keep_numa_balancing == Some(true);
        if !keep && numa_balancing(self.fs)?.is_some_and(|mode| mode != NumaBalancing::OFF) {
            set_numa_balancing(self.journal, BY, NumaBalancing::OFF)
                .context("turning the kernel's NUMA balancing off")?;
        }
        Ok(pages)
    }

    /// Ticks until told to stop, until what is tiered has ended, or until nodes come or go; gives whether nodes did.
    fn keep_going(&mut self, pages: &mut Damon<'_>, stop: &AtomicBool) -> anyhow::Result<bool> {
        let mut loops = Vec::new();
        for (at, boundary) in self.plan.boundaries.iter().enumerate() {
            pages.turn_to(at)?;
            loops.push(Loop::new(boundary.goals, pages.count()?));
        }
        let mut turns = Turns::new(loops);
        let (mut due, mut shown) = (Duration::ZERO, None);
        while !pages.has_changed() {
            if stop.load(Ordering::Relaxed) || self.whose.is_over(self.fs)? {
                return Ok(false);
            }
            self.heed(&mut turns, pages)?;
            let now = self.clock.elapsed();
            if now < due {
                sleep((due - now).min(NAP));
                continue;
            }
            let now = Nanoseconds(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
            // If what is tiered has gone, the kernel says all sorts of things.
            let wait = turns.tick(now, pages).map_err(|error| self.gone(pages, error))?;
            due = self.clock.elapsed().saturating_add(Duration::from_nanos(wait.0));
            // Once a look, and when pages have been moved.
            let news = (turns.loops().map(|one| *one.seen()).collect::<Vec<_>>(), pages.moved());
            if shown.as_ref() != Some(&news) {
                shown = Some(news);
                self.record(&turns, pages);
                self.show(&turns, pages)?;
            }
        }
        Ok(true)
    }

    /// What is tiered has gone, or else the error.
    fn gone(&self, pages: &Damon<'_>, error: anyhow::Error) -> anyhow::Error {
        self.whose.check(self.fs).and_then(|()| pages.gone()).err().unwrap_or(error)
    }

    /// Takes over what `nearfar tier config` asks for.
    fn heed(&mut self, turns: &mut Turns, pages: &mut Damon<'_>) -> anyhow::Result<()> {
        let dir = self.journal.dir();
        let Some(asked) = change::asked(dir, self.us) else { return Ok(()) };
        if self.force.change(asked) {
            let wishes = self.force.options.wishes();
            self.plan.change(wishes);
            pages.set_headroom(wishes.headroom);
            turns.set_goals(self.plan.boundaries.iter().map(|boundary| boundary.goals));
        }
        self.show(turns, pages)?;
        change::remove(dir);
        Ok(())
    }

    fn record(&mut self, turns: &Turns, pages: &Damon<'_>) {
        let Some(log) = &mut self.log else { return };
        let reasons = turns.loops().zip(self.plan.tiers.windows(2)).map(|(one, tiers)| {
            let reason = one.decision().map_or("starting", |decision| decision.reason.word());
            match turns.loops().len() {
                1 => reason.to_owned(),
                _ => format!("{} over {}: {reason}", tiers[0], tiers[1]),
            }
        });
        let reason = reasons.collect::<Vec<_>>().join(", ");
        log.look(self.fs, &self.whose, self.ledger.sum(pages), &reason);
    }

    /// Says how things are, to those who look and to those who ask.
    fn show(&self, turns: &Turns, pages: &Damon<'_>) -> anyhow::Result<()> {
        let more = More {
            identity: self.us,
            tree: self.whose.root(),
            settings: &self.force,
            recording: self.log.as_ref().map(Log::said),
            plan: &self.plan,
            ledger: &self.ledger,
            running_s: self.clock.elapsed().as_secs(),
        };
        let state = State::of(turns, pages, &more);
        state::write(self.journal.dir(), &state)?;
        output::print(&state.text())
    }
}
