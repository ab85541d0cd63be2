//! The example of a fleet, `examples/fleet`: records of simulated hosts become Parquet, and the queries answer from it.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/fleet").join(name)
}

/// Packages that `scripts/setup test` has installed.
fn packages() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    let cache = std::env::var_os("NEARFAR_CACHE").map_or(cache.join("nearfar"), PathBuf::from);
    cache.join("peers/fleet")
}

fn run(engine: &str, python: &Path, out: &Path) -> Output {
    let mut command = Command::new(example("run"));
    command.arg(engine).env("NEARFAR", env!("CARGO_BIN_EXE_nearfar")).env("PYTHON", python);
    command.env("PYTHONPATH", packages()).env("OUT", out).env("SECONDS_EACH", "10");
    command.output().unwrap()
}

/// The lines of the answer to a question, without its title and its head.
fn answer<'a>(said: &'a str, title: &str) -> Vec<Vec<&'a str>> {
    let rest = said.split(title).nth(1).unwrap();
    let lines = rest.lines().skip(2).take_while(|line| line.starts_with("  "));
    lines.map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn simulated_hosts_have_records_without_findings_in_one_partition_each() {
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("records");
    let made = Command::new("python3").arg(example("hosts.py")).args([&records]).arg("5").output();
    assert!(made.unwrap().status.success());
    let mut hosts = 0;
    for entry in fs::read_dir(&records).unwrap() {
        let path = entry.unwrap().path();
        let (record, findings) = nearfar_record::read(fs::File::open(&path).unwrap()).unwrap();
        assert_eq!((findings, record.accesses.len(), record.residency.len()), (vec![], 5, 5));
        assert!(record.header.emulated, "nothing was measured");
        let host = path.file_stem().unwrap().to_str().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_nearfar"))
            .args(["report", "parquet"])
            .args([&path, &dir.path().join("out")])
            .args(["--host", host])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let place = "date=2026-01-05/workload=machine/part-1767607200000000-0000.parquet";
        for table in ["accesses", "residency"] {
            let part = dir.path().join("out").join(table).join(format!("host={host}")).join(place);
            assert!(part.is_file(), "{}", part.display());
        }
        hosts += 1;
    }
    assert_eq!(hosts, 8);
}

#[test]
fn the_queries_find_the_misplaced_hosts() {
    if !packages().join("datafusion").is_dir() {
        eprintln!("NOT TESTED: {} has no datafusion; scripts/setup test", packages().display());
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let output = run("datafusion", Path::new("python3"), out.path());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with("SIMULATED hosts"), "{said}");
    let heat = answer(&said, "averaged over the hosts of a workload.");
    assert_eq!(heat.len(), 8, "four workloads on two kinds of memory: {said}");
    assert!(heat.iter().all(|line| line[2] == "2"), "two hosts each: {said}");
    let promote = answer(&said, "the most hot memory in the far tier.");
    assert!(promote[0][0].starts_with("search-") && promote[1][0].starts_with("search-"), "{said}");
    let demote = answer(&said, "that no access check found accessed.");
    assert!(demote[0][0].starts_with("web-") && demote[1][0].starts_with("web-"), "{said}");
}

#[test]
fn an_engine_that_is_missing_or_unknown_is_named_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let python = dir.path().join("python");
    fs::write(&python, "#!/bin/sh\nexec python3 -I -S \"$@\"\n").unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let output = run("duckdb", &python, dir.path());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("has no package duckdb") && error.contains("requirements.txt"),
        "{error}"
    );
    let output = run("spark", &python, dir.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("run duckdb"));
    assert!(!dir.path().join("records").exists());
}
