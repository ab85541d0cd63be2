//! `nearfar topo` from a user's view, on the recorded machines of `fixtures/machines`.
//!
//! `X.json` beside `X.tree` is the expected output of `--json`; `UPDATE=1 cargo test -p nearfar --test topo` rewrites
//! it.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn machines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines")
}

fn trees() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(machines()).unwrap().map(|entry| entry.unwrap().path());
    let mut trees: Vec<_> =
        entries.filter(|p| p.extension().is_some_and(|e| e == "tree")).collect();
    trees.sort();
    assert!(trees.len() >= 8, "found only {trees:?}");
    trees
}

fn topo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nearfar")).arg("topo").args(arguments).output().unwrap()
}

/// Standard output of a run that must succeed and say nothing on standard error.
fn shown(arguments: &[&str]) -> String {
    let output = topo(arguments);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The message of a run that must fail with `status` and print nothing else.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = topo(arguments);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn each_recorded_machine_gives_its_expected_json() {
    for tree in trees() {
        let text = shown(&["--json", "--sysfs", tree.to_str().unwrap()]);
        let expected = tree.with_extension("json");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&expected, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&expected).unwrap_or_default();
        assert_eq!(json(&text)["schema"], "nearfar.topo/2");
        assert_eq!(text, golden, "{}: UPDATE=1 if this is meant", tree.display());
    }
}

#[test]
fn the_text_fits_a_terminal_and_names_every_node() {
    for tree in trees() {
        let path = tree.to_str().unwrap();
        let (text, machine) =
            (shown(&["--sysfs", path]), json(&shown(&["--json", "--sysfs", path])));
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 80, "{path}: {widest}");
        for node in machine["nodes"].as_array().unwrap() {
            assert!(text.contains(&format!("node {}", node["id"])), "{path}: {text}");
        }
    }
}

#[test]
fn a_directory_used_as_root_shows_the_same_as_its_recording() {
    for tree in trees() {
        let text = std::fs::read_to_string(&tree).unwrap();
        let dir = tempfile::tempdir().unwrap();
        nearfar_kernel::fs::plant(&nearfar_topology::Tree::parse(&text), dir.path()).unwrap();
        let of = |path: &Path| json(&shown(&["--json", "--sysfs", path.to_str().unwrap()]));
        assert_eq!(of(dir.path()), of(&tree), "{}", tree.display());
    }
}

#[test]
fn a_recording_shows_the_same_machine_again() {
    let tree = machines().join("cxl-region-two-devices.tree");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("again.tree");
    let output =
        topo(&["--sysfs", tree.to_str().unwrap(), "--record", file.to_str().unwrap(), "--json"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("recorded to"));
    let quiet =
        topo(&["-q", "--sysfs", tree.to_str().unwrap(), "--record", file.to_str().unwrap()]);
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{quiet:?}");
    assert_eq!(
        json(&shown(&["--json", "--sysfs", file.to_str().unwrap()])),
        json(&String::from_utf8(output.stdout).unwrap())
    );
    let printed = shown(&["--sysfs", tree.to_str().unwrap(), "--record", "-"]);
    assert_eq!(printed, std::fs::read_to_string(&file).unwrap());
}

#[test]
fn a_nodes_kind_given_by_the_user_decides_near_and_far() {
    let tree = machines().join("two-sockets.tree");
    let text = shown(&["--json", "--kind", "1=cxl", "--sysfs", tree.to_str().unwrap()]);
    let machine = json(&text);
    assert_eq!(machine["nodes"][1]["kind"], "cxl");
    assert_eq!(machine["nodes"][1]["known_by"], "user");
    assert_eq!(machine["tiers"][1]["nodes"], serde_json::json!([1]));
    assert_eq!(machine["tiers"][1]["known_by"], "user");
}

#[test]
fn an_invalid_sysfs_directory_is_refused_with_the_finding_and_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::create_dir_all(at("sys-copy/devices/system/node/node0")).unwrap();
    std::fs::create_dir_all(at("empty")).unwrap();
    std::fs::write(at("note.txt"), "no recording\n").unwrap();
    for (path, part) in [
        (at("none"), "name a recording, or a directory that holds sys and proc: No such file"),
        (at("empty"), "stands for /"),
        (at("sys-copy"), "copy of /sys"),
        (at("note.txt"), "nearfar topo --record"),
    ] {
        let message = refused(&["--sysfs", &path], 2);
        assert!(message.contains(&path) && message.contains(part), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

/// Links that lead in circles, files that may not be read, and no /proc: the rest is shown, with findings.
#[test]
fn a_damaged_directory_is_shown_as_far_as_it_is_readable() {
    let text = std::fs::read_to_string(machines().join("cxl-region-two-devices.tree")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    nearfar_kernel::fs::plant(&nearfar_topology::Tree::parse(&text), dir.path()).unwrap();
    let at = |path: &str| dir.path().join(path);
    std::fs::remove_dir_all(at("proc")).unwrap();
    std::os::unix::fs::symlink("mem9", at("sys/bus/cxl/devices/mem9")).unwrap();
    std::os::unix::fs::symlink("..", at("sys/devices/system/node/node0/up")).unwrap();
    std::fs::remove_dir_all(at("sys/devices/system/node/node1")).unwrap();
    std::os::unix::fs::symlink("node1", at("sys/devices/system/node/node1")).unwrap();
    std::fs::write(at("sys/devices/system/node/node0/cpulist"), "0-3\0\0\0").unwrap();
    let machine = json(&shown(&["--json", "--sysfs", dir.path().to_str().unwrap()]));
    assert_eq!(machine["nodes"][0]["cpus"], serde_json::json!([0, 1, 2, 3]));
    assert_eq!(machine["nodes"][2]["kind"], "cxl");
    let findings = machine["findings"].to_string();
    assert!(findings.contains("node1"), "{findings}");
}

#[test]
fn an_impossible_kind_is_refused() {
    let tree = machines().join("laptop.tree").display().to_string();
    for (kind, part) in [
        ("1=cxl", "no node 1 here; this machine has node 0 (dram"),
        ("0=flash", "kinds are dram, cxl, hbm, pmem, gpu, unknown"),
        ("0", "NODE=KIND"),
        ("5000=cxl", "0 to 1023"),
    ] {
        let message = refused(&["--sysfs", &tree, "--kind", kind], 2);
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn an_unwritable_recording_fails_before_any_output() {
    let tree = machines().join("laptop.tree").display().to_string();
    let message = refused(&["--sysfs", &tree, "--record", "/nonexistent/dir/file"], 1);
    assert!(message.contains("/nonexistent/dir/file"), "{message}");
}

#[test]
fn a_guest_of_the_lab_is_marked_emulated() {
    let text = std::fs::read_to_string(machines().join("lab-cxl-2tier.tree")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let guest = dir.path().join("guest.tree");
    let marker = r#"{"machine": "cxl-2tier", "clock": "wait", "slow_motion": 25}"#;
    std::fs::write(&guest, format!("{text}\n@ run/nearfar-lab\n{marker}\n")).unwrap();
    let path = guest.to_str().unwrap();
    let shown_text = shown(&["--sysfs", path]);
    assert!(shown_text.contains("emulated by nearfar lab: machine cxl-2tier, 25 times slower"));
    assert_eq!(json(&shown(&["--json", "--sysfs", path]))["lab"]["slow_motion"], 25);
}

#[test]
fn every_key_of_the_json_is_documented() {
    let docs = std::fs::read_to_string(machines().join("../../docs/topo.md")).unwrap();
    fn keys(value: &serde_json::Value, found: &mut std::collections::BTreeSet<String>) {
        match value {
            serde_json::Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
            serde_json::Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                found.insert(name.clone());
                // The contents of the lab's description are documented by the lab.
                if name != "lab" {
                    keys(value, found);
                }
            }),
            _ => {}
        }
    }
    let mut found = std::collections::BTreeSet::new();
    let tree = machines().join("cxl-region-two-devices.tree");
    keys(&json(&shown(&["--json", "--sysfs", tree.to_str().unwrap()])), &mut found);
    for key in found.iter().filter(|key| *key != "schema") {
        let written = [format!("`{key}`"), format!("`{key}[]`")];
        assert!(written.iter().any(|text| docs.contains(text)), "docs/topo.md lacks {key}");
    }
}
