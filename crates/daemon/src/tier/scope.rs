//! The scope of tiering: the memory of the machine, of a cgroup, or of a process and its descendants.
//!
//! DAMON distinguishes pages by memory cgroup, and by exactly one: not by process, and without cgroups below. So a
//! tree of processes can be tiered if one cgroup holds it and nothing else, as with a service or a container. That is
//! checked as tiering starts. From then on the cgroup counts: a process that loses its parent stays in it.

use std::collections::BTreeMap;

use anyhow::Context as _;
use nearfar_kernel::cgroup::{CgroupError, Hierarchy, NodeMemory};
use nearfar_kernel::fs::Fs;
use nearfar_kernel::process::{self, Identity};
use nearfar_record::Target;
use nearfar_topology::{Bytes, NodeId};

use super::options::Options;
use nearfar_command::exit::{EndsWith as _, Exit};

/// Most processes named in an error.
const NAMED: usize = 4;
/// A thread of the kernel (PF_KTHREAD), in the flags of proc_pid_stat(5).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// A memory cgroup: only its memory is scanned and migrated.
#[derive(Clone, Debug)]
pub struct Group {
    hierarchy: Hierarchy,
    pub(crate) path: String,
}

impl Group {
    /// The cgroup that the user names.
    pub(crate) fn find(fs: &dyn Fs, name: &str) -> anyhow::Result<Self> {
        let hierarchy = Hierarchy::find(fs).context("--cgroup")?;
        let path = hierarchy.named(fs, name).context("--cgroup").ends_with(Exit::Usage)?;
        Ok(Self { hierarchy, path })
    }

    /// The cgroup at a path.
    pub(crate) fn at(hierarchy: &Hierarchy, path: String) -> Self {
        Self { hierarchy: hierarchy.clone(), path }
    }

    /// Its pages on each node.
    pub(crate) fn taken(&self, fs: &dyn Fs) -> Result<BTreeMap<NodeId, Bytes>, CgroupError> {
        let nodes = self.hierarchy.numa_stat(fs, &self.path)?;
        let all = |memory: NodeMemory| Bytes(memory.anon.0.saturating_add(memory.file.0));
        Ok(nodes.into_iter().map(|(node, memory)| (node, all(memory))).collect())
    }
}

/// The memory that is tiered.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    Machine,
    Cgroup(Group),
    Tree(Tree),
    Run(Run),
}

/// A program that runs in a cgroup made for it.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    hierarchy: Hierarchy,
    group: Group,
    /// The process that starts it, and whether a process has been in the cgroup.
    by: Identity,
    begun: bool,
}

/// A process and its descendants, in a cgroup of their own.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: Identity,
    command: String,
    hierarchy: Hierarchy,
    group: Group,
}

impl Scope {
    /// The scope that the options name.
    pub(crate) fn find(fs: &dyn Fs, options: &Options) -> anyhow::Result<Self> {
        Ok(match (&options.cgroup, options.pid) {
            (Some(name), _) => {
                let asked = || format!("--cgroup {name}");
                let group = Group::find(fs, name).with_context(asked)?;
                Hierarchy::find(fs)?.check_memory(fs, &group.path).with_context(asked)?;
                Self::Cgroup(group)
            }
            (None, Some(pid)) => {
                let asked = || format!("--pid {pid}");
                Self::Tree(Tree::find(fs, pid).with_context(asked).ends_with(Exit::Usage)?)
            }
            (None, None) => Self::Machine,
        })
    }

    /// The scope of a program that our parent will start in the cgroup at `path`.
    pub(crate) fn run(fs: &dyn Fs, path: &str) -> anyhow::Result<Self> {
        let hierarchy = Hierarchy::find(fs)?;
        let group = Group::at(&hierarchy, path.to_owned());
        let by = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        let by = by.and_then(Identity::of).context("the process that started this has ended")?;
        Ok(Self::Run(Run { hierarchy, group, by, begun: false }))
    }

    /// The cgroup, if there is one.
    pub(crate) fn group(&self) -> Option<&Group> {
        match self {
            Self::Machine => None,
            Self::Cgroup(group) => Some(group),
            Self::Tree(tree) => Some(&tree.group),
            Self::Run(run) => Some(&run.group),
        }
    }

    /// The root of the process tree, if the scope is one.
    pub(crate) fn root(&self) -> Option<u32> {
        match self {
            Self::Tree(tree) => Some(tree.root.pid),
            Self::Machine | Self::Cgroup(_) | Self::Run(_) => None,
        }
    }

    /// The scope, for a record.
    pub(crate) fn target(&self) -> Target {
        match self {
            Self::Machine => Target::Machine,
            Self::Cgroup(group) | Self::Run(Run { group, .. }) => {
                Target::Cgroup(group.path.clone())
            }
            Self::Tree(tree) => {
                Target::Process { pid: tree.root.pid, command: tree.command.clone() }
            }
        }
    }

    /// The scope, for people.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Machine => "the memory of all processes".into(),
            Self::Cgroup(group) | Self::Run(Run { group, .. }) => {
                format!("the memory of cgroup {}", group.path)
            }
            Self::Tree(tree) => format!(
                "the memory of process {} ({}) and its descendants",
                tree.root.pid, tree.command
            ),
        }
    }

    /// An error if it does not exist any more. A missing cgroup is detected when its memory is read.
    pub(crate) fn check(&self, fs: &dyn Fs) -> anyhow::Result<()> {
        match self {
            Self::Machine | Self::Cgroup(_) | Self::Run(_) => Ok(()),
            Self::Tree(tree) => tree.check(fs),
        }
    }

    /// Whether it has ended; an error if it does not exist any more.
    pub(crate) fn is_over(&mut self, fs: &dyn Fs) -> anyhow::Result<bool> {
        let Self::Run(run) = self else { return self.check(fs).map(|()| false) };
        let there = run.hierarchy.is_populated(fs, &run.group.path)? == Some(true);
        run.begun |= there;
        Ok(!there && (run.begun || !run.by.is_running()))
    }
}

impl Tree {
    fn find(fs: &dyn Fs, pid: u32) -> anyhow::Result<Self> {
        let root = is_process(fs, pid)?;
        let hierarchy = Hierarchy::find(fs)?;
        let path = hierarchy.of_process(fs, pid)?;
        // Members first: a process started meanwhile is in the tree then, and its cgroup is checked.
        let members = hierarchy.processes(fs, &path)?;
        let tree = process::tree(fs, pid)?;
        let here = |pid: u32| hierarchy.of_process(fs, pid).is_ok_and(|its| its == path);
        // Number 0 represents a process without a number in this namespace.
        let is_other = |pid: &u32| !tree.contains(pid) && (*pid == 0 || lives_in(fs, *pid, here));
        let others: Vec<u32> = members.into_iter().filter(is_other).collect();
        anyhow::ensure!(
            others.is_empty(),
            "its cgroup {path} holds {} too ({}), and tiering distinguishes memory by cgroup; --cgroup {path} tiers all of \
             it, nearfar run --tier -- CMD runs a program in a cgroup of its own",
            count(others.len(), "other process", "other processes"),
            named(fs, &others)
        );
        let is_elsewhere = |pid: &u32| process::lives(fs, *pid) && !here(*pid);
        let elsewhere: Vec<u32> = tree.into_iter().filter(is_elsewhere).collect();
        anyhow::ensure!(
            elsewhere.is_empty(),
            "of its descendants, {} not in its cgroup {path} ({}), and only one cgroup can be tiered; --cgroup names it",
            count(elsewhere.len(), "process is", "processes are"),
            named(fs, &elsewhere)
        );
        hierarchy.check_memory(fs, &path)?;
        let group = Group::at(&hierarchy, path);
        let found = Self { root, command: command(fs, pid), hierarchy, group };
        found.check(fs)?;
        Ok(found)
    }

    fn check(&self, fs: &dyn Fs) -> anyhow::Result<()> {
        let (pid, command) = (self.root.pid, &self.command);
        // In this order: a process that ends has no cgroup any more.
        let path = self.hierarchy.of_process(fs, pid);
        anyhow::ensure!(
            self.root.is_running() && process::lives(fs, pid),
            "process {pid} ({command}), the root of the tiered processes, has ended"
        );
        anyhow::ensure!(
            path.as_ref().is_ok_and(|path| *path == self.group.path),
            "process {pid} ({command}), the root of the tiered processes, has left cgroup {}{}",
            self.group.path,
            path.map(|path| format!(" for {path}")).unwrap_or_default()
        );
        Ok(())
    }
}

fn lives_in(fs: &dyn Fs, pid: u32, here: impl Fn(u32) -> bool) -> bool {
    process::lives(fs, pid) && here(pid)
}

/// The identity of a process; an error if it does not exist or has no memory of its own.
fn is_process(fs: &dyn Fs, pid: u32) -> anyhow::Result<Identity> {
    let status = fs.read(&format!("proc/{pid}/status"))?.context("no such process")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).unwrap_or_default()
    };
    let leader = field("Tgid");
    anyhow::ensure!(
        leader == pid.to_string(),
        "that is a thread of process {leader}; name the process: --pid {leader}"
    );
    let stat = fs.read(&format!("proc/{pid}/stat"))?.unwrap_or_default();
    let flags = process::stat_fields(&stat).nth(6).and_then(|flags| flags.parse::<u64>().ok());
    anyhow::ensure!(
        flags.is_none_or(|flags| flags & KERNEL_THREAD == 0),
        "{} is a thread of the kernel; it has no memory to be tiered",
        command(fs, pid)
    );
    let lives = process::lives(fs, pid).then(|| Identity::of(pid)).flatten();
    lives
        .with_context(|| format!("{} has ended; only its parent has not noticed", command(fs, pid)))
}

fn command(fs: &dyn Fs, pid: u32) -> String {
    process::command(fs, pid).chars().flat_map(char::escape_debug).collect()
}

fn count(number: usize, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

/// The first of them, with their commands.
fn named(fs: &dyn Fs, pids: &[u32]) -> String {
    let name = |pid: &u32| match *pid {
        0 => "one of another pid namespace".into(),
        pid => format!("{} {pid}", command(fs, pid)),
    };
    let mut names: Vec<String> = pids.iter().take(NAMED).map(name).collect();
    if pids.len() > NAMED {
        names.push(format!("{} more", pids.len() - NAMED));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::Tree as Files;

    /// Our own process stands for the root: its start is read from the live system.
    fn system(processes: &[(u32, u32, &str)], procs: &str) -> (TreeFs, u32) {
        let own = std::process::id();
        let mut files = Files::new();
        files.insert("proc/self/mounts", "c /cg cgroup2 rw 0 0");
        files.insert("cg/cgroup.controllers", "memory");
        files.insert("cg/app/cgroup.procs", &procs.replace("own", &own.to_string()));
        for (pid, parent, path) in processes {
            let [pid, parent] = [*pid, *parent].map(|pid| if pid == 1 { own } else { pid });
            let put = |files: &mut Files, name: &str, text: &str| {
                files.insert(&format!("proc/{pid}/{name}"), text);
            };
            put(&mut files, "comm", "worker\n");
            put(&mut files, "status", &format!("Name:\tworker\nTgid:\t{pid}\n"));
            put(&mut files, "stat", &format!("{pid} (worker) S {parent} 1 1 0 0 4194304 0"));
            put(&mut files, "cgroup", &format!("0::{path}"));
        }
        (TreeFs(files), own)
    }

    fn refused(fs: &TreeFs, pid: u32) -> String {
        format!("{:#}", Tree::find(fs, pid).unwrap_err())
    }

    #[test]
    fn a_tree_that_has_its_cgroup_to_itself_is_tiered_by_it() {
        let (fs, own) = system(&[(1, 0, "/app"), (70, 1, "/app"), (71, 70, "/app")], "own\n70\n71");
        let tree = Tree::find(&fs, own).unwrap();
        assert_eq!((tree.group.path.as_str(), tree.root.pid), ("/app", own));
        let (moved, _) = system(&[(1, 0, "/other")], "");
        let error = tree.check(&moved).unwrap_err().to_string();
        assert!(error.contains("has left cgroup /app for /other"), "{error}");
    }

    #[test]
    fn a_cgroup_without_the_memory_controller_is_refused_with_the_command_that_turns_it_on() {
        let (TreeFs(mut files), own) = system(&[(1, 0, "/app")], "own\n");
        files.insert("cg/app/cgroup.controllers", "cpu pids");
        let fs = TreeFs(files);
        let options = Options { cgroup: Some("app".into()), ..Options::default() };
        let named = format!("{:#}", Scope::find(&fs, &options).unwrap_err());
        assert!(named.starts_with("--cgroup app: "), "{named}");
        for error in [refused(&fs, own), named] {
            assert!(error.contains("echo +memory > /cg/cgroup.subtree_control"), "{error}");
        }
    }

    #[test]
    fn other_processes_in_the_cgroup_are_reported_with_the_remedies() {
        let strangers = (80..86).map(|pid| (pid, 0, "/app"));
        let all: Vec<_> = [(1, 0, "/app")].into_iter().chain(strangers).collect();
        let (fs, own) = system(&all, "own\n80\n81\n82\n83\n84\n85\n99\n0");
        let error = refused(&fs, own);
        for says in ["7 other processes", "worker 80", "3 more", "--cgroup /app", "run --tier"] {
            assert!(error.contains(says), "{says}: {error}");
        }
    }

    #[test]
    fn a_part_of_the_tree_in_another_cgroup_is_named() {
        let (fs, own) = system(&[(1, 0, "/app"), (70, 1, "/else")], "own\n");
        let error = refused(&fs, own);
        assert!(error.contains("1 process is not in its cgroup /app (worker 70)"), "{error}");
    }

    #[test]
    fn pids_without_process_memory_are_rejected() {
        let (TreeFs(mut files), _) = system(&[(70, 2, "/app"), (71, 70, "/app")], "");
        files.insert("proc/71/status", "Tgid:\t70\n");
        files.insert("proc/70/stat", "70 (kworker) I 2 0 0 0 -1 69238880 0");
        files.insert("proc/72/status", "Tgid:\t72\n");
        files.insert("proc/72/stat", "72 (gone) Z 1 0 0 0 -1 4194304 0");
        let fs = TreeFs(files);
        for (pid, says) in
            [(69, "no such process"), (71, "--pid 70"), (70, "of the kernel"), (72, "has ended")]
        {
            let error = refused(&fs, pid);
            assert!(error.contains(says), "{pid}: {error}");
        }
    }
}
