//! The tiering process: resolves all options, configures the kernel, runs the loops until it is stopped or the tiered
//! memory has gone, and restores all settings.
//!
//! Requests are refused before any setting changes. Options that can change at run time are requested by a file
//! ([`super::change`]), which is polled as often as signals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_control::tiering::Loop;
use nearfar_control::turns::Turns;
use nearfar_kernel::cgroup::own;
use nearfar_kernel::claim::Claim;
use nearfar_kernel::damon::{DamonError, DamonStat, Session};
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, OnConflict, Restored};
use nearfar_kernel::process::Identity;
use nearfar_policy::ports::{TierBoundaries as _, TierPages as _};
use nearfar_topology::Nanoseconds;

use super::change;
use super::damon::DamonMigrator;
use super::log::Log;
use super::options::{EffectiveOptions, Options};
use super::plan::{self, Plan};
use super::schemes::specifications;
use super::scope::Scope;
use super::state::{self, Ledger, More, State};
use crate::history::History;
use crate::last;
use crate::settings::turn_numa_balancing_off;
use crate::status::Status;
use nearfar_command::exit;
use nearfar_command::interrupt;
use nearfar_command::machine::Machine;
use nearfar_command::output;
use nearfar_command::supervisor::Supervisor;
use nearfar_kernel::clock::{Stopwatch, sleep};

/// The owner of these changes, for the journal.
pub const BY: &str = "tier";
/// Interval between polls of a command for the state of the service.
pub const NAP: Duration = Duration::from_millis(50);
/// Longest interval between checks for signals, requests, and the end of the scope. Each costs CPU time, which leaves
/// less for scans.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// Longest time without a report: the state in the status file, on the output, and in the access record.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Tiers until it is stopped.
///
/// `for_run`: the scope is a cgroup made for the parent's program; tiering ends when it is empty.
/// The claim is held until all settings are restored.
///
/// # Errors
/// The reason why it can't start or ended early.
pub fn serve(
    machine: &Machine,
    effective: EffectiveOptions,
    for_run: bool,
    claim: Claim,
) -> anyhow::Result<()> {
    let dir = Journal::default_dir();
    let _ = std::fs::remove_file(state::ended_path(&dir));
    let mut begun = false;
    let served = set_and_serve(machine, effective, for_run, &mut begun);
    if let (Err(error), true) = (&served, begun) {
        // The reason is for `status`. A start that was refused never ran; its reason has been shown.
        let _ = state::write_ended(&dir, &exit::text(error));
    }
    drop(claim);
    served
}

fn set_and_serve(
    machine: &Machine,
    effective: EffectiveOptions,
    for_run: bool,
    begun: &mut bool,
) -> anyhow::Result<()> {
    let stop = interrupt::flag()?;
    let fs = RootFs::live()?;
    let machine = machine.with_kinds(effective.options.kind.as_deref().unwrap_or_default());
    let (topology, _) = machine.read(&fs)?;
    let options = &effective.options;
    let plan = plan::plan(&topology, options.limits(), options.named())?;
    plan.note_doubts(&topology);
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    journal.make_dir()?;
    let turn = own::Turn::take(journal.dir())?;
    // Left over from a process that was killed.
    match turn.recover(&fs) {
        Err(error @ own::OwnError::Malformed { .. }) => output::note(error),
        recovered => drop(recovered.context("removing the cgroup of an earlier run")?),
    }
    journal.restore(BY, OnConflict::Refuse).context("restoring the settings of an earlier run")?;
    let made = for_run.then(|| turn.make(&fs, &run_name())).transpose()?;
    let scope = match &made {
        Some(own) => Scope::run(&fs, own.path())?,
        None => Scope::find(&fs, options)?,
    };
    let log = options.record.as_ref().map(|name| Log::create(name, &machine, &fs, &scope));
    let log = log.transpose()?;
    let (us, clock) = (Identity::own(), Stopwatch::start());
    let (ledger, first) = (Ledger::default(), plan.clone());
    let mut service = Service {
        fs: &fs,
        journal: &journal,
        machine,
        first,
        plan,
        effective,
        scope,
        log,
        ledger,
        history: History::default(),
        us,
        clock,
        supervisor: Supervisor::find(),
        status: Status::default(),
    };
    *begun = true;
    let ended = service.run(&stop);
    let balancing = journal.restore(BY, OnConflict::Refuse);
    last::retire(&state::path(journal.dir()));
    change::remove(journal.dir());
    if let Some(log) = service.log.take() {
        log.end(&fs, service.ledger.cpu());
    }
    let removed = made.map(own::Own::remove).transpose();
    ended?;
    removed.context("removing the program's cgroup; nearfar tier stop tries again")?;
    refuse_conflicts(&balancing.context("restoring the kernel's NUMA balancing")?)
}

/// The cgroup of a run, named after the process in charge of it.
fn run_name() -> String {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    format!("nearfar-run-{parent}")
}

/// Reports the removed cgroup, and settings that stay.
pub fn say_removed(removed: &own::Removed) {
    let own::Removed { path, moved, stays_on } = removed;
    let still = if *moved == 0 {
        String::new()
    } else {
        format!(
            "; processes still in it ({moved}) were moved back to the cgroup they were started from"
        )
    };
    output::remark(format_args!("removed cgroup {path}{still}"));
    if let Some(parent) = stays_on {
        output::note(format_args!(
            "the memory controller stays enabled below cgroup {parent}: cgroups have been created there since"
        ));
    }
}

/// Fails if a restore left a setting alone because another process had changed it.
///
/// # Errors
/// The first conflict.
pub fn refuse_conflicts(restored: &Restored) -> anyhow::Result<()> {
    output::refuse_conflicts(restored, "it was left as it is", "nearfar tier stop --overwrite")
}

/// Treatment of the kernel's `damon_stat`.
pub(super) fn damon_stat(options: &Options) -> DamonStat {
    if options.keep_damon_stat == Some(true) { DamonStat::Keep } else { DamonStat::Pause }
}

pub(super) fn held(error: DamonError) -> anyhow::Error {
    let is_stat = error.to_string().contains("damon_stat");
    let error = anyhow::Error::from(error).context("tiering can't start");
    if is_stat {
        error.context("--keep-damon-stat (keep_damon_stat = true in a file) is given")
    } else {
        error
    }
}

/// Tiering across any number of hotplug events.
struct Service<'a> {
    fs: &'a RootFs,
    journal: &'a Journal<'a>,
    machine: Machine,
    /// The plan at the start, and the present one.
    first: Plan,
    plan: Plan,
    effective: EffectiveOptions,
    scope: Scope,
    log: Option<Log>,
    ledger: Ledger,
    history: History,
    us: Identity,
    clock: Stopwatch,
    supervisor: Supervisor,
    status: Status,
}

impl Service<'_> {
    /// Runs until it is stopped, or no tiered memory is left.
    fn run(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        loop {
            let mut pages = self.begin()?;
            let ended = self.keep_going(&mut pages, stop);
            self.ledger.close(&pages);
            let restored = pages.session.stop();
            let changed = ended?;
            restored.context(
                "tiering has stopped, but not all settings were restored; nearfar tier stop tries again",
            )?;
            if !changed {
                return Ok(());
            }
            let (machine, _) = self.machine.read(self.fs)?;
            let options = &self.effective.options;
            self.plan = plan::again(&machine, options.limits(), options.named(), &self.first)?;
            let now = self.plan.nodes();
            self.ledger.gone = self.first.nodes().without(&now);
            output::note(format_args!(
                "nodes were added or removed; tiering continues with nodes {}",
                self.plan.order()
            ));
        }
    }

    /// Starts DAMON on the present nodes; nothing is migrated yet.
    fn begin<'a>(&self) -> anyhow::Result<DamonMigrator<'a>>
    where
        Self: 'a,
    {
        let (nodes, specifications) = specifications(self.fs, &self.plan, self.scope.group())?;
        let damon_stat = damon_stat(&self.effective.options);
        output::note_paused(self.fs, damon_stat);
        let session =
            Session::start(self.fs, self.journal, &specifications, damon_stat).map_err(held)?;
        let pages =
            DamonMigrator::new(self.fs, session, nodes, self.scope.group().cloned(), &self.plan);
        let keep = self.effective.options.keep_numa_balancing == Some(true);
        turn_numa_balancing_off(self.fs, self.journal, BY, keep)?;
        Ok(pages)
    }

    /// Ticks until stopped, until the scope has ended, or until nodes come or go. Returns whether nodes did.
    fn keep_going(
        &mut self,
        pages: &mut DamonMigrator<'_>,
        stop: &AtomicBool,
    ) -> anyhow::Result<bool> {
        let mut loops = Vec::new();
        for (at, boundary) in self.plan.boundaries.iter().enumerate() {
            pages.turn_to(at)?;
            loops.push(Loop::new(boundary.goals, pages.count()?));
        }
        let mut turns = Turns::new(loops);
        let (mut due, mut report, mut shown) = (Duration::ZERO, Duration::ZERO, None);
        while !pages.has_changed() {
            if stop.load(Ordering::Relaxed) || self.scope.is_over(self.fs)? {
                return Ok(false);
            }
            self.heed(&mut turns, pages)?;
            self.supervisor.alive();
            let now = self.clock.elapsed();
            if now < due {
                sleep((due - now).min(CHECK_EVERY));
                continue;
            }
            let ns = Nanoseconds(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
            // If the tiered memory has gone, the kernel returns various errors.
            let wait = turns.tick(ns, pages).map_err(|error| self.gone(pages, error))?;
            due = self.clock.elapsed().saturating_add(Duration::from_nanos(wait.0));
            // Once per scan, when free memory has changed, and when pages have been migrated.
            let news = (turns.loops().map(|one| *one.seen()).collect::<Vec<_>>(), pages.moved());
            if now >= report || shown.as_ref() != Some(&news) {
                (report, shown) = (now + REPORT_EVERY, Some(news));
                self.record(&turns, pages);
                self.show(&turns, pages)?;
                self.supervisor.ready(&format!("tiering nodes {}", self.plan.order()));
            }
        }
        Ok(true)
    }

    /// The error that the tiered memory has gone, or else the given one.
    fn gone(&self, pages: &DamonMigrator<'_>, error: anyhow::Error) -> anyhow::Error {
        self.scope.check(self.fs).and_then(|()| pages.gone()).err().unwrap_or(error)
    }

    /// Adopts options that `nearfar tier config` requests.
    fn heed(&mut self, turns: &mut Turns, pages: &mut DamonMigrator<'_>) -> anyhow::Result<()> {
        let dir = self.journal.dir();
        let Some(asked) = change::asked(dir, self.us) else { return Ok(()) };
        if self.effective.change(asked) {
            let limits = self.effective.options.limits();
            self.plan.change(limits);
            pages.set_headroom(limits.headroom);
            turns.set_goals(self.plan.boundaries.iter().map(|boundary| boundary.goals));
        }
        self.show(turns, pages)?;
        change::remove(dir);
        Ok(())
    }

    fn record(&mut self, turns: &Turns, pages: &DamonMigrator<'_>) {
        let Some(log) = &mut self.log else { return };
        let reasons = turns.loops().zip(self.plan.tiers.windows(2)).map(|(one, tiers)| {
            let reason = one.decision().map_or("starting", |decision| decision.reason.word());
            match turns.loops().len() {
                1 => reason.to_owned(),
                _ => format!("{} over {}: {reason}", tiers[0], tiers[1]),
            }
        });
        let reason = reasons.collect::<Vec<_>>().join(", ");
        log.look(self.fs, &self.scope, self.ledger.sum(pages), &reason);
    }

    /// Reports the present state, in the status file and on the output.
    fn show(&mut self, turns: &Turns, pages: &DamonMigrator<'_>) -> anyhow::Result<()> {
        let more = More {
            identity: self.us,
            tree: self.scope.root(),
            settings: &self.effective,
            recording: self.log.as_ref().map(Log::recorded),
            plan: &self.plan,
            ledger: &self.ledger,
            running_s: self.clock.elapsed().as_secs(),
        };
        let mut state = State::of(turns, pages, &more);
        state.continue_history(&mut self.history);
        self.status.written(state::write(self.journal.dir(), &state))?;
        output::print(&state.text())
    }
}
