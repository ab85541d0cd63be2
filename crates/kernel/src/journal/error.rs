//! Errors of the journal.

use std::io;
use std::path::PathBuf;

use crate::fs::{FsError, need_after};
use crate::lock::LockError;

/// Reasons why a change was not made, or not restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The directory can't be used.
    #[error("can't {call} {}{}", path.display(), remedy(source))]
    Directory {
        /// `create`, `lock`, `write` and so on.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// Another process holds the journal's lock.
    #[error("{of}{0}; nothing was changed", of = of_lock(.0))]
    Lock(LockError),
    /// The directory belongs to another user, or others may write to it.
    #[error(
        "{} belongs to another user or is writable by others, so its contents can't be trusted; use another directory",
        path.display()
    )]
    Untrusted {
        /// The directory.
        path: PathBuf,
    },
    /// A path outside the permitted ones.
    #[error("/{path} is not below /sys or /proc/sys; the journal writes nothing else")]
    Outside {
        /// The path.
        path: String,
    },
    /// A file to be written does not exist.
    #[error("there is no /{path} here; nothing was changed")]
    Absent {
        /// The path.
        path: String,
    },
    /// A value could not be read, so nothing was written.
    #[error("{0}; nothing was changed")]
    Read(FsError),
    /// A write was refused; earlier writes of the batch were restored.
    #[error("{0}; nothing was changed{hint}", hint = .0.need_after("this"))]
    Write(FsError),
    /// A write was refused, and so was restoring the earlier ones. The batch is still recorded.
    #[error(
        "{first}; restoring the values already written failed too: {then}. They are recorded: restore them later"
    )]
    Stuck {
        /// The refused write.
        first: FsError,
        /// The refused restore.
        then: FsError,
    },
    /// Restoring a value was refused. The batch is still recorded.
    #[error("can't put back the old value: {0}; it is still recorded{hint}", hint = .0.need_after("this"))]
    PutBack(FsError),
}

fn of_lock(error: &LockError) -> String {
    if error.is_permission() {
        error.need_before("this")
    } else {
        "the lock of the journal: ".into()
    }
}

fn remedy(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotADirectory => {
            "; a file is in place of a directory: move it, or name another directory in NEARFAR_STATE".into()
        }
        kind => need_after("this", kind == io::ErrorKind::PermissionDenied),
    }
}
