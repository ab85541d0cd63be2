//! The command line: `nearfar-lab`, and `nearfar lab` with the same arguments; the checks in `nearfar dev`.

use std::fmt;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, Subcommand};

use crate::fetch::{FetchError, Say};
use crate::host::RunError;
use crate::machine::MachineError;

mod check;
mod fetch;
mod hidden;
mod machines;
mod model;
mod run;

/// Run commands on an emulated machine with near and far memory, under a real kernel
#[derive(Debug, Parser)]
#[command(name = "nearfar-lab", version, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

/// Checks of the lab itself: commands of `nearfar dev`.
#[derive(Debug, Subcommand)]
pub enum Check {
    /// Check latencies and bandwidths in guests against their machine file
    Accuracy(check::AccuracyArgs),
    /// Check the cost of emulating timing
    Overhead(check::OverheadArgs),
    /// Check that boots succeed and measure the same beside a busy host
    Repeat(check::RepeatArgs),
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command in a guest as on the host
    Run(run::RunArgs),
    /// An interactive shell in a guest
    Shell(run::ShellArgs),
    /// List the built-in machines, or check and show machine files
    Machines(machines::MachinesArgs),
    /// Download what the lab needs into its cache
    Fetch(fetch::FetchArgs),
    /// (the guest's first process)
    #[command(hide = true)]
    Guest(hidden::GuestArgs),
    /// (becomes the command in the guest's terminal)
    #[command(hide = true)]
    GuestExec(hidden::GuestExecArgs),
    /// (becomes QEMU and ends with the process that started it)
    #[command(hide = true)]
    Shim(hidden::ShimArgs),
}

/// The failure of a lab command, with its exit status.
#[derive(Debug)]
pub struct Failure {
    /// 1: the operation failed; 2: bad usage; 125: the lab failed before or under the command.
    pub status: u8,
    message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&self.message))
    }
}

/// The text without control characters, which could affect a terminal: it may come from a machine file, or from a
/// guest.
fn plain(text: &str) -> String {
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars().map(|c| if is_plain(c) { c } else { '?' }).collect()
}

/// Prints text on standard output. A reader that closes the pipe early is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(plain(text).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure { status: 1, message: format!("can't write to standard output: {error}") })
        }
        _ => Ok(()),
    }
}

impl std::error::Error for Failure {}

impl From<MachineError> for Failure {
    fn from(error: MachineError) -> Self {
        Self { status: 2, message: error.to_string() }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let status = match error {
            RunError::Fetch(FetchError::UnknownKernel(_) | FetchError::NoModules { .. }) => 2,
            _ => 125,
        };
        Self { status, message: error.to_string() }
    }
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        let status = if matches!(error, FetchError::UnknownKernel(_)) { 2 } else { 1 };
        Self { status, message: error.to_string() }
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Checks the lab. `reenter` as for [`run()`].
///
/// # Errors
/// [`Failure`]; a check that does not hold is not one, the exit status is then 1.
pub fn check(check: &Check, reenter: &[&str]) -> Result<ExitCode, Failure> {
    match check {
        Check::Accuracy(args) => check::accuracy(args, owned(reenter)),
        Check::Overhead(args) => check::overhead(args, owned(reenter)),
        Check::Repeat(args) => check::repeat(args, owned(reenter)),
    }
}

/// Runs a lab command. `reenter` are the arguments that invoke this command line: none for `nearfar-lab`, `lab` for
/// `nearfar lab`.
///
/// # Errors
/// [`Failure`]; a failing command in the guest is not one, its exit status is returned.
pub fn run(args: Args, reenter: &[&str]) -> Result<ExitCode, Failure> {
    let reenter = owned(reenter);
    match args.command {
        Command::Run(args) => run::run(args, reenter),
        Command::Shell(args) => run::shell(args, reenter),
        Command::Machines(args) => machines::run(&args),
        Command::Fetch(args) => fetch::run(&args),
        Command::Guest(args) => hidden::guest(&args, &reenter),
        Command::GuestExec(args) => hidden::guest_exec(&args),
        Command::Shim(args) => hidden::shim(&args),
    }
}

/// Whether progress is left out.
static HIDDEN: AtomicBool = AtomicBool::new(false);

/// Leaves out the progress of downloads and boots.
pub fn hide_progress() {
    HIDDEN.store(true, Ordering::Relaxed);
}

/// Progress on standard error.
#[derive(Debug)]
struct Stderr {
    terminal: bool,
}

impl Stderr {
    fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal() && !HIDDEN.load(Ordering::Relaxed) }
    }
}

impl Say for Stderr {
    fn line(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "nearfar lab: {}", plain(text));
    }

    fn status(&self, text: &str) {
        if self.terminal {
            let mut err = std::io::stderr();
            let _ = write!(err, "\r\x1b[K{}", plain(text)).and_then(|()| err.flush());
        }
    }

    fn progress(&self, done: u64, total: u64) {
        if !self.terminal {
            return;
        }
        let mut err = std::io::stderr();
        let _ = if done >= total {
            write!(err, "\r\x1b[K")
        } else {
            let (done, total) = (done / 1_000_000, total.div_ceil(1_000_000));
            write!(err, "\r  {done} of {total} MB\x1b[K")
        };
        let _ = err.flush();
    }
}
