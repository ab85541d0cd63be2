//! DAMON: the kernel monitors the access frequency of memory, and schemes act on hot and cold regions.
//!
//! Here: the specification of a kdamond ([`spec`]), the current user of DAMON ([`holder`]), sessions that start,
//! change, query and stop kdamonds ([`session`], with [`room`]), their results ([`counters`]), and the features of this kernel
//! ([`offers`]). Everything goes through `/sys/kernel/mm/damon/admin/kdamonds/`, of which other users than root see
//! only the names. Not here: decisions about hot and cold memory (crate policy), and the ranges of a node
//! ([`crate::ranges`]).
//!
//! # Journaled state
//! Three kinds of files are system-wide state, recorded before they are written: the switch of `damon_stat` (if it may
//! be paused), `nr_kdamonds`, and each `kdamonds/N/state`. All else below `kdamonds/N` is created by `nr_kdamonds` and
//! removed with it, so nothing there needs restoring. The restore runs in reverse: kdamonds off, `nr_kdamonds` to its
//! old value (the kernel refuses that while one runs), `damon_stat` on again. As any change of `nr_kdamonds` discards
//! all kdamonds, a session starts only if there are none.

use std::time::Duration;

use crate::fs::{Fs, FsError};
use crate::journal::{Journal, JournalError, OnConflict, Restored};
use crate::lock::{Lock, LockError};

use spec::Operations;

pub mod counters;
pub mod holder;
pub mod offers;
pub mod room;
pub mod session;
mod settings;
pub mod spec;

pub use counters::{Region, SchemeStats};
pub use holder::{Holder, holders};
pub use room::DamonStat;
pub use session::Session;

/// Directory of the kdamonds.
pub const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";

/// The journal's name for DAMON's changes.
pub const BY: &str = "damon";

/// File of the lock that marks a live session, in the journal's directory.
const LOCK: &str = "damon.lock";

/// Reason why DAMON could not be started, changed or queried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DamonError {
    /// The kernel has no DAMON interface for user space.
    #[error(
        "no /{KDAMONDS} here: this kernel lacks DAMON's interface (Linux 5.18 with CONFIG_DAMON_SYSFS), or sysfs is hidden"
    )]
    Absent,
    /// Another user holds it.
    #[error("DAMON is in use: {}; nothing was changed", held_by(.0))]
    Held(Vec<Holder>),
    /// Another process of this project holds it.
    #[error("{} runs DAMON for nearfar; end it first, nothing was changed", of_nearfar(*pid))]
    InUse {
        /// The process, if known.
        pid: Option<u32>,
    },
    /// A specification that every kernel would refuse.
    #[error("kdamond {index} asks for {what}; nothing was changed")]
    Spec {
        /// Index of the kdamond.
        index: usize,
        /// The fault.
        what: String,
    },
    /// The kernel lacks a file that the specification needs.
    #[error(
        "this kernel's DAMON has no {path}, to which `{text}` was to be written{}; do without it",
        came_with(*.since)
    )]
    Unsupported {
        /// The file, below `kdamonds/`.
        path: String,
        /// What was to be written.
        text: String,
        /// The first Linux release that has it, if known.
        since: Option<&'static str>,
    },
    /// The kernel was built without the code that watches this kind of memory.
    #[error("this kernel's DAMON can't watch {}; nothing was changed", watched(*.operations))]
    Unwatched {
        /// The kind of memory.
        operations: Operations,
    },
    /// The kernel refused a setting.
    #[error("DAMON does not take this: {0}{hint}", hint = .0.need_after("DAMON"))]
    Refused(FsError),
    /// The kernel read back a setting differently.
    #[error(
        "/{path} reads `{reads}` after `{wrote}` was written; this kernel means something else by it"
    )]
    Mistaken {
        /// The file.
        path: String,
        /// The text written.
        wrote: String,
        /// The text read back.
        reads: String,
    },
    /// A file without a number.
    #[error("/{path} reads `{found}`, which is not a number")]
    Malformed {
        /// The file.
        path: String,
        /// Its text.
        found: String,
    },
    /// A kdamond has ended by itself, or was stopped or removed by another program.
    #[error(
        "kdamond {index} is not running any more: its processes have ended, or someone stopped it"
    )]
    Gone {
        /// Index of the kdamond.
        index: usize,
    },
    /// There is no such kdamond or scheme in this session.
    #[error("there is no {what} {index} in this session")]
    NoSuch {
        /// `kdamond` or `scheme`.
        what: &'static str,
        /// Its index.
        index: usize,
    },
    /// An existing file cannot be read.
    #[error("{0}{hint}", hint = .0.need_after("DAMON"))]
    Read(#[from] FsError),
    /// The journal, or a write through it, failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused to turn the kdamonds on.
    #[error("DAMON does not start with these settings: {0}")]
    NotStarted(JournalError),
    /// The lock on DAMON could not be taken.
    #[error("{need}{0}", need = .0.need_before("DAMON"))]
    Lock(LockError),
    /// An operation failed, and so did the undoing of earlier ones.
    #[error("{first}; undoing what was already done failed too: {then}")]
    Undo {
        /// The first failure.
        first: Box<DamonError>,
        /// The failure of undoing.
        then: Box<DamonError>,
    },
}

fn held_by(holders: &[Holder]) -> String {
    let each = holders.iter().map(|holder| format!("{holder}; to free it: {}", holder.way_out()));
    each.collect::<Vec<_>>().join(". Also ")
}

const fn watched(operations: Operations) -> &'static str {
    match operations {
        Operations::Paddr => "physical memory (CONFIG_DAMON_PADDR is off)",
        Operations::Vaddr | Operations::Fvaddr => {
            "the memory of processes (CONFIG_DAMON_VADDR is off)"
        }
    }
}

fn came_with(release: Option<&str>) -> String {
    release.map(|release| format!(" (it came with Linux {release})")).unwrap_or_default()
}

fn of_nearfar(pid: Option<u32>) -> String {
    let Some(pid) = pid else { return "another process".into() };
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = words.split(|byte| *byte == 0).take(3).map(String::from_utf8_lossy);
    let words = words.collect::<Vec<_>>().join(" ");
    format!("process {pid} ({})", words.trim_end().escape_debug())
}

/// Restores the state before a killed session. Does nothing if there was none, or while another session lives, which
/// restored that at its start.
///
/// # Errors
/// [`DamonError::InUse`] if the lock's holder is not the process of the recorded changes, [`DamonError::Journal`].
pub fn recover(journal: &Journal<'_>, on_conflict: OnConflict) -> Result<Restored, DamonError> {
    if !journal.is_there()? {
        return Ok(Restored::default());
    }
    match lock(journal) {
        Err(DamonError::InUse { pid }) => {
            let pending = journal.all_pending()?.batches;
            let is_left = pending.iter().any(|batch| batch.by == BY && Some(batch.pid) != pid);
            if is_left { Err(DamonError::InUse { pid }) } else { Ok(Restored::default()) }
        }
        locked => {
            let _lock = locked?;
            Ok(journal.restore(BY, on_conflict)?)
        }
    }
}

/// The lock on DAMON, held for the lifetime of a session.
fn lock(journal: &Journal<'_>) -> Result<Lock, DamonError> {
    journal.make_dir()?;
    let taken = Lock::take(&journal.dir().join(LOCK), Duration::ZERO);
    taken.map_err(|error| match error {
        LockError::Held { pid, .. } => DamonError::InUse { pid },
        other => DamonError::Lock(other),
    })
}

/// A file of kdamond `index`.
fn kdamond_path(index: usize, file: &str) -> String {
    format!("{KDAMONDS}/{index}/{file}")
}

/// The numeric directory names of `path`, in order; empty without such a directory.
fn numbered(fs: &dyn Fs, path: &str) -> Result<Vec<usize>, FsError> {
    let entries = fs.list(path)?.unwrap_or_default();
    let mut numbers: Vec<usize> = entries.iter().filter_map(|e| e.name.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests;
