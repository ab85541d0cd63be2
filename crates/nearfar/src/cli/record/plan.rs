//! The targets of a recording, resolved against the system before anything is changed.

use anyhow::Context as _;
use nearfar_kernel::cgroup::Hierarchy;
use nearfar_kernel::damon::spec::{Action, AddrRange, Kdamond, Scheme};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::{process, ranges};
use nearfar_record::{Header, Intervals, Operations, Target};

use super::Args;
use nearfar_command::exit::{EndsWith as _, Exit};
use nearfar_command::machine::Machine;
use nearfar_daemon::recording;

/// Maximum number of processes recorded at once: each needs a kernel thread, and up to an aggregation interval for each
/// query.
pub(super) const PROCESSES_MAX: usize = 16;

/// The monitored memory.
#[derive(Debug)]
pub(super) enum Who {
    /// All memory, by these physical addresses.
    Machine(Vec<AddrRange>),
    /// That of a process and its descendants.
    Tree(u32),
    /// That of the processes of a cgroup.
    Cgroup(Hierarchy, String),
}

/// The monitored memory, and the record's header.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) who: Who,
    pub(super) header: Header,
}

impl Plan {
    /// Resolves the arguments; `child` is the command's process, if there is one.
    pub(super) fn new(
        args: &Args,
        child: Option<u32>,
        machine: &Machine,
        fs: &dyn Fs,
    ) -> anyhow::Result<Self> {
        let (who, target) = target(args, child, fs)?;
        let operations = match who {
            Who::Machine(_) => Operations::Physical,
            Who::Tree(_) | Who::Cgroup(..) => Operations::Virtual,
        };
        let mut as_asked = Kdamond::process(0);
        args.how.apply(&mut as_asked);
        let given = as_asked.context.intervals;
        let intervals = Intervals { sample_us: given.sample_us, aggregation_us: given.aggr_us };
        let header = recording::header(machine, fs, (target, operations), intervals)?;
        Ok(Self { who, header })
    }
}

impl Who {
    /// The present processes, without those that have ended; empty for the whole machine. A tree begins with its root.
    pub(super) fn members(&self, fs: &dyn Fs) -> anyhow::Result<Vec<u32>> {
        let mut members = match self {
            Self::Machine(_) => Vec::new(),
            Self::Tree(root) if process::lives(fs, *root) => {
                let mut tree = process::tree(fs, *root)?;
                tree.sort_by_key(|pid| (pid != root, *pid));
                tree
            }
            Self::Tree(_) => Vec::new(),
            Self::Cgroup(cgroups, path) => cgroups.members(fs, path).unwrap_or_default(),
        };
        members.retain(|pid| process::lives(fs, *pid));
        Ok(members)
    }
}

/// Configures a kdamond with the requested resolution and no schemes.
pub(super) fn looking(args: &Args, mut kdamond: Kdamond) -> Kdamond {
    args.how.apply(&mut kdamond);
    kdamond.context.schemes = vec![Scheme::new(Action::Stat)];
    kdamond
}

fn target(args: &Args, child: Option<u32>, fs: &dyn Fs) -> anyhow::Result<(Who, Target)> {
    if let Some(name) = &args.cgroup {
        let asked = || format!("--cgroup {name}");
        let cgroups = Hierarchy::find(fs).with_context(asked)?;
        let path = cgroups.named(fs, name).with_context(asked).ends_with(Exit::Usage)?;
        let members = cgroups.members(fs, &path).with_context(asked)?;
        anyhow::ensure!(!members.is_empty(), "--cgroup {name}: no process is in it");
        anyhow::ensure!(
            members.len() <= PROCESSES_MAX,
            "--cgroup {name}: {} processes are in it, and at most {PROCESSES_MAX} are recorded apart; record --all, \
             or one of them with --pid",
            members.len()
        );
        return Ok((Who::Cgroup(cgroups, path.clone()), Target::Cgroup(path)));
    }
    let Some(pid) = args.pid.or(child) else {
        let nodes = ranges::of_nodes(fs)?;
        let mut all: Vec<AddrRange> = nodes.values().flatten().copied().collect();
        all.sort_unstable();
        anyhow::ensure!(
            !all.is_empty(),
            "this kernel shows no addresses of memory; that takes root"
        );
        return Ok((Who::Machine(all), Target::Machine));
    };
    let command = fs.read(&format!("proc/{pid}/comm"))?;
    let command = command.with_context(|| format!("--pid {pid}: no such process"));
    let command = match child {
        Some(_) => args.command.first().cloned().unwrap_or_default(),
        None => command.ends_with(Exit::Usage)?.trim().to_owned(),
    };
    Ok((Who::Tree(pid), Target::Process { pid, command }))
}
