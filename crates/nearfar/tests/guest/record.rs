//! Recording accesses on real kernels: what a program touches is seen, and DAMON is left as it was found.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::inside::{HOLD, await_up, done, error, fresh, nearfar};

const FILE: &str = "/tmp/record.nfr";
const MIB: u64 = 1 << 20;

/// `damon_stat`, where there is one, and how many kdamonds there are.
fn damon() -> (Option<String>, String) {
    let stat = std::fs::read_to_string("/sys/module/damon_stat/parameters/enabled").ok();
    let count = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
    (stat, std::fs::read_to_string(count).unwrap())
}

fn report(which: &str) -> Value {
    serde_json::from_str(&done(&["report", which, FILE, "--json"])).unwrap()
}

/// A machine being recorded until a signal, once its first snapshot is written.
fn recording() -> Child {
    let _ = std::fs::remove_file(FILE);
    let arguments =
        ["record", "--machine", "--pause-damon-stat", "--interval", "200ms", "-o", FILE];
    let recorder = nearfar(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let written = || std::fs::metadata(FILE).map_or(0, |file| file.len()) > 400;
    // What follows fails by itself if a minute was too little.
    for _ in 0..600 {
        if written() {
            break;
        }
        Command::new("sleep").arg("0.1").status().unwrap();
    }
    recorder
}

pub(crate) fn memory_that_a_program_uses_is_found_accessed_and_placed() {
    fresh();
    let before = damon();
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.env(HOLD, "touch").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    await_up(&mut child);
    let pid = child.id().to_string();
    let options = ["--pid", &pid, "--pause-damon-stat", "--interval", "300ms", "--duration", "3s"];
    done(&[&["record"], &options[..], &["-o", FILE]].concat());
    drop(child.stdin.take());
    child.wait().unwrap();
    let wss = report("wss");
    assert_eq!(wss["record"]["emulated"], true);
    let most = wss["percentiles"].as_array().unwrap().last().unwrap()["bytes"].as_u64().unwrap();
    assert!(most >= 32 * MIB, "of 64 MiB in use at most {most} bytes were seen: {wss}");
    let residency = report("residency");
    let last = residency["series"].as_array().unwrap().last().unwrap()["nodes"].clone();
    let bytes = last.as_array().unwrap().iter().map(|node| node["bytes"].as_u64().unwrap());
    assert!(bytes.sum::<u64>() >= 64 * MIB, "{residency}");
    assert!(wss["record"]["overhead"]["kernel_cpu_ns"].as_u64().unwrap() > 0, "{wss}");
    assert_eq!(damon(), before);
}

pub(crate) fn an_interrupted_recording_is_whole_and_another_one_beside_it_is_refused() {
    fresh();
    let before = damon();
    let recorder = recording();
    let other = nearfar(&["record", "--machine", "-o", "/tmp/other.nfr"]).output().unwrap();
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    assert!(error(&other).contains("another nearfar runs DAMON"), "{other:?}");
    assert!(!Path::new("/tmp/other.nfr").exists());
    let pid = rustix::process::Pid::from_child(&recorder);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = recorder.wait_with_output().unwrap();
    assert!(output.status.success() && error(&output).contains("recording took"), "{output:?}");
    let info = report("info");
    assert_eq!(info["record"]["findings"], serde_json::json!([]));
    let nodes = info["record"]["nodes"].as_array().unwrap();
    assert!(nodes.iter().all(|node| !node["ranges"].as_array().unwrap().is_empty()), "{info}");
    assert_eq!(damon(), before);
}

pub(crate) fn what_a_killed_recording_left_is_put_back_by_the_next() {
    fresh();
    let before = damon();
    let mut recorder = recording();
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    assert_ne!(damon(), before);
    let info = report("info");
    assert!(info["record"]["snapshots"].as_u64().unwrap() > 0, "{info}");
    assert_eq!(info["record"]["findings"].as_array().unwrap().len(), 1, "{info}");
    let options = ["--machine", "--pause-damon-stat", "--duration", "500ms"];
    done(&[&["record"], &options[..], &["-o", FILE]].concat());
    assert_eq!(damon(), before);
}

pub(crate) fn damon_that_the_kernel_holds_is_not_taken_unasked() {
    fresh();
    let output = nearfar(&["record", "--machine", "-o", "/tmp/none.nfr"]).output().unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("damon_stat") && said.contains("--pause-damon-stat"), "{said}");
    assert!(!Path::new("/tmp/none.nfr").exists());
}
