//! The memory to balance: of the whole machine, of the processes in a cgroup and below, or of a process and its
//! descendants.
//!
//! Processes start and end; their list is read every second. Pages are migrated process by process, so a tree needs no
//! cgroup of its own. Pods have nodes assigned by the kubelet's memory manager, if it is active: those are excluded.

use std::collections::BTreeSet;

use anyhow::Context as _;
use nearfar_kernel::cgroup::Hierarchy;
use nearfar_kernel::fs::Fs;
use nearfar_kernel::process::{self, Identity};
use nearfar_policy::ports::Targets;
use nearfar_policy::traffic::Process;

use super::options::Options;
use nearfar_command::exit::{EndsWith as _, Exit};

/// The selected processes.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    Machine,
    Cgroup { hierarchy: Hierarchy, path: String },
    Tree { root: Identity, command: String },
}

impl Scope {
    /// The scope selected by the options.
    pub(crate) fn find(fs: &dyn Fs, options: &Options) -> anyhow::Result<Self> {
        match (&options.cgroup, options.pid) {
            (Some(name), _) => {
                let hierarchy = Hierarchy::find(fs).context("--cgroup")?;
                let path = hierarchy.named(fs, name).context("--cgroup").ends_with(Exit::Usage)?;
                Ok(Self::Cgroup { hierarchy, path })
            }
            (None, Some(pid)) => {
                let asked = || format!("--pid {pid}");
                let found = Self::tree(fs, pid).with_context(asked).ends_with(Exit::Usage)?;
                Ok(found)
            }
            (None, None) => Ok(Self::Machine),
        }
    }

    fn tree(fs: &dyn Fs, pid: u32) -> anyhow::Result<Self> {
        let lives = process::lives(fs, pid).then(|| Identity::of(pid)).flatten();
        let root = lives.context("no such process")?;
        let maps = fs.read(&format!("proc/{pid}/maps"));
        let maps = maps.context("its memory map can't be read; this needs root")?;
        let command = process::command(fs, pid).chars().flat_map(char::escape_debug).collect();
        anyhow::ensure!(
            maps.is_some_and(|maps| !maps.is_empty()),
            "{command} has no memory of its own: it is a thread of the kernel, or has ended"
        );
        Ok(Self::Tree { root, command })
    }

    /// The processes in scope now; an error if the root of the tree has ended.
    pub(crate) fn now(&self, fs: &dyn Fs) -> anyhow::Result<Targets> {
        let processes = match self {
            Self::Machine => return Ok(Targets::Machine),
            Self::Cgroup { hierarchy, path } => hierarchy.members(fs, path)?,
            Self::Tree { root, command } => {
                anyhow::ensure!(
                    root.is_running(),
                    "process {} ({command}), the root of the balanced processes, has ended",
                    root.pid
                );
                process::tree(fs, root.pid)?
            }
        };
        let processes: BTreeSet<Process> = processes.into_iter().map(Process).collect();
        Ok(Targets::Processes(processes))
    }

    /// A description for display and for the state file.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Machine => "the machine".into(),
            Self::Cgroup { path, .. } => format!("cgroup {path}"),
            Self::Tree { root, command } => {
                format!("process {} ({command}) and its descendants", root.pid)
            }
        }
    }

    /// The path of the cgroup; `None` for other scopes.
    pub(crate) fn cgroup(&self) -> Option<&str> {
        match self {
            Self::Cgroup { path, .. } => Some(path),
            Self::Machine | Self::Tree { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::{RootFs, TreeFs};
    use nearfar_topology::Tree;

    fn options(pid: u32) -> Options {
        Options { pid: Some(pid), ..Options::default() }
    }

    #[test]
    fn a_tree_is_the_process_and_its_children_until_it_ends() {
        let fs = RootFs::live().unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let scope = Scope::find(&fs, &options(std::process::id())).unwrap();
        let Targets::Processes(processes) = scope.now(&fs).unwrap() else { panic!("processes") };
        assert!(processes.contains(&Process(child.id())));
        let scope = Scope::find(&fs, &options(child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let error = scope.now(&fs).unwrap_err().to_string();
        assert!(error.contains("(sleep)") && error.contains("has ended"), "{error}");
        let error = Scope::find(&fs, &options(child.id())).unwrap_err();
        assert_eq!(nearfar_command::exit::of_error(&error), Exit::Usage);
        assert!(error.to_string().contains("no such process"), "{error}");
    }

    #[test]
    fn a_cgroup_scope_includes_all_its_descendants() {
        let mut files = Tree::new();
        files.insert("proc/self/mounts", "c /cg cgroup2 rw 0 0");
        files.insert("cg/cgroup.controllers", "memory");
        files.insert("cg/app/cgroup.procs", "7\n");
        files.insert("cg/app/worker/cgroup.procs", "8\n9\n");
        let fs = TreeFs(files);
        let named = |name: &str| Options { cgroup: Some(name.into()), ..Options::default() };
        let scope = Scope::find(&fs, &named("app")).unwrap();
        assert_eq!((scope.cgroup(), scope.text().as_str()), (Some("/app"), "cgroup /app"));
        let all = Targets::Processes([7, 8, 9].map(Process).into());
        assert_eq!(scope.now(&fs).unwrap(), all);
        let error = Scope::find(&fs, &named("none")).unwrap_err().to_string();
        assert!(error.contains("no cgroup /none"), "{error}");
    }
}
