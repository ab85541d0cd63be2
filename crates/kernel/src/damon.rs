//! DAMON: the kernel watches which memory is hot and which is cold, and acts on it by schemes.
//!
//! Here: what a kdamond is to do ([`spec`]), who holds DAMON now ([`holder`]), starting, changing, asking and stopping
//! ([`session`]), what it found ([`counters`]), and what it offers ([`offers`]). Everything goes through
//! `/sys/kernel/mm/damon/admin/kdamonds/`, of which only root sees more than the names.
//! Not here: what to do about hot and cold (crate policy), and which ranges a node has ([`crate::ranges`]).
//!
//! # What the journal knows
//! Three kinds of files are system-wide state, and recorded before they are written: `damon_stat`'s switch (if it may be
//! paused), `nr_kdamonds`, and each `kdamonds/N/state`. All else below `kdamonds/N` is made by `nr_kdamonds` and goes
//! with it, so nothing there needs putting back. Undoing goes backwards: kdamonds off, `nr_kdamonds` as it was (the
//! kernel refuses that while one runs), `damon_stat` on again. As `nr_kdamonds` can only be changed by throwing all
//! kdamonds away, a session starts only where there is none.

use std::path::PathBuf;

use crate::fs::{Fs, FsError};
use crate::journal::JournalError;

pub mod counters;
pub mod holder;
mod lock;
pub mod offers;
pub mod session;
mod settings;
pub mod sharing;
pub mod spec;

pub use counters::{Region, SchemeStats};
pub use holder::{Holder, holders};
pub use session::{DamonStat, Session, recover};

/// Where kdamonds are.
pub const KDAMONDS: &str = "sys/kernel/mm/damon/admin/kdamonds";

/// The name under which the journal keeps DAMON's changes.
pub const BY: &str = "damon";

/// Why DAMON could not be started, changed or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DamonError {
    /// The kernel has no DAMON for users.
    #[error(
        "no /{KDAMONDS} here: this kernel lacks DAMON's interface (Linux 5.18 with CONFIG_DAMON_SYSFS), or sysfs is hidden"
    )]
    Absent,
    /// Somebody else has it.
    #[error("DAMON is in use: {}; nothing was changed", said(.0))]
    Held(Vec<Holder>),
    /// Another process of this project has it.
    #[error(
        "another nearfar runs DAMON on this system (it holds {}); stop it first, nothing was changed",
        lock.display()
    )]
    InUse {
        /// The file that it has locked.
        lock: PathBuf,
    },
    /// A specification no kernel would take.
    #[error("kdamond {index} asks for {what}; nothing was changed")]
    Spec {
        /// Which.
        index: usize,
        /// What is wrong with it.
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
        /// The first Linux release that has it, where known.
        since: Option<&'static str>,
    },
    /// The kernel refused a setting.
    #[error("DAMON does not take this: {0}{hint}", hint = root(.0))]
    Refused(FsError),
    /// The kernel took a setting for another.
    #[error(
        "/{path} reads `{reads}` after `{wrote}` was written; this kernel means something else by it"
    )]
    Mistaken {
        /// The file.
        path: String,
        /// What was written.
        wrote: String,
        /// What it reads.
        reads: String,
    },
    /// A file that holds no number.
    #[error("/{path} reads `{found}`, which is not a number")]
    Malformed {
        /// The file.
        path: String,
        /// Its text.
        found: String,
    },
    /// A kdamond has ended by itself, or was stopped or removed by someone else.
    #[error(
        "kdamond {index} is not running any more: its processes have ended, or someone stopped it"
    )]
    Gone {
        /// Which.
        index: usize,
    },
    /// There is no such kdamond or scheme in this session.
    #[error("there is no {what} {index} in this session")]
    NoSuch {
        /// `kdamond` or `scheme`.
        what: &'static str,
        /// Its number.
        index: usize,
    },
    /// Something is there that can't be read.
    #[error("{0}{hint}", hint = root(.0))]
    Read(#[from] FsError),
    /// The journal, or a write through it, failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel would not turn its kdamonds on.
    #[error("DAMON does not start with these settings: {0}")]
    NotStarted(JournalError),
    /// A lock could not be taken.
    #[error("can't lock {}: {source}", path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// The errno.
        source: std::io::Error,
    },
    /// Something failed, and so did undoing what came before it.
    #[error("{first}; undoing what was already done failed too: {then}")]
    Undo {
        /// What failed.
        first: Box<DamonError>,
        /// What failed then.
        then: Box<DamonError>,
    },
}

fn said(holders: &[Holder]) -> String {
    let each = holders.iter().map(|holder| format!("{holder}; to free it: {}", holder.way_out()));
    each.collect::<Vec<_>>().join(". Also ")
}

fn came_with(release: Option<&str>) -> String {
    release.map(|release| format!(" (it came with Linux {release})")).unwrap_or_default()
}

fn root(error: &FsError) -> &'static str {
    if error.is_permission() { "; DAMON needs root (CAP_DAC_OVERRIDE)" } else { "" }
}

/// A file of kdamond `index`.
fn kdamond_path(index: usize, file: &str) -> String {
    format!("{KDAMONDS}/{index}/{file}")
}

/// The numbers that name directories of `path`, in order; none where there is no such directory.
fn numbered(fs: &dyn Fs, path: &str) -> Result<Vec<usize>, FsError> {
    let entries = fs.list(path)?.unwrap_or_default();
    let mut numbers: Vec<usize> = entries.iter().filter_map(|e| e.name.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod kill;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
