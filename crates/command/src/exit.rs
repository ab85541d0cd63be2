//! Exit statuses, in one place.
//!
//! 0 done, 1 the thing failed, 2 bad usage, 125 nearfar itself failed before CMD, 126 CMD can't be executed, 127 CMD
//! was not found, else CMD's own (128 + the signal, if one ended it).

use std::process::ExitCode;
use std::{fmt, io};

/// The exit status of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
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
    #[must_use]
    pub fn of_start(error: &io::Error) -> Self {
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

/// An error with an exit status; any other error ends with [`Exit::Failed`].
#[derive(Debug)]
pub struct WithExit {
    /// The status.
    pub exit: Exit,
    /// The message.
    pub error: anyhow::Error,
}

impl fmt::Display for WithExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&self.error))
    }
}

impl std::error::Error for WithExit {}

/// Sets the exit status of an error.
pub trait EndsWith<T> {
    /// The same result; an error in it ends the process with `exit`.
    ///
    /// # Errors
    /// Those of the result.
    fn ends_with(self, exit: Exit) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> EndsWith<T> for Result<T, E> {
    fn ends_with(self, exit: Exit) -> anyhow::Result<T> {
        self.map_err(|error| WithExit { exit, error: error.into() }.into())
    }
}

/// The error and its causes, each once: some messages already end with the cause.
#[must_use]
pub fn text(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| {
        let cause = cause.to_string();
        match text.as_str() {
            "" => cause,
            have if have.contains(&cause) => text,
            have => format!("{have}: {cause}"),
        }
    })
}

/// The exit status for an error.
#[must_use]
pub fn of_error(error: &anyhow::Error) -> Exit {
    error.downcast_ref::<WithExit>().map_or(Exit::Failed, |with| with.exit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn a_cause_is_shown_once() {
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let says_it = anyhow::anyhow!("can't open a file: {}", refused());
        let wrapped = Err::<(), _>(refused()).with_context(|| says_it.to_string()).unwrap_err();
        assert_eq!(text(&wrapped), format!("can't open a file: {}", refused()));
        let plain = Err::<(), _>(refused()).context("reading").unwrap_err();
        let with = WithExit { exit: Exit::Usage, error: plain };
        assert_eq!(text(&with.into()), format!("reading: {}", refused()));
    }
}
