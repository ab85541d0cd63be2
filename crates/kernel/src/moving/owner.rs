//! The process whose pages are migrated: exactly this process, running the same program.
//!
//! Process ids are reused, and a process that becomes another program has other memory at the same addresses. So two
//! files are held open: a pidfd, which shows whether the process has ended, and its `pagemap`, which belongs to the
//! address space at the time of opening: once that is gone, by exit or by exec, reads return nothing.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use nearfar_topology::NodeSet;
use rustix::process::{Pid, PidfdFlags};

/// A process.
#[derive(Debug)]
pub struct Owner {
    pid: i32,
    handle: OwnedFd,
    memory: File,
}

/// Reasons why a process's pages can't be migrated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerError {
    /// It has ended, or runs another program.
    #[error("process {pid} has ended, or has become another program")]
    Gone {
        /// Its id.
        pid: u32,
    },
    /// No permission.
    #[error(
        "process {pid}: its pages can't be read ({source}); this takes the same user, or CAP_SYS_PTRACE and CAP_SYS_NICE \
         (root)"
    )]
    Denied {
        /// Its id.
        pid: u32,
        /// The errno.
        source: io::Error,
    },
}

impl Owner {
    /// The process with this id.
    ///
    /// # Errors
    /// [`OwnerError`].
    pub fn open(pid: u32) -> Result<Self, OwnerError> {
        let gone = || OwnerError::Gone { pid };
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let denied = |source: io::Error| match source.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT | libc::EINVAL) => OwnerError::Gone { pid },
            _ => OwnerError::Denied { pid, source },
        };
        let opened = rustix::process::pidfd_open(number, PidfdFlags::empty());
        let handle = opened.map_err(|error| denied(error.into()))?;
        // Opening checks the permission to read; a kernel thread has no memory, and reads return nothing.
        let memory = File::open(format!("/proc/{pid}/pagemap")).map_err(denied)?;
        let owner = Self { pid: number.as_raw_nonzero().get(), handle, memory };
        if owner.is_same() { Ok(owner) } else { Err(gone()) }
    }

    /// Its id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    pub(super) const fn raw(&self) -> i32 {
        self.pid
    }

    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Whether it still runs the same program.
    #[must_use]
    pub fn is_same(&self) -> bool {
        let has_memory = self.memory.read_at(&mut [0; 8], 0).is_ok_and(|read| read > 0);
        has_memory && self.is_running()
    }

    /// A pidfd is readable once its process has ended.
    fn is_running(&self) -> bool {
        let mut ended = [rustix::event::PollFd::new(&self.handle, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ended, Some(&rustix::event::Timespec::default())) == Ok(0)
    }

    /// The nodes whose memory its cpuset permits, and of those the ones it is bound to; `None` if the kernel does not
    /// report them.
    #[must_use]
    pub fn nodes_allowed(&self) -> Option<NodeSet> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let cpuset = allowed_in(&status)?;
        Some(match self.nodes_bound_to() {
            Some(bound) => bound.iter().filter(|node| cpuset.contains(*node)).collect(),
            None => cpuset,
        })
    }

    /// The nodes that the whole process is bound to (`numactl --membind`, `nearfar run -m`), which move_pages(2) does
    /// not check; `None` if it is not bound. Read from the policy of its first mapping, the program itself, which has
    /// no policy of its own: reading further mappings would make the kernel walk all pages.
    #[must_use]
    pub fn nodes_bound_to(&self) -> Option<NodeSet> {
        let maps = File::open(format!("/proc/{}/numa_maps", self.pid)).ok()?;
        // The kernel walks as many mappings as fill the buffer.
        let mut first = [0; 256];
        let read = maps.read_at(&mut first, 0).ok()?;
        bound_in(&String::from_utf8_lossy(first.get(..read)?))
    }
}

/// `55d0c0000000 bind=static:0,2-3 file=…`
fn bound_in(numa_maps: &str) -> Option<NodeSet> {
    let (_, rest) = numa_maps.split_once(' ')?;
    // Followed by a separator, so it was not truncated.
    let (policy, _) = rest.split_once([' ', '\n'])?;
    let (mode, nodes) = policy.split_once(':')?;
    let is_bound = mode == "bind" || mode.starts_with("bind=");
    is_bound.then(|| NodeSet::parse_list(nodes)).flatten()
}

fn allowed_in(status: &str) -> Option<NodeSet> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("Mems_allowed_list:"))
        .and_then(NodeSet::parse_list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    #[test]
    fn an_ended_process_is_not_the_same_and_a_missing_one_is_gone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let owner = Owner::open(child.id()).unwrap();
        assert!(owner.is_same());
        assert!(owner.nodes_allowed().is_some_and(|nodes| !nodes.is_empty()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!owner.is_same());
        assert!(matches!(Owner::open(child.id()), Err(OwnerError::Gone { .. })));
        assert!(matches!(Owner::open(0), Err(OwnerError::Gone { pid: 0 })));
        assert!(matches!(Owner::open(u32::MAX), Err(OwnerError::Gone { .. })));
    }

    #[test]
    fn a_process_that_becomes_another_program_is_not_the_same() {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "echo up; read line; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let (mut line, mut input) = (String::new(), child.stdin.take().unwrap());
        said.read_line(&mut line).unwrap();
        let owner = Owner::open(child.id()).unwrap();
        assert!(owner.is_same());
        input.write_all(b"go\nother\n").unwrap();
        line.clear();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "other\n", "what cat says");
        assert!(!owner.is_same());
        assert!(Owner::open(child.id()).unwrap().is_same());
        drop(input);
        child.wait().unwrap();
    }

    #[test]
    fn the_first_mapping_determines_the_binding_of_a_process() {
        let bound = |line| bound_in(line).map(|nodes| nodes.to_string());
        let line = "55d0c0000000 bind:0,2-3 file=/bin/x mapped=4 N0=4\n7f0000000000 default anon=1";
        assert_eq!(bound(line).unwrap(), "0,2-3");
        assert_eq!(bound("55d0c0000000 bind=static|balancing:1 file=/bin/x").unwrap(), "1");
        for other in [
            "",
            "55d0c0000000",
            "55d0c0000000 default file=/bin/x",
            "55d0c0000000 prefer:1 file=/bin/x",
            "55d0c0000000 interleave:0-1 anon=3",
            "55d0c0000000 default anon=1\n7f0000000000 bind:1 anon=1",
            "55d0c0000000 bind:x file=/bin/x",
            "55d0c0000000 bind:0,2",
        ] {
            assert_eq!(bound(other), None, "{other}");
        }
    }

    #[test]
    fn allowed_nodes_are_parsed_from_mems_allowed_list() {
        let status = "Cpus_allowed_list:\t0-7\nMems_allowed:\tf\nMems_allowed_list:\t0,2-3\n";
        assert_eq!(allowed_in(status).unwrap().to_string(), "0,2-3");
        assert_eq!(allowed_in("Name:\tx\n"), None);
    }
}
