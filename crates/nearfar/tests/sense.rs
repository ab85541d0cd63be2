//! `nearfar sense` from a user's view on this machine, independent of its sensors: load latency can be measured
//! anywhere.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::process::{Command, Output};

use serde_json::Value;

fn sense(arguments: &[&str]) -> Output {
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.arg("sense").args(arguments).env("NEARFAR_STATE", state.path()).output().unwrap()
}

#[test]
fn loads_are_timed_from_every_node_with_cpus_to_every_node_with_memory() {
    let output = sense(&["--sensor", "latency", "--duration", "200ms", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "nearfar.sense/1");
    let sensor = &report["sensors"][0];
    assert_eq!((&sensor["name"], &sensor["usable"]), (&"latency".into(), &true.into()));
    let rows = sensor["reading"]["latency_ns"].as_array().unwrap();
    assert_eq!(rows.len(), report["nodes"].as_array().unwrap().len());
    let seen: Vec<_> =
        rows.iter().flat_map(|row| row.as_array().unwrap()).filter_map(Value::as_u64).collect();
    assert!(!seen.is_empty() && seen.iter().all(|ns| *ns >= 10), "{report}");
    // Quantities that the sensor does not measure are null.
    assert_eq!(sensor["reading"]["accesses"], Value::Null);
    assert_eq!(sensor["reading"]["samples"]["seen"], 0);
    let output = sense(&["--sensor", "latency", "--duration", "200ms"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("latency sees ") && text.contains("node 0"), "{text}");
}

#[test]
fn an_unusable_sensor_fails_with_the_reason() {
    // Not in any guest of the lab.
    let output = sense(&["--sensor", "lab", "--duration", "100ms", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sensor = &report["sensors"][0];
    assert_eq!((&sensor["usable"], &sensor["why"]), (&false.into(), &"absent".into()));
    assert_eq!(sensor["sees"]["nature"], "emulated");
    assert_eq!(sensor["reading"], Value::Null);
    let output = sense(&["--sensor", "lab", "--duration", "100ms"]);
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("lab not usable: no port "));
}

#[test]
fn unknown_sensors_and_processes_are_refused() {
    let output = sense(&["--sensor", "eyes"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no sensor eyes") && said.contains("hint-faults"), "{said}");
    let output = sense(&["--pid", "4194305"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--pid 4194305: no such process"), "{said}");
}

#[test]
fn completions_offer_the_existing_sensors() {
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nearfar"));
        let output = command.args(arguments).output().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(String::from_utf8);
        stdout.unwrap() + &stderr.unwrap()
    };
    let refused = run(&["sense", "--sensor", "x"]);
    let (_, names) = refused.trim_end().rsplit_once("there are ").unwrap();
    let offered = format!("-W \"{}\"", names.replace(", ", " "));
    assert!(run(&["completions", "bash"]).contains(&offered), "{offered}");
}
