//! The demo from a user's view: a saved result as table, page and picture, also in a browser, and refused arguments.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

mod browser;

fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/demo/sample.json")
}

fn nearfar(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearfar")).args(arguments).output().unwrap()
}

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearfar-bench")).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The message and the exit status of a command that must fail.
fn refused(output: &Output) -> (String, Option<i32>) {
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    (String::from_utf8(output.stderr.clone()).unwrap(), output.status.code())
}

#[test]
fn a_saved_result_is_shown_again() {
    let sample = sample();
    let text = stdout(&nearfar(&["demo", "--from", sample.to_str().unwrap()]));
    assert!(text.contains("EMULATED machine cxl-2tier"), "{text}");
    assert!(text.contains("nearfar run -w auto -- redis-server"), "{text}");
    let json = stdout(&nearfar(&["demo", "--json", "--from", sample.to_str().unwrap()]));
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(read(&json), read(&fs::read_to_string(&sample).unwrap()));
}

#[test]
fn a_file_without_a_result_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other.json");
    for text in ["", "{}", "[1]", r#"{"schema":"nearfar.topo/1"}"#] {
        fs::write(&file, text).unwrap();
        let (message, status) = refused(&nearfar(&["demo", "--from", file.to_str().unwrap()]));
        assert_eq!(status, Some(2), "{message}");
        assert!(message.contains("other.json") && message.contains("nearfar.demo/1"), "{message}");
    }
    let newer = fs::read_to_string(sample()).unwrap().replace("nearfar.demo/1", "nearfar.demo/2");
    fs::write(&file, newer).unwrap();
    let (message, status) = refused(&nearfar(&["demo", "--from", file.to_str().unwrap()]));
    assert!(message.contains("its schema is nearfar.demo/2"), "{message}");
    assert_eq!(status, Some(2));
}

#[test]
fn an_output_that_can_t_be_written_is_refused_before_anything_runs() {
    let sample = sample();
    let from = ["demo", "--from", sample.to_str().unwrap()];
    for (option, file, why) in [
        ("--html", "/nowhere/here/report.html", "directory does not exist"),
        ("--svg", "/", "it is a directory"),
    ] {
        let (message, status) = refused(&nearfar(&[&from[..], &[option, file]].concat()));
        assert!(message.contains(file) && message.contains(why), "{message}");
        assert_eq!(status, Some(2));
    }
    let no_directory = ["demo", "--lab", "--out", sample.to_str().unwrap()];
    let (message, status) = refused(&nearfar(&no_directory));
    assert!(message.contains("it is not a directory") && status == Some(2), "{message}");
}

#[test]
fn usage_errors_of_demo_and_bench_exit_with_2() {
    for arguments in [
        &["demo", "--here", "--lab"][..],
        &["demo", "--here", "--machine", "cxl-2tier"],
        &["demo", "--only", "postgres"],
    ] {
        assert_eq!(refused(&nearfar(arguments)).1, Some(2), "{arguments:?}");
    }
    for arguments in [
        &["bandwidth", "--here", "--machine", "cxl-2tier"][..],
        &["bandwidth", "--json", "figures.json"],
        &["stream", "--mix", "2"],
        &["workload", "nothere"],
    ] {
        assert_eq!(refused(&bench(arguments)).1, Some(2), "{arguments:?}");
    }
}

#[test]
fn an_interrupted_demo_leaves_no_files() {
    if std::env::var_os("LAB").is_some_and(|lab| lab == "off") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.args(["demo", "--lab", "--only", "bandwidth"]).env("TMPDIR", dir.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut demo = command.spawn().unwrap();
    let is_empty = || fs::read_dir(dir.path()).unwrap().next().is_none();
    while is_empty() && demo.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    assert!(!is_empty(), "it works in a directory of its own");
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    let output = demo.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert!(is_empty(), "its directory is removed");
}

#[test]
fn the_stream_program_runs_and_prints_the_node_of_its_buffer() {
    let arguments = ["stream", "--mix", "1:1", "--threads", "1", "--size-mib", "8", "--json"];
    let json: serde_json::Value = serde_json::from_str(&stdout(&bench(&arguments))).unwrap();
    assert_eq!(json["schema"], "nearfar.stream/1");
    assert_eq!(json["buffer_bytes"], 8 << 20);
    let nodes = json["residency"].as_array().unwrap();
    let bytes: u64 = nodes.iter().map(|node| node["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 8 << 20);
    assert!(json["median_bytes_per_second"].as_u64().unwrap() > 0);
}

#[test]
fn more_threads_than_cpus_are_refused_and_both_numbers_named() {
    let (message, status) = refused(&bench(&["stream", "--threads", "100000"]));
    assert!(message.contains("100000 threads"), "{message}");
    assert_eq!(status, Some(1));
}

#[test]
fn the_page_fits_phone_and_desktop_without_console_messages() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    stdout(&nearfar(&[
        "demo",
        "--from",
        sample().to_str().unwrap(),
        "--html",
        page.to_str().unwrap(),
    ]));
    browser::fits(&page, "Up to 1.61");
}
