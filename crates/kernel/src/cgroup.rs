//! Memory cgroups: their mount point, the cgroup of a process, the processes of a cgroup, and the placement of its
//! memory.
//!
//! Version 1 mounts the memory controller as a separate hierarchy; version 2 has one for all. A hybrid system has both;
//! the one with the memory controller counts here. A cgroup is named by its path below that mount point with a leading
//! `/`, the form that DAMON's `memcg` filters and goals take. (In a container with a cgroup namespace paths begin at
//! the container's own cgroup, and DAMON, which begins at the root, would not find them.)

use std::collections::BTreeMap;

use nearfar_topology::{Bytes, NodeId};

use crate::fs::{EntryKind, Fs, FsError};
use rustix::io::Errno;

pub mod own;

/// Maximum nesting that is followed; the kernel's own default limit is far larger, real trees are not.
const DEPTH_MAX: usize = 64;
const PAGE: u64 = 4096;

/// The version of the hierarchy that has the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy per controller.
    V1,
    /// One hierarchy.
    V2,
}

/// The hierarchy of memory cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its version.
    pub version: Version,
    /// Whether the other version is mounted too.
    pub hybrid: bool,
    /// The mount point, without the leading `/`.
    mount: String,
}

/// Reasons why a cgroup's memory is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// There is no memory controller.
    #[error(
        "no memory cgroups here: neither a cgroup file system of version 1 with the memory controller nor one of version 2 \
         that offers it is mounted"
    )]
    Unsupported,
    /// There is no such cgroup.
    #[error("there is no cgroup {path} below /{mount}")]
    Absent {
        /// Its path.
        path: String,
        /// The mount point.
        mount: String,
    },
    /// A cgroup whose memory is counted only as part of its parent's.
    #[error(
        "cgroup {path} has no memory controller, so its memory can't be told apart from that of cgroup {parent}; turn it on there: \
         echo +memory > {mount}{below}/cgroup.subtree_control", below = if parent == "/" { "" } else { parent }
    )]
    NoController {
        /// Its path.
        path: String,
        /// Its parent.
        parent: String,
        /// The mount point.
        mount: String,
    },
    /// An invalid path.
    #[error("`{path}` is no path of a cgroup: it starts with / and has no .. in it")]
    Malformed {
        /// The path.
        path: String,
    },
    /// An empty path, as of a variable that is not set.
    #[error("the path of the cgroup is empty; that of the root is /")]
    Empty,
    /// The process has ended.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Its id.
        pid: u32,
    },
    /// A file exists but can't be read.
    #[error(transparent)]
    Read(#[from] FsError),
}

/// A cgroup's memory on one node, including that of its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// Anonymous memory.
    pub anon: Bytes,
    /// Page cache.
    pub file: Bytes,
}

impl NodeMemory {
    /// Both.
    #[must_use]
    pub const fn total(self) -> Bytes {
        Bytes(self.anon.0.saturating_add(self.file.0))
    }
}

impl Hierarchy {
    /// Finds the hierarchy that has the memory controller.
    ///
    /// # Errors
    /// [`CgroupError::Unsupported`] where there is none, [`CgroupError::Read`].
    pub fn find(fs: &dyn Fs) -> Result<Self, CgroupError> {
        let mounts = fs.read("proc/self/mounts")?.unwrap_or_default();
        let (mut v1, mut v2, mut any_v1) = (None, None, false);
        for line in mounts.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, point, kind, options, ..] = words[..] else { continue };
            let mount = || Some(unescaped(point).trim_matches('/').to_string());
            any_v1 |= kind == "cgroup";
            if kind == "cgroup" && options.split(',').any(|option| option == "memory") {
                v1 = v1.or_else(mount);
            } else if kind == "cgroup2" {
                v2 = v2.or_else(mount);
            }
        }
        if let Some(mount) = v1 {
            return Ok(Self { version: Version::V1, hybrid: v2.is_some(), mount });
        }
        let mount = v2.ok_or(CgroupError::Unsupported)?;
        let offered = fs.read(&format!("{mount}/cgroup.controllers"))?.unwrap_or_default();
        if !offered.split_whitespace().any(|name| name == "memory") {
            return Err(CgroupError::Unsupported);
        }
        Ok(Self { version: Version::V2, hybrid: any_v1, mount })
    }

    /// The mount point.
    #[must_use]
    pub fn mount(&self) -> String {
        format!("/{}", self.mount)
    }

    /// The path of the memory cgroup that process `pid` is in.
    ///
    /// # Errors
    /// [`CgroupError::NoProcess`], [`CgroupError::Read`].
    pub fn of_process(&self, fs: &dyn Fs, pid: u32) -> Result<String, CgroupError> {
        let text = fs.read(&format!("proc/{pid}/cgroup"))?;
        let text = text.ok_or(CgroupError::NoProcess { pid })?;
        let path = |line: &str| {
            let mut words = line.splitn(3, ':').skip(1);
            let (controllers, path) = (words.next()?, words.next()?);
            let ours = match self.version {
                Version::V1 => controllers.split(',').any(|name| name == "memory"),
                Version::V2 => controllers.is_empty(),
            };
            ours.then(|| path.to_string())
        };
        text.lines().find_map(path).ok_or(CgroupError::Unsupported)
    }

    /// The path of a cgroup as given by a user: below the mount point, or with it.
    ///
    /// # Errors
    /// [`CgroupError::Malformed`], [`CgroupError::Absent`], [`CgroupError::Read`].
    pub fn named(&self, fs: &dyn Fs, name: &str) -> Result<String, CgroupError> {
        if name.is_empty() {
            return Err(CgroupError::Empty);
        }
        let below = name
            .strip_prefix(&self.mount())
            .filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let path = format!("/{}", below.unwrap_or(name).trim_matches('/'));
        self.directory(fs, &path)?;
        Ok(path)
    }

    /// Checks that the memory of the cgroup at `path` is counted separately.
    ///
    /// # Errors
    /// [`CgroupError::NoController`], [`CgroupError::Malformed`], [`CgroupError::Absent`], [`CgroupError::Read`].
    pub fn check_memory(&self, fs: &dyn Fs, path: &str) -> Result<(), CgroupError> {
        let directory = self.directory(fs, path)?;
        let on = fs.read(&format!("{directory}/cgroup.controllers"))?;
        let has = |text: String| text.split_whitespace().any(|name| name == "memory");
        if self.version == Version::V1 || on.is_none_or(has) {
            return Ok(());
        }
        // The nearest ancestor that could enable it: one in which it is available.
        let parent = path.rsplit_once('/').map_or("/", |(above, _)| above);
        let parent = if parent.is_empty() { "/" } else { parent };
        let (path, parent, mount) = (path.into(), parent.into(), self.mount());
        Err(CgroupError::NoController { path, parent, mount })
    }

    /// The processes in the cgroup at `path` and its descendants, in order of id.
    ///
    /// # Errors
    /// [`CgroupError::Malformed`], [`CgroupError::Absent`], [`CgroupError::Read`].
    pub fn members(&self, fs: &dyn Fs, path: &str) -> Result<Vec<u32>, CgroupError> {
        let mut members = Vec::new();
        let top = self.directory(fs, path)?;
        for directory in self.directories(fs, path)? {
            let text = match fs.read(&format!("{directory}/cgroup.procs")) {
                // Processes of a threaded cgroup are in the list of an ancestor; one that has just gone has none.
                Err(error) if directory != top && has_no_list(&error) => continue,
                text => text?.unwrap_or_default(),
            };
            members.extend(text.lines().filter_map(|line| line.trim().parse::<u32>().ok()));
        }
        members.sort_unstable();
        members.dedup();
        Ok(members)
    }

    /// The processes in the cgroup at `path` itself, without its descendants, in order of id. 0 stands for processes
    /// outside our pid namespace.
    ///
    /// # Errors
    /// [`CgroupError::Malformed`], [`CgroupError::Absent`], [`CgroupError::Read`].
    pub fn processes(&self, fs: &dyn Fs, path: &str) -> Result<Vec<u32>, CgroupError> {
        let directory = self.directory(fs, path)?;
        let text = fs.read(&format!("{directory}/cgroup.procs"))?.unwrap_or_default();
        let mut pids: Vec<u32> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Moves process `pid` into the cgroup at `path`. Its future children start there; its present memory stays charged
    /// to the old cgroup.
    ///
    /// # Errors
    /// [`CgroupError::Malformed`], [`CgroupError::Absent`], [`CgroupError::Read`].
    pub fn put(&self, fs: &dyn Fs, path: &str, pid: u32) -> Result<(), CgroupError> {
        let directory = self.directory(fs, path)?;
        Ok(fs.write(&format!("{directory}/cgroup.procs"), &pid.to_string())?)
    }

    /// Whether a process is in the cgroup at `path` or in a descendant; `None` where the kernel does not report it
    /// (version 1, and the root).
    ///
    /// # Errors
    /// [`CgroupError::Malformed`], [`CgroupError::Absent`], [`CgroupError::Read`].
    pub fn is_populated(&self, fs: &dyn Fs, path: &str) -> Result<Option<bool>, CgroupError> {
        let directory = self.directory(fs, path)?;
        let text = fs.read(&format!("{directory}/cgroup.events"))?.unwrap_or_default();
        let said = text.lines().find_map(|line| line.strip_prefix("populated "));
        Ok(said.map(|said| said.trim() == "1"))
    }

    /// The memory of the cgroup at `path` by node. Empty for version 2's root, which the kernel does not count.
    ///
    /// # Errors
    /// [`CgroupError::Malformed`], [`CgroupError::Absent`], [`CgroupError::Read`].
    pub fn numa_stat(
        &self,
        fs: &dyn Fs,
        path: &str,
    ) -> Result<BTreeMap<NodeId, NodeMemory>, CgroupError> {
        let directory = self.directory(fs, path)?;
        let text = fs.read(&format!("{directory}/memory.numa_stat"))?.unwrap_or_default();
        Ok(understand(&text, self.version))
    }

    /// The memory by node of the cgroup at `path` and of each below it, by path; cgroups whose memory the kernel does not count
    /// separately are left out.
    ///
    /// # Errors
    /// [`CgroupError::Malformed`], [`CgroupError::Absent`], [`CgroupError::Read`].
    pub fn numa_stats(
        &self,
        fs: &dyn Fs,
        path: &str,
    ) -> Result<BTreeMap<String, BTreeMap<NodeId, NodeMemory>>, CgroupError> {
        let mut found = BTreeMap::new();
        for directory in self.directories(fs, path)? {
            let text = fs.read(&format!("{directory}/memory.numa_stat"))?.unwrap_or_default();
            let nodes = understand(&text, self.version);
            if !nodes.is_empty() {
                let path = directory.strip_prefix(&self.mount).filter(|path| !path.is_empty());
                found.insert(path.unwrap_or("/").to_owned(), nodes);
            }
        }
        Ok(found)
    }

    /// The directories of the cgroup at `path` and of its descendants.
    fn directories(&self, fs: &dyn Fs, path: &str) -> Result<Vec<String>, CgroupError> {
        let (mut found, mut open) = (Vec::new(), vec![(self.directory(fs, path)?, 0)]);
        while let Some((directory, depth)) = open.pop() {
            if depth < DEPTH_MAX {
                for entry in fs.list(&directory)?.unwrap_or_default() {
                    if entry.kind == EntryKind::Directory {
                        open.push((format!("{directory}/{}", entry.name), depth + 1));
                    }
                }
            }
            found.push(directory);
        }
        Ok(found)
    }

    /// The directory of the cgroup at `path`, which must exist.
    fn directory(&self, fs: &dyn Fs, path: &str) -> Result<String, CgroupError> {
        if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
            return Err(CgroupError::Malformed { path: path.into() });
        }
        let directory = format!("{}{path}", self.mount).trim_end_matches('/').to_string();
        match fs.list(&directory)? {
            Some(_) => Ok(directory),
            None => Err(CgroupError::Absent { path: path.into(), mount: self.mount.clone() }),
        }
    }
}

/// Whether a cgroup has no list of processes: it is threaded (EOPNOTSUPP), or it is gone (ENODEV).
fn has_no_list(error: &FsError) -> bool {
    let none = [Errno::OPNOTSUPP, Errno::NODEV].map(Errno::raw_os_error);
    error.errno().is_some_and(|errno| none.contains(&errno))
}

/// Parses `memory.numa_stat`: `anon N0=4096 N1=0` in bytes (version 2), `hierarchical_anon=1 N0=1 N1=0` in pages
/// (version 1). Other lines are skipped.
fn understand(text: &str, version: Version) -> BTreeMap<NodeId, NodeMemory> {
    let (anon, file, unit) = match version {
        Version::V1 => ("hierarchical_anon", "hierarchical_file", PAGE),
        Version::V2 => ("anon", "file", 1),
    };
    let mut nodes: BTreeMap<NodeId, NodeMemory> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let name = name.split_once('=').map_or(name, |(name, _)| name);
        for word in words.filter(|_| name == anon || name == file) {
            let Some((node, value)) = word.split_once('=') else { continue };
            let node = node.strip_prefix('N').and_then(|id| id.parse().ok());
            let (Some(node), Ok(value)) = (node, value.parse::<u64>()) else { continue };
            let memory = nodes.entry(NodeId(node)).or_default();
            let field = if name == anon { &mut memory.anon } else { &mut memory.file };
            *field = Bytes(value.saturating_mul(unit));
        }
    }
    nodes
}

/// Arbitrary bytes as `memory.numa_stat` of both versions.
#[cfg(any(fuzzing, test))]
pub fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for version in [Version::V1, Version::V2] {
        for memory in understand(&text, version).values() {
            assert!(memory.total() >= memory.anon.max(memory.file));
        }
    }
}

/// A path of the mount table, in which blanks are written as `\040` and the like.
fn unescaped(path: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(path.to_string(), |path, (escape, plain)| path.replace(escape, plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TreeFs;
    use nearfar_topology::Tree;
    use proptest::prelude::*;

    fn system(entries: &[(&str, &str)]) -> TreeFs {
        let mut tree = Tree::new();
        entries.iter().for_each(|(path, text)| tree.insert(path, text));
        TreeFs(tree)
    }

    const V2: &[(&str, &str)] = &[
        ("proc/self/mounts", "sysfs /sys sysfs rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0"),
        ("proc/7/cgroup", "0::/app/worker"),
        ("sys/fs/cgroup/cgroup.controllers", "cpu memory pids"),
        ("sys/fs/cgroup/app/cgroup.procs", "9\n"),
        (
            "sys/fs/cgroup/app/memory.numa_stat",
            "anon N0=8192 N1=4096\nfile N0=0 N1=1\nslab N0=5 N1=5",
        ),
        ("sys/fs/cgroup/app/worker/cgroup.procs", "7\n8\n"),
    ];

    const HYBRID: &[(&str, &str)] = &[
        (
            "proc/self/mounts",
            "c /sys/fs/cgroup/unified cgroup2 rw 0 0\nc /sys/fs/cgroup/memory cgroup rw,memory 0 0",
        ),
        ("proc/7/cgroup", "4:cpu,cpuacct:/c\n3:memory:/app\n0::/u"),
        ("sys/fs/cgroup/memory/app/cgroup.procs", "7"),
        (
            "sys/fs/cgroup/memory/app/memory.numa_stat",
            "anon=9 N0=9 N1=0\nhierarchical_file=1 N0=0 N1=1\nhierarchical_anon=3 N0=2 N1=1",
        ),
    ];

    /// Where the worker's cgroup is threaded: its list of processes can't be read.
    struct Threaded(TreeFs);

    impl Fs for Threaded {
        fn read(&self, path: &str) -> Result<Option<String>, FsError> {
            if path != "sys/fs/cgroup/app/worker/cgroup.procs" {
                return self.0.read(path);
            }
            let source = std::io::Error::from(Errno::OPNOTSUPP);
            Err(FsError::Call { call: "read", path: path.into(), source })
        }

        fn write(&self, path: &str, text: &str) -> Result<(), FsError> {
            self.0.write(path, text)
        }

        fn list(&self, path: &str) -> Result<Option<Vec<crate::fs::Entry>>, FsError> {
            self.0.list(path)
        }
    }

    #[test]
    fn threaded_cgroups_have_no_processes_of_their_own() {
        let fs = Threaded(system(V2));
        let found = Hierarchy::find(&fs).unwrap();
        assert_eq!(found.members(&fs, "/app").unwrap(), [9]);
        assert!(found.members(&fs, "/app/worker").is_err(), "whoever names it is told");
    }

    #[test]
    fn version_two_counts_bytes() {
        let fs = system(V2);
        let found = Hierarchy::find(&fs).unwrap();
        assert_eq!(
            (found.version, found.hybrid, found.mount().as_str()),
            (Version::V2, false, "/sys/fs/cgroup")
        );
        assert_eq!(found.of_process(&fs, 7).unwrap(), "/app/worker");
        assert_eq!(found.members(&fs, "/app").unwrap(), [7, 8, 9]);
        assert_eq!(found.processes(&fs, "/app").unwrap(), [9]);
        let stat = found.numa_stat(&fs, "/app").unwrap();
        assert_eq!(stat[&NodeId(0)].total(), Bytes(8192));
        assert_eq!(stat[&NodeId(1)], NodeMemory { anon: Bytes(4096), file: Bytes(1) });
        // The root and the worker are not counted separately.
        for top in ["/", "/app"] {
            let all = found.numa_stats(&fs, top).unwrap();
            assert_eq!(all, BTreeMap::from([("/app".to_owned(), stat.clone())]));
        }
    }

    #[test]
    fn a_hybrid_system_has_its_memory_in_version_one_and_counts_pages() {
        let fs = system(HYBRID);
        let found = Hierarchy::find(&fs).unwrap();
        assert_eq!((found.version, found.hybrid), (Version::V1, true));
        assert_eq!(found.of_process(&fs, 7).unwrap(), "/app");
        let stat = found.numa_stat(&fs, "/app").unwrap();
        assert_eq!(stat[&NodeId(0)], NodeMemory { anon: Bytes(2 * PAGE), file: Bytes(0) });
        assert_eq!(stat[&NodeId(1)].total(), Bytes(2 * PAGE));
    }

    #[test]
    fn a_system_without_the_memory_controller_is_unsupported() {
        let only_cpu = [V2[0], ("sys/fs/cgroup/cgroup.controllers", "cpu pids")];
        for fs in [system(&[]), system(&only_cpu)] {
            assert!(matches!(Hierarchy::find(&fs), Err(CgroupError::Unsupported)));
        }
    }

    #[test]
    fn a_user_may_name_a_cgroup_with_or_without_the_mount_point() {
        let fs = system(V2);
        let found = Hierarchy::find(&fs).unwrap();
        for name in ["/app/worker", "app/worker/", "/sys/fs/cgroup/app/worker"] {
            assert_eq!(found.named(&fs, name).unwrap(), "/app/worker", "{name}");
        }
        for (name, says) in
            [("/gone", "no cgroup /gone"), ("/app/../x", "`/app/../x`"), ("", "is empty")]
        {
            let error = found.named(&fs, name).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(matches!(found.of_process(&fs, 1), Err(CgroupError::NoProcess { pid: 1 })));
    }

    proptest! {
        #[test]
        fn parsing_any_numa_stat_text_does_not_panic(
            text in "((hierarchical_)?(anon|file)(=[0-9]{1,20})?|[ -~]{0,8}| N[0-9]{1,6}=[0-9]{1,21}|\n){0,40}",
        ) {
            understand(&text, Version::V1);
            understand(&text, Version::V2);
        }
    }
}
