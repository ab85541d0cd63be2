//! `nearfar doctor` from a user's view, on recorded machines and on this one.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines").join(name)
}

fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearfar")).arg("doctor").args(arguments).output().unwrap()
}

fn report(path: &Path) -> Value {
    let output = doctor(&["--json", "--sysfs", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "nearfar.doctor/1");
    report
}

/// `key` to `value` of the objects in a list.
fn map(list: &Value, key: &str, value: &str) -> BTreeMap<String, String> {
    let text = |item: &Value, name: &str| item[name].as_str().unwrap_or_default().to_string();
    list.as_array().unwrap().iter().map(|item| (text(item, key), text(item, value))).collect()
}

fn expect(found: &BTreeMap<String, String>, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(found.get(*key).map(String::as_str), Some(*value), "{key} of {found:?}");
    }
}

#[test]
fn on_a_laptop_doctor_reports_one_memory_kind_and_recommends_the_lab() {
    let report = report(&fixture("laptop.tree"));
    let answers = map(&report["verdicts"], "command", "answer");
    expect(&answers, &[("topo", "yes"), ("probe", "yes"), ("run", "no"), ("run -w", "no")]);
    expect(&answers, &[("balance", "no"), ("cache serve", "yes")]);
    assert_eq!(answers.get("lab"), None, "a recording starts no machine");
    for verdict in report["verdicts"].as_array().unwrap() {
        assert!(verdict["why"].is_string() && verdict["because"].is_null(), "{verdict}");
    }
    let next = map(&report["verdicts"], "command", "next");
    assert!(next["run"].contains("nearfar lab"), "{next:?}");
}

#[test]
fn a_machine_with_cxl_supports_placement_and_weights() {
    let report = report(&fixture("cxl-region-two-devices.tree"));
    expect(
        &map(&report["verdicts"], "command", "answer"),
        &[
            ("topo", "yes"),
            ("run", "yes"),
            ("run -w", "yes"),
            ("run --report", "yes"),
            ("balance", "yes"),
            ("record", "yes"),
            ("cache serve", "yes"),
        ],
    );
    expect(
        &map(&report["features"], "name", "state"),
        &[
            ("weighted_interleave", "present"),
            ("weighted_interleave_auto", "present"),
            ("access_attributes", "present"),
            ("cxl", "present"),
            ("dax_kmem", "present"),
            ("damon", "present"),
            ("resctrl", "present"),
            ("page_idle", "lacking"),
            ("move_pages", "unknown"),
            ("damon_migrate", "unknown"),
        ],
    );
    expect(
        &map(&report["settings"], "name", "value"),
        &[("numa_balancing", "1"), ("weighted_interleave", "0:5 1:5 2:1"), ("damon", "free")],
    );
    assert_eq!(report["privileges"], Value::Null);
    assert_eq!(report["recorded"], true);
}

#[test]
fn a_kernel_without_weights_gets_a_fallback_and_the_needed_version() {
    let report = report(&fixture("one-tier.tree"));
    let answers = map(&report["verdicts"], "command", "answer");
    expect(&answers, &[("topo", "partly"), ("run -w", "partly"), ("weights --apply", "no")]);
    let next = map(&report["verdicts"], "command", "next");
    assert!(next["run -w"].contains("6.9") && next["run -w"].contains("--fallback"), "{next:?}");
    assert!(next["topo"].contains("--kind 1=cxl"), "{next:?}");
    expect(&map(&report["features"], "name", "state"), &[("weighted_interleave", "lacking")]);
}

#[test]
fn facts_missing_in_a_recording_are_unknown_with_the_reason() {
    let report = report(&fixture("laptop.tree"));
    for feature in report["features"].as_array().unwrap() {
        let unknown = feature["state"] == "unknown";
        assert_eq!(unknown, feature["why_unknown"].is_string(), "{feature}");
    }
}

#[test]
fn the_text_fits_a_terminal() {
    for name in ["laptop.tree", "cxl-region-two-devices.tree", "hbm-flat.tree", "one-tier.tree"] {
        let output = doctor(&["--sysfs", fixture(name).to_str().unwrap()]);
        let text = String::from_utf8(output.stdout).unwrap();
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 80, "{name}: {widest}");
        assert!(text.contains("\ncommands\n"), "{text}");
    }
}

#[test]
fn the_running_machine_is_tested_for_facts_missing_in_recordings() {
    let output = doctor(&["--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["recorded"], false);
    assert!(report["privileges"].as_array().is_some_and(|list| !list.is_empty()));
    assert!(map(&report["verdicts"], "command", "answer").contains_key("lab"));
    assert!(map(&report["settings"], "name", "value").contains_key("allowed nodes"));
}

#[test]
fn the_verdict_on_the_lab_depends_on_its_cache_and_on_the_host() {
    let cache = tempfile::tempdir().unwrap();
    let present = std::env::current_exe().unwrap();
    let present = present.to_str().unwrap();
    let lab = |guest: bool, plugin: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        command.args(["doctor", "--json"]).env("NEARFAR_CACHE", cache.path());
        command.env("NEARFAR_LAB_PLUGIN", plugin);
        if guest {
            command.env("NEARFAR_LAB", "cxl-2tier");
        }
        let report: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        let of = |key| map(&report["verdicts"], "command", key)["lab"].clone();
        (of("answer"), of("why"))
    };
    let (answer, why) = lab(false, present);
    assert!(answer != "yes" && why.contains("download"), "{answer}: {why}");
    for kind in ["qemu", "kernels"] {
        std::fs::create_dir_all(cache.path().join(kind).join("one")).unwrap();
    }
    assert_eq!(lab(false, present), ("yes".into(), "emulator and kernel are in the cache".into()));
    let (answer, why) = lab(false, "/none");
    assert!(answer == "partly" && why.contains("as fast as near memory"), "{answer}: {why}");
    let (answer, why) = lab(true, present);
    assert!(answer == "no" && why.contains("guest of the lab"), "{answer}: {why}");
}

#[test]
fn doctor_without_privileges_answers_root_like_any_user() {
    let output = doctor(&["--unprivileged", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let privileges = report["privileges"].as_array().unwrap();
    assert!(privileges.iter().all(|one| one["held"] == false), "{privileges:?}");
    let error = doctor(&["--unprivileged", "--sysfs", fixture("laptop.tree").to_str().unwrap()]);
    assert_eq!(error.status.code(), Some(2), "a recording has no users");
}

#[test]
fn sensors_are_listed_with_their_scope_or_the_reason_they_are_unusable() {
    let output = doctor(&["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sensors = report["sensors"].as_array().unwrap();
    assert!(sensors.len() >= 10, "{sensors:?}");
    for sensor in sensors {
        assert_ne!(sensor["usable"], sensor["found"].is_string(), "{sensor}");
        assert_eq!(sensor["found"].is_string(), sensor["why"].is_string(), "{sensor}");
        let seen = &sensor["sees"];
        assert!(seen["scope"].is_string() && seen["writes"].is_boolean(), "{sensor}");
    }
    expect(&map(&report["sensors"], "name", "why"), &[("lab", "absent")]);
    let text = String::from_utf8(doctor(&[]).stdout).unwrap();
    assert!(text.contains("sensors of memory traffic, by their self-tests"), "{text}");
    assert!(text.contains("  no       lab              absent: no port"), "{text}");
    let recorded = self::report(&fixture("laptop.tree"));
    assert_eq!(recorded["sensors"], Value::Null, "a recording has none at work");
}

#[test]
fn work_queues_of_a_dsa_are_listed_with_their_nodes() {
    let tree = std::fs::read_to_string(fixture("laptop.tree")).unwrap();
    let answer = |more: &[(&str, &str)]| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("machine.tree");
        let mut lines = tree.clone();
        for (attribute, text) in more {
            lines.push_str(&format!("@ sys/bus/dsa/devices/dsa0/{attribute}\n{text}\n"));
        }
        std::fs::write(&path, lines).unwrap();
        let report = report(&path);
        let of = |value| map(&report["verdicts"], "command", value)["cache --copy dsa"].clone();
        (of("answer"), of("why"))
    };
    let (answer_without, why) = answer(&[]);
    assert_eq!(answer_without, "no", "{why}");
    let queue = [
        ("numa_node", "1"),
        ("wq0.0/type", "user"),
        ("wq0.0/state", "enabled"),
        ("wq0.0/mode", "shared"),
        ("wq0.0/size", "128"),
        ("wq0.0/threshold", "127"),
        ("wq0.0/max_batch_size", "1024"),
        ("wq0.0/max_transfer_size", "2097152"),
    ];
    let (found, why) = answer(&queue);
    assert_eq!(found, "yes", "{why}");
    assert!(why.contains("wq0.0 on node 1"), "{why}");
}

#[test]
fn a_directory_without_a_machine_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let output = doctor(&["--sysfs", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("stands for /"), "{message}");
}
