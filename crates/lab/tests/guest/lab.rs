//! Starts guests for tests.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_nearfar-lab");

/// Downloads the tests' requirements, once, so that no test's time or messages depend on it.
pub(crate) fn prepare() {
    let status = Command::new(LAB).arg("fetch").stderr(Stdio::inherit()).status().unwrap();
    assert!(
        status.success(),
        "the lab's cache could not be filled; LAB=off leaves these tests out"
    );
}

/// Result of a lab command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ended {
    /// The result; a boot that the emulator spoilt is none of the test's: its line goes to the summary.
    fn from(output: Output) -> Self {
        let mut ended = Self::as_printed(output);
        let restarts = |line: &&str| line.ends_with("; booting again");
        for line in ended.err.lines().filter(restarts) {
            println!("guest restarted: {line}");
        }
        ended.err =
            ended.err.split_inclusive('\n').filter(|line| !restarts(&line.trim_end())).collect();
        ended
    }
}

impl Ended {
    /// The result with every line.
    pub(crate) fn as_printed(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self {
            status: output.status.code().unwrap_or(-1),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

/// `nearfar-lab` with arguments, not started yet; without input.
pub(crate) fn lab(args: &[&str]) -> Command {
    let mut command = Command::new(LAB);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `nearfar-lab run` with `options` before the command; by default without timing and on few CPUs.
pub(crate) fn run(options: &str, command: &[&str]) -> Command {
    let mut args = vec!["run"];
    if !options.contains("--timing") {
        args.extend(["--timing", "off"]);
    }
    if !options.contains("--cpus") && !options.contains("-M") {
        args.extend(["--cpus", "1"]);
    }
    args.extend(options.split_whitespace());
    args.push("--");
    args.extend(command);
    lab(&args)
}

/// Runs a shell script in a guest to its end.
pub(crate) fn sh(options: &str, script: &str) -> Ended {
    run(options, &["sh", "-c", script]).output().unwrap().into()
}

/// Starts `command`, writes `input` to it, and waits for its end.
pub(crate) fn fed(mut command: Command, input: Vec<u8>) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    output
}

/// Waits until `condition` holds, for at most a minute.
#[expect(clippy::disallowed_methods, reason = "waiting for another process")]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1200 {
        if condition() {
            return;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("waited a minute for: {what}");
}

/// The QEMU process of a running lab; waits for it.
pub(crate) fn qemu_of(lab: &Child) -> u32 {
    let tasks = PathBuf::from(format!("/proc/{}/task", lab.id()));
    let mut found = None;
    wait_until("the lab's QEMU", || {
        let children = fs::read_dir(&tasks)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let pids: Vec<u32> = children
            .flat_map(|pids| {
                pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
            })
            .collect();
        found = pids.into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("-kernel") && !line.contains("shim")
        });
        found.is_some()
    });
    found.unwrap()
}

/// Whether a process exists and is not a zombie.
pub(crate) fn alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z') && !rest.starts_with('X'))
}

/// A path as text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Ends a test that can't be run here, with the reason.
pub(crate) struct LeftOut(pub(crate) &'static str);

/// A script with the right to mount in a namespace of its own; ends the test where this machine does not allow that.
pub(crate) fn in_own_mounts(script: &str) -> Command {
    let user = ["--user", "--map-root-user"];
    let unshare = |more: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(more).arg("--mount");
        command
    };
    let works = |more: &[&str]| {
        let mut probe = unshare(more);
        probe.args(["mount", "-t", "tmpfs", "none", "/mnt"]).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    let Some(more) = [&[][..], &user].into_iter().find(|more| works(more)) else {
        std::panic::resume_unwind(Box::new(LeftOut("no namespace to mount in")));
    };
    let mut command = unshare(more);
    command.args(["sh", "-c", script, "sh"]);
    command
}
