//! Recording accesses on real kernels: accesses of a program appear in the record, and DAMON's state is restored.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::NEARFAR;
use crate::inside::{HOLD, STATE, await_up, done, error, fresh, nearfar};

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
    let arguments = ["record", "--all", "--interval", "200ms", "-o", FILE];
    let recorder = nearfar(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let written = || std::fs::metadata(FILE).map_or(0, |file| file.len()) > 400;
    // The assertions below fail by themselves if a minute was too short.
    for _ in 0..600 {
        if written() {
            break;
        }
        Command::new("sleep").arg("0.1").status().unwrap();
    }
    recorder
}

pub(crate) fn a_programs_accesses_and_nodes_are_recorded() {
    fresh();
    let before = damon();
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.env(HOLD, "touch").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    await_up(&mut child);
    let pid = child.id().to_string();
    // Aggregated over a whole interval, in which even a slow host passes over all of it.
    let times = ["--interval", "300ms", "--aggregate", "300ms", "--duration", "3s"];
    done(&[&["record", "--pid", &pid], &times[..], &["-o", FILE]].concat());
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

/// Without the lab's bound on how long translations are kept, none of it is seen.
pub(crate) fn a_program_alone_on_its_cpu_has_its_accesses_recorded() {
    fresh();
    let mut command = Command::new("taskset");
    command.args(["-c", "5"]).arg(std::env::current_exe().unwrap());
    command.env(HOLD, "touch").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    await_up(&mut child);
    // The emulator makes room for more translations as it forgets them often: after this, for all of them.
    let mut other = Command::new("taskset");
    other.args(["-c", "5", "timeout", "2", "yes"]).stdout(Stdio::null()).status().unwrap();
    let pid = child.id().to_string();
    let options = ["record", "--interval", "500ms", "--duration", "10s"];
    let mut recorder = Command::new("taskset");
    recorder.args(["-c", "0-4", NEARFAR]).args(options).args(["--pid", &pid, "-o", FILE]);
    let output = recorder.env("NEARFAR_STATE", STATE).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let wss = report("wss");
    let series = wss["series"].as_array().unwrap();
    let seen = series.iter().filter(|at| at["bytes"].as_u64() >= Some(48 * MIB)).count();
    // In some, a busy host may have kept the emulated CPU from running.
    assert!(seen > 3 && seen * 2 >= series.len(), "of 64 MiB in use: {wss}");
}

pub(crate) fn children_of_a_recorded_command_are_recorded() {
    fresh();
    let before = damon();
    let script = "sleep 0.5; \"$0\"; exit 7";
    let program = std::env::current_exe().unwrap();
    let options = ["record", "--interval", "300ms", "-o", FILE, "--"];
    let command = [&options[..], &["sh", "-c", script, program.to_str().unwrap()]].concat();
    let mut recorder = nearfar(&command);
    recorder.env(HOLD, "touch").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut recorder = recorder.stderr(Stdio::piped()).spawn().unwrap();
    await_up(&mut recorder);
    Command::new("sleep").arg("3").status().unwrap();
    drop(recorder.stdin.take());
    let output = recorder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(!error(&output).contains('\r'), "no terminal, no progress: {output:?}");
    let info = report("info");
    let processes = info["record"]["processes"].as_array().unwrap();
    assert_eq!(processes[0]["command"], "sh", "{info}");
    assert_eq!(processes[0]["pid"], info["record"]["target"]["pid"], "{info}");
    // Between them may be the one that slept.
    let last = processes.last().unwrap();
    assert!(last["command"].as_str().unwrap().starts_with("guest"), "{info}");
    let begun = last["from_ns"].as_u64().unwrap();
    assert!(begun > processes[0]["from_ns"].as_u64().unwrap(), "{info}");
    let map = report("heatmap");
    let mut areas = map["areas"].as_array().unwrap().iter();
    let size = |area: &Value| area["end"].as_u64().unwrap() - area["start"].as_u64().unwrap();
    let used = |area: &Value| area["target"] == last["target"] && size(area) >= 32 * MIB;
    assert!(areas.any(used), "{map}");
    // The last may have seen it end.
    let held = report("residency");
    let sum = |at: &Value| -> u64 {
        let nodes = at["nodes"].as_array().unwrap().iter();
        nodes.map(|node| node["bytes"].as_u64().unwrap()).sum()
    };
    let most = held["series"].as_array().unwrap().iter().map(sum).max();
    assert!(most >= Some(64 * MIB), "{held}");
    assert_eq!(damon(), before);
}

pub(crate) fn a_record_states_that_some_processes_could_not_be_monitored() {
    fresh();
    let _ = std::fs::remove_file(FILE);
    let before = damon();
    // They live until nothing is recorded any more, however long it takes to find them all.
    let script = "i=0; while [ $i -lt 18 ]; do sleep 9999 & all=\"$all $!\"; i=$((i + 1)); done
        read go; kill $all";
    let command = ["record", "--duration", "1s", "-o", FILE, "--", "sh", "-c", script];
    let mut recorder = nearfar(&command).stdin(Stdio::piped()).spawn().unwrap();
    let mut until = |is_so: &dyn Fn() -> bool| {
        while recorder.try_wait().unwrap().is_none() && !is_so() {
            Command::new("sleep").arg("0.1").status().unwrap();
        }
    };
    // DAMON is in use in a trial, too, before there is a file.
    until(&|| Path::new(FILE).exists());
    until(&|| damon() == before);
    drop(recorder.stdin.take());
    recorder.wait().unwrap();
    let info = report("info");
    assert_eq!(info["record"]["processes"].as_array().unwrap().len(), 16, "{info}");
    let notes = info["notes"].as_array().unwrap();
    assert_eq!(notes.len(), 3, "{info}");
    assert!(notes[0]["text"].as_str().unwrap().contains("(sleep) is not watched"), "{info}");
    assert_eq!(damon(), before);
}

pub(crate) fn intervals_are_tuned_if_the_kernel_supports_it() {
    fresh();
    let options = ["record", "--all", "--sample", "auto"];
    let arguments = [&options[..], &["--duration", "6s", "-o", FILE]].concat();
    let output = nearfar(&arguments).output().unwrap();
    if Path::new("/sys/module/damon_stat").exists() {
        assert!(output.status.success(), "{output:?}");
        let record = &report("info")["record"];
        assert_eq!(record["sample_interval_us"], 5000, "{record}");
        // Little is accessed here, so the kernel lengthens its interval, up to once per snapshot.
        let longest = record["sample_interval_max_us"].as_u64().unwrap();
        assert!((6_000..=50_000).contains(&longest), "{record}");
        let counted = record["aggregation_interval_max_us"].as_u64().unwrap();
        assert_eq!(counted / longest, 20, "{record}");
    } else {
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(error(&output).contains("give a time, such as --sample 5ms"), "{output:?}");
    }
}

pub(crate) fn on_a_terminal_a_status_line_shows_progress() {
    fresh();
    let nearfar = format!(
        "NEARFAR_STATE={} {} record --all --interval 500ms --duration 3s -o {FILE}",
        crate::inside::STATE,
        crate::NEARFAR
    );
    let shown = Command::new("script").args(["-qec", &nearfar, "/dev/null"]).output().unwrap();
    assert!(shown.status.success(), "{shown:?}");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let lines: Vec<&str> = text.split("\r\u{1b}[K").collect();
    assert!(
        lines.iter().any(|line| line.starts_with("2 s, ") && line.contains(" snapshots, ")),
        "{text}"
    );
    assert!(lines.last().unwrap().contains("recording took"), "{text}");
}

pub(crate) fn an_interrupted_recording_is_complete_and_a_concurrent_one_is_refused() {
    fresh();
    let before = damon();
    let recorder = recording();
    let other = nearfar(&["record", "--all", "-o", "/tmp/other.nfr"]).output().unwrap();
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    assert!(error(&other).contains("runs DAMON for nearfar"), "{other:?}");
    assert!(!Path::new("/tmp/other.nfr").exists());
    let pid = rustix::process::Pid::from_child(&recorder);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = recorder.wait_with_output().unwrap();
    assert!(output.status.success() && error(&output).contains("recording took"), "{output:?}");
    let info = report("info");
    assert_eq!(info["record"]["findings"], serde_json::json!([]));
    let nodes = info["record"]["nodes"].as_array().unwrap();
    assert!(nodes.iter().all(|node| !node["ranges"].as_array().unwrap().is_empty()), "{info}");
    done(&["tier", "start"]);
    let other = nearfar(&["record", "--all", "-o", "/tmp/other.nfr"]).output().unwrap();
    assert!(error(&other).contains("nearfar tier start --record FILE"), "{other:?}");
    done(&["tier", "stop"]);
    assert_eq!(damon(), before);
}

pub(crate) fn settings_of_a_killed_recording_are_restored_by_the_next() {
    fresh();
    let before = damon();
    let mut recorder = recording();
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    assert_ne!(damon(), before);
    let info = report("info");
    assert!(info["record"]["snapshots"].as_u64().unwrap() > 0, "{info}");
    assert_eq!(info["record"]["findings"].as_array().unwrap().len(), 1, "{info}");
    let options = ["--all", "--duration", "500ms"];
    done(&[&["record"], &options[..], &["-o", FILE]].concat());
    assert_eq!(damon(), before);
}

pub(crate) fn damon_stat_keeps_running_on_request() {
    fresh();
    let output =
        nearfar(&["record", "--all", "--keep-damon-stat", "-o", "/tmp/none.nfr"]).output().unwrap();
    let said = error(&output);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("damon_stat") && said.contains("--keep-damon-stat"), "{said}");
    assert!(!Path::new("/tmp/none.nfr").exists());
}
