//! `nearfar-bench heap` without a lab: plans, saved results, and refused arguments.

#![expect(clippy::unwrap_used, reason = "a test that can't run the program should stop")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn heap(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearfar-bench")).arg("heap").args(words).output().unwrap()
}

fn refused(words: &[&str], with: &str) {
    let done = heap(words);
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success() && said.contains(with), "{words:?}: {said}");
}

/// A result in which the row under test reaches `ratio` times the bandwidth of near memory alone.
fn result(ratio: f64) -> Value {
    let row = |row: &str, tokens_per_s: f64| {
        json!({
            "row": row, "instances": 4, "command": format!("run of {row}"), "failed": null,
            "outcome": {
                "tokens_per_s": tokens_per_s, "read_bytes_per_second": 5e9, "slowest_tokens_per_s": 20.0,
                "windows": [{ "end_s": 0.1, "tokens": 10 }],
            },
            "residency": [{ "node": 0, "bytes": 1 << 20 }, { "node": 1, "bytes": 1 << 20 }],
        })
    };
    let node = |id: u16, near: bool| json!({ "id": id, "kind": "dram", "size_bytes": 1 << 28, "cpus": 4, "near": near });
    json!({
        "schema": "nearfar.bench-heap/1", "nearfar": "0.1.0", "smoke": false, "near_free_bytes": 1,
        "machine": {
            "emulation": { "machine": "cxl-2tier-narrow", "clock": "virtual", "slow_motion": 1.0 },
            "kernel": "6.12.1", "cpus": 4, "nodes": [node(0, true), node(1, false)],
        },
        "parts": [{ "part": "saturating", "rows": [row("near", 100.0), row("weighted", 100.0 * ratio)] }],
    })
}

fn keep(dir: &Path, result: &Value) -> String {
    let file = dir.join("kept.json");
    std::fs::write(&file, result.to_string()).unwrap();
    file.display().to_string()
}

#[test]
fn a_dry_run_prints_the_commands() {
    let done = heap(&["--dry-run", "--parts", "lookups,instances"]);
    let said = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success());
    for part in [
        "adapt=bw_order: nearfar run --heap adapt=bw_order -- nearfar-load inference",
        "weights far: nearfar run --heap 'heap=far from=4m mmap=off' -- nearfar-load",
        "--access lookup",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("weighted:0=2,1=1"), "{said}");
}

#[test]
fn a_saved_result_is_evaluated_again() {
    let dir = tempfile::tempdir().unwrap();
    for (ratio, status, verdict) in
        [(1.31, 0, "1.310  at least 1.30  reached"), (1.29, 1, "NOT REACHED")]
    {
        let file = keep(dir.path(), &result(ratio));
        let page = dir.path().join("page.html").display().to_string();
        let done = heap(&["--result", &file, "--html", &page]);
        let said = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.status.code(), Some(status), "{said}");
        assert!(
            said.contains("EMULATED machine cxl-2tier-narrow") && said.contains(verdict),
            "{said}"
        );
        assert!(std::fs::read_to_string(&page).unwrap().contains("Emulated."));
        let json: Value =
            serde_json::from_slice(&heap(&["--result", &file, "--json"]).stdout).unwrap();
        assert_eq!(json["checks"][0]["reached"], status == 0, "{json}");
    }
}

#[test]
fn files_that_are_no_result_and_contradicting_options_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = result(1.0);
    other["schema"] = "nearfar.bench-heap/2".into();
    refused(&["--result", &keep(dir.path(), &other)], "this reads nearfar.bench-heap/1");
    refused(&["--result", &keep(dir.path(), &json!({}))], "no result of nearfar-bench heap");
    refused(&["--result", "/nowhere.json"], "/nowhere.json");
    refused(&["--parts", "all"], "saturating");
    refused(&["--here", "--machine", "cxl-2tier"], "--machine");
    refused(&["--out", "/tmp"], "--here");
}
