//! The cost of a program's start under the preload library, in system calls and pages instead of time.
#![expect(clippy::unwrap_used, reason = "a test that can't run its tools should stop")]

use std::fs;
use std::process::Command;

mod common;
use common::{built, preloaded, text};

/// The number of system calls of a program that starts and ends at once, and those of them that open files.
fn calls(conf: Option<&str>) -> (usize, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-o"]).arg(&trace).env_remove("LD_PRELOAD").env_remove("NEARFAR_CONF");
    if let Some(conf) = conf {
        let library = built().join("libnearfar_preload.so");
        command.arg("-E").arg(format!("LD_PRELOAD={}", library.display()));
        command.arg("-E").arg(format!("NEARFAR_CONF={conf}"));
    }
    let output = command.arg("/bin/true").output().unwrap();
    assert!(output.status.success(), "{output:?}: scripts/setup test installs strace");
    let lines = fs::read_to_string(&trace).unwrap();
    let opened = lines.lines().filter(|line| line.contains("openat(") || line.contains("open(\""));
    let opened = opened.filter(|line| !line.contains("/lib")).map(str::to_owned).collect();
    (lines.lines().count(), opened)
}

#[test]
fn a_kind_by_number_reads_two_files_and_makes_few_system_calls() {
    let (plain, _) = calls(None);
    for conf in ["heap=0", "heap=bind:0;limit=1g", "heap=interleave:0"] {
        let (all, opened) = calls(Some(conf));
        // The library itself and its dependencies are mapped by some 25 calls.
        assert!(all <= plain + 60, "{conf}: {all} system calls, {plain} without the library");
        let ours: Vec<_> = opened.iter().filter(|line| !line.contains("/etc/ld.so")).collect();
        assert!(ours.len() <= 2, "{conf}: {ours:?}");
    }
}

#[test]
fn a_named_kind_reads_only_the_files_that_rank_nodes() {
    let (_, opened) = calls(Some("heap=near"));
    for part in ["damon", "resctrl", "hugepages", "dmi", "/nd/", "/memory/memory"] {
        let read: Vec<_> = opened.iter().filter(|line| line.contains(part)).collect();
        assert!(read.is_empty(), "{read:?}");
    }
}

#[test]
fn without_a_kind_no_node_files_are_read() {
    for conf in ["", "heap=default"] {
        let (_, opened) = calls(Some(conf));
        assert!(!opened.iter().any(|line| line.contains("/node")), "{opened:?}");
    }
}

/// jemalloc is not initialised, whose metadata alone take some 50 pages, and there is no page for each of its size
/// classes.
#[test]
fn a_short_program_touches_few_pages_more_than_without_the_library() {
    let faults = |mut command: Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        text(&output.stderr).trim().parse::<u32>().unwrap()
    };
    let script = "import os, resource, subprocess, sys
subprocess.run(['/bin/true'], check=True)
least = min(os.wait4(os.posix_spawn('/bin/true', ['true'], os.environ), 0)[2].ru_minflt for _ in range(5))
print(least, file=sys.stderr)";
    let run = |library: bool| {
        let mut command = Command::new("python3");
        if library {
            command = preloaded("heap=0", command);
        }
        command.args(["-c", script]);
        faults(command)
    };
    let (with, without) = (run(true), run(false));
    assert!(with <= without + 100, "{with} page faults, {without} without the library");
}
