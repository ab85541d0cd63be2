//! `nearfar daemon` from a user's view: published values, refused arguments, and no files left after any end.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A directory of a test's own, with the page's directory still to be made.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn page(&self) -> String {
        text(&self.at("run/advice"))
    }

    /// All that is in it.
    fn left(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().into()
}

fn daemon(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.arg("daemon").args(arguments).stdin(Stdio::null()).env_remove("NEARFAR_ADVICE");
    command
}

fn output(arguments: &[&str]) -> Output {
    daemon(arguments).output().unwrap()
}

/// The message of a run that must fail with `status` and print nothing else.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = output(arguments);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A daemon that has published, and its messages so far.
struct Running {
    child: Child,
    said: String,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        Self::begin(daemon(arguments))
    }

    fn begin(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        while !said.contains("publishes") {
            assert!(lines.read_line(&mut said).unwrap() > 0, "it has ended: {said}");
        }
        Self { child, said }
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    fn end(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

/// The output of `status --json`, if it succeeds.
fn status(page: &str) -> Option<Value> {
    let output = output(&["status", "--json", "--advice", page]);
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn the_daemon_publishes_until_it_is_stopped_and_leaves_nothing() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::new();
        let running = Running::start(&["--interval", "10000", "--advice", &place.page()]);
        let found = status(&place.page()).unwrap();
        assert_eq!(found["schema"], "nearfar.daemon/2");
        assert_eq!(found["pid"], running.id());
        let rights = fs::read_to_string(format!("/proc/{}/status", running.id())).unwrap();
        assert!(rights.contains("CapPrm:\t0000000000000000\n"), "{rights}");
        assert_eq!(found["sources"]["pressure"], "timed loads");
        let nodes = found["nodes"].as_array().unwrap();
        assert!(!nodes.is_empty());
        for node in nodes {
            assert!(node["idle_ns"].as_u64().unwrap() > 0, "{node}");
            assert!(node["pressure_bp"].as_u64().unwrap() >= 5000, "{node}");
            assert!(node["free_bp"].as_u64().unwrap() <= 10_000, "{node}");
        }
        assert_eq!(nodes.iter().map(|node| node["weight"].as_u64().unwrap()).sum::<u64>(), 16);
        let table = output(&["status", "--advice", &place.page()]);
        let table = String::from_utf8(table.stdout).unwrap();
        assert!(table.contains(&format!("Process {}: sampling interval", running.id())), "{table}");
        assert!(table.contains("pressure") && table.contains("% of a CPU"), "{table}");
        assert_eq!(running.end(signal), Some(0), "{signal:?}");
        assert_eq!(place.left(), [] as [PathBuf; 0]);
        assert!(refused(&["status", "--advice", &place.page()], 1).contains("is not running"));
    }
}

#[test]
fn json_status_is_json_without_a_daemon() {
    let none = output(&["status", "--json", "--advice", &Place::new().page()]);
    let found: Value = serde_json::from_slice(&none.stdout).unwrap();
    assert_eq!((none.status.code(), &found["running"]), (Some(1), &Value::Bool(false)));
    assert_eq!(found["schema"], "nearfar.daemon/2");
    assert!(found["why"].as_str().unwrap().contains("the daemon is not running"), "{found}");
}

#[test]
fn the_daemon_measures_periodically() {
    let place = Place::new();
    let running = Running::start(&["--interval", "10", "--advice", &place.page()]);
    // On a busy machine a page may be old when it is looked at.
    let looks = || status(&place.page()).and_then(|found| found["looks"].as_u64());
    while looks().is_none_or(|looks| looks < 5) {}
    assert_eq!(running.end(Signal::TERM), Some(0));
}

#[test]
fn a_daemon_under_nohup_survives_its_terminal() {
    let place = Place::new();
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_nearfar")).args(["daemon", "--interval", "10"]);
    command.args(["--advice", &place.page()]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut running = Running::begin(command);
    kill_process(Pid::from_child(&running.child), Signal::HUP).unwrap();
    let looks = || status(&place.page()).and_then(|found| found["looks"].as_u64());
    let before = looks().unwrap_or_default();
    while looks().is_none_or(|looks| looks < before + 5) {
        assert_eq!(running.child.try_wait().unwrap(), None);
    }
    assert_eq!(running.end(Signal::TERM), Some(0));
}

#[test]
fn a_second_daemon_is_refused_and_the_first_is_named() {
    let place = Place::new();
    let running = Running::start(&["--interval", "10000", "--advice", &place.page()]);
    for arguments in [&["--advice", &place.page()][..], &["--recover", "--advice", &place.page()]] {
        let error = refused(arguments, 1);
        assert!(error.contains(&format!("process {}", running.id())), "{error}");
    }
    assert!(status(&place.page()).is_some(), "the first goes on");
    assert_eq!(running.end(Signal::TERM), Some(0));
}

#[test]
fn files_of_a_killed_daemon_are_removed_by_recover_or_the_next_start() {
    let place = Place::new();
    let tierd = text(&place.at("tierd"));
    let arguments = ["--interval", "10", "--advice", &place.page(), "--tierd", &tierd];
    let killed = || {
        assert_eq!(Running::start(&arguments).end(Signal::KILL), None);
        assert!(place.at("run/advice").exists() && place.at("tierd/node0").exists());
    };
    killed();
    while status(&place.page()).is_some() {}
    let error = refused(&["status", "--advice", &place.page()], 1);
    assert!(error.contains("is not running") && error.contains("--recover"), "{error}");
    // Someone else's file beside ours stays.
    fs::write(place.at("tierd/node0/notes"), "theirs").unwrap();
    let said = refused(&["--recover", "--advice", &place.page()], 0);
    assert!(said.contains("removed") && said.contains("was killed"), "{said}");
    assert_eq!(place.left(), [place.at("tierd")]);
    assert_eq!(fs::read_dir(place.at("tierd/node0")).unwrap().count(), 1);
    fs::remove_dir_all(place.at("tierd")).unwrap();
    let said = refused(&["--recover", "--advice", &place.page()], 0);
    assert!(said.contains("nothing was left"), "{said}");
    // And by the next start, even if that writes less.
    killed();
    let running = Running::start(&["--interval", "10000", "--advice", &place.page()]);
    assert!(running.said.contains("left by a daemon that was killed"), "{}", running.said);
    assert!(!place.at("tierd").exists());
    assert_eq!(running.end(Signal::TERM), Some(0));
    assert_eq!(place.left(), [] as [PathBuf; 0]);
}

#[test]
fn files_of_smdks_daemon_are_written_on_request() {
    let place = Place::new();
    let config = place.at("daemon.toml");
    let lines = [
        "interval_ms = 10000".into(),
        format!("advice = \"{}\"", place.page()),
        format!("tierd = \"{}\"", text(&place.at("tierd"))),
    ];
    fs::write(&config, lines.join("\n")).unwrap();
    let running = Running::start(&["--config", &text(&config)]);
    assert!(running.said.contains("every 10000 ms"), "{}", running.said);
    let read = |name: &str| fs::read_to_string(place.at("tierd/node0").join(name)).unwrap();
    for name in ["idle_state_bandwidth", "idle_state_capacity"] {
        assert!(["true\n", "false\n"].contains(&read(name).as_str()), "{name}");
    }
    for name in ["max_read_bw", "max_write_bw", "max_bw", "remain_bandwidth"] {
        assert!(read(name).trim().parse::<f64>().is_ok(), "{name}");
    }
    assert!(read("fallback_order_tier").starts_with('0'));
    assert_eq!(running.end(Signal::TERM), Some(0));
    assert_eq!(place.left(), [config]);
}

#[test]
fn files_of_other_programs_are_kept_and_no_partial_files_remain() {
    let place = Place::new();
    fs::create_dir_all(place.at("tierd/node0")).unwrap();
    fs::write(place.at("tierd/node0/max_bw"), "7\n").unwrap();
    let tierd = text(&place.at("tierd"));
    let error = refused(&["--advice", &place.page(), "--tierd", &tierd], 1);
    assert!(error.contains("node0/max_bw is there already") && error.contains("SMDK"), "{error}");
    assert_eq!(fs::read_to_string(place.at("tierd/node0/max_bw")).unwrap(), "7\n");
    assert_eq!(place.left(), [place.at("tierd")]);
    let notes = place.at("notes");
    fs::write(&notes, "mine").unwrap();
    let error = refused(&["--advice", &text(&notes)], 1);
    assert!(error.contains("left as it is"), "{error}");
    assert_eq!(fs::read_to_string(&notes).unwrap(), "mine");
}

#[test]
fn impossible_options_are_refused_with_the_remedy() {
    let place = Place::new();
    let config = place.at("daemon.toml");
    for (line, says) in [
        ("\ninterval = 5", "line 2: `interval = 5`: unknown field"),
        ("interval_ms = 0", "from 10 to 60000"),
        ("tierd = [1]", "line 1"),
    ] {
        fs::write(&config, line).unwrap();
        let error = refused(&["--config", &text(&config), "--advice", &place.page()], 2);
        assert!(error.contains("daemon.toml") && error.contains(says), "{error}");
    }
    let none = text(&place.at("none.toml"));
    assert!(refused(&["--config", &none], 2).contains("none.toml"));
    for arguments in [
        &["--interval", "9"][..],
        &["--interval", "60001"],
        &["--interval", "2m"],
        &["--interval", "soon"],
        &["--once", "--tierd"],
        &["--json"],
        &["--recover", "--interval", "100"],
        &["--interval", "100", "status"],
    ] {
        refused(arguments, 2);
    }
    // A missing directory; one that is not writable; a path that is not a directory.
    let error = refused(&["--advice", &text(&place.at("no/such/advice"))], 1);
    assert!(error.contains(&format!("no directory {}", text(&place.at("no")))), "{error}");
    let error = refused(&["--advice", "/sys/advice"], 1);
    assert!(error.contains("/sys/advice") && error.contains("needs root"), "{error}");
    let unnamed = daemon(&[]).env("NEARFAR_ADVICE", "/sys/advice").output().unwrap();
    let error = String::from_utf8(unnamed.stderr).unwrap();
    assert!(error.contains("--advice FILE"), "{error}");
    let error = refused(&["--advice", &text(&config.join("advice"))], 1);
    assert!(error.contains("daemon.toml"), "{error}");
    assert_eq!(place.left(), [config]);
}

#[test]
fn a_single_measurement_is_shown_and_not_published() {
    let place = Place::new();
    let once = output(&["--once", "--json", "--interval", "10ms", "--advice", &place.page()]);
    assert!(once.status.success(), "{once:?}");
    let found: Value = serde_json::from_slice(&once.stdout).unwrap();
    assert_eq!(found["schema"], "nearfar.daemon/2");
    assert!(!found["nodes"].as_array().unwrap().is_empty());
    let table = output(&["--once", "--interval", "10"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("nothing is published"), "{table:?}");
    assert_eq!(place.left(), [] as [PathBuf; 0]);
}
