//! A memory policy for another process's shared memory, through the file behind it.
//!
//! Shared memory (memfd, tmpfs, System V, anonymous mappings that are shared) keeps its policy in its file, not in those who map it.
//! So a view of our own of the same part of the file is enough: mbind(2) on it sets the policy for all who map it, for pages that
//! are there and for those that come, and it stays when our view is gone. `/proc/PID/map_files` opens the file of a mapping
//! whatever its name is; that takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. It is how a virtual machine's memory, or a database's,
//! is spread without its knowledge. Private memory can't be had this way.

use std::fs::File;
use std::io;

use nearfar_topology::Bytes;

use crate::fs::{Fs, FsError};
use crate::mempolicy::{self, Existing, Policy, PolicyError};
use crate::sys::remote::Region;

/// Shared memory of a process: a mapping of a file that is in memory alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The process.
    pub pid: u32,
    /// Where it is mapped there: from,
    pub start: u64,
    /// and up to.
    pub end: u64,
    /// Where it begins in the file.
    pub offset: u64,
    /// The file's name, as far as it has one.
    pub name: String,
}

/// Why a policy was not set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The file behind it can't be opened or mapped.
    #[error(
        "shared memory {name} of process {pid}: can't {call} ({source}); this takes root (CAP_SYS_ADMIN)"
    )]
    File {
        /// Whose.
        pid: u32,
        /// Which.
        name: String,
        /// `open` or `map`.
        call: &'static str,
        /// The errno.
        source: io::Error,
    },
    /// The policy was refused.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl Mapping {
    /// How large it is.
    #[must_use]
    pub const fn bytes(&self) -> Bytes {
        Bytes(self.end.saturating_sub(self.start))
    }

    /// Sets its policy for all who map it. What was there before is not known to anyone but the file; [`Policy::Default`]
    /// takes any away.
    ///
    /// # Errors
    /// [`SharedError`]; the policy is as before.
    pub fn set_policy(&self, policy: &Policy, existing: Existing) -> Result<(), SharedError> {
        let failed = |call| {
            move |source| SharedError::File { pid: self.pid, name: self.name.clone(), call, source }
        };
        let path = format!("/proc/{}/map_files/{:x}-{:x}", self.pid, self.start, self.end);
        // Policy goes by the file, so reading it is right enough; a file for reading alone can be viewed, too.
        let file = File::open(path).map_err(failed("open"))?;
        let length = usize::try_from(self.bytes().0).unwrap_or(0);
        let view = Region::view(&file, self.offset, length).map_err(failed("map"))?;
        if *policy == Policy::Default {
            // A new view has none, so the kernel thinks that there is nothing to do: it gets one to lose (mbind_range).
            mempolicy::bind(view.address(), length, &Policy::Local, Existing::Stay)?;
        }
        Ok(mempolicy::bind(view.address(), length, policy, existing)?)
    }
}

/// Shared memory that a process has mapped.
///
/// # Errors
/// [`FsError`], if its mappings can't be read; none for a process that has ended.
pub fn of_process(fs: &dyn Fs, pid: u32) -> Result<Vec<Mapping>, FsError> {
    let maps = fs.read(&format!("proc/{pid}/maps"))?.unwrap_or_default();
    Ok(maps.lines().filter_map(|line| mapping(pid, line)).collect())
}

/// A line such as `7f00000-7f80000 rw-s 00001000 00:01 2051 /memfd:ram (deleted)`.
fn mapping(pid: u32, line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let shared = words.next()?.ends_with('s');
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = number(words.next()?)?;
    let _device = words.next()?;
    let _inode = words.next()?;
    let name = words.next()?.trim();
    let in_memory = ["/memfd:", "/dev/shm/", "/SYSV", "/dev/zero", "/run/shm/"];
    let (start, end) = (number(start)?, number(end)?);
    let ours = shared && start < end && in_memory.iter().any(|begins| name.starts_with(begins));
    ours.then(|| Mapping { pid, start, end, offset, name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{RootFs, TreeFs};
    use nearfar_topology::Tree;

    #[test]
    fn shared_memory_is_told_from_files_and_from_private_memory() {
        let mut tree = Tree::new();
        tree.insert(
            "proc/7/maps",
            "55d0-55e0 r-xp 00000000 fe:00 12 /usr/bin/qemu\n\
             7f00000000-7f40000000 rw-s 00001000 00:01 2051                      /memfd:ram (deleted)\n\
             7f50000000-7f50001000 rw-s 00000000 fe:00 77 /var/lib/file\n\
             7f60000000-7f60001000 rw-p 00000000 00:00 0 \n\
             7f70000000-7f70001000 rw-s 00000000 00:01 9 /SYSV0001 (deleted)\n\
             odd line\n",
        );
        let found = of_process(&TreeFs(tree), 7).unwrap();
        let told: Vec<_> =
            found.iter().map(|one| (one.name.as_str(), one.offset, one.bytes().0)).collect();
        assert_eq!(
            told,
            [("/memfd:ram (deleted)", 4096, 1 << 30), ("/SYSV0001 (deleted)", 0, 4096)]
        );
        assert_eq!(of_process(&TreeFs::default(), 7).unwrap(), []);
    }

    #[test]
    fn memory_that_is_gone_is_named_with_its_process() {
        let gone = Mapping { pid: 0, start: 0, end: 4096, offset: 0, name: "/memfd:x".into() };
        let error = gone.set_policy(&Policy::Default, Existing::Stay).unwrap_err().to_string();
        assert!(error.contains("/memfd:x") && error.contains("root"), "{error}");
    }

    #[test]
    fn the_policy_of_a_file_in_memory_is_set_for_all_who_map_it() {
        let fd = rustix::fs::memfd_create("nearfar-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(fd);
        file.set_len(1 << 20).unwrap();
        let _mapped = Region::view(&file, 4096, 1 << 19).unwrap();
        let (fs, us) = (RootFs::live().unwrap(), std::process::id());
        let found = of_process(&fs, us).unwrap();
        let ours = found.iter().find(|one| one.name.starts_with("/memfd:nearfar-test")).unwrap();
        assert_eq!((ours.offset, ours.bytes()), (4096, Bytes(1 << 19)));
        let policy = || {
            let maps = fs.read(&format!("proc/{us}/numa_maps")).unwrap().unwrap();
            let begins = format!("{:x} ", ours.start);
            let line = maps.lines().find_map(|line| line.strip_prefix(&begins)).unwrap();
            line.split(' ').next().unwrap().to_owned()
        };
        let node = mempolicy::allowed_nodes().iter().next().unwrap();
        match ours.set_policy(&Policy::Bind([node].into_iter().collect()), Existing::Move) {
            Ok(()) => {
                assert_eq!(policy(), format!("bind:{node}"));
                ours.set_policy(&Policy::Default, Existing::Stay).unwrap();
                assert_eq!(policy(), "default");
            }
            Err(error) => {
                assert!(!rustix::process::geteuid().is_root(), "{error}");
                assert!(error.to_string().contains("root"), "{error}");
            }
        }
    }
}
