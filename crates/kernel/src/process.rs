//! Processes and their descendants, from procfs.
//!
//! A process may end between any two reads: it is then left out, never an error. Descent follows parents, so an orphan
//! leaves the tree unless a subreaper becomes its parent (as `nearfar run --report` does).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::fs::{Fs, FsError};

/// A process: its id and its start time in ticks since boot, because ids are reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its id.
    pub pid: u32,
    /// Its start time (proc_pid_stat(5), field 22).
    pub started_ticks: u64,
}

impl Identity {
    /// The process with this id; `None` if there is none, or it has ended (a zombie).
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat_fields(&stat);
        let state = fields.next().filter(|state| !matches!(*state, "Z" | "X"));
        let started_ticks = state.and(fields.nth(18))?.parse().ok()?;
        Some(Self { pid, started_ticks })
    }

    /// This process.
    #[must_use]
    pub fn own() -> Self {
        let pid = std::process::id();
        Self::of(pid).unwrap_or(Self { pid, started_ticks: 0 })
    }

    /// The state of its first thread and the kernel functions it is in, innermost first (readable by root), for messages
    /// about a process that does not end.
    #[must_use]
    pub fn doing(self) -> String {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", self.pid));
        let stat = read("stat").unwrap_or_default();
        let state = stat_fields(&stat).next().unwrap_or("?").to_owned();
        // A line is "[<0>] function+0x12/0x34".
        let stack = read("stack").unwrap_or_default();
        let function = |line: &str| {
            let name = line.split_whitespace().nth(1)?.split('+').next()?;
            Some(name.to_owned())
        };
        let functions: Vec<String> = stack.lines().filter_map(function).take(8).collect();
        if functions.is_empty() {
            return format!("state {state}");
        }
        format!("state {state}, in {}", functions.join(" of "))
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_running(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Asks it to end (SIGTERM). Nothing happens if it has ended already, even if another process has its id by now.
    ///
    /// # Errors
    /// The errno of pidfd_open(2) and pidfd_send_signal(2), except ESRCH.
    pub fn terminate(self) -> std::io::Result<()> {
        self.signal(rustix::process::Signal::TERM)
    }

    /// Ends it (SIGKILL), as the first process of a container ignores SIGTERM without a handler. Otherwise as
    /// [`terminate`](Self::terminate).
    ///
    /// # Errors
    /// As [`terminate`](Self::terminate).
    pub fn kill(self) -> std::io::Result<()> {
        self.signal(rustix::process::Signal::KILL)
    }

    fn signal(self, signal: rustix::process::Signal) -> std::io::Result<()> {
        let number = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        let Some(number) = number else { return Ok(()) };
        let ended = |errno| if errno == rustix::io::Errno::SRCH { Ok(()) } else { Err(errno) };
        let no_flags = rustix::process::PidfdFlags::empty();
        let process = match rustix::process::pidfd_open(number, no_flags) {
            Ok(process) => process,
            Err(errno) => return Ok(ended(errno)?),
        };
        // The descriptor is of the process that has the id now; its identity is checked after opening.
        if self.is_running() {
            rustix::process::pidfd_send_signal(&process, signal).or_else(ended)?;
        }
        Ok(())
    }
}

/// `root` and all its present descendants, in order of id.
///
/// # Errors
/// [`FsError`], if `/proc` itself can't be listed.
pub fn tree(fs: &dyn Fs, root: u32) -> Result<Vec<u32>, FsError> {
    let by_parent = match fs.read(&format!("proc/{root}/task/{root}/children")) {
        Ok(Some(_)) => None,
        // Without CONFIG_PROC_CHILDREN the parent of every process is read.
        _ => Some(by_parent(fs)?),
    };
    let mut found = BTreeSet::from([root]);
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        let children = match &by_parent {
            Some(parents) => parents.get(&pid).cloned().unwrap_or_default(),
            None => children(fs, pid),
        };
        // An id reused during the reads could produce a cycle.
        open.extend(children.into_iter().filter(|child| found.insert(*child)));
    }
    Ok(found.into_iter().collect())
}

/// The ids of all processes, in order.
///
/// # Errors
/// [`FsError`], if `/proc` itself can't be listed.
pub fn all(fs: &dyn Fs) -> Result<Vec<u32>, FsError> {
    let entries = fs.list("proc")?.unwrap_or_default();
    let mut pids: Vec<u32> = entries.iter().filter_map(|entry| entry.name.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// Whether a process exists and has memory: a zombie has none.
#[must_use]
pub fn lives(fs: &dyn Fs, pid: u32) -> bool {
    let stat = fs.read(&format!("proc/{pid}/stat")).ok().flatten();
    let state = stat.as_deref().and_then(|stat| stat_fields(stat).next());
    state.is_some_and(|state| !matches!(state, "Z" | "X" | "x"))
}

/// A process found by its program's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its id.
    pub pid: u32,
    /// Its arguments, the program included.
    pub arguments: Vec<String>,
    /// Its user: the name in /etc/passwd, else the number.
    pub user: String,
    /// Seconds since it was started.
    pub running_s: u64,
}

/// The processes whose program has this file name, in order of id.
#[must_use]
pub fn running(program: &str) -> Vec<Running> {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split('.').next().and_then(|seconds| seconds.parse::<u64>().ok());
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<Running> = pids
        .filter_map(|pid| {
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let arguments: Vec<String> = arguments
                .strip_suffix(b"\0")?
                .split(|byte| *byte == 0)
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            let name = std::path::Path::new(arguments.first()?).file_name()?;
            if name != program {
                return None;
            }
            let started =
                Identity::of(pid)?.started_ticks / rustix::param::clock_ticks_per_second().max(1);
            let running_s = uptime.unwrap_or(started).saturating_sub(started);
            Some(Running { pid, arguments, user: user(pid)?, running_s })
        })
        .collect();
    found.sort_by_key(|one| one.pid);
    found
}

/// The user of a process.
fn user(pid: u32) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid().to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    });
    Some(name.unwrap_or(uid))
}

/// CPU time of a process (or of its first thread, if it has several), in nanoseconds; 0 if it is gone. `self` is this
/// one. The first figure of schedstat (Documentation/scheduler/sched-stats.rst).
#[must_use]
pub fn cpu_ns(fs: &dyn Fs, process: &str) -> u64 {
    let text = fs.read(&format!("proc/{process}/schedstat")).ok().flatten().unwrap_or_default();
    text.split_whitespace().next().and_then(|figure| figure.parse().ok()).unwrap_or(0)
}

/// Whether this process ignores a signal, as programs that nohup(1) starts ignore SIGHUP.
#[must_use]
pub fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    u32::try_from(signal - 1)
        .is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|mask| mask & 1 == 1))
}

/// The fields of the text of `/proc/PID/stat` after the command, from the state on, which is field 3 of
/// proc_pid_stat(5). The command, in brackets, may itself contain brackets and spaces.
pub fn stat_fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(')').map_or("", |(_, after)| after).split_whitespace()
}

/// The command's name, as stored by the kernel; empty if the process is gone.
#[must_use]
pub fn command(fs: &dyn Fs, pid: u32) -> String {
    let text = fs.read(&format!("proc/{pid}/comm")).ok().flatten().unwrap_or_default();
    text.trim().to_owned()
}

/// The children of a process: those of each of its threads.
fn children(fs: &dyn Fs, pid: u32) -> Vec<u32> {
    let threads = fs.list(&format!("proc/{pid}/task")).ok().flatten().unwrap_or_default();
    let lists = threads.iter().filter_map(|thread| {
        fs.read(&format!("proc/{pid}/task/{}/children", thread.name)).ok().flatten()
    });
    let numbers =
        |list: String| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>();
    lists.flat_map(numbers).collect()
}

/// All processes by their parent.
fn by_parent(fs: &dyn Fs) -> Result<BTreeMap<u32, Vec<u32>>, FsError> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in all(fs)? {
        let stat = fs.read(&format!("proc/{pid}/stat")).ok().flatten();
        if let Some(parent) = stat.as_deref().and_then(parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    Ok(children)
}

/// The parent's id from the text of `/proc/PID/stat`.
fn parent(stat: &str) -> Option<u32> {
    stat_fields(stat).nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{RootFs, TreeFs};
    use nearfar_topology::Tree;
    use proptest::prelude::*;

    fn processes(stats: &[(u32, &str)]) -> TreeFs {
        let mut tree = Tree::new();
        for (pid, stat) in stats {
            tree.insert(&format!("proc/{pid}/stat"), stat);
        }
        tree.insert("proc/meminfo", "MemTotal: 1 kB");
        TreeFs(tree)
    }

    #[test]
    fn a_sleeping_process_is_described_by_its_state() {
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Identity::of(sleeper.id()).unwrap();
        while !process.doing().starts_with("state S") {
            std::thread::yield_now();
        }
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(process.doing(), "state ?");
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_others_are_not() {
        let fs = processes(&[
            (1, "1 (init) S 0 1"),
            (10, "10 (sh) S 1 10"),
            (11, "11 (worker (a) b) S 10 10"),
            (12, "12 (deep) R 11 10"),
            (20, "20 (other) S 1 20"),
        ]);
        assert_eq!(tree(&fs, 10).unwrap(), [10, 11, 12]);
        assert_eq!(tree(&fs, 99).unwrap(), [99]);
    }

    #[test]
    fn children_are_those_of_every_thread_where_the_kernel_lists_them() {
        let mut tree = Tree::new();
        for (task, children) in [
            ("10/task/10", "11 "),
            ("10/task/15", "12 13 "),
            ("11/task/11", ""),
            ("12/task/12", "14"),
        ] {
            tree.insert(&format!("proc/{task}/children"), children);
        }
        assert_eq!(super::tree(&TreeFs(tree), 10).unwrap(), [10, 11, 12, 13, 14]);
    }

    #[test]
    fn a_zombie_does_not_count_as_alive() {
        let fs = processes(&[(10, "10 (a) Z) S 1 1"), (11, "11 (b) Z 10 1")]);
        assert_eq!([10, 11, 12].map(|pid| lives(&fs, pid)), [true, false, false]);
    }

    #[test]
    fn a_cycle_of_parent_pids_terminates() {
        let fs = processes(&[(10, "10 (a) S 11 1"), (11, "11 (b) S 10 1")]);
        assert_eq!(tree(&fs, 10).unwrap(), [10, 11]);
    }

    #[test]
    fn we_and_our_children_are_in_our_tree() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = tree(&RootFs::live().unwrap(), std::process::id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&std::process::id()) && found.contains(&child.id()), "{found:?}");
    }

    proptest! {
        #[test]
        fn parsing_any_stat_text_does_not_panic(text in "\\PC{0,60}") {
            let _ = parent(&text);
        }
    }
}
