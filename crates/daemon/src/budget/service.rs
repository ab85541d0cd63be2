//! The process that keeps budgets: reads, decides and migrates ten times a second until it is stopped.
//!
//! One thread serves all cgroups in turn, so that no two of them compete for the same free memory of a target unseen;
//! a step migrates at most 256 MiB for each. Once a second it looks for attributes and for cgroups that have gone,
//! and writes its state. Nothing but the kernel's NUMA balancing is changed system-wide; it is restored at the end, or
//! after a kill by the next start or stop.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::interrupt;
use nearfar_command::machine::Machine;
use nearfar_command::output;
use nearfar_command::supervisor::Supervisor;
use nearfar_kernel::cgroup::Hierarchy;
use nearfar_kernel::claim::Claim;
use nearfar_kernel::clock::{Stopwatch, sleep};
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, OnConflict};
use nearfar_kernel::moving::{Mover, Outcome, Rate, Shared};
use nearfar_kernel::process::Identity;
use nearfar_kernel::zones;
use nearfar_policy::budget::{Budget, Keeper, Usage};
use nearfar_topology::{Bytes, BytesPerSecond, Nanoseconds, NodeId, NodeSet, Topology};

use super::groups::{self, Limits};
use super::pages::{Hand, Wanted, select};
use super::state::{self, GroupState, State};
use crate::settings::{numa_balancing_off, turn_numa_balancing_off, would_set};
use crate::status::Status;
use crate::tier::service::{BY, refuse_conflicts};

/// Interval of steps.
const STEP: Duration = Duration::from_millis(100);
/// Interval between searches for attributes, and between writes of the state.
const SECOND: Duration = Duration::from_secs(1);
/// The longest pause after attempts that moved little.
const REST_MOST: Duration = Duration::from_secs(10);
/// Maximum bytes that are migrated for a group in one step, so that no group waits long for another.
const STEP_MOST: u64 = 256 << 20;
/// Free memory of a target that migration leaves to others.
const TARGET_LEAVES: u64 = 16 << 20;
/// A rate that is never used up.
const UNLIMITED: BytesPerSecond = BytesPerSecond(1 << 42);

/// Keeps budgets until it is stopped.
///
/// # Errors
/// The reason why it can't start or ended early.
pub fn serve(
    machine: &Machine,
    limits: &Limits,
    keep_numa_balancing: bool,
    claim: Claim,
) -> anyhow::Result<()> {
    let stop = interrupt::flag()?;
    let fs = RootFs::live()?;
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    journal.make_dir()?;
    let _ = std::fs::remove_file(crate::tier::state::ended_path(journal.dir()));
    // Left over from a process that was killed.
    journal.restore(BY, OnConflict::Refuse).context("restoring the settings of an earlier run")?;
    let mut service = Service::new(&fs, machine, limits)?;
    turn_numa_balancing_off(&fs, &journal, BY, keep_numa_balancing)?;
    let ended = service.run(&journal, &stop);
    let restored = journal.restore(BY, OnConflict::Refuse);
    let _ = std::fs::remove_file(state::path(journal.dir()));
    if let Err(error) = &ended {
        let _ = crate::tier::state::write_ended(journal.dir(), &nearfar_command::exit::text(error));
    }
    drop(claim);
    ended?;
    refuse_conflicts(&restored.context("restoring the kernel's NUMA balancing")?)
}

/// The effects of a start, in lines; nothing is changed.
///
/// # Errors
/// The reasons for which a start would be refused, except for privileges.
pub fn preview(machine: &Machine, limits: &Limits, keep: bool) -> anyhow::Result<String> {
    let fs = RootFs::live()?;
    let service = Service::new(&fs, machine, limits)?;
    let mut out = String::new();
    for (path, group) in &service.groups {
        let budget = group.keeper.budget();
        let min = (budget.min() > Bytes(0)).then(|| format!("at least {}", budget.min()));
        let max = budget.max().map(|max| format!("at most {max}"));
        let both = min.into_iter().chain(max).collect::<Vec<_>>().join(" and ");
        let _ = writeln!(out, "would keep {both} of cgroup {path} on nodes {}", service.near);
    }
    if limits.attributes {
        out.push_str("would keep the budgets in attributes of cgroups\n");
    }
    Ok(out + &would_set(&fs, numa_balancing_off(&fs, keep)?)?)
}

/// A cgroup with its keeper.
struct Group {
    keeper: Keeper,
    named: bool,
    /// Whether its cgroup exists.
    is_there: bool,
    hands: [Hand; 2],
    stepped: Stopwatch,
    /// The pause after an attempt that moved little, since when.
    rest: Duration,
    rested: Stopwatch,
    seen: GroupState,
}

impl Group {
    fn new(path: &str, budget: Budget, named: bool) -> Self {
        let seen = GroupState::new(path, budget);
        let keeper = Keeper::new(budget);
        let hands = [Hand::default(); 2];
        let (stepped, rested) = (Stopwatch::start(), Stopwatch::start());
        Self { keeper, named, is_there: true, hands, stepped, rest: Duration::ZERO, rested, seen }
    }

    /// Searching for pages costs as much whether there are some or not, so attempts that move little become rare.
    fn rest_after(&mut self, has_moved: bool) {
        self.rest = if has_moved { Duration::ZERO } else { (self.rest * 2).clamp(STEP, REST_MOST) };
        self.rested = Stopwatch::start();
    }
}

struct Service<'a> {
    fs: &'a RootFs,
    hierarchy: Hierarchy,
    near: NodeSet,
    far: NodeSet,
    capacity: Bytes,
    attributes: bool,
    groups: BTreeMap<String, Group>,
    /// Attributes that make no budget.
    problems: Vec<String>,
    us: Identity,
    clock: Stopwatch,
}

impl<'a> Service<'a> {
    fn new(fs: &'a RootFs, machine: &Machine, limits: &Limits) -> anyhow::Result<Self> {
        let (topology, _) = machine.read(fs)?;
        let (near, far) = (topology.near(), topology.far());
        if far.is_empty() {
            let has = topology.inventory();
            return Err(anyhow::anyhow!(
                "a budget of near memory needs far memory to demote to; this machine has one tier: {has}"
            ))
            .ends_with(Exit::Failed);
        }
        let capacity = capacity(&topology, &near);
        let hierarchy = Hierarchy::find(fs)?;
        let named = |name: &str| -> anyhow::Result<String> {
            let path = hierarchy.named(fs, name).ends_with(Exit::Usage)?;
            hierarchy.check_memory(fs, &path)?;
            Ok(path)
        };
        let budgets = limits.resolve(capacity, named)?;
        let groups = budgets.into_iter().map(|(path, budget)| {
            let group = Group::new(&path, budget, true);
            (path, group)
        });
        Ok(Self {
            fs,
            near,
            far,
            capacity,
            attributes: limits.attributes,
            groups: groups.collect(),
            problems: Vec::new(),
            us: Identity::own(),
            clock: Stopwatch::start(),
            hierarchy,
        })
    }

    fn run(&mut self, journal: &Journal<'_>, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut supervisor = Supervisor::find();
        let (mut shown, mut status) = (None::<Stopwatch>, Status::default());
        while !stop.load(Ordering::Relaxed) {
            let begun = Stopwatch::start();
            if shown.is_none_or(|shown| shown.elapsed() >= SECOND) {
                self.search()?;
                status.written(self.show(journal))?;
                shown = Some(Stopwatch::start());
                supervisor.ready("keeping budgets of near memory");
            }
            supervisor.alive();
            self.step()?;
            sleep(STEP.saturating_sub(begun.elapsed()));
        }
        Ok(())
    }

    /// Adopts attributes of cgroups, and drops those of cgroups that have gone. A named cgroup may come again: a service
    /// that is restarted gets a new one of the same path.
    fn search(&mut self) -> anyhow::Result<()> {
        for (path, group) in &mut self.groups {
            let is_there = self.hierarchy.named(self.fs, path).is_ok();
            match (group.is_there, is_there) {
                (true, false) if group.named => {
                    output::note(format_args!("cgroup {path} has gone; its budget waits for it"));
                    group.seen.blocked = Some("the cgroup does not exist at present".into());
                }
                (true, false) => output::note(format_args!("cgroup {path} has gone")),
                (false, true) => group.seen.blocked = None,
                _ => {}
            }
            group.is_there = is_there;
        }
        self.groups.retain(|_, group| group.named || group.is_there);
        if self.attributes { self.adopt() } else { Ok(()) }
    }

    fn adopt(&mut self) -> anyhow::Result<()> {
        self.problems.clear();
        let found = groups::attributed(self.fs, &self.hierarchy, self.capacity)?;
        let present: BTreeSet<String> = found.iter().map(|(path, _)| path.clone()).collect();
        self.groups.retain(|path, group| group.named || present.contains(path));
        for (path, budget) in found {
            match budget {
                Ok(budget) => match self.groups.get_mut(&path) {
                    Some(group) if group.named => {}
                    Some(group) => {
                        group.keeper.set_budget(budget);
                        group.seen.set_budget(budget);
                    }
                    None => {
                        let group = Group::new(&path, budget, false);
                        self.groups.insert(path, group);
                    }
                },
                Err(reason) => self.problems.push(format!("cgroup {path}: {reason}")),
            }
        }
        Ok(())
    }

    /// One step of each group.
    fn step(&mut self) -> anyhow::Result<()> {
        let paths: Vec<String> = self.groups.keys().cloned().collect();
        for path in paths {
            // One that has gone meanwhile is dropped by the next search.
            let Ok(nodes) = self.hierarchy.numa_stat(self.fs, &path) else { continue };
            let sum = |of: &NodeSet| {
                let bytes = of.iter().filter_map(|node| nodes.get(&node)).map(|one| one.total().0);
                Bytes(bytes.sum())
            };
            let usage = Usage { near: sum(&self.near), far: sum(&self.far) };
            let Some(group) = self.groups.get_mut(&path) else { continue };
            let elapsed = u64::try_from(group.stepped.elapsed().as_nanos()).unwrap_or(u64::MAX);
            group.stepped = Stopwatch::start();
            let moves = group.keeper.step(usage, Nanoseconds(elapsed));
            group.seen.see(usage);
            let due = [(moves.demote, false), (moves.promote, true)];
            if group.rested.elapsed() < group.rest {
                continue;
            }
            for (bytes, up) in due.into_iter().filter(|(bytes, _)| bytes.0 > 0) {
                self.migrate(&path, Bytes(bytes.0.min(STEP_MOST)), up)?;
            }
        }
        Ok(())
    }

    /// Migrates pages of a group, up or down, and records the outcome.
    fn migrate(&mut self, path: &str, bytes: Bytes, up: bool) -> anyhow::Result<()> {
        let (from, to) = if up { (&self.far, &self.near) } else { (&self.near, &self.far) };
        let free = zones::usable_free(self.fs)?;
        let free =
            |node: NodeId| free.get(&node).map_or(0, |free| free.0.saturating_sub(TARGET_LEAVES));
        let Some(target) = to.iter().max_by_key(|node| free(*node)) else { return Ok(()) };
        let bytes = Bytes(bytes.0.min(free(target)));
        let Some(group) = self.groups.get_mut(path) else { return Ok(()) };
        if bytes.0 == 0 {
            group.seen.blocked = Some(format!("node {target} has no free memory"));
            return Ok(());
        }
        let processes = self.hierarchy.members(self.fs, path).unwrap_or_default();
        let from: BTreeSet<NodeId> = from.iter().collect();
        let wanted =
            Wanted { processes: &processes, from: &from, to: target, bytes, hot_first: up };
        let requests = select(self.fs, &wanted, &mut group.hands[usize::from(up)]);
        let asked = requests.len();
        let mut mover = Mover::new(Rate::new(UNLIMITED, Nanoseconds(0)), Shared::Move);
        mover.ask(requests);
        let now = Nanoseconds(1_000_000_000);
        while mover.waiting() > 0 {
            mover.step(now);
        }
        let moved = mover.tally().bytes();
        let (demoted, promoted) = if up { (Bytes(0), moved) } else { (moved, Bytes(0)) };
        group.keeper.moved(demoted, promoted);
        group.rest_after(moved.0 >= bytes.0 / 8);
        group.seen.add(demoted, promoted);
        group.seen.blocked = match (asked, moved.0) {
            (0, _) => {
                Some("no page that a process maps is on these nodes; page cache counts, too".into())
            }
            (_, 0) => Some(reasons(&mover)),
            _ => None,
        };
        Ok(())
    }

    fn show(&self, journal: &Journal<'_>) -> anyhow::Result<()> {
        let state = State {
            schema: state::SCHEMA.into(),
            identity: self.us,
            running_s: self.clock.elapsed().as_secs(),
            near: self.near.to_string(),
            far: self.far.to_string(),
            attributes: self.attributes,
            groups: self.groups.values().map(|group| group.seen.clone()).collect(),
            problems: self.problems.clone(),
        };
        state::write(journal.dir(), &state)
    }
}

fn capacity(topology: &Topology, near: &NodeSet) -> Bytes {
    let size = |node| topology.nodes.get(&node).map_or(0, |node| node.size.0);
    Bytes(near.iter().map(size).sum())
}

/// The outcomes of pages that stayed.
fn reasons(mover: &Mover) -> String {
    let stayed =
        Outcome::ALL.iter().filter(|outcome| !matches!(outcome, Outcome::Moved | Outcome::There));
    let counts = stayed.map(|outcome| (outcome.word(), mover.tally().count(*outcome)));
    let words = counts.filter(|(_, count)| *count > 0);
    let list: Vec<String> =
        words.map(|(word, count)| format!("{count} pages {}", word.replace('_', " "))).collect();
    if list.is_empty() { "no page could be moved".into() } else { list.join(", ") }
}
