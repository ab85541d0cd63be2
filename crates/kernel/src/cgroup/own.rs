//! A temporary memory cgroup for a program whose memory must be counted separately: created, emptied and removed, even
//! if its creator is killed.
//!
//! It is created beside the cgroup of this process (below the root, if this process is there), so that limits of the
//! ancestors apply to it too; if this process's cgroup has limits of its own, creation is refused. It is recorded on
//! disk before it is created, in `own-cgroup.json` beside the journal, so that a later process removes it if this one
//! is killed: its processes move back to the original cgroup, and the memory controller is disabled again for the
//! siblings if it was enabled for it. Only one such cgroup exists at a time: creating or removing it takes a lock
//! ([`Turn`]).
//!
//! cgroup v2 only: Documentation/admin-guide/cgroup-v2.rst.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{CgroupError, Hierarchy, Version};
use crate::fs::{EntryKind, Fs, FsError, need_after, read_own};
use crate::lock::{Lock, LockError};
use crate::whole;

const FILE: &str = "own-cgroup.json";
const SCHEMA: &str = "nearfar.own-cgroup/1";
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";
/// Larger files are no records.
const SIZE_MAX: u64 = 1 << 20;
/// Files with limits that would apply in this process's cgroup, but not in one beside it.
const LIMITS: [&str; 3] = ["memory.max", "memory.high", "memory.swap.max"];
/// Passes of moving processes away, as they may start others meanwhile.
const ROUNDS: usize = 1000;

/// The file that records the cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    schema: String,
    boot_id: Option<String>,
    /// Its path, and the cgroup to which its processes move back.
    path: String,
    home: String,
    /// The cgroup for whose children the memory controller was enabled, and the children it had then.
    turned_on: Option<String>,
    siblings: Vec<String>,
}

impl Record {
    /// The record, or the error in it.
    fn parse(text: &str) -> Result<Self, String> {
        let record: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if record.schema != SCHEMA {
            return Err(format!("its schema is {}", record.schema.escape_debug()));
        }
        Ok(record)
    }
}

/// Any bytes as a record, for fuzz targets.
#[cfg(any(fuzzing, test))]
pub fn fuzz(data: &[u8]) {
    if let Ok(record) = Record::parse(&String::from_utf8_lossy(data)) {
        let text = serde_json::to_string(&record).unwrap_or_default();
        assert_eq!(Record::parse(&text).map(|read| read.path), Ok(record.path));
    }
}

/// Reasons why the cgroup can't be created or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnError {
    /// Another process creates or removes one.
    #[error("{0}; nothing was changed{hint}", hint = .0.need_after("this"))]
    Busy(LockError),
    /// The memory controller is in version 1.
    #[error(
        "a memory cgroup of its own takes cgroup version 2, and the memory controller is in version 1 here ({mount}); start the \
         system with systemd.unified_cgroup_hierarchy=1, or make a cgroup and name it"
    )]
    Version1 {
        /// The mount point.
        mount: String,
    },
    /// The memory controller is not available here.
    #[error("cgroup {parent} has no memory controller to give to cgroups below it")]
    NoController {
        /// The intended parent.
        parent: String,
    },
    /// The cgroup of this process limits memory.
    #[error(
        "cgroup {path}, where this runs, limits memory ({file} is {value}), and a cgroup beside it would be without that limit; \
         run it elsewhere, or make a cgroup and name it"
    )]
    Limited {
        /// The cgroup.
        path: String,
        /// Its file.
        file: &'static str,
        /// Its contents.
        value: String,
    },
    /// It contains cgroups of others.
    #[error(
        "cgroup {path} has cgroups below it ({}) that others have made; it can be removed when they are gone",
        below.join(", ")
    )]
    NotEmpty {
        /// Its path.
        path: String,
        /// Their names.
        below: Vec<String>,
    },
    /// The record is invalid.
    #[error(
        "the record of a run's cgroup can't be understood ({found}); it is kept as {}: the cgroup may still be there, so look at the \
         file and delete both",
        path.display()
    )]
    Malformed {
        /// Its new name.
        path: PathBuf,
        /// The error in it.
        found: String,
    },
    /// A call failed.
    #[error("can't {call} {}: {source}{}", path.display(), need_after("this", source.kind() == io::ErrorKind::PermissionDenied))]
    Call {
        /// `create`, `remove` and so on.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// An error of cgroups.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A kernel file can't be read or written.
    #[error("{0}{hint}", hint = .0.need_after("this"))]
    Fs(FsError),
}

impl From<FsError> for OwnError {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

/// A removed cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Its path.
    pub path: String,
    /// Number of processes that were still in it; they were moved back.
    pub moved: usize,
    /// The cgroup for whose children the memory controller stays enabled, because others have been created there
    /// meanwhile.
    pub stays_on: Option<String>,
}

/// The exclusive right to create and remove the cgroup, until dropped.
#[derive(Debug)]
pub struct Turn {
    dir: PathBuf,
    _lock: Lock,
}

/// The cgroup. Dropping it removes it, ignoring errors.
pub struct Own<'a> {
    turn: &'a Turn,
    fs: &'a dyn Fs,
    record: Record,
    removed: bool,
}

impl std::fmt::Debug for Own<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").field("record", &self.record).finish_non_exhaustive()
    }
}

fn call(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OwnError {
    let path = path.to_path_buf();
    move |source| OwnError::Call { call, path, source }
}

impl Turn {
    /// Takes the lock; the journal's directory, `dir`, must exist.
    ///
    /// # Errors
    /// [`OwnError::Busy`], [`OwnError::Call`].
    pub fn take(dir: &Path) -> Result<Self, OwnError> {
        let lock = Lock::take(&dir.join("own-cgroup.lock"), Duration::ZERO);
        lock.map(|lock| Self { dir: dir.into(), _lock: lock }).map_err(OwnError::Busy)
    }

    fn file(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// Removes the cgroup of a killed process; `None` if there is none.
    ///
    /// # Errors
    /// [`OwnError`]; another call continues. After [`OwnError::Malformed`] the record is out of the way.
    pub fn recover(&self, fs: &dyn Fs) -> Result<Option<Removed>, OwnError> {
        let path = self.file();
        let parsed = match read_own(&path, SIZE_MAX) {
            Ok(bytes) => Record::parse(&String::from_utf8_lossy(&bytes)),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound => return Ok(None),
                io::ErrorKind::PermissionDenied => return Err(call("read", &path)(error)),
                _ => Err(error.to_string()),
            },
        };
        let record = match parsed {
            Ok(record) => record,
            Err(found) => {
                let kept = path.with_extension("json.unreadable");
                fs::rename(&path, &kept).map_err(call("rename", &path))?;
                return Err(OwnError::Malformed { path: kept, found });
            }
        };
        if record.boot_id != boot_id(fs)? {
            self.forget()?;
            return Ok(None);
        }
        self.undo(fs, &record).map(Some)
    }

    /// Creates the cgroup `name`.
    ///
    /// # Errors
    /// [`OwnError`]; nothing is changed then.
    pub fn make<'a>(&'a self, fs: &'a dyn Fs, name: &str) -> Result<Own<'a>, OwnError> {
        let hierarchy = Hierarchy::find(fs)?;
        if hierarchy.version == Version::V1 {
            return Err(OwnError::Version1 { mount: hierarchy.mount() });
        }
        let home = hierarchy.of_process(fs, std::process::id())?;
        let parent = match home.trim_end_matches('/').rsplit_once('/') {
            None | Some(("", _)) => "/".to_owned(),
            Some((parent, _)) => parent.to_owned(),
        };
        let here = hierarchy.directory(fs, &home)?;
        for file in LIMITS {
            let value = fs.read(&format!("{here}/{file}"))?.unwrap_or_default();
            if !matches!(value.trim(), "" | "max") {
                return Err(OwnError::Limited { path: home, file, value: value.trim().into() });
            }
        }
        let above = hierarchy.directory(fs, &parent)?;
        let has_memory = |file: &str| -> Result<bool, FsError> {
            let text = fs.read(&format!("{above}/{file}"))?.unwrap_or_default();
            Ok(text.split_whitespace().any(|name| name == "memory"))
        };
        if !has_memory("cgroup.controllers")? {
            return Err(OwnError::NoController { parent });
        }
        let turned_on = (!has_memory("cgroup.subtree_control")?).then(|| parent.clone());
        let path = format!("{}/{name}", parent.trim_end_matches('/'));
        let (schema, siblings) = (SCHEMA.to_owned(), children(fs, &above)?);
        let record = Record { schema, boot_id: boot_id(fs)?, path, home, turned_on, siblings };
        // The record may exist despite the error, and nothing was created.
        self.save(&record).inspect_err(|_| drop(self.forget()))?;
        let own = Own { turn: self, fs, record, removed: false };
        if own.record.turned_on.is_some() {
            fs.write(&format!("{above}/cgroup.subtree_control"), "+memory")?;
        }
        let directory = PathBuf::from(format!("/{above}/{name}"));
        whole::create_dir(&directory).map_err(call("create", &directory))?;
        Ok(own)
    }

    fn save(&self, record: &Record) -> Result<(), OwnError> {
        let text = serde_json::to_string_pretty(record).unwrap_or_default();
        let written = whole::write(&self.dir, "own-cgroup.new", FILE, text.as_bytes());
        written.map_err(call("write", &self.file()))
    }

    fn forget(&self) -> Result<(), OwnError> {
        whole::remove(&self.dir, FILE).map_err(call("remove", &self.file()))
    }

    /// Empties and removes it, and disables the controller again. Each step may have been done before.
    fn undo(&self, fs: &dyn Fs, record: &Record) -> Result<Removed, OwnError> {
        let hierarchy = Hierarchy::find(fs)?;
        let mut removed = Removed { path: record.path.clone(), moved: 0, stays_on: None };
        if let Ok(directory) = hierarchy.directory(fs, &record.path) {
            removed.moved = empty(fs, &hierarchy, record)?;
            let below = children(fs, &directory)?;
            if !below.is_empty() {
                return Err(OwnError::NotEmpty { path: record.path.clone(), below });
            }
            let directory = PathBuf::from(format!("/{directory}"));
            remove_directory(&directory).map_err(call("remove", &directory))?;
        }
        if let Some(parent) = &record.turned_on
            && let Ok(above) = hierarchy.directory(fs, parent)
        {
            if children(fs, &above)?.iter().all(|child| record.siblings.contains(child)) {
                fs.write(&format!("{above}/cgroup.subtree_control"), "-memory")?;
            } else {
                removed.stays_on = Some(parent.clone());
            }
        }
        self.forget()?;
        Ok(removed)
    }
}

impl Own<'_> {
    /// Its path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.record.path
    }

    /// Moves its processes back and removes it.
    ///
    /// # Errors
    /// [`OwnError`]; it is still recorded then, and [`Turn::recover`] retries.
    pub fn remove(mut self) -> Result<Removed, OwnError> {
        self.removed = true;
        self.turn.undo(self.fs, &self.record)
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        if !self.removed {
            let _ = self.turn.undo(self.fs, &self.record);
        }
    }
}

/// Moves its processes back; returns their number. If the original cgroup is gone, they move to the root.
fn empty(fs: &dyn Fs, hierarchy: &Hierarchy, record: &Record) -> Result<usize, OwnError> {
    let home = hierarchy.directory(fs, &record.home).is_ok();
    let home = if home { record.home.as_str() } else { "/" };
    let mut moved = 0;
    for _ in 0..ROUNDS {
        let here = hierarchy.processes(fs, &record.path)?;
        if here.is_empty() {
            break;
        }
        for pid in here {
            match hierarchy.put(fs, home, pid) {
                Ok(()) => moved += 1,
                // It has ended.
                Err(CgroupError::Read(error)) if error.errno() == Some(3) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(moved)
}

/// Removes a directory, with retries: a cgroup is busy for a moment after its last process has ended.
fn remove_directory(directory: &Path) -> io::Result<()> {
    let mut refused = Ok(());
    for _ in 0..ROUNDS {
        refused = whole::remove_dir(directory);
        match &refused {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::yield_now(),
            _ => break,
        }
    }
    refused
}

/// The names of the child cgroups.
fn children(fs: &dyn Fs, directory: &str) -> Result<Vec<String>, FsError> {
    let entries = fs.list(directory)?.unwrap_or_default();
    let below = entries.into_iter().filter(|entry| entry.kind == EntryKind::Directory);
    Ok(below.map(|entry| entry.name).collect())
}

fn boot_id(fs: &dyn Fs) -> Result<Option<String>, FsError> {
    Ok(fs.read(BOOT_ID)?.map(|text| text.trim().to_owned()))
}

#[cfg(test)]
mod tests;
