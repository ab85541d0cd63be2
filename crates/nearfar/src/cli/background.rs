//! Starts a service in the background: this binary again, with `--foreground`; and the arguments of its end.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use anyhow::Context as _;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::journal::{Journal, OnConflict};
use nearfar_kernel::process::Identity;

use nearfar_command::exit::{Exit, WithExit};
use nearfar_command::{interrupt, output, terminal};
use nearfar_daemon::owner::{self, PATIENCE, Service, Whom};
use nearfar_daemon::tier::service::NAP;
use nearfar_kernel::clock::{Stopwatch, sleep};

/// Arguments of `stop`.
#[derive(Debug, clap::Args)]
pub(super) struct StopArgs {
    /// Also restore settings that another process has changed since
    #[arg(long)]
    overwrite: bool,
    /// Only restore the settings of a process that was killed; a running one goes on
    #[arg(long)]
    if_dead: bool,
}

impl StopArgs {
    pub(super) fn on_conflict(&self) -> OnConflict {
        if self.overwrite { OnConflict::Overwrite } else { OnConflict::Refuse }
    }

    pub(super) fn whom(&self) -> Whom {
        if self.if_dead { Whom::Nobody } else { Whom::Any }
    }
}

/// Starts the process that does the work and waits until it is ready: until `runs` returns the state of the process
/// with this id. A signal that ends this process ends the started one, too.
pub(super) fn start<S>(
    service: Service,
    arguments: &[std::ffi::OsString],
    runs: impl Fn(u32) -> Option<S>,
) -> anyhow::Result<S> {
    let stop = interrupt::flag()?;
    let fs = RootFs::live()?;
    let journal = Journal::new(Journal::default_dir(), &fs, "/");
    let claim = service.claim(&fs, &journal)?;
    let exe = std::env::current_exe().context("looking for this binary")?;
    let mut command = Command::new(exe);
    command.args([service.word(), "start", "--foreground", "--claimed"]).args(arguments);
    // -v is left out: the process would write to the unnamed file for ever.
    command.args(terminal::get().quiet.then_some("-q"));
    let log = tempfile::tempfile().context("creating a file for messages")?;
    let messages = log.try_clone().context("keeping messages")?;
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    // Another unit's service manager expects nothing of the service.
    for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(name);
    }
    command.stdin(owner::for_child(&claim)?).stdout(Stdio::null()).stderr(messages);
    let mut child = command.spawn().context("starting the process that does the work")?;
    claim.leave();
    let waited = Stopwatch::start();
    while waited.elapsed() < PATIENCE {
        if let Some(state) = runs(child.id()) {
            output::print_error(&read_messages(log)?);
            return Ok(state);
        }
        if let Some(status) = child.try_wait().context("waiting for the process to start")? {
            let exit = if status.code() == Some(2) { Exit::Usage } else { Exit::Failed };
            let said = read_messages(log)?;
            let said = said.trim().trim_start_matches("nearfar: ");
            anyhow::ensure!(!said.is_empty(), "it was ended ({status}) before it ran");
            return Err(WithExit { exit, error: anyhow::anyhow!("{said}") }.into());
        }
        if stop.load(Ordering::Relaxed) {
            end(&mut child, service)?;
            anyhow::bail!("interrupted: nothing was started, and all settings are as before");
        }
        sleep(NAP);
    }
    // Not by SIGKILL: it restores what it has set.
    end(&mut child, service)?;
    anyhow::bail!(
        "it did not start within {} s and was ended; all settings are as before. nearfar {} start --foreground shows why",
        PATIENCE.as_secs(),
        service.word()
    )
}

/// Asks the child to end, and waits until it has restored its settings.
fn end(child: &mut Child, service: Service) -> anyhow::Result<()> {
    let pid = child.id();
    if let Some(process) = Identity::of(pid) {
        process.terminate().context("ending the process that was to do the work")?;
    }
    let waited = Stopwatch::start();
    while waited.elapsed() < PATIENCE {
        if child.try_wait().context("waiting for the process that was to do the work")?.is_some() {
            return Ok(());
        }
        sleep(NAP);
    }
    anyhow::bail!(
        "process {pid} was to do the work, was asked to end, and still runs; end it with SIGKILL, then restore its settings: \
         nearfar {} stop",
        service.word()
    )
}

fn read_messages(mut log: std::fs::File) -> anyhow::Result<String> {
    use std::io::{Read as _, Seek as _};
    let mut text = String::new();
    log.rewind()
        .and_then(|()| log.read_to_string(&mut text))
        .context("reading the process's messages")?;
    Ok(text)
}
