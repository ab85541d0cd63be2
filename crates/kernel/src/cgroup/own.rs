//! A memory cgroup of our own, for a program that is to be told apart from others: made, emptied and removed, however we end.
//!
//! It is made beside the cgroup that we are in (below the root, if that is where we are), so that what limits the cgroups
//! above holds for it too; where ours has limits of its own, it is refused. What is made is on disk before it is made, in
//! `own-cgroup.json` beside the journal, so that whoever comes next removes it if we are killed: processes in it go back to
//! where we came from, and the memory controller is turned off again for the cgroups beside it if we have turned it on.
//! One such cgroup is there at a time: who makes or removes it holds a lock ([`Turn`]).
//!
//! cgroup v2 only: Documentation/admin-guide/cgroup-v2.rst.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{CgroupError, Hierarchy, Version};
use crate::fs::{EntryKind, Fs, FsError};

const SCHEMA: &str = "nearfar.own-cgroup/1";
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";
/// What would limit a program in our cgroup, and not in one beside it.
const LIMITS: [&str; 3] = ["memory.max", "memory.high", "memory.swap.max"];
/// Processes in it may start others while they are moved away.
const ROUNDS: usize = 1000;

/// The file that says what was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    schema: String,
    boot_id: Option<String>,
    /// Its path, and where processes in it go back to.
    path: String,
    home: String,
    /// The cgroup for whose children the memory controller was turned on, and the children it had.
    turned_on: Option<String>,
    siblings: Vec<String>,
}

/// Why there is no cgroup of our own, or why it stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnError {
    /// Someone else is at it.
    #[error("tiering is running, or being started or stopped, by another process (it holds {}); nothing was changed", lock.display())]
    Busy {
        /// The file that is locked.
        lock: PathBuf,
    },
    /// The memory controller is in version 1.
    #[error(
        "a memory cgroup of its own takes cgroup version 2, and the memory controller is in version 1 here ({mount}); start the \
         system with systemd.unified_cgroup_hierarchy=1, or make a cgroup and name it"
    )]
    Version1 {
        /// Where.
        mount: String,
    },
    /// The controller does not reach down to here.
    #[error("cgroup {parent} has no memory controller to give to cgroups below it")]
    NoController {
        /// The parent it would have.
        parent: String,
    },
    /// The cgroup that we are in limits memory.
    #[error(
        "cgroup {path}, where this runs, limits memory ({file} is {value}), and a cgroup beside it would be without that limit; \
         run it elsewhere, or make a cgroup and name it"
    )]
    Limited {
        /// The cgroup.
        path: String,
        /// Its file.
        file: &'static str,
        /// What it reads.
        value: String,
    },
    /// There are cgroups in it that are not ours.
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
    /// The record is none.
    #[error("{} can't be understood ({found}); look at it and delete it", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        found: String,
    },
    /// A call failed.
    #[error("can't {call} {}: {source}{}", path.display(), needs_root(source.kind() == io::ErrorKind::PermissionDenied))]
    Call {
        /// `create`, `remove` and so on.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// Cgroups are not as they should be.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A file of the kernel's can't be read or written.
    #[error("{0}{hint}", hint = needs_root(.0.is_permission()))]
    Fs(FsError),
}

impl From<FsError> for OwnError {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

fn needs_root(refused: bool) -> &'static str {
    if refused { "; this needs root (CAP_DAC_OVERRIDE)" } else { "" }
}

/// What was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Its path.
    pub path: String,
    /// How many processes were still in it; they have gone back to where they came from.
    pub moved: usize,
    /// The cgroup for whose children the memory controller stays on, as others have been made there meanwhile.
    pub stays_on: Option<String>,
}

/// The right to make and remove it, as long as this lives.
#[derive(Debug)]
pub struct Turn {
    dir: PathBuf,
    _lock: File,
}

/// A cgroup of our own. Dropping it removes it, without a word about errors.
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
    /// Takes it; the journal's directory, `dir`, must be there.
    ///
    /// # Errors
    /// [`OwnError::Busy`], [`OwnError::Call`].
    pub fn take(dir: &Path) -> Result<Self, OwnError> {
        let path = dir.join("own-cgroup.lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(call("open", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { dir: dir.into(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(OwnError::Busy { lock: path }),
            Err(TryLockError::Error(source)) => Err(call("lock", &path)(source)),
        }
    }

    fn file(&self) -> PathBuf {
        self.dir.join("own-cgroup.json")
    }

    /// Removes what one that was killed has left; nothing if there is nothing.
    ///
    /// # Errors
    /// [`OwnError`]; another call carries on.
    pub fn recover(&self, fs: &dyn Fs) -> Result<Option<Removed>, OwnError> {
        let path = self.file();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(call("read", &path)(error)),
        };
        let malformed = |found: String| OwnError::Malformed { path: path.clone(), found };
        let record: Record =
            serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        if record.schema != SCHEMA {
            return Err(malformed(format!("its schema is {}", record.schema.escape_debug())));
        }
        if record.boot_id != boot_id(fs)? {
            self.forget()?;
            return Ok(None);
        }
        self.undo(fs, &record).map(Some)
    }

    /// Makes the cgroup `name`.
    ///
    /// # Errors
    /// [`OwnError`]; everything is as before then.
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
        self.save(&record)?;
        let own = Own { turn: self, fs, record, removed: false };
        if own.record.turned_on.is_some() {
            fs.write(&format!("{above}/cgroup.subtree_control"), "+memory")?;
        }
        let directory = PathBuf::from(format!("/{above}/{name}"));
        fs::create_dir(&directory).map_err(call("create", &directory))?;
        Ok(own)
    }

    fn save(&self, record: &Record) -> Result<(), OwnError> {
        let (path, fresh) = (self.file(), self.dir.join("own-cgroup.new"));
        let text = serde_json::to_string_pretty(record).unwrap_or_default();
        let write = || -> io::Result<()> {
            let mut file = File::create(&fresh)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&fresh, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(call("write", &path))
    }

    fn forget(&self) -> Result<(), OwnError> {
        let path = self.file();
        fs::remove_file(&path).map_err(call("remove", &path))
    }

    /// Empties and removes it, and turns off what was turned on. Each step may have been done before.
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

    /// Sends its processes back to where we came from and removes it.
    ///
    /// # Errors
    /// [`OwnError`]; it is still recorded then, and [`Turn::recover`] tries again.
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

/// Moves its processes away; gives how many there were. Where they came from may be gone: then to the root.
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

/// A cgroup is busy for a moment after its last process has ended.
fn remove_directory(directory: &Path) -> io::Result<()> {
    let mut refused = Ok(());
    for _ in 0..ROUNDS {
        refused = fs::remove_dir(directory);
        match &refused {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::yield_now(),
            _ => break,
        }
    }
    refused
}

/// The names of the cgroups below one.
fn children(fs: &dyn Fs, directory: &str) -> Result<Vec<String>, FsError> {
    let entries = fs.list(directory)?.unwrap_or_default();
    let below = entries.into_iter().filter(|entry| entry.kind == EntryKind::Directory);
    Ok(below.map(|entry| entry.name).collect())
}

fn boot_id(fs: &dyn Fs) -> Result<Option<String>, FsError> {
    Ok(fs.read(BOOT_ID)?.map(|text| text.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TreeFs;
    use nearfar_topology::Tree;

    fn system(entries: &[(&str, &str)]) -> TreeFs {
        let mut tree = Tree::new();
        tree.insert(&format!("proc/{}/cgroup", std::process::id()), "1:memory:/a\n0::/app/worker");
        tree.insert("cg/cgroup.controllers", "cpu memory");
        tree.insert("cg/app/cgroup.controllers", "cpu");
        tree.insert("cg/app/worker/cgroup.procs", "");
        tree.insert("proc/self/mounts", "c /cg cgroup2 rw 0 0");
        entries.iter().for_each(|(path, text)| tree.insert(path, text));
        TreeFs(tree)
    }

    #[test]
    fn where_it_would_not_do_it_is_refused_and_nothing_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let turn = Turn::take(dir.path()).unwrap();
        for (entries, says) in [
            (vec![("proc/self/mounts", "c /cg cgroup rw,memory 0 0")], "version 1 here (/cg)"),
            (vec![("proc/self/mounts", "")], "no memory cgroups"),
            (vec![("cg/app/worker/memory.high", "9\n")], "memory.high is 9"),
            (vec![("cg/app/worker/memory.max", "max\n")], "/app has no memory controller"),
        ] {
            let error = turn.make(&system(&entries), "ours").unwrap_err().to_string();
            assert!(error.contains(says), "{entries:?}: {error}");
            assert!(!turn.file().exists());
        }
        assert!(matches!(Turn::take(dir.path()), Err(OwnError::Busy { .. })));
    }

    #[test]
    fn a_refused_write_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let turn = Turn::take(dir.path()).unwrap();
        // A recording can't be written.
        let fs = system(&[("cg/app/cgroup.controllers", "memory")]);
        assert!(matches!(turn.make(&fs, "ours"), Err(OwnError::Fs(_))));
        let fs = system(&[
            ("cg/app/cgroup.controllers", "memory"),
            ("cg/app/cgroup.subtree_control", "memory"),
        ]);
        assert!(matches!(turn.make(&fs, "ours"), Err(OwnError::Call { call: "create", .. })));
        assert!(!turn.file().exists());
    }

    #[test]
    fn what_is_no_record_is_named_and_one_of_an_earlier_boot_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let turn = Turn::take(dir.path()).unwrap();
        let fs = system(&[(BOOT_ID, "now")]);
        assert_eq!(turn.recover(&fs).unwrap(), None);
        for text in ["", "{\"schema\":", "[]", "\u{0}"] {
            fs::write(turn.file(), text).unwrap();
            let error = turn.recover(&fs).unwrap_err().to_string();
            assert!(error.contains("own-cgroup.json"), "{error}");
        }
        let text = "{\"schema\":\"nearfar.own-cgroup/1\",\"boot_id\":\"then\",\"path\":\"/app\",\"home\":\"/\",\
                    \"turned_on\":null,\"siblings\":[]}";
        fs::write(turn.file(), text).unwrap();
        assert_eq!(turn.recover(&fs).unwrap(), None);
        assert!(!turn.file().exists());
        // What is gone needs no removing.
        fs::write(turn.file(), text.replace("then", "now").replace("/app", "/gone")).unwrap();
        assert_eq!(turn.recover(&fs).unwrap().unwrap().path, "/gone");
        assert!(!turn.file().exists());
    }
}
