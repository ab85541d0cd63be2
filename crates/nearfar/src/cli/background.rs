//! A command that goes on in the background: this very binary once more, with `--foreground`, and how it is ended.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;

use crate::clock::{Stopwatch, sleep};
use crate::exit::{Exit, WithExit};
use crate::tier::service::NAP;
use crate::tier::state::Identity;

/// How long starting and stopping may take: sensors test themselves first.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// What is started.
#[derive(Debug)]
pub(super) struct Background<'a> {
    /// Its command: `tier` is `nearfar tier start`.
    pub(super) command: &'a str,
    /// What it does, for people.
    pub(super) what: &'a str,
    pub(super) arguments: &'a [std::ffi::OsString],
}

/// Starts the process that does the work, and waits until it does: until `runs` says so of the process with this number.
pub(super) fn start<S>(
    of: &Background<'_>,
    runs: impl Fn(u32) -> anyhow::Result<Option<S>>,
) -> anyhow::Result<S> {
    let exe = std::env::current_exe().context("looking for this binary")?;
    let mut command = Command::new(exe);
    command.args([of.command, "start", "--foreground"]).args(of.arguments);
    let log = tempfile::tempfile().context("creating a file for messages")?;
    let messages = log.try_clone().context("keeping messages")?;
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
    let mut child = command.spawn().context("starting the process that does the work")?;
    let waited = Stopwatch::start();
    while waited.elapsed() < PATIENCE {
        if let Some(state) = runs(child.id())? {
            return Ok(state);
        }
        if let Some(status) = child.try_wait().context("waiting for the process to start")? {
            let exit = if status.code() == Some(2) { Exit::Usage } else { Exit::Failed };
            let said = said(log)?;
            let said = said.trim().trim_start_matches("nearfar: ");
            return Err(WithExit { exit, error: anyhow::anyhow!("{said}") }.into());
        }
        sleep(NAP);
    }
    let _ = child.kill();
    anyhow::bail!(
        "{} did not start within {} s; nearfar {} start --foreground shows why",
        of.what,
        PATIENCE.as_secs(),
        of.command
    )
}

fn said(mut log: std::fs::File) -> anyhow::Result<String> {
    use std::io::{Read as _, Seek as _};
    let mut text = String::new();
    log.rewind()
        .and_then(|()| log.read_to_string(&mut text))
        .context("reading what the process said")?;
    Ok(text)
}

/// Ends it, and waits until it has ended.
pub(super) fn end(identity: Identity) -> anyhow::Result<()> {
    let number = identity.pid;
    let pid = i32::try_from(number).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.context("the state names no process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)
        .with_context(|| format!("ending process {number}"))?;
    let waited = Stopwatch::start();
    while identity.is_running() {
        anyhow::ensure!(waited.elapsed() < PATIENCE, "process {number} does not end");
        sleep(NAP);
    }
    Ok(())
}
