//! Starts the command, with pipes or with a terminal of its own.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Pid;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::wire::{Outcome, Start};

/// A started command and our ends of its streams.
#[derive(Debug)]
pub(super) struct Started {
    /// Its process, which leads its process group.
    pub(super) pid: Pid,
    /// Write end of its input.
    pub(super) input: OwnedFd,
    /// Read end of its output.
    pub(super) output: OwnedFd,
    /// Read end of its error output; `None` with a terminal, which has one stream for both.
    pub(super) errors: Option<OwnedFd>,
}

/// Starts the command; on failure returns the reason.
pub(super) fn start(start: &Start, reenter: &[String]) -> Result<Started, Outcome> {
    let cwd = Path::new(OsStr::from_bytes(&start.cwd));
    if !cwd.is_dir() {
        let cwd = cwd.display();
        return Err(Outcome::Failed(format!(
            "the working directory {cwd} is not there in the guest"
        )));
    }
    let words: Vec<&OsStr> = start.argv.iter().map(|word| OsStr::from_bytes(word)).collect();
    let Some((program, args)) = words.split_first() else {
        return Err(Outcome::NotFound("no command given".to_owned()));
    };
    match start.terminal {
        Some((rows, columns)) => {
            let mut command = Command::new("/proc/self/exe");
            command.args(reenter).arg("guest-exec").arg("--").args(&words);
            surround(&mut command, start, cwd);
            in_terminal(&mut command, rows, columns).map_err(|error| {
                Outcome::Failed(format!("making a terminal for the command: {error}"))
            })
        }
        None => {
            let mut command = Command::new(program);
            command.args(args).process_group(0);
            surround(&mut command, start, cwd);
            with_pipes(&mut command).map_err(|error| refused(program, &error))
        }
    }
}

/// Sets directory and environment.
fn surround(command: &mut Command, start: &Start, cwd: &Path) {
    let os = |bytes: &Vec<u8>| OsString::from_vec(bytes.clone());
    command.current_dir(cwd).env_clear();
    command.envs(start.env.iter().map(|(name, value)| (os(name), os(value))));
}

/// The message and exit status that a shell would give.
fn refused(program: &OsStr, error: &io::Error) -> Outcome {
    let program = program.display();
    match error.kind() {
        io::ErrorKind::NotFound => Outcome::NotFound(format!("{program}: command not found")),
        _ => Outcome::NotExecutable(format!("{program}: {error}")),
    }
}

fn with_pipes(command: &mut Command) -> io::Result<Started> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let lost = || io::Error::other("a pipe is missing");
    Ok(Started {
        pid: Pid::from_child(&child),
        input: child.stdin.take().ok_or_else(lost)?.into(),
        output: child.stdout.take().ok_or_else(lost)?.into(),
        errors: Some(child.stderr.take().ok_or_else(lost)?.into()),
    })
}

fn in_terminal(command: &mut Command, rows: u16, columns: u16) -> io::Result<Started> {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&ours)?;
    rustix::pty::unlockpt(&ours)?;
    resize(&ours, rows, columns)?;
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
    let child = command.spawn()?;
    // The command has its own copies; these would keep the terminal open after its end.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Started {
        pid: Pid::from_child(&child),
        input: ours.try_clone()?,
        output: ours,
        errors: None,
    })
}

/// Sets a terminal's size.
pub(super) fn resize(terminal: impl AsFd, rows: u16, columns: u16) -> rustix::io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(terminal, size)
}

/// Runs in the process that becomes the command: makes the terminal on its standard input its controlling terminal,
/// then executes the command. Returns only on failure, with the message and the exit status.
pub(crate) fn exec_in_terminal(argv: &[OsString]) -> (String, u8) {
    if let Err(error) =
        rustix::process::setsid().and_then(|_| rustix::process::ioctl_tiocsctty(io::stdin()))
    {
        return (format!("taking the terminal: {error}"), 125);
    }
    let Some((program, args)) = argv.split_first() else {
        return ("no command given".to_owned(), 127);
    };
    let error = Command::new(program).args(args).exec();
    match refused(program, &error) {
        Outcome::NotFound(message) => (message, 127),
        Outcome::NotExecutable(message) | Outcome::Failed(message) => (message, 126),
        Outcome::Exited(_) | Outcome::Killed(_) => (error.to_string(), 126),
    }
}
