//! `nearfar bench tiering` without a boot: what would be run, and what is refused before anything is.

#![expect(clippy::unwrap_used, reason = "a test that can't run the program should stop")]

use std::process::{Command, Output};

const NEARFAR: &str = env!("CARGO_BIN_EXE_nearfar");

fn tiering(words: &[&str]) -> Output {
    // A cache without peers, whatever this machine has.
    let cache = std::env::temp_dir().join("nearfar-no-such-cache");
    let mut command = Command::new(NEARFAR);
    command.env("NEARFAR_CACHE", cache).args(["bench", "tiering"]).args(words).output().unwrap()
}

fn refused(words: &[&str], with: &str) {
    let done = tiering(words);
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success() && said.contains(with), "{words:?}: {said}");
}

#[test]
fn a_dry_run_names_every_row_its_machine_and_its_commands_and_what_is_absent() {
    let done = tiering(&["--dry-run", "--workload", "gups-moving,scan"]);
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8(done.stdout).unwrap();
    for part in [
        "gups-moving, DRAM only: machine cxl-2tier-ample, placement near, 160 s",
        "gups-moving, NUMA balancing: machine cxl-2tier-small, placement default, 160 s",
        "scan, no tiering: machine cxl-2tier-small, placement default, 80 s",
        "tier start --pause-damon-stat",
        "scan, damo, HMSDK's: absent: damo is not installed",
        "scan, memtierd: absent: no binary was named",
    ] {
        assert!(said.contains(part), "{part}:\n{said}");
    }
}

#[test]
fn what_can_not_be_compared_or_shown_is_refused() {
    refused(&["--workload", "nothing"], "built in are redis-a");
    refused(&["--warm-up", "80"], "nothing is left to judge");
    refused(&["--rows", "fastest"], "possible values: dram, far, none");
    refused(&["--memtierd", "/no/such/file"], "/no/such/file: there is no such file");
    refused(&["--damo", "/no/such/dir"], "pip install --target /no/such/dir damo");
    refused(&["--machine", "numa-4node", "--workload", "scan"], "without CPUs");
    refused(&["--result", "/no/such/file"], "reading /no/such/file");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("result.json");
    for text in ["", "{}", "[1]", "{\"schema\":\"nearfar.demo/1\"}"] {
        std::fs::write(&file, text).unwrap();
        refused(
            &["--result", &file.display().to_string()],
            "is no result of nearfar bench tiering",
        );
    }
}
