//! The balancing process: makes all checks, starts sensors, then samples and migrates until a signal stops it or its
//! scope has ended; then all changed settings are restored.
//!
//! Migrated pages stay in place: placement is no setting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_control::balancing::{Law, Layout, Loop};
use nearfar_kernel::claim::Claim;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, JournalError, OnConflict, Restored};
use nearfar_kernel::process::Identity;
use nearfar_policy::traffic::balance::Balance;
use nearfar_topology::{Nanoseconds, Topology};

use super::choice::{self, Eye};
use super::model::{self, Model};
use super::options::{Options, Policy};
use super::pages::Live;
use super::report::{self, More};
use super::scope::Scope;
use super::{other_movers, state};
use crate::history::History;
use crate::last;
use crate::settings::{numa_balancing_off, turn_numa_balancing_off, would_set};
use crate::status::Status;
use crate::tier::service::refuse_conflicts;
use nearfar_command::exit;
use nearfar_command::interrupt;
use nearfar_command::machine::Machine;
use nearfar_command::output;
use nearfar_command::supervisor::Supervisor;
use nearfar_kernel::clock::{Stopwatch, sleep};
use nearfar_sensors::pace;
use nearfar_sensors::{self as sense, Scene};

/// The journal's name for changes by balancing.
pub(crate) const BY: &str = "balance";
/// Longest delay of the reaction to a signal.
const NAP: Duration = Duration::from_millis(50);
/// Interval between status updates.
const TELLS: Duration = Duration::from_secs(1);

/// Balances until a signal asks it to stop. The claim is held until all settings are restored.
///
/// # Errors
/// The reason why it cannot start or ended early.
pub fn serve(machine: &Machine, options: &Options, claim: Claim) -> anyhow::Result<()> {
    let dir = Journal::default_dir();
    let _ = std::fs::remove_file(state::ended_path(&dir));
    let mut begun = false;
    let served = set_and_serve(machine, options, &mut begun);
    if let (Err(error), true) = (&served, begun) {
        // The reason is for `status`. A rejected start never ran; its reason has already been printed.
        let _ = state::write_ended(&dir, &exit::text(error));
    }
    drop(claim);
    served
}

fn set_and_serve(machine: &Machine, options: &Options, begun: &mut bool) -> anyhow::Result<()> {
    let stop = interrupt::flag()?;
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "balancing samples and migrates other processes' memory, which needs root; run it as root"
    );
    let fs = RootFs::live()?;
    let (topology, layout, scope) = check(&fs, machine, options)?;
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    journal.make_dir()?;
    // Settings left changed by a killed process.
    put_back(&journal, OnConflict::Refuse).context("restoring the settings of an earlier run")?;
    let scene = Scene { fs: &fs, machine: &topology, journal: &journal, by: BY };
    let sensors = choice::choose(sense::all(scene), &options.sensors, options.policy)?;
    let (law, layout, source) = law(&topology, layout, options, &sensors)?;
    let by_kernel = options.keep_numa_balancing || choice::needs_numa_balancing(&sensors);
    turn_numa_balancing_off(&fs, &journal, BY, by_kernel)?;
    let service = Service { fs: &fs, scope: &scope, options, journal: &journal };
    let emulated = machine.lab(&fs);
    let told = Told { layout: &layout, source, emulated };
    *begun = true;
    let ended = service.run(Loop::new(layout.clone(), law, sensors), &told, &stop);
    let restored = put_back(&journal, OnConflict::Refuse);
    last::retire(&state::path(journal.dir()));
    ended?;
    refuse_conflicts(&restored.context("restoring the settings of balancing")?)
}

/// The checks of a start that need no sensor.
fn check(
    fs: &RootFs,
    machine: &Machine,
    options: &Options,
) -> anyhow::Result<(Topology, Layout, Scope)> {
    let (topology, _) = machine.read(fs)?;
    let layout = model::layout(&topology)?;
    let scope = Scope::find(fs, options)?;
    other_movers::refuse_pod(fs, scope.cgroup())?;
    other_movers::refuse_kdamonds(fs)?;
    Ok((topology, layout, scope))
}

/// The effects of a start, in lines; nothing is changed. Sensors run their self-tests, as for `nearfar doctor`.
///
/// # Errors
/// The reasons for which a start would be refused, except for privileges.
pub fn preview(machine: &Machine, options: &Options) -> anyhow::Result<String> {
    let fs = RootFs::live()?;
    let (topology, layout, scope) = check(&fs, machine, options)?;
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    let scene = Scene { fs: &fs, machine: &topology, journal: &journal, by: BY };
    let sensors = choice::choose(sense::all(scene), &options.sensors, options.policy)?;
    let (_, _, source) = law(&topology, layout, options, &sensors)?;
    let needs_it = choice::needs_numa_balancing(&sensors);
    let by_kernel = options.keep_numa_balancing || needs_it;
    let names: Vec<&str> = sensors.iter().map(|sensor| sensor.name()).collect();
    let out = format!(
        "would balance {} between nodes {} by policy {}, with at most {} MB/s of migration\n\
         would measure by {}, and compare with latencies and bandwidths from: {source}\n",
        scope.text(),
        topology.memory_nodes(),
        options.policy.word(),
        options.rate_mbps,
        names.join(", ")
    );
    let own = match needs_it {
        true => {
            "would set the kernel's NUMA balancing and its intervals as sensor hint-faults needs them\n"
        }
        false => "",
    };
    Ok(out + own + &would_set(&fs, numa_balancing_off(&fs, by_kernel)?)?)
}

/// Restores the settings changed by balancing and its sensors.
///
/// # Errors
/// The journal can't be read, or a setting not written.
pub fn put_back(journal: &Journal<'_>, on_conflict: OnConflict) -> Result<Restored, JournalError> {
    let mut all = journal.restore(&pace(BY), on_conflict)?;
    all.add(journal.restore(BY, on_conflict)?);
    Ok(all)
}

/// The selected law, with the layout and the source of its model.
fn law(
    topology: &Topology,
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

/// Constant parts of the status.
struct Told<'a> {
    layout: &'a Layout,
    source: &'static str,
    emulated: Option<serde_json::Value>,
}

/// Resources of the service.
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
        let left_alone = other_movers::kubelet(self.fs).map(|policy| {
            format!(
                "pods, for which the kubelet's memory manager (policy {policy}) has chosen nodes"
            )
        });
        let left_alone: Vec<String> = left_alone.into_iter().collect();
        let (identity, mut due, mut tell) = (Identity::own(), Duration::ZERO, Duration::ZERO);
        let (mut supervisor, mut history) = (Supervisor::find(), History::default());
        let mut status = Status::default();
        while !stop.load(Ordering::Relaxed) {
            supervisor.alive();
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
                let mut state = report::state(one, live, &more);
                report::continue_history(&mut state, &mut history);
                status.written(state::write(self.journal.dir(), &state))?;
                output::print(&state.text())?;
                supervisor.ready(&format!("balancing {}", state.scope));
            }
        }
        Ok(())
    }
}
