//! QEMU as a child process that can't outlive us.
//!
//! It is started through a shim: this program again, which asks the kernel to be killed with its parent and then
//! executes QEMU. As a second guard the guest's runner powers off when the port's other end closes. QEMU is in a
//! process group of its own, so a terminal's signals reach only us, and we decide how to handle them.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::RunError;
use super::begin::Begin;
use super::files::RunFiles;
use crate::clock::{self, Deadline};
use crate::fetch::Qemu;

/// A running QEMU; killed when dropped.
#[derive(Debug)]
pub(super) struct Vm {
    child: Child,
    begin: Option<Begin>,
}

impl Vm {
    /// Starts QEMU with `args`; returns it and our end of the port.
    pub(super) fn start(
        reenter: &[String],
        qemu: &Qemu,
        args: &[OsString],
        files: &RunFiles,
    ) -> Result<(Self, UnixStream), RunError> {
        let failed = |source| RunError::Process { what: "connecting to the guest", source };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let begin = Begin::listen(&files.begins()).map_err(failed)?;
        let path = files.qemu();
        let log = File::create(&path).map_err(|source| RunError::File {
            what: "writing QEMU's log",
            path,
            source,
        })?;
        let mut command = guarded(reenter, qemu, args)?;
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(log);
        let child = command
            .spawn()
            .map_err(|source| RunError::Process { what: "starting QEMU", source })?;
        Ok((Self { child, begin: Some(begin) }, ours))
    }

    /// Starts a QEMU that has no guest.
    pub(super) fn bare(
        reenter: &[String],
        qemu: &Qemu,
        args: &[OsString],
        log: File,
    ) -> Result<Self, RunError> {
        let mut command = guarded(reenter, qemu, args)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|source| RunError::Process { what: "starting QEMU", source })?;
        Ok(Self { child, begin: None })
    }

    /// Has memory modelled from now on: the guest is up.
    pub(super) fn begin(&self) -> Result<(), String> {
        let told = self.begin.as_ref().map_or(Ok(()), Begin::tell);
        told.map_err(|error| format!("the timing plugin does not answer ({error})"))
    }

    /// Its exit status, once it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Its exit status, if it ends within this time.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let patience = Deadline::after(Some(limit));
        loop {
            let ended = self.ended();
            if ended.is_some() || patience.passed() {
                return ended;
            }
            clock::sleep(Duration::from_millis(5));
        }
    }

    /// Asks it to end, which lets the timing plugin write its statistics; kills it after a timeout. Returns whether it
    /// ended by itself.
    pub(super) fn end(mut self) -> bool {
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM);
        self.wait(Duration::from_secs(5)).is_some()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if self.ended().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn guarded(reenter: &[String], qemu: &Qemu, args: &[OsString]) -> Result<Command, RunError> {
    let program = std::env::current_exe()
        .map_err(|source| RunError::Process { what: "finding this program", source })?;
    let mut command = Command::new(program);
    command.args(reenter).arg("shim").arg(std::process::id().to_string()).arg("--");
    command.args(&qemu.command).args(args).envs(qemu.env.iter().cloned()).process_group(0);
    Ok(command)
}

/// The shim: ties this process's life to that of `parent`, then executes `argv`. Returns only on failure.
pub(crate) fn shim(parent: u32, argv: &[OsString]) -> String {
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        return format!("asking to end with the parent process: {error}");
    }
    // If the parent died before, no signal would come any more.
    let now = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if u32::try_from(now) != Ok(parent) {
        return "the parent process is gone".to_owned();
    }
    let Some((program, args)) = argv.split_first() else {
        return "no program given".to_owned();
    };
    let error = Command::new(program).args(args).exec();
    format!("{}: {error}", program.display())
}
