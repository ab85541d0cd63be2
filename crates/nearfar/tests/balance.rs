//! `nearfar balance` where there is nothing to balance, or no right to: what it says, and the status it ends with.

#![expect(clippy::unwrap_used, reason = "this is a test program")]

use std::path::Path;
use std::process::{Command, Output};

/// On a machine with one node this refuses for that; on others for what the arguments say.
fn balance(state: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    let Output { status, stdout, stderr } =
        command.arg("balance").args(arguments).env("NEARFAR_STATE", state).output().unwrap();
    assert!(stdout.is_empty() || status.success(), "{arguments:?}");
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn bad_usage_is_told_from_failure_and_names_what_was_asked() {
    let state = tempfile::tempdir().unwrap();
    for (arguments, says) in [
        (&["start", "--policy", "fair"][..], "[possible values: balanced, carrefour, colloid]"),
        (&["start", "--rate", "0"], "--rate"),
        (&["start", "--rate", "much"], "--rate"),
        (&["start", "--pid", "0"], "--pid"),
        (&["start", "--pid", "1", "--cgroup", "x"], "--cgroup"),
        (&["restart"], "restart"),
    ] {
        let (code, said) = balance(state.path(), arguments);
        assert!(code == Some(2) && said.contains(says), "{arguments:?}: {code:?} {said}");
    }
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0, "nothing is written");
}

#[test]
fn what_does_not_run_has_no_status_and_can_be_stopped() {
    let state = tempfile::tempdir().unwrap();
    let (code, said) = balance(state.path(), &["status"]);
    assert!(code == Some(1) && said.contains("nearfar balance start starts it"), "{said}");
    assert_eq!(balance(state.path(), &["stop"]).0, Some(0));
    // A process that was killed: its number is ours, but it started at another time.
    let journal = state.path().join("journal");
    std::fs::create_dir_all(&journal).unwrap();
    let killed = format!(
        "{{\"schema\":\"nearfar.balance/1\",\"pid\":{},\"started_ticks\":1}}",
        std::process::id()
    );
    std::fs::write(journal.join("balance.json"), killed).unwrap();
    let (code, said) = balance(state.path(), &["status"]);
    assert!(code == Some(1) && said.contains("was killed"), "{said}");
    assert_eq!(balance(state.path(), &["stop"]).0, Some(0));
    assert!(!journal.join("balance.json").exists());
}

#[test]
fn a_recording_and_a_machine_with_one_node_have_nothing_to_balance() {
    let state = tempfile::tempdir().unwrap();
    let (code, said) = balance(state.path(), &["start", "--sysfs", "/"]);
    assert!(code == Some(1) && said.contains("a recording has no pages to move"), "{said}");
    let nodes = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    if nodes.trim() == "0" {
        for foreground in [&["start"][..], &["start", "--foreground"]] {
            let (code, said) = balance(state.path(), foreground);
            assert!(code == Some(1) && said.contains("one node with memory"), "{said}");
        }
        let (code, said) = balance(state.path(), &["status"]);
        assert!(code == Some(1) && said.contains("is not running"), "{said}");
    }
}
