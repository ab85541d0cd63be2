//! Servers and clients as child processes: started, supervised, and stopped by process id in every case.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::line::{Line, find};
use nearfar_command::interrupt;
use nearfar_kernel::clock::{self, Stopwatch};

/// Polling interval for a child.
const LOOK: Duration = Duration::from_millis(10);
/// Time limit until a server listens; emulated machines start programs slowly.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time for a child to end before it is killed.
const END_LIMIT: Duration = Duration::from_secs(20);

/// Context for starting children.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launcher<'a> {
    /// This binary.
    pub(crate) nearfar: &'a Path,
    /// Directory for the output of children.
    pub(crate) dir: &'a Path,
}

/// A server, stopped when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    line: Line,
    log: PathBuf,
}

impl Launcher<'_> {
    /// Starts a server and waits until it listens on `port`; its output goes to the file `name`.
    pub(crate) fn serve(self, line: &Line, port: u16, name: &str) -> anyhow::Result<Server> {
        let log = self.dir.join(name);
        let child = self.spawn(line, &log)?;
        let mut server = Server { child, line: line.clone(), log };
        server.wait_until_it_listens(port)?;
        Ok(server)
    }

    /// Starts a program without waiting for it; its output goes to the file `name`.
    pub(crate) fn start(self, line: &Line, name: &str) -> anyhow::Result<Server> {
        let log = self.dir.join(name);
        Ok(Server { child: self.spawn(line, &log)?, line: line.clone(), log })
    }

    /// Runs a client to its end and returns its output, which is also saved in the file `name`.
    pub(crate) fn run(self, line: &Line, name: &str, limit: Duration) -> anyhow::Result<String> {
        let log = self.dir.join(name);
        let mut child = self.spawn(line, &log)?;
        let started = Stopwatch::start();
        let status = loop {
            if let Some(status) =
                child.try_wait().with_context(|| format!("waiting for `{line}`"))?
            {
                break status;
            }
            if let Err(interrupted) = interrupt::check() {
                stop(&mut child);
                return Err(interrupted);
            }
            if started.elapsed() > limit {
                stop(&mut child);
                bail!("`{line}` did not end within {} s{}", limit.as_secs(), last_lines(&log));
            }
            clock::sleep(LOOK);
        };
        if !status.success() {
            bail!("`{line}` ended with {status}{}", last_lines(&log));
        }
        std::fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))
    }

    fn spawn(self, line: &Line, log: &Path) -> anyhow::Result<Child> {
        let create = |path: &Path| {
            File::create(path).with_context(|| format!("creating {}", path.display()))
        };
        let (output, errors) = (create(log)?, create(&errors(log))?);
        tethered(&line.command(self.nearfar))
            .current_dir(self.dir)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting `{line}`"))
    }
}

impl Server {
    /// Its process; `nearfar run` has exec'd the server, so this is the server.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_it_listens(&mut self, port: u16) -> anyhow::Result<()> {
        let started = Stopwatch::start();
        loop {
            interrupt::check()?;
            if let Some(status) = self.ended()? {
                bail!("`{}` ended at once with {status}{}", self.line, last_lines(&self.log));
            }
            if TcpStream::connect(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(());
            }
            if started.elapsed() > START_LIMIT {
                let seconds = START_LIMIT.as_secs();
                bail!("`{}` did not listen within {seconds} s{}", self.line, last_lines(&self.log));
            }
            clock::sleep(LOOK);
        }
    }

    /// Its output so far. An error if it ended with a non-zero status.
    pub(crate) fn output(&mut self) -> anyhow::Result<String> {
        if let Some(status) = self.ended()?.filter(|status| !status.success()) {
            bail!("`{}` ended with {status}{}", self.line, last_lines(&self.log));
        }
        std::fs::read_to_string(&self.log)
            .with_context(|| format!("reading {}", self.log.display()))
    }

    /// The end of its output, for an error.
    pub(crate) fn last_words(&self) -> String {
        last_lines(&self.log)
    }

    /// Its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("waiting for `{}`", self.line))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

/// Continues a process that stopped itself.
pub(crate) fn go_on(pid: u32) -> anyhow::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.context("no such process")?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::CONT)?)
}

/// A currently free port of the ephemeral range.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    Ok(address
        .context("looking for a free port on 127.0.0.1; is the loopback interface up?")?
        .port())
}

/// The same command, killed by the kernel if this process is killed: through util-linux's setpriv, if installed.
pub(crate) fn tethered(command: &Command) -> Command {
    let Some(setpriv) = find("setpriv") else {
        let mut same = Command::new(command.get_program());
        same.args(command.get_args());
        return same;
    };
    let mut tethered = Command::new(setpriv);
    tethered.args(["--pdeathsig", "KILL", "--"]);
    tethered.arg(command.get_program()).args(command.get_args());
    tethered
}

/// Waits until a child has ended. A signal to this process is forwarded, and the child may clean up.
pub(crate) fn wait_for(child: &mut Child) -> anyhow::Result<ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait().context("waiting for a program")? {
            interrupt::check()?;
            return Ok(status);
        }
        if !told && interrupt::check().is_err() {
            told = true;
            ask_to_end(child);
        }
        clock::sleep(LOOK);
    }
}

/// Sends a child, which has not been waited for, SIGTERM.
fn ask_to_end(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    // It may have ended in between.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
}

/// Ends a child, which may be a `nearfar run` that first ends its program and restores settings.
fn stop(child: &mut Child) {
    ask_to_end(child);
    let asked = Stopwatch::start();
    while asked.elapsed() < END_LIMIT {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        clock::sleep(LOOK);
    }
    // Fails only if it has ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// File for the standard error of a child.
fn errors(log: &Path) -> PathBuf {
    log.with_extension("err")
}

/// The end of a child's output, for an error.
fn last_lines(log: &Path) -> String {
    const LINES: usize = 4;
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let text = read(log) + &read(&errors(log));
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("; ");
    if last.is_empty() { String::new() } else { format!("; it said: {last}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn launch<T>(with: impl FnOnce(Launcher<'_>) -> T) -> T {
        let dir = tempfile::tempdir().unwrap();
        with(Launcher { nearfar: Path::new("/bin/false"), dir: dir.path() })
    }

    #[test]
    fn a_clients_output_is_returned_and_saved() {
        launch(|launcher| {
            assert_eq!(launcher.run(&Line::words("echo hello"), "echo", LIMIT).unwrap(), "hello\n");
            assert_eq!(std::fs::read_to_string(launcher.dir.join("echo")).unwrap(), "hello\n");
        });
    }

    #[test]
    fn a_failed_client_is_reported_with_its_output() {
        let line = Line::new(["sh", "-c", "echo no such server >&2; exit 3"]);
        let error =
            launch(|launcher| launcher.run(&line, "client", LIMIT)).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no such server"), "{error}");
    }

    #[test]
    fn a_client_that_hangs_is_stopped() {
        let line = Line::words("sleep 1000");
        let limit = Duration::from_millis(50);
        let error =
            launch(|launcher| launcher.run(&line, "client", limit)).unwrap_err().to_string();
        assert!(error.contains("did not end"), "{error}");
    }

    #[test]
    fn a_server_may_clean_up_before_it_is_killed() {
        let line = "trap 'echo cleaned up; exit' TERM; echo ready; while :; do sleep 0.01; done";
        launch(|launcher| {
            let mut server = launcher.start(&Line::new(["sh", "-c", line]), "server").unwrap();
            while server.output().unwrap().is_empty() {
                clock::sleep(LOOK);
            }
            drop(server);
            let said = std::fs::read_to_string(launcher.dir.join("server")).unwrap();
            assert_eq!(said, "ready\ncleaned up\n");
        });
    }

    #[test]
    fn a_server_that_exits_immediately_is_reported_with_its_output() {
        let line = Line::new(["sh", "-c", "echo bad option; exit 1"]);
        let port = free_port().unwrap();
        let error = launch(|launcher| launcher.serve(&line, port, "log")).unwrap_err().to_string();
        assert!(error.contains("ended at once") && error.contains("bad option"), "{error}");
    }

    #[test]
    fn a_missing_program_is_reported_by_name() {
        let line = Line::words("no-such-program-here");
        let error = launch(|launcher| launcher.run(&line, "x", LIMIT)).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program-here"), "{error:#}");
    }
}
