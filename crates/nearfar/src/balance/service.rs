//! Balancing as a process: what can be refused is refused, then sensors start, then it is looked and moved until it is told to
//! stop or those whose memory it is about have gone; then all that was set is put back.
//!
//! Pages stay where they were moved: that is no setting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_control::balancing::{Law, Layout, Loop};
use nearfar_kernel::balancing::{NumaBalancing, numa_balancing, set_numa_balancing};
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, JournalError, OnConflict, Restored};
use nearfar_policy::traffic::balance::Balance;
use nearfar_topology::Nanoseconds;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use super::choice::{self, Eye};
use super::model::{self, Model};
use super::options::{Options, Policy};
use super::pages::Live;
use super::scope::Scope;
use super::telling::{self, More};
use super::{rivals, state};
use crate::cli::machine::MachineArgs;
use crate::cli::output;
use crate::clock::{Stopwatch, sleep};
use crate::sense::hint::pace;
use crate::sense::{self, Scene};
use crate::tier::service::refuse_conflicts;
use crate::tier::state::Identity;

/// Whose changes these are, for the journal.
pub(crate) const BY: &str = "balance";
/// How soon a signal is heeded.
const NAP: Duration = Duration::from_millis(50);
/// How often it is told how things are.
const TELLS: Duration = Duration::from_secs(1);

/// Balances until it is told to stop.
pub(crate) fn serve(machine: &MachineArgs, options: &Options) -> anyhow::Result<()> {
    let dir = Journal::default_dir();
    let _ = std::fs::remove_file(state::ended_path(&dir));
    let served = set_and_serve(machine, options);
    if let Err(error) = &served {
        // Who asks later should learn of it, if it can be written.
        let _ = state::write_ended(&dir, &format!("{error:#}"));
    }
    served
}

fn set_and_serve(machine: &MachineArgs, options: &Options) -> anyhow::Result<()> {
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "balancing looks at other processes' memory and moves it, which takes root; run it as root"
    );
    let fs = RootFs::live()?;
    let (topology, _) = machine.read(&fs)?;
    let layout = model::layout(&topology)?;
    let scope = Scope::find(&fs, options)?;
    rivals::refuse_pod(&fs, scope.cgroup())?;
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    journal.make_dir()?;
    rivals::refuse_kdamonds(&fs)?;
    let _claim = rivals::claim(&fs, journal.dir())?;
    // What a process that was killed has left.
    put_back(&journal, OnConflict::Refuse).context("putting back what was set before")?;
    let scene = Scene { fs: &fs, machine: &topology, journal: &journal, by: BY };
    let sensors = choice::choose(sense::all(scene), &options.sensors, options.policy)?;
    let (law, layout, source) = law(&topology, layout, options, &sensors)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("listening for signals")?;
    }
    let by_kernel = options.keep_numa_balancing || choice::needs_numa_balancing(&sensors);
    if !by_kernel && numa_balancing(&fs)?.is_some_and(|mode| mode != NumaBalancing::OFF) {
        set_numa_balancing(&journal, BY, NumaBalancing::OFF)
            .context("turning the kernel's NUMA balancing off")?;
    }
    let service = Service { fs: &fs, scope: &scope, options, journal: &journal };
    let emulated = machine.lab(&fs);
    let told = Told { layout: &layout, source, emulated };
    let ended = service.run(Loop::new(layout.clone(), law, sensors), &told, &stop);
    let restored = put_back(&journal, OnConflict::Refuse);
    let _ = std::fs::remove_file(state::path(journal.dir()));
    ended?;
    refuse_conflicts(&restored.context("putting back what balancing has set")?)
}

/// Puts back what balancing, and a sensor at work for it, have set.
pub(crate) fn put_back(
    journal: &Journal<'_>,
    on_conflict: OnConflict,
) -> Result<Restored, JournalError> {
    let mut all = journal.restore(&pace(BY), on_conflict)?;
    let of_balancing = journal.restore(BY, on_conflict)?;
    all.put_back.extend(of_balancing.put_back);
    all.conflicts.extend(of_balancing.conflicts);
    all.void += of_balancing.void;
    Ok(all)
}

/// The law that was asked for, with what it takes the machine for.
fn law(
    topology: &nearfar_topology::Topology,
    layout: Layout,
    options: &Options,
    sensors: &[Eye<'_>],
) -> anyhow::Result<(Law, Layout, &'static str)> {
    if options.policy == Policy::Carrefour {
        let seed = Identity::own().started_ticks;
        let config = options.carrefour(choice::counts(sensors), seed);
        return Ok((Law::carrefour(&config), layout, "none"));
    }
    let model = Model::of(topology)?;
    if model.source == "assumed" {
        output::note(
            "latencies and bandwidths are not known (no probe, no HMAT) and assumed from distances; nearfar probe measures them",
        );
    }
    let policy = Balance::new(options.balance(), model.machine);
    Ok((Law::balance(policy), model.layout, model.source))
}

/// What is told besides what happens.
struct Told<'a> {
    layout: &'a Layout,
    source: &'static str,
    emulated: Option<serde_json::Value>,
}

/// What it works with.
struct Service<'a> {
    fs: &'a RootFs,
    scope: &'a Scope,
    options: &'a Options,
    journal: &'a Journal<'a>,
}

impl Service<'_> {
    fn run(
        &self,
        mut one: Loop<Eye<'_>>,
        told: &Told<'_>,
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        let clock = Stopwatch::start();
        let rate = (self.options.rate(), Nanoseconds(0));
        let mut live = Live::new(self.fs, self.scope, told.layout.nodes.clone(), rate);
        let ended = self.keep_going(&mut one, &mut live, (told, clock), stop);
        let stopped = one.stop();
        ended?;
        stopped.context(
            "balancing has stopped, but a sensor has not; nearfar balance stop tries again",
        )
    }

    fn keep_going(
        &self,
        one: &mut Loop<Eye<'_>>,
        live: &mut Live<'_>,
        (told, clock): (&Told<'_>, Stopwatch),
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        let left_alone = rivals::kubelet(self.fs).map(|policy| {
            format!(
                "pods, for which the kubelet's memory manager (policy {policy}) has chosen nodes"
            )
        });
        let left_alone: Vec<String> = left_alone.into_iter().collect();
        let (identity, mut due, mut tell) = (Identity::own(), Duration::ZERO, Duration::ZERO);
        while !stop.load(Ordering::Relaxed) {
            let now = clock.elapsed();
            if now < due {
                sleep((due - now).min(NAP));
                continue;
            }
            let at = Nanoseconds(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
            let wait = one.tick(at, live)?;
            due = clock.elapsed().saturating_add(Duration::from_nanos(wait.0));
            if now >= tell {
                tell = now.saturating_add(TELLS);
                let more = More {
                    identity,
                    options: self.options,
                    scope: self.scope.text(),
                    emulated: told.emulated.as_ref(),
                    left_alone: &left_alone,
                    model: told.source,
                    layout: told.layout,
                    running_s: now.as_secs(),
                };
                let state = telling::state(one, live, &more);
                state::write(self.journal.dir(), &state)?;
                output::print(&state.text())?;
            }
        }
        Ok(())
    }
}
