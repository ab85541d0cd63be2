//! scripts/policy: services of packages are not started while scripts/setup runs; afterwards they may start again, even
//! if it was killed.

#![expect(clippy::unwrap_used, reason = "this is a test program")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A shell that has written the policy and waits until its input ends.
fn shell(file: &Path) -> Child {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/policy");
    let run = r#"set -euo pipefail; . "$1"; deny_services "$2"; echo ready; read -r || true"#;
    let mut bash = Command::new("bash");
    bash.args(["-c", run, "setup"]).arg(script).arg(file);
    let mut shell = bash.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    shell
}

/// The policy's answer: 101 denies, 0 allows.
fn asked(file: &Path) -> Option<i32> {
    Command::new(file).arg("memcached").arg("start").status().unwrap().code()
}

#[test]
fn services_are_denied_only_while_setup_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy-rc.d");
    let mut setup = shell(&file);
    assert_eq!(asked(&file), Some(101));
    assert!(file.exists());
    drop(setup.stdin.take());
    assert!(setup.wait().unwrap().success());
    assert!(!file.exists());
}

#[test]
fn the_policy_of_a_killed_setup_allows_services_and_removes_itself() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy-rc.d");
    let mut setup = shell(&file);
    setup.kill().unwrap();
    setup.wait().unwrap();
    assert_eq!(asked(&file), Some(0));
    assert!(!file.exists());
}

#[test]
fn another_setup_replaces_the_policy_of_a_killed_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy-rc.d");
    let mut killed = shell(&file);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut setup = shell(&file);
    assert_eq!(asked(&file), Some(101));
    drop(setup.stdin.take());
    setup.wait().unwrap();
    assert!(!file.exists());
}

#[test]
fn a_policy_of_the_administrator_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy-rc.d");
    std::fs::write(&file, "#!/bin/sh\nexit 104\n").unwrap();
    let mut setup = shell(&file);
    drop(setup.stdin.take());
    setup.wait().unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "#!/bin/sh\nexit 104\n");
}
