//! The journal: nothing system-wide is written before how to undo it is on disk.
//!
//! [`Journal::change`] records a batch of writes durably, then makes them; [`Journal::restore`] puts the old values
//! back, newest batch first. Both may be killed at any point: what is on disk then still says how to get back, and
//! doing it twice is the same as once. A batch is undone whole or, if someone else has changed one of its values since,
//! left alone whole and reported.
//!
//! # On disk
//! A directory (`/var/lib/nearfar/journal`, or `journal` below `$NEARFAR_STATE`) with one file a batch,
//! `0000000001.json` and so on, a larger number being newer:
//! ```json
//! {"schema": "nearfar.journal/1", "by": "weights", "pid": 4711, "root": "/", "boot_id": "1b4e28ba-...",
//!  "changes": [{"path": "sys/kernel/mm/mempolicy/weighted_interleave/node1", "old": "1", "new": "3"}]}
//! ```
//! - A file appears whole or not at all: it is written as `new`, synced, renamed, and the directory is synced. Only
//!   then is the first value written. It goes when every value of the batch is back.
//! - A value that reads `old` needs nothing (it was never written, or is back already); one that reads `new` is put
//!   back; any other was changed by someone else. A path that has gone needs nothing.
//! - `boot_id` is the kernel's. What was written before the machine's last start is gone by itself, and so is the file.
//! - `root` is the directory that stood for `/`; files of another root are not touched.
//! - `lock` is held (flock) by whoever reads values to record them, writes, or restores: one at a time.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::fs::{Fs, FsError};

const SCHEMA: &str = "nearfar.journal/1";
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// A write to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file, without the leading `/`: below `sys/` or `proc/sys/`.
    pub path: String,
    /// The text to write, as the file will read afterwards.
    pub new: String,
}

/// A write with what was there before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// The file, without the leading `/`.
    pub path: String,
    /// The value before.
    pub old: String,
    /// The value written.
    pub new: String,
}

/// A batch on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    schema: String,
    by: String,
    pid: u32,
    root: PathBuf,
    boot_id: Option<String>,
    changes: Vec<Recorded>,
    #[serde(skip)]
    number: u64,
}

/// A value that someone else has changed since, so it was not put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// What was recorded.
    pub recorded: Recorded,
    /// What is there now.
    pub found: String,
}

/// What to do about a value that someone else has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// Leave the batch alone and report it.
    Refuse,
    /// Put the old value back all the same.
    Overwrite,
}

/// What [`Journal::restore`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Values that were put back, in the order of the writes.
    pub put_back: Vec<Recorded>,
    /// Batches of an earlier boot, dropped because their values went with it.
    pub void: usize,
    /// Values of batches that were left alone.
    pub conflicts: Vec<Conflict>,
}

/// Why a change was not made, or not undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The directory can't be used.
    #[error("can't {call} {}: {source}; system settings are not changed unrecorded{}", path.display(), needs_root(source))]
    Directory {
        /// `create`, `lock`, `write` and so on.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// The directory belongs to someone else, or anyone may write to it.
    #[error(
        "{} belongs to another user or is writable by all: what it says could not be trusted; use another directory",
        path.display()
    )]
    Untrusted {
        /// The directory.
        path: PathBuf,
    },
    /// A file that is no batch of this version.
    #[error(
        "{} is not a journal file this version can read ({found}); nothing was changed. If no other nearfar wrote it, \
         look at it and delete it",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        found: String,
    },
    /// A path outside what may be written.
    #[error("/{path} is not below /sys or /proc/sys; the journal writes nothing else")]
    Outside {
        /// The path.
        path: String,
    },
    /// A file to be written is not there.
    #[error("there is no /{path} here; nothing was changed")]
    Absent {
        /// The path.
        path: String,
    },
    /// A value could not be read, so nothing was written.
    #[error("{0}; nothing was changed")]
    Read(FsError),
    /// A write was refused; what the batch had written before it was put back.
    #[error("{0}; nothing was changed{hint}", hint = refused_to_non_root(.0))]
    Write(FsError),
    /// A write was refused, and so was putting back what came before it. The batch is still recorded.
    #[error(
        "{first}; putting back what was already written failed too: {then}. It is recorded: restore it later"
    )]
    Stuck {
        /// The refused write.
        first: FsError,
        /// The refused undoing.
        then: FsError,
    },
    /// Putting a value back was refused. The batch is still recorded.
    #[error("can't put back the old value: {0}; it is still recorded{hint}", hint = refused_to_non_root(.0))]
    PutBack(FsError),
}

const ROOT: &str = "; this needs root (CAP_DAC_OVERRIDE)";

fn needs_root(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied { ROOT } else { "" }
}

fn refused_to_non_root(error: &FsError) -> &'static str {
    if error.is_permission() { ROOT } else { "" }
}

/// A directory of recorded batches, for one root.
pub struct Journal<'a> {
    dir: PathBuf,
    root: PathBuf,
    fs: &'a dyn Fs,
}

impl fmt::Debug for Journal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("dir", &self.dir)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl<'a> Journal<'a> {
    /// The journal in `dir` of changes made through `fs`, which stands on `root`. Nothing is created yet.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, fs: &'a dyn Fs, root: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), root: root.into(), fs }
    }

    /// Where the journal is unless told otherwise: below `$NEARFAR_STATE`, or below `/var/lib/nearfar`.
    #[must_use]
    pub fn default_dir() -> PathBuf {
        let state = std::env::var_os("NEARFAR_STATE").filter(|state| !state.is_empty());
        PathBuf::from(state.unwrap_or_else(|| "/var/lib/nearfar".into())).join("journal")
    }

    /// Its directory, which need not be there yet.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Records `changes` as one batch of `by`, then writes them in order. Values that are already as wanted are left out.
    /// If a write is refused, those before it are put back and the batch is forgotten.
    ///
    /// # Errors
    /// [`JournalError`]; nothing is changed then, except as [`JournalError::Stuck`] says.
    pub fn change(&self, by: &str, changes: &[Change]) -> Result<Vec<Recorded>, JournalError> {
        for change in changes {
            check_path(&change.path)?;
        }
        let _lock = self.lock()?;
        let mut recorded = Vec::new();
        for Change { path, new } in changes {
            let old =
                self.value(path)?.ok_or_else(|| JournalError::Absent { path: path.clone() })?;
            if old != *new {
                recorded.push(Recorded { path: path.clone(), old, new: new.clone() });
            }
        }
        if recorded.is_empty() {
            return Ok(recorded);
        }
        let number = self.entries()?.last().map_or(1, |newest| newest.number + 1);
        let entry = Entry {
            schema: SCHEMA.into(),
            by: by.into(),
            pid: std::process::id(),
            root: self.root.clone(),
            boot_id: self.value(BOOT_ID)?,
            changes: recorded,
            number,
        };
        self.save(&entry)?;
        for (done, change) in entry.changes.iter().enumerate() {
            if let Err(first) = self.fs.write(&change.path, &change.new) {
                for change in entry.changes[..done].iter().rev() {
                    if let Err(then) = self.fs.write(&change.path, &change.old) {
                        return Err(JournalError::Stuck { first, then });
                    }
                }
                self.forget(&entry)?;
                return Err(JournalError::Write(first));
            }
        }
        Ok(entry.changes)
    }

    /// Puts back what `by` changed, newest batch first.
    ///
    /// Where a batch of another owner has since changed the same file, nothing is written: that batch now remembers
    /// this one's old value as what to go back to.
    ///
    /// # Errors
    /// [`JournalError`]; what was not put back is still recorded, and another call carries on.
    pub fn restore(&self, by: &str, on_conflict: OnConflict) -> Result<Restored, JournalError> {
        let mut report = Restored::default();
        if !self.dir.exists() {
            return Ok(report);
        }
        let _lock = self.lock()?;
        let boot_id = self.value(BOOT_ID)?;
        let mut kept: Vec<Entry> = Vec::new();
        for mut entry in self.entries()?.into_iter().rev().filter(|entry| entry.root == self.root) {
            if entry.boot_id != boot_id {
                report.void += 1;
                self.forget(&entry)?;
            } else if entry.by != by {
                kept.push(entry);
            } else {
                self.hand_on(&mut entry, &mut kept)?;
                let conflicts = self.conflicts(&entry)?;
                if on_conflict == OnConflict::Refuse && !conflicts.is_empty() {
                    report.conflicts.extend(conflicts);
                    kept.push(entry);
                    continue;
                }
                self.put_back(&entry, &mut report)?;
                self.forget(&entry)?;
            }
        }
        Ok(report)
    }

    /// What `by` has changed and not put back, oldest first. Batches of an earlier boot are left out.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn pending(&self, by: &str) -> Result<Vec<Recorded>, JournalError> {
        let boot_id = self.value(BOOT_ID)?;
        let ours =
            |entry: &Entry| entry.root == self.root && entry.by == by && entry.boot_id == boot_id;
        Ok(self.entries()?.into_iter().filter(ours).flat_map(|entry| entry.changes).collect())
    }

    /// Moves each change of `entry` that a kept, newer batch builds on into that batch, durably. One that was moved
    /// before we were killed is recognised by the old value it left there.
    fn hand_on(&self, entry: &mut Entry, kept: &mut [Entry]) -> Result<(), JournalError> {
        let mut rest = Vec::new();
        for change in std::mem::take(&mut entry.changes) {
            let heir = kept.iter_mut().rev().find_map(|newer| {
                let builds_on = |later: &Recorded| {
                    later.path == change.path
                        && (later.old == change.new || later.old == change.old)
                };
                let at = newer.changes.iter().position(builds_on)?;
                Some((newer, at))
            });
            match heir {
                Some((newer, at)) => {
                    newer.changes[at].old.clone_from(&change.old);
                    self.save(newer)?;
                }
                None => rest.push(change),
            }
        }
        entry.changes = rest;
        Ok(())
    }

    fn conflicts(&self, entry: &Entry) -> Result<Vec<Conflict>, JournalError> {
        let mut conflicts = Vec::new();
        for change in &entry.changes {
            match self.value(&change.path)? {
                Some(found) if found != change.old && found != change.new => {
                    conflicts.push(Conflict { recorded: change.clone(), found });
                }
                _ => {}
            }
        }
        Ok(conflicts)
    }

    fn put_back(&self, entry: &Entry, report: &mut Restored) -> Result<(), JournalError> {
        for change in entry.changes.iter().rev() {
            if self.value(&change.path)?.is_some_and(|found| found != change.old) {
                self.fs.write(&change.path, &change.old).map_err(JournalError::PutBack)?;
                report.put_back.push(change.clone());
            }
        }
        Ok(())
    }

    fn value(&self, path: &str) -> Result<Option<String>, JournalError> {
        let text = self.fs.read(path).map_err(JournalError::Read)?;
        Ok(text.map(|text| text.trim().to_string()))
    }

    /// Makes the directory, unless it is there, and checks whose it is.
    ///
    /// # Errors
    /// [`JournalError::Directory`] and [`JournalError::Untrusted`].
    pub fn make_dir(&self) -> Result<(), JournalError> {
        let failed = |call| self.failed(call, &self.dir);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.dir)
            .map_err(failed("create"))?;
        let owner = fs::metadata(&self.dir).map_err(failed("look at"))?;
        let me = rustix::process::geteuid().as_raw();
        if ![0, me].contains(&owner.uid()) || owner.mode() & 0o002 != 0 {
            return Err(JournalError::Untrusted { path: self.dir.clone() });
        }
        Ok(())
    }

    /// Takes the lock; released when the file is dropped, or its holder dies.
    fn lock(&self) -> Result<File, JournalError> {
        self.make_dir()?;
        let path = self.dir.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(self.failed("open", &path))?;
        file.lock().map_err(self.failed("lock", &path))?;
        Ok(file)
    }

    /// All batches, oldest first.
    fn entries(&self) -> Result<Vec<Entry>, JournalError> {
        let listed = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(self.failed("list", &self.dir))?,
        };
        let mut entries = Vec::new();
        for item in listed {
            let path = item.map_err(self.failed("list", &self.dir))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let number = name.and_then(|name| name.strip_suffix(".json")?.parse().ok());
            let Some(number) = number else { continue };
            match fs::read_to_string(&path) {
                // Restored by someone else since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                text => {
                    entries.push(parse(&path, number, &text.map_err(self.failed("read", &path))?)?)
                }
            }
        }
        entries.sort_by_key(|entry| entry.number);
        Ok(entries)
    }

    /// Writes a batch's file so that it is there whole, and stays, or not at all.
    fn save(&self, entry: &Entry) -> Result<(), JournalError> {
        let path = self.file(entry);
        let new = self.dir.join("new");
        let write = || {
            let mut file = File::create(&new)?;
            serde_json::to_writer(&mut file, entry)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(self.failed("write", &path))
    }

    fn forget(&self, entry: &Entry) -> Result<(), JournalError> {
        let path = self.file(entry);
        let remove = || {
            fs::remove_file(&path)?;
            File::open(&self.dir)?.sync_all()
        };
        remove().map_err(self.failed("delete", &path))
    }

    fn file(&self, entry: &Entry) -> PathBuf {
        self.dir.join(format!("{:010}.json", entry.number))
    }

    fn failed(
        &self,
        call: &'static str,
        path: &Path,
    ) -> impl Fn(io::Error) -> JournalError + use<> {
        let path = path.to_path_buf();
        move |source| JournalError::Directory { call, path: path.clone(), source }
    }
}

fn parse(path: &Path, number: u64, text: &str) -> Result<Entry, JournalError> {
    let malformed = |found: String| JournalError::Malformed { path: path.into(), found };
    let entry: Entry = serde_json::from_str(text).map_err(|error| malformed(error.to_string()))?;
    if entry.schema != SCHEMA {
        return Err(malformed(format!("its schema is {}, not {SCHEMA}", entry.schema)));
    }
    for change in &entry.changes {
        check_path(&change.path).map_err(|error| malformed(error.to_string()))?;
    }
    Ok(Entry { number, ..entry })
}

fn check_path(path: &str) -> Result<(), JournalError> {
    let below = path.starts_with("sys/") || path.starts_with("proc/sys/");
    if below && !path.split('/').any(|part| part == "..") {
        return Ok(());
    }
    Err(JournalError::Outside { path: path.into() })
}

#[cfg(test)]
mod kill;
#[cfg(test)]
mod tests;
