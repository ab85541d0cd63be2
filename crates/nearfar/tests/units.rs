//! The systemd units: they confine the services and pass systemd's checks; services notify systemd.

#![expect(clippy::unwrap_used, reason = "this is a test program")]

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "units/notified.rs"]
mod notified;

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
fn every_service_has_a_security_exposure_below_3() {
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
fn systemd_accepts_every_line() {
    let dir = tempfile::tempdir().unwrap();
    let units = installed(dir.path());
    let output = Command::new("systemd-analyze").arg("verify").args(&units).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let about: Vec<_> = said.lines().filter(|line| line.contains("nearfar-")).collect();
    assert!(about.is_empty(), "{about:?}");
}

fn nearfar(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.args(arguments);
    command
}

/// Those that need several nodes are followed in a guest.
#[test]
fn the_daemon_notifies_systemd_when_ready_alive_and_stopping() {
    notified::notifies(&mut nearfar(&["daemon", "--advice", "advice"]), "STATUS=publishing at");
}

/// It may open no socket once it serves.
#[test]
fn the_cache_notifies_systemd_when_ready_alive_and_stopping() {
    let service = ["cache", "serve", "-p", "0", "-m", "16m"];
    notified::notifies(&mut nearfar(&service), "STATUS=serving");
}
