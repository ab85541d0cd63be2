//! `nearfar probe` from a user's view. Plans are made for recorded machines; real runs pretend to be in the lab with a
//! modelled clock, so that they take milliseconds: these tests do not check the figures, only the form of the report.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nearfar_probe::{ProbeReport, Source, load_file};

fn recorded(machine: &str) -> String {
    let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines");
    machines.join(machine).display().to_string()
}

fn probe(arguments: &[&str], vars: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    for name in
        ["NEARFAR_LAB", "NEARFAR_LAB_TIMING", "NEARFAR_LAB_SLOW_MOTION", "NEARFAR_LAB_LLC_KIB"]
    {
        command.env_remove(name);
    }
    command.arg("probe").args(arguments).envs(vars.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The message of a run that must fail with `status` and print nothing else.
fn refused(arguments: &[&str], vars: &[(&str, &str)], status: i32) -> String {
    let output = probe(arguments, vars);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
    assert_eq!(text(&output.stdout), "", "{arguments:?}");
    text(&output.stderr)
}

const LAB: [(&str, &str); 3] =
    [("NEARFAR_LAB", "a test"), ("NEARFAR_LAB_TIMING", "virtual"), ("NEARFAR_LAB_LLC_KIB", "1024")];

#[test]
fn a_dry_run_names_every_pair_and_measures_none() {
    let output = probe(&["--dry-run", "--sysfs", &recorded("cxl-region-two-devices.tree")], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let plan = text(&output.stdout);
    assert!(plan.contains("CPU node 0") && plan.contains("memory node 1"), "{plan}");
}

#[test]
fn only_the_running_machine_is_measured() {
    let error = refused(&["--sysfs", &recorded("cxl-region-two-devices.tree")], &[], 2);
    assert!(error.contains("--dry-run"), "{error}");
}

#[test]
fn impossible_options_are_usage_errors_with_the_valid_form() {
    for (arguments, part) in [
        (vec!["--mixes", "1:2"], "the most write-heavy one is 1:1"),
        (vec!["--mixes", "2"], "write READS:WRITES"),
        (vec!["--nodes", "1023"], "this machine has"),
        (vec!["--nodes", "hbn"], "is not a node set"),
        (vec!["--cpu-nodes", "1023"], "has no CPUs"),
        (vec!["--cpu-nodes", ""], "0,2-3"),
        (vec!["--cpus", "0"], "give 1 or more"),
        (vec!["--save", "x", "--no-save"], "cannot be used with"),
        (vec!["--show", "--quick"], "cannot be used with"),
        (vec!["--show=/nowhere/x"], "/nowhere/x"),
    ] {
        let error = refused(&arguments, &[], 2);
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    let error = refused(&[], &[("NEARFAR_LAB", "m"), ("NEARFAR_LAB_SLOW_MOTION", "fast")], 1);
    assert!(error.contains("NEARFAR_LAB_SLOW_MOTION"), "{error}");
}

#[test]
fn standard_output_is_only_json_and_equals_the_saved_file() {
    let dir = tempfile::tempdir().unwrap();
    let file: PathBuf = dir.path().join("report.json");
    let output = probe(&["-q", "--quick", "--json", "--save", file.to_str().unwrap()], &LAB);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(text(&output.stderr), "");
    let report = ProbeReport::parse(&text(&output.stdout)).unwrap();
    assert_eq!(load_file(&file).unwrap(), report);
    assert_eq!(report.source, Source::Emulated, "the lab is never called measured");
    assert!(report.pairs.iter().all(|pair| pair.bandwidth.len() == 3));
}

#[test]
fn a_complete_probe_is_saved_and_a_partial_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut vars = LAB.to_vec();
    vars.push(("NEARFAR_STATE", state.to_str().unwrap()));
    let output = probe(&["--quick", "--mixes", "1:0"], &vars);
    assert!(text(&output.stderr).contains("not saved"), "{output:?}");
    assert!(!state.exists());
    assert!(refused(&["--show"], &vars, 1).contains("no probe of this machine is saved"));
    let output = probe(&["--quick"], &vars);
    assert!(text(&output.stderr).contains("] CPU node 0, memory node 0\n"), "{output:?}");
    let shown = probe(&["--show"], &vars);
    assert_eq!((text(&shown.stdout), shown.status.code()), (text(&output.stdout), Some(0)));
    assert!(text(&output.stdout).starts_with("Emulated, not measured on hardware"), "{output:?}");
    let entries = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path());
    // The report, and its figures for the ranks of nodes.
    let (kept, figures): (Vec<_>, Vec<_>) =
        entries.partition(|path| path.extension().is_some_and(|kind| kind == "json"));
    assert_eq!((kept.len(), figures), (1, vec![state.join("measured")]));
    assert!(text(&output.stderr).contains(kept[0].to_str().unwrap()), "{output:?}");
    let report = load_file(&kept[0]).unwrap();
    assert!(kept[0].display().to_string().contains(&report.machine.fingerprint));
    let figures = std::fs::read_to_string(state.join("measured")).unwrap();
    assert!(figures.starts_with(&format!("machine {}\n", report.machine.fingerprint)), "{figures}");
}

#[test]
fn an_unwritable_directory_does_not_lose_the_measurement() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut vars = LAB.to_vec();
    vars.push(("NEARFAR_STATE", file.to_str().unwrap()));
    let output = probe(&["--quick"], &vars);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stderr).contains("--no-save"), "{output:?}");
    let inside = file.join("report.json");
    let output = probe(&["--quick", "--save", inside.to_str().unwrap()], &LAB);
    assert_eq!(output.status.code(), Some(2), "refused before anything is measured");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(text(&output.stderr).contains("report.json"), "{output:?}");
}
