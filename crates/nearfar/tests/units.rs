//! The systemd units: they confine the services and pass systemd's checks; services notify systemd.

#![expect(clippy::unwrap_used, reason = "this is a test program")]

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn units() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../share/systemd");
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|extension| extension == "service")).collect()
}

/// The units as installed, with a program that is there.
fn installed(dir: &Path) -> Vec<PathBuf> {
    let bin = Path::new(env!("CARGO_BIN_EXE_nearfar")).parent().unwrap().display().to_string();
    let install = |unit: PathBuf| {
        let text = std::fs::read_to_string(&unit).unwrap();
        // systemd-analyze checks that manual pages are installed, which these are not.
        let lines = text.lines().filter(|line| !line.starts_with("Documentation="));
        let text = lines.collect::<Vec<_>>().join("\n").replace("@BINDIR@", &bin) + "\n";
        let to = dir.join(unit.file_name().unwrap());
        std::fs::write(&to, text).unwrap();
        to
    };
    units().into_iter().map(install).collect()
}

#[test]
fn every_service_is_confined_below_an_exposure_of_3() {
    let dir = tempfile::tempdir().unwrap();
    let units = installed(dir.path());
    assert_eq!(units.len(), 4, "{units:?}");
    for unit in units {
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["security", "--no-pager", "--offline=true", "--threshold=30"]).arg(&unit);
        let output = analyze.output().expect("systemd-analyze is installed (scripts/setup test)");
        let said = String::from_utf8(output.stdout).unwrap();
        let level = said.lines().last().unwrap_or_default();
        assert!(output.status.success(), "{}: {level}", unit.display());
    }
}

#[test]
fn systemd_understands_every_line() {
    let dir = tempfile::tempdir().unwrap();
    let units = installed(dir.path());
    let output = Command::new("systemd-analyze").arg("verify").args(&units).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let about: Vec<_> = said.lines().filter(|line| line.contains("nearfar-")).collect();
    assert!(about.is_empty(), "{about:?}");
}

/// Starts a service with a socket of a service manager, and follows it from ready to stopping.
fn notifies(arguments: &[&str], ready: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut service = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    service.args(arguments).env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    let mut service = service.current_dir(dir.path()).stderr(Stdio::null()).spawn().unwrap();
    let heard = || {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let first = heard();
    assert!(first.contains("READY=1") && first.contains(ready), "{first}");
    assert!(heard().contains("WATCHDOG=1"));
    let pid = rustix::process::Pid::from_child(&service);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!((0..100).any(|_| heard().contains("STOPPING=1")));
    assert!(service.wait().unwrap().success());
}

#[test]
fn the_daemon_says_when_it_is_ready_alive_and_stopping() {
    notifies(&["daemon", "--advice", "advice"], "STATUS=publishing at");
}

/// It may open no socket once it serves.
#[test]
fn the_cache_says_when_it_is_ready_alive_and_stopping() {
    notifies(&["cache", "serve", "-p", "0", "-m", "16m"], "STATUS=serving");
}
