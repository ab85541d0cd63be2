//! The journal of system-wide writes: before each write, its old value is durably on disk.
//!
//! [`Journal::change`] records a batch of writes durably, then makes them; [`Journal::restore`] restores the old
//! values, newest batch first. Both may be killed at any point: the files on disk still describe the way back, and
//! restoring twice equals restoring once. A batch is restored completely or, if another process has changed one of its
//! values since, left completely unchanged and reported.
//!
//! # On disk
//! A directory (`/var/lib/nearfar/journal`, or `journal` below `$NEARFAR_STATE`) with one file per batch,
//! `0000000001.json` and so on, a larger number being newer:
//! ```json
//! {"schema": "nearfar.journal/1", "by": "weights", "pid": 4711, "root": "/", "boot_id": "1b4e28ba-...",
//!  "changes": [{"path": "sys/kernel/mm/mempolicy/weighted_interleave/node1", "old": "1", "new": "3"}]}
//! ```
//! - A file appears atomically: it is written as `new`, synced, renamed, and the directory is synced. Only then is the
//!   first value written. The file is removed when every value of the batch is restored.
//! - A value that reads `old` needs nothing (it was never written, or is restored already); one that reads `new` is
//!   restored; any other was changed by another process. A path that is gone needs nothing.
//! - `boot_id` is the kernel's. Values written before the last boot are gone by themselves, and the file is removed.
//! - `root` is the directory that stood for `/`; files of another root are not touched.
//! - `lock` is held ([`crate::lock`]) while values are read, recorded, written or restored.
//! - `witnesses` (optional) are files with their contents while the batch is in force: the thread id of a kdamond, for
//!   example. If one reads otherwise, the values of the batch belong to another process, whatever they are.
//! - A file that is no batch of this version is reported and left, and so are batches that change a file named in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::environment;
use crate::fs::Fs;
use crate::lock::{self, Lock};
use crate::whole;

mod error;
mod files;

pub use error::JournalError;
pub use files::{Batch, Pending, Unreadable};

use files::{Entry, Witness, check_path, failed};

const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// A write to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file, without the leading `/`: below `sys/` or `proc/sys/`.
    pub path: String,
    /// The text to write, as the file will read afterwards.
    pub new: String,
}

/// A write with the value before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// The file, without the leading `/`.
    pub path: String,
    /// The value before.
    pub old: String,
    /// The value written; in [`Restored`], the value found.
    pub new: String,
}

/// A value that another process has changed since, so it was not restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The recorded write.
    pub recorded: Recorded,
    /// The present value.
    pub found: String,
}

/// The treatment of values that another process has changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// Leave the batch unchanged and report it.
    Refuse,
    /// Restore the old value regardless.
    Overwrite,
}

/// The results of [`Journal::restore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Restored values, in the order of the writes.
    pub put_back: Vec<Recorded>,
    /// Batches of an earlier boot, dropped because their values went with it.
    pub void: usize,
    /// Values of batches that were left unchanged.
    pub conflicts: Vec<Conflict>,
    /// Files that are not batches of this version, and were left unchanged.
    pub unreadable: Vec<Unreadable>,
}

impl Restored {
    /// Adds the results of another call.
    pub fn add(&mut self, other: Self) {
        self.put_back.extend(other.put_back);
        self.void += other.void;
        self.conflicts.extend(other.conflicts);
        let new = other.unreadable.into_iter().filter(|one| !self.unreadable.contains(one));
        let new: Vec<_> = new.collect();
        self.unreadable.extend(new);
    }
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
    /// The journal in `dir` of changes made through `fs`, which has `root` as its root. Nothing is created yet.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, fs: &'a dyn Fs, root: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), root: root.into(), fs }
    }

    /// The default directory of the journal: below `$NEARFAR_STATE`, or below `/var/lib/nearfar`.
    #[must_use]
    pub fn default_dir() -> PathBuf {
        let state = environment::var("NEARFAR_STATE").filter(|state| !state.is_empty());
        PathBuf::from(state.unwrap_or_else(|| "/var/lib/nearfar".into())).join("journal")
    }

    /// Whether its directory exists.
    ///
    /// # Errors
    /// [`JournalError`]: the directory can't be looked for, such as below a file; changes may be recorded there.
    pub fn is_there(&self) -> Result<bool, JournalError> {
        self.dir.try_exists().map_err(files::failed("look for", &self.dir))
    }

    /// Its directory, which need not exist yet.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Records `changes` as one batch of owner `by`, then writes them in order. Values that are already as wanted are
    /// left out. If a write is refused, earlier ones are restored and the batch is removed.
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
        let number = files::next(&self.dir)?;
        let entry = Entry {
            schema: files::SCHEMA.into(),
            by: by.into(),
            pid: std::process::id(),
            root: self.root.clone(),
            boot_id: self.value(BOOT_ID)?,
            changes: recorded,
            witnesses: Vec::new(),
            number,
            since: None,
        };
        // The file may exist despite the error, and nothing was changed.
        files::save(&self.dir, &entry).inspect_err(|_| drop(files::forget(&self.dir, &entry)))?;
        for (done, change) in entry.changes.iter().enumerate() {
            if let Err(first) = self.fs.write(&change.path, &change.new) {
                for change in entry.changes[..done].iter().rev() {
                    if let Err(then) = self.fs.write(&change.path, &change.old) {
                        return Err(JournalError::Stuck { first, then });
                    }
                }
                files::forget(&self.dir, &entry)?;
                return Err(JournalError::Write(first));
            }
        }
        Ok(entry.changes)
    }

    /// Records that the changes of `by` are in force only while each of `paths` reads as it does now.
    ///
    /// # Errors
    /// [`JournalError`]; some batches may then lack the record.
    pub fn attest(&self, by: &str, paths: &[String]) -> Result<(), JournalError> {
        let _lock = self.lock()?;
        let mut witnesses = Vec::new();
        for path in paths {
            let reads = self.value(path)?;
            witnesses.extend(reads.map(|reads| Witness { path: path.clone(), reads }));
        }
        let ours = |entry: &Entry| entry.root == self.root && entry.by == by;
        for mut entry in files::list(&self.dir)?.entries.into_iter().filter(ours) {
            entry.witnesses.clone_from(&witnesses);
            files::save(&self.dir, &entry)?;
        }
        Ok(())
    }

    /// Restores the changes of `by`, newest batch first.
    ///
    /// Where a batch of another owner has since changed the same file, nothing is written: that batch now has this
    /// one's old value as the one to restore.
    ///
    /// # Errors
    /// [`JournalError`], the first of them; all other batches are restored regardless, unless one must be handed on and
    /// the journal can't be written. Values that were not restored are still recorded, and another call continues.
    pub fn restore(&self, by: &str, on_conflict: OnConflict) -> Result<Restored, JournalError> {
        if !self.is_there()? {
            return Ok(Restored::default());
        }
        let _lock = self.lock()?;
        self.undo(by, on_conflict, None)
    }

    /// The results that [`restore`](Self::restore) would have now. Nothing is written.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn planned(&self, by: &str, on_conflict: OnConflict) -> Result<Restored, JournalError> {
        if !self.is_there()? {
            return Ok(Restored::default());
        }
        self.undo(by, on_conflict, Some(BTreeMap::new()))
    }

    /// Values that other processes have set since, by file, in changes of all owners: a restore would leave these.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn foreign(
        &self,
        on_conflict: OnConflict,
    ) -> Result<BTreeMap<String, String>, JournalError> {
        let batches = self.all_pending()?.batches;
        let owners: BTreeSet<&str> = batches.iter().map(|batch| batch.by.as_str()).collect();
        let mut foreign = BTreeMap::new();
        for by in owners {
            let conflicts = self.planned(by, on_conflict)?.conflicts;
            foreign.extend(conflicts.into_iter().map(|one| (one.recorded.path, one.found)));
        }
        Ok(foreign)
    }

    /// Restores the changes of `by`; with `planned`, writes nothing but the values that files would have, there.
    fn undo(
        &self,
        by: &str,
        on_conflict: OnConflict,
        mut planned: Option<BTreeMap<String, String>>,
    ) -> Result<Restored, JournalError> {
        let is_real = planned.is_none();
        let mut report = Restored::default();
        let boot_id = self.value(BOOT_ID)?;
        let (mut kept, mut failed, mut stuck) = (Vec::<Entry>::new(), None, BTreeSet::new());
        let forget = |entry: &Entry| if is_real { files::forget(&self.dir, entry) } else { Ok(()) };
        let listed = files::list(&self.dir)?;
        report.unreadable = listed.unreadable;
        for mut entry in listed.entries.into_iter().rev().filter(|entry| entry.root == self.root) {
            if entry.boot_id != boot_id {
                report.void += 1;
                failed = failed.or(forget(&entry).err());
            } else if entry.by != by {
                kept.push(entry);
            } else {
                let paths: Vec<String> = entry.changes.iter().map(|one| one.path.clone()).collect();
                let is_named = |path| report.unreadable.iter().any(|one| one.names(path));
                if paths.iter().any(|path| stuck.contains(path) || is_named(path)) {
                    kept.push(entry);
                    continue;
                }
                self.hand_on(&mut entry, &mut kept, is_real)?;
                match self.restore_one(&entry, on_conflict, &mut report, planned.as_mut()) {
                    // One that can't be removed is restored again by the next call; older ones wait.
                    Ok(true) => {
                        if let Err(error) = forget(&entry) {
                            stuck.extend(paths);
                            failed.get_or_insert(error);
                        }
                    }
                    Ok(false) => kept.push(entry),
                    Err(error) => {
                        failed.get_or_insert(error);
                        kept.push(entry);
                    }
                }
            }
        }
        failed.map_or(Ok(report), Err)
    }

    /// Restores the values of a batch, or notes them in `planned`; false if it was left unchanged because of conflicts.
    fn restore_one(
        &self,
        entry: &Entry,
        on_conflict: OnConflict,
        report: &mut Restored,
        mut planned: Option<&mut BTreeMap<String, String>>,
    ) -> Result<bool, JournalError> {
        let conflicts = self.conflicts(entry, planned.as_deref())?;
        if on_conflict == OnConflict::Refuse && !conflicts.is_empty() {
            report.conflicts.extend(conflicts);
            return Ok(false);
        }
        for change in entry.changes.iter().rev() {
            let found = self.now(&change.path, planned.as_deref())?;
            let Some(found) = found.filter(|found| *found != change.old) else { continue };
            match &mut planned {
                Some(values) => drop(values.insert(change.path.clone(), change.old.clone())),
                None => {
                    self.fs.write(&change.path, &change.old).map_err(JournalError::PutBack)?;
                }
            }
            report.put_back.push(Recorded { new: found, ..change.clone() });
        }
        Ok(true)
    }

    /// The changes of `by` that are not restored, oldest first. Batches of an earlier boot are left out.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn pending(&self, by: &str) -> Result<Vec<Recorded>, JournalError> {
        let batches = self.all_pending()?.batches.into_iter();
        Ok(batches.filter(|batch| batch.by == by).flat_map(|batch| batch.changes).collect())
    }

    /// The batches of all owners that are not restored. Those of an earlier boot are left out.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn all_pending(&self) -> Result<Pending, JournalError> {
        if self.is_there()? {
            self.check_dir()?;
        }
        let boot_id = self.value(BOOT_ID)?;
        let listed = files::list(&self.dir)?;
        let ours = |entry: &Entry| entry.root == self.root && entry.boot_id == boot_id;
        let batches = listed.entries.into_iter().filter(ours).map(Batch::from).collect();
        Ok(Pending { batches, unreadable: listed.unreadable })
    }

    /// Moves each change of `entry` that a kept, newer batch builds on into that batch, durably. A change that was
    /// moved before a kill is recognised by the old value it left there. Without `is_real` nothing is saved.
    fn hand_on(
        &self,
        entry: &mut Entry,
        kept: &mut [Entry],
        is_real: bool,
    ) -> Result<(), JournalError> {
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
                    if is_real {
                        files::save(&self.dir, newer)?;
                    }
                }
                None => rest.push(change),
            }
        }
        entry.changes = rest;
        Ok(())
    }

    /// Values that another process has changed since: those that read neither old nor new, and, if a witness reads
    /// otherwise, all that are not the old ones.
    fn conflicts(
        &self,
        entry: &Entry,
        planned: Option<&BTreeMap<String, String>>,
    ) -> Result<Vec<Conflict>, JournalError> {
        let mut conflicts = Vec::new();
        let mut is_taken_over = false;
        for Witness { path, reads } in &entry.witnesses {
            // A kdamond that has ended shows this as its thread.
            is_taken_over |=
                self.now(path, planned)?.is_some_and(|now| now != *reads && now != "-1");
        }
        for change in &entry.changes {
            match self.now(&change.path, planned)? {
                Some(found) if found != change.old && (is_taken_over || found != change.new) => {
                    conflicts.push(Conflict { recorded: change.clone(), found });
                }
                _ => {}
            }
        }
        Ok(conflicts)
    }

    /// The planned value of a file, or else the present one.
    fn now(
        &self,
        path: &str,
        planned: Option<&BTreeMap<String, String>>,
    ) -> Result<Option<String>, JournalError> {
        match planned.and_then(|values| values.get(path)) {
            Some(value) => Ok(Some(value.clone())),
            None => self.value(path),
        }
    }

    fn value(&self, path: &str) -> Result<Option<String>, JournalError> {
        let text = self.fs.read(path).map_err(JournalError::Read)?;
        Ok(text.map(|text| text.trim().to_string()))
    }

    /// Creates the directory, unless it exists, and checks its owner.
    ///
    /// # Errors
    /// [`JournalError::Directory`] and [`JournalError::Untrusted`].
    pub fn make_dir(&self) -> Result<(), JournalError> {
        whole::create_all(&self.dir).map_err(failed("create", &self.dir))?;
        self.check_dir()
    }

    /// Checks the directory's owner and mode.
    fn check_dir(&self) -> Result<(), JournalError> {
        let owner = fs::metadata(&self.dir).map_err(failed("look at", &self.dir))?;
        let me = rustix::process::geteuid().as_raw();
        if ![0, me].contains(&owner.uid()) || owner.mode() & 0o022 != 0 {
            return Err(JournalError::Untrusted { path: self.dir.clone() });
        }
        Ok(())
    }

    /// Takes the lock.
    fn lock(&self) -> Result<Lock, JournalError> {
        self.make_dir()?;
        Lock::take(&self.dir.join("lock"), lock::PATIENCE).map_err(JournalError::Lock)
    }
}

/// Any bytes as a file of the journal, for fuzz targets.
#[cfg(any(fuzzing, test))]
pub fn fuzz(data: &[u8]) {
    files::fuzz(data);
}

#[cfg(test)]
mod tests;
