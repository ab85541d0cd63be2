//! `nearfar-bench balance` without a lab: plans, saved results, and refused arguments.

#![expect(clippy::unwrap_used, reason = "a test that can't run the program should stop")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn balance(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearfar-bench")).arg("balance").args(words).output().unwrap()
}

fn refused(words: &[&str], with: &str) {
    let done = balance(words);
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success() && said.contains(with), "{words:?}: {said}");
}

/// A result in which balancing reaches `ratio` of the best static row.
fn result(ratio: f64) -> Value {
    let row = |kind: &str, operations_per_s: f64| {
        json!({
            "kind": kind, "sensors": [], "command": format!("run of {kind}"), "failed": null,
            "runs": [{
                "operations_per_s": operations_per_s, "began_s": 1.0, "ended_s": 8.0, "moved_pages": 7, "balancing": null,
                "windows": [{ "end_s": 8.0, "busy_s": 4.0, "operations": 1.0 }],
                "traffic": { "local": 0.25, "imbalance": 1.9, "shares": [1.0, 0.0, 0.0, 0.0], "lines_per_us": 86.0 },
            }],
        })
    };
    let node = |id: u16| json!({ "id": id, "kind": "dram", "size_bytes": 1 << 30, "cpus": 1, "near": true });
    json!({
        "schema": "nearfar.bench-balance/1", "nearfar": "0.1.0", "smoke": false, "node_of_cpu": [0, 1, 2, 3],
        "seconds": 8, "settle_s": 4, "huge": false, "times": 1,
        "machine": {
            "emulation": { "machine": "numa-4node", "clock": "virtual", "slow_motion": 1.0 },
            "kernel": "6.12.1", "cpus": 4, "nodes": [node(0), node(1), node(2), node(3)],
        },
        "programs": [{
            "program": "kmeans",
            "rows": [row("first-touch", 100.0), row("node-3", 200.0), row("balanced", 200.0 * ratio)],
        }],
    })
}

fn keep(dir: &Path, result: &Value) -> String {
    let file = dir.join("kept.json");
    std::fs::write(&file, result.to_string()).unwrap();
    file.display().to_string()
}

#[test]
fn a_dry_run_prints_the_commands() {
    let words = ["--dry-run", "--programs", "pca,settled", "--sensors", "full,hint-faults+latency"];
    let done = balance(&[&words[..], &["--rows", "nodes-123,balanced", "--thp"]].concat());
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success());
    for part in [
        "nodes 1-3: nearfar run -i 1-3 -- /usr/bin/python3 DIR/pca.py mb=16 seconds=5 huge=1",
        "balanced: nearfar run --balance=balanced -- DIR/jacobi mb=32 seconds=16 parallel=1 huge=1",
        "balanced by hint-faults+latency: nearfar balance start --policy balanced --pid PID --sensor hint-faults --sensor latency; ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("first touch"), "{said}");
}

#[test]
fn a_saved_result_is_evaluated_again() {
    let dir = tempfile::tempdir().unwrap();
    for (ratio, status, verdict) in
        [(0.98, 0, "0.980  at least 0.97  reached"), (0.96, 1, "0.960  at least 0.97  MISSED")]
    {
        let file = keep(dir.path(), &result(ratio));
        let page = dir.path().join("page.html").display().to_string();
        let done = balance(&["--result", &file, "--html", &page]);
        let said = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(status), "{said}");
        assert!(said.contains("EMULATED machine numa-4node") && said.contains(verdict), "{said}");
        assert!(std::fs::read_to_string(&page).unwrap().contains("Emulated."));
        let json: Value =
            serde_json::from_slice(&balance(&["--result", &file, "--json"]).stdout).unwrap();
        assert_eq!(json["checks"][0]["reached"], status == 0, "{json}");
        assert_eq!(json["checks"][0]["to"], "node-3");
    }
}

#[test]
fn files_that_are_no_result_and_contradicting_options_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = result(1.0);
    other["schema"] = "nearfar.bench-balance/2".into();
    refused(&["--result", &keep(dir.path(), &other)], "this reads nearfar.bench-balance/1");
    refused(&["--result", &keep(dir.path(), &json!({}))], "no result of nearfar-bench balance");
    refused(&["--result", "/nowhere.json"], "/nowhere.json");
    refused(&["--programs", "memcached"], "streamcluster");
    refused(&["--rows", "node-9"], "node-3");
    refused(&["--sensors", "lab+"], "a name is empty");
    refused(&["--seconds", "5", "--settle", "5"], "--settle 5");
    refused(&["--here", "--machine", "numa-4node"], "--machine");
    refused(&["--out", "/tmp"], "--here");
}
