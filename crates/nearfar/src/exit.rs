//! Exit statuses, in one place.
//!
//! 0 done, 1 the thing failed, 2 bad usage, 125 nearfar itself failed before CMD, 126 CMD can't be executed, 127 CMD
//! was not found, else CMD's own (128 + the signal, if one ended it).

use std::process::ExitCode;
use std::{fmt, io};

/// What the process reports when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done,
    /// The thing failed.
    Failed,
    /// Bad usage: an argument that can't be right on any machine, or not on this one.
    Usage,
    /// nearfar itself failed before CMD was started.
    BeforeCommand,
    /// CMD exists but can't be executed.
    NotExecutable,
    /// CMD was not found.
    NotFound,
    /// CMD's own status.
    Command(u8),
}

impl Exit {
    /// A shell's status for a command that could not be started.
    pub(crate) fn of_start(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound,
            _ => Self::NotExecutable,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::BeforeCommand => 125,
            Exit::NotExecutable => 126,
            Exit::NotFound => 127,
            Exit::Command(status) => status,
        })
    }
}

/// An error that says which status it ends with; anything else ends with [`Exit::Failed`].
#[derive(Debug)]
pub(crate) struct WithExit {
    /// The status.
    pub(crate) exit: Exit,
    /// The message.
    pub(crate) error: anyhow::Error,
}

impl fmt::Display for WithExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl std::error::Error for WithExit {}

/// Gives an error the status it should end with.
pub(crate) trait EndsWith<T> {
    /// The same result; an error in it ends the process with `exit`.
    fn ends_with(self, exit: Exit) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> EndsWith<T> for Result<T, E> {
    fn ends_with(self, exit: Exit) -> anyhow::Result<T> {
        self.map_err(|error| WithExit { exit, error: error.into() }.into())
    }
}

/// The status an error ends with.
pub(crate) fn of_error(error: &anyhow::Error) -> Exit {
    error.downcast_ref::<WithExit>().map_or(Exit::Failed, |with| with.exit)
}
