//! Errors of files below a root.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// Reasons why a file could not be read, written or listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// The kernel refused a call.
    #[error("can't {call} {}: {source}", path.display())]
    Call {
        /// `open`, `read`, `list` and so on.
        call: &'static str,
        /// The path on this machine (root included).
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// The kernel refused a text.
    #[error("can't write `{text}` to {}: {source}", path.display())]
    Write {
        /// The text.
        text: String,
        /// The path on this machine (root included).
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// The path names something that is not a regular file.
    #[error("{} is not a regular file; nearfar reads and writes nothing else there", path.display())]
    NotAFile {
        /// The path on this machine (root included).
        path: PathBuf,
    },
    /// More than this project's limits allow.
    #[error("{} has more than {limit}; that is no file or directory of sysfs or procfs", path.display())]
    TooLarge {
        /// The path on this machine (root included).
        path: PathBuf,
        /// The limit, in words.
        limit: &'static str,
    },
    /// `openat2` is missing, without which links could lead out of the root.
    #[error(
        "can't read safely below {}: the openat2 system call is missing (Linux before 5.6, or a sandbox that blocks it)",
        root.display()
    )]
    NoOpenat2 {
        /// The root.
        root: PathBuf,
    },
    /// A recording can't be changed.
    #[error("can't write /{path}: this is a recording of a machine, not the machine")]
    Recording {
        /// The path within the recording.
        path: String,
    },
}

/// What a refused call needs; `subject` is `this` or the feature.
fn need(subject: &str) -> String {
    format!("{subject} needs root (sudo) or CAP_DAC_OVERRIDE")
}

/// What a call needs if it was refused, as the end of a message.
pub(crate) fn need_after(subject: &str, is_refused: bool) -> String {
    if is_refused { format!("; {}", need(subject)) } else { String::new() }
}

/// What a call needs if it was refused, as the beginning of a message.
pub(crate) fn need_before(subject: &str, is_refused: bool) -> String {
    if is_refused { format!("{}: ", need(subject)) } else { String::new() }
}

impl FsError {
    /// The errno, where a system call gave one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { source, .. } | Self::Write { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Whether permission was missing (EACCES or EPERM).
    #[must_use]
    pub fn is_permission(&self) -> bool {
        [Errno::ACCESS, Errno::PERM].iter().any(|errno| Some(errno.raw_os_error()) == self.errno())
    }

    /// What the call needs if it was refused, as the end of a message.
    pub(crate) fn need_after(&self, subject: &str) -> String {
        need_after(subject, self.is_permission())
    }
}
