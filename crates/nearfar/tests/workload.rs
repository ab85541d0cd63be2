//! `nearfar-bench workload` on this machine, whichever memory it has: complete runs with small sizes, and refused
//! arguments.

#![expect(clippy::unwrap_used, reason = "a test that can't run the program should stop")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const NEARFAR_BENCH: &str = env!("CARGO_BIN_EXE_nearfar-bench");

fn workload(words: &[&str]) -> Output {
    Command::new(NEARFAR_BENCH).arg("workload").args(words).output().unwrap()
}

fn json(words: &[&str]) -> Value {
    let done = workload(&[words, &["--here", "--json"]].concat());
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

fn refused(words: &[&str], with: &str) {
    let done = workload(&[words, &["--here"]].concat());
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success() && said.contains(with), "{words:?}: {said}");
}

/// The load generator beside the program under test; made if only this crate was built.
fn load_generator() {
    let dir = Path::new(NEARFAR_BENCH).parent().unwrap();
    if !dir.join("nearfar-load").is_file() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "-p", "nearfar-load"]);
        cargo.args(dir.ends_with("release").then_some("--release"));
        assert!(cargo.status().unwrap().success());
    }
}

#[test]
fn a_program_is_timed_without_its_setup_and_teardown() {
    let dir = tempfile::tempdir().unwrap();
    let mark = |name: &str| format!("echo {name} >> {}", dir.path().join("marks").display());
    let words = ["gups-moving", "--set-mib", "8", "--seconds", "1"];
    let found =
        json(&[&words[..], &["--before", &mark("before"), "--after", &mark("after")]].concat());
    assert_eq!(found["schema"], "nearfar.bench-workload/1");
    assert_eq!(found["set_bytes"], 8 << 20);
    let run = &found["runs"][0];
    assert_eq!(run["placement"], "default");
    assert!(run["operations_per_s"].as_f64() > Some(0.0), "{run}");
    let intervals = run["intervals"].as_array().unwrap();
    assert!(!intervals.is_empty() && intervals[0]["hot_at_bytes"].is_u64(), "{run}");
    assert_eq!(std::fs::read_to_string(dir.path().join("marks")).unwrap(), "before\nafter\n");
}

#[test]
fn redis_is_filled_and_every_record_is_found() {
    load_generator();
    let found = json(&["redis-b", "--set-mib", "4", "--seconds", "1", "--filler-percent", "0"]);
    let run = &found["runs"][0];
    assert_eq!(
        (&run["said"]["missed"], &run["said"]["workload"]),
        (&0.into(), &"b".into()),
        "{run}"
    );
    assert!(run["steady_operations_per_s"].as_f64() > Some(0.0), "{run}");
    assert_eq!(run["commands"].as_array().unwrap().len(), 3, "server, load, run: {run}");
}

#[test]
fn workloads_are_listed_and_unknown_or_too_large_ones_refused() {
    let listed = String::from_utf8(workload(&[]).stdout).unwrap();
    assert!(listed.contains("redis-moving") && listed.contains("memcached-large"), "{listed}");
    refused(&["nothing"], "built in are redis-a");
    refused(&["scan", "--set-mib", "1073741824"], "say --set-mib");
    refused(&["scan", "--set-mib", "0"], "--set-mib");
    refused(
        &["scan", "--seconds", "1", "--set-mib", "4", "--before", "echo no; exit 3"],
        "exit status: 3",
    );
}
