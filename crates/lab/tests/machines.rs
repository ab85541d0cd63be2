//! `nearfar-lab machines`: the JSON format stays unchanged (UPDATE=1 rewrites the golden file).

use std::path::Path;
use std::process::Command;

fn machines(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_nearfar-lab"))
        .arg("machines")
        .args(args)
        .output()
        .expect("nearfar-lab starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_json_of_the_built_in_machines_matches_the_recorded_one() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/machines.json");
    let (status, json, _) = machines(&["--json"]);
    assert_eq!(status, 0);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&golden, &json).expect("the golden file is written");
    }
    let recorded = std::fs::read_to_string(&golden).expect("the golden file is read");
    assert_eq!(json, recorded, "run with UPDATE=1 if the change is meant");
}

#[test]
fn a_machine_file_is_shown_like_a_built_in_machine() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/machines/numa-4node.toml");
    let named = machines(&["numa-4node", "--json"]);
    assert_eq!(machines(&[file.to_str().expect("a path that is text"), "--json"]), named);
}

#[test]
fn the_table_names_every_node_and_how_its_bandwidth_is_shared() {
    let (_, table, _) = machines(&["hbm-dram-cxl"]);
    assert!(
        table.contains("hbm") && table.contains("each way") && table.contains("130 ns"),
        "{table}"
    );
}

#[test]
fn an_invalid_machine_is_one_line_of_error_and_status_2() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("mine.toml");
    let text = include_str!("../../../lab/machines/cxl-2tier.toml");
    std::fs::write(&file, text.replace("read_gbps = 27.0", "read_gbps = 0")).expect("written");
    let hostile = dir.path().join("hostile.toml");
    std::fs::write(&hostile, "name = \u{1b}]0;mine\u{7}").expect("written");
    let (status, _, error) = machines(&[hostile.to_str().expect("a path that is text")]);
    assert!(
        status == 2 && error.contains("mine") && !error.contains(['\u{1b}', '\u{7}']),
        "{error:?}"
    );
    for (name, part) in [
        (
            "cxl2tier",
            "built in are cxl-2tier, cxl-2tier-small, cxl-2tier-ample, cxl-2tier-narrow, hbm-dram-cxl, hbm-dram-cxl-small, cxl-2socket-small, numa-4node, spr-cxl, cxl-2socket, xeon-max, cxl-device, cxl-idle",
        ),
        ("/nonexistent/m.toml", "/nonexistent/m.toml: No such file"),
        (file.to_str().expect("a path that is text"), "mine.toml: node 1: read_gbps = 0: allowed"),
    ] {
        let (status, out, error) = machines(&[name]);
        assert_eq!((status, out.as_str(), error.lines().count()), (2, "", 1), "{error}");
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn failure_to_write_output_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full opens");
    let output = Command::new(env!("CARGO_BIN_EXE_nearfar-lab"))
        .arg("machines")
        .stdout(full)
        .output()
        .expect("nearfar-lab starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("can't write to standard output: No space left"), "{said}");
}
