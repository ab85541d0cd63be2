//! `nearfar`, `nearfar status`, `nearfar off` and `nearfar ps` from a user's view, on this machine, on recorded ones, and with a
//! journal of processes that were killed.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

struct State(tempfile::TempDir);

impl State {
    fn new() -> Self {
        let state = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(state.journal()).unwrap();
        state
    }

    fn journal(&self) -> std::path::PathBuf {
        self.0.path().join("journal")
    }

    /// A batch of a process that is gone, for a file that no kernel has, so that restoring writes nothing.
    fn batch(&self, number: u32, by: &str, node: u32) {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let path = format!("sys/kernel/mm/mempolicy/weighted_interleave/node{node}");
        let entry = json!({"schema": "nearfar.journal/1", "by": by, "pid": 4_194_305, "root": "/", "boot_id": boot.trim(),
            "changes": [{"path": path, "old": "1", "new": "3"}]});
        std::fs::write(self.journal().join(format!("{number:010}.json")), entry.to_string())
            .unwrap();
    }

    fn nearfar(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        command.env_remove("COLUMNS");
        command.args(words).env("NEARFAR_STATE", self.0.path());
        command.env("NEARFAR_ADVICE", self.0.path().join("advice"));
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    }

    fn json(&self, words: &[&str]) -> Value {
        let (code, out, err) = self.nearfar(&[&["status", "--json"], words].concat());
        assert_eq!((code, err.as_str()), (Some(0), ""));
        serde_json::from_str(&out).unwrap()
    }
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn commands_wrap_their_lines_on_a_terminal_of_twenty_columns() {
    let machine = fixture("hbm-flat.tree");
    let damo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/record/damo-raw.json");
    let damo = damo.to_str().unwrap();
    for words in [
        &["status", "--sysfs", &machine][..],
        &["topo", "--sysfs", &machine],
        &["topo", "--sysfs", &machine, "--draw"],
        &["doctor", "--sysfs", &machine],
        &["weights", "--sysfs", &machine],
        &["run", "--sysfs", &machine, "-m", "far", "--dry-run", "true"],
        &["report", "wss", damo],
        &["report", "heatmap", damo],
        &["report", "temperature", damo],
        &["ps"],
        &["lab", "machines"],
        &["--help"],
    ] {
        let output = |columns| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
            let output = command.args(words).env("COLUMNS", columns).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
            output.stdout.iter().filter(|byte| **byte == b'\n').count()
        };
        assert!(output("20") >= output("100"), "{words:?}");
    }
}

#[test]
fn an_impossible_move_is_refused_before_a_page_moves() {
    let state = State::new();
    let own = std::process::id().to_string();
    let file = state.0.path().join("moved.json");
    std::fs::write(&file, "{}").unwrap();
    let file = file.to_str().unwrap();
    let absurd = state.0.path().join("absurd.json");
    let runs = json!([[0, u64::MAX, 0]]);
    let process = json!({"pid": 1, "started_ticks": 1, "runs": runs});
    let text = json!({"schema": "nearfar.moved/1", "processes": [process]}).to_string();
    std::fs::write(&absurd, text).unwrap();
    for (words, status, part) in [
        (&["move"][..], 2, "PID|CGROUP"),
        (&["move", &own], 2, "NODES"),
        (&["move", &own, "900"], 2, "no node 900"),
        (&["move", &own, "0", "--rate", "0"], 2, "above zero"),
        (&["move", "4194304", "0"], 1, "process 4194304 does not exist"),
        (&["move", "/no/such/cgroup", "0"], 2, "/no/such/cgroup"),
        (&["move", "", "0"], 2, "path of the cgroup is empty"),
        (&["ps", "--cgroup", ""], 2, "path of the cgroup is empty"),
        (&["move", "--undo", "/nonexistent"], 2, "/nonexistent"),
        (&["move", &own, "0", "--save", "/nonexistent/file"], 1, "/nonexistent/file"),
        (&["move", "--undo", file], 2, "no file of nearfar move --save"),
        (&["move", "--undo", absurd.to_str().unwrap()], 2, "no file of nearfar move --save"),
        (&["move", &own, "0", "--save", file], 1, "may be the way back of an earlier move"),
    ] {
        let (code, out, err) = state.nearfar(words);
        assert!(code == Some(status) && err.contains(part), "{words:?}: {code:?} {err}");
        assert_eq!(out, "", "{words:?}");
    }
    // In a namespace of its own, process 2 is any program.
    if std::fs::read_to_string("/proc/2/statm").is_ok_and(|sizes| sizes.starts_with("0 ")) {
        let (code, _, err) = state.nearfar(&["move", "2", "0"]);
        assert!(code == Some(1) && err.contains("is a thread of the kernel"), "{err}");
    }
    let (code, out, err) = state.nearfar(&["move", &own, "all", "--json"]);
    assert_eq!(code, Some(0), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&report["schema"], &report["processes"][0]["moved_bytes"]),
        (&json!("nearfar.move/1"), &json!(0))
    );
}

#[test]
fn a_snapshot_shows_the_same_machine_elsewhere_and_has_no_serial_numbers() {
    let state = State::new();
    let machine = fixture("cxl-region-two-devices.tree");
    let file = state.0.path().join("snapshot.json");
    let (code, out, err) =
        state.nearfar(&["snapshot", file.to_str().unwrap(), "--sysfs", &machine]);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
    assert!(err.contains("read it before you send it"), "{err}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("5cd0a00000001000"), "a serial number of the fixture");
    let snapshot: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(snapshot["doctor"]["schema"], "nearfar.doctor/1");
    assert_eq!(snapshot["status"]["schema"], "nearfar.status/1");
    assert_eq!((&snapshot["tiering"], &snapshot["balancing"]), (&Value::Null, &Value::Null));
    let tree = state.0.path().join("machine.tree");
    std::fs::write(&tree, snapshot["topology"].as_str().unwrap()).unwrap();
    let shown = |machine: &str| {
        let (_, out, _) = state.nearfar(&["topo", "--json", "--sysfs", machine]);
        let topology: Value = serde_json::from_str(&out).unwrap();
        ["nodes", "tiers", "near_far", "cxl_regions"].map(|key| topology[key].clone())
    };
    assert_eq!(shown(tree.to_str().unwrap()), shown(&machine));
    // On this machine, and into a place that can't be written to.
    let (code, out, err) = state.nearfar(&["snapshot", "-"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["schema"], "nearfar.snapshot/1");
    let (code, _, err) = state.nearfar(&["snapshot", "/nonexistent/file", "--sysfs", &machine]);
    assert!(code == Some(1) && err.contains("/nonexistent/file"), "{err}");
}

#[test]
fn a_name_with_control_characters_does_not_reach_the_terminal() {
    let state = State::new();
    for words in [["ps", "--cgroup", "/a\u{1b}]0;title\u{7}"], ["topo", "--sysfs", "/a\u{1b}[2J"]] {
        let (code, out, err) = state.nearfar(&words);
        assert!(code != Some(0) && err.contains("/a"), "{code:?} {err}");
        assert!(!(out + &err).contains(['\u{1b}', '\u{7}']), "{err:?}");
    }
}

#[test]
fn nearfar_alone_is_the_status_of_this_machine() {
    let state = State::new();
    let (code, out, err) = state.nearfar(&[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for part in ["Linux", "\nrunning\n", "\nchanged settings\n  none\n", "\nnext\n  nearfar "] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    let found = state.json(&[]);
    assert_eq!((&found["schema"], &found["settings"]), (&json!("nearfar.status/1"), &json!([])));
    assert!(
        found["services"].is_array() && !found["next"].as_array().unwrap().is_empty(),
        "{found}"
    );
}

#[test]
fn a_recorded_machine_has_tiers_and_no_services() {
    let state = State::new();
    let found = state.json(&["--sysfs", &fixture("cxl-region-two-devices.tree")]);
    assert_eq!((&found["services"], &found["settings"]), (&Value::Null, &Value::Null));
    assert_eq!((&found["near"], &found["far"]), (&json!("0-1"), &json!("2")));
    for memory in ["near_memory", "far_memory"] {
        let [bytes, free] = ["bytes", "free_bytes"].map(|key| found[memory][key].as_u64().unwrap());
        assert!(0 < free && free <= bytes, "{found}");
    }
    let next: Vec<_> =
        found["next"].as_array().unwrap().iter().map(|one| &one["command"]).collect();
    assert_eq!(next[0], "nearfar probe", "{next:?}");
    let laptop = state.json(&["--sysfs", &fixture("laptop.tree")]);
    assert_eq!(laptop["next"][0]["command"], "nearfar demo");
}

#[test]
fn memory_errors_are_problems() {
    let state = State::new();
    let tree = state.0.path().join("errors.tree");
    let errors = "\n@ sys/devices/system/node/node1/memory_failure/total\n2\n\
                  @ sys/devices/system/node/node1/memory_failure/failed\n2\n\
                  @ sys/devices/system/edac/mc/mc3/mc_name\nF19h\n\
                  @ sys/devices/system/edac/mc/mc3/ce_count\n7\n\
                  @ sys/devices/system/edac/mc/mc3/ue_count\n1\n";
    let machine = std::fs::read_to_string(fixture("two-sockets.tree")).unwrap();
    std::fs::write(&tree, machine + errors).unwrap();
    let report = state.json(&["--sysfs", tree.to_str().unwrap()]);
    let expected = [
        "node 1: memory errors on 2 pages (2 failed)",
        "memory controller mc3 (F19h): 7 errors corrected, 1 uncorrected",
    ];
    assert_eq!(report["problems"], json!(expected));
}

#[test]
fn settings_of_any_killed_process_are_shown_and_restored() {
    let state = State::new();
    for (number, by) in [(1, "tier"), (2, "damon"), (3, "balance"), (4, "weights"), (5, "another")]
    {
        state.batch(number, by, 70 + number);
    }
    let found = state.json(&[]);
    let settings = found["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 5);
    assert_eq!(settings[0]["path"], "/sys/kernel/mm/mempolicy/weighted_interleave/node71");
    assert_eq!((&settings[0]["value"], &settings[0]["before"]), (&json!("3"), &json!("1")));
    assert_eq!((&settings[0]["by"], &settings[0]["running"]), (&json!("tier"), &json!(false)));
    assert!(settings[0]["since_s"].as_u64().unwrap() < 1000, "{found}");
    // Weights stay until they are restored; that is no problem.
    let problem = found["problems"]
        .as_array()
        .unwrap()
        .iter()
        .any(|one| one.as_str().unwrap().starts_with("4 settings"));
    assert!(problem, "{found}");
    assert_eq!(found["next"][0]["command"], "nearfar off");
    if !rustix::process::geteuid().is_root() {
        let (code, _, err) = state.nearfar(&["off"]);
        assert!(code != Some(0) && err.contains("root"), "{err}");
        return;
    }
    let (code, planned, _) = state.nearfar(&["off", "--dry-run"]);
    assert_eq!((code, planned.matches("would restore ").count()), (Some(0), 5), "{planned}");
    assert_eq!(
        state.json(&[])["settings"].as_array().unwrap().len(),
        5,
        "a dry run changes nothing"
    );
    let (code, out, err) = state.nearfar(&["off"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    for line in ["node71: 3 to 1 (changed by tier)\n", "node75: 3 to 1 (changed by another)\n"] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert_eq!(out.matches("restored ").count(), 5, "{out}");
    assert_eq!(state.json(&[])["settings"], json!([]));
    let (code, out, _) = state.nearfar(&["off"]);
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "nearfar moves no pages and has changed no settings.\n")
    );
}

#[test]
fn an_unreadable_entry_is_named_and_does_not_block_other_restores() {
    let state = State::new();
    state.batch(1, "tier", 71);
    std::fs::write(state.journal().join("0000000009.json"), "not json").unwrap();
    let problems = state.json(&[])["problems"].to_string();
    assert!(problems.contains("0000000009.json"), "{problems}");
    let (code, out, err) = state.nearfar(&["off", "--dry-run"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("would restore ") && err.contains("0000000009.json"), "{out}{err}");
    if rustix::process::geteuid().is_root() {
        let (code, out, err) = state.nearfar(&["off"]);
        assert_eq!(code, Some(1), "{out}");
        assert!(out.contains("restored "), "{out}{err}");
        assert_eq!(err.matches("0000000009.json").count(), 1, "{err}");
        let (_, out, _) = state.nearfar(&["status"]);
        assert!(out.contains("changed settings\n  unknown"), "{out}");
    }
}

#[test]
fn ps_shows_running_processes_and_one_by_node_kind_and_policy() {
    let state = State::new();
    let own = std::process::id();
    let (code, out, err) = state.nearfar(&["ps", "--json", "--sort", "memory"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["schema"], "nearfar.ps/1");
    let processes = report["processes"].as_array().unwrap();
    let sizes: Vec<u64> = processes.iter().map(|one| one["bytes"].as_u64().unwrap()).collect();
    assert!(sizes.is_sorted_by(|one, next| one >= next), "{sizes:?}");
    let this = processes.iter().find(|one| one["pid"] == own).unwrap();
    assert_eq!(
        this["bytes"],
        this["near_bytes"].as_u64().unwrap() + this["far_bytes"].as_u64().unwrap()
    );
    assert!(this["nodes"][0]["anonymous_bytes"].as_u64().unwrap() > 0, "{this}");
    assert_eq!(this["policies"][0]["policy"], "default");

    let (_, table, _) = state.nearfar(&["ps"]);
    assert!(
        table.starts_with("     PID      MEMORY        NEAR         FAR  FAR%  COMMAND\n"),
        "{table}"
    );
    let (_, one, _) = state.nearfar(&["ps", &own.to_string()]);
    for part in [&format!("{own} ")[..], "\n  node     anonymous", "\n  policy default: "] {
        assert!(one.contains(part), "{part}: {one}");
    }
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let (_, by_name, _) = state.nearfar(&["ps", name.trim()]);
    assert!(by_name.contains(&format!("{own} {}: ", name.trim())), "{by_name}");
    for (words, said) in [
        (&["ps", "4194304"][..], "process 4194304 does not exist"),
        (&["ps", "4294967296"], "process 4294967296 does not exist"),
        (&["ps", "no-such"], "no process is named no-such"),
        (&["ps", "--cgroup", "no/such"], "no/such"),
        (&["ps", "--cgroups", "1"], "--cgroups"),
        (&["ps", "--sort", "size"], "[possible values: far, memory, pid]"),
    ] {
        let (code, out, err) = state.nearfar(words);
        assert!(code != Some(0) && out.is_empty() && err.contains(said), "{words:?}: {err}");
    }
}

#[test]
fn ps_watches_until_it_is_interrupted() {
    use std::io::BufRead as _;
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.args(["ps", "--watch", "100ms", "--json", &std::process::id().to_string()]);
    let mut watch = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufReader::new(watch.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(line["processes"].as_array().unwrap().len(), 1);
    }
    let pid = rustix::process::Pid::from_child(&watch);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    lines.for_each(drop);
    assert!(watch.wait().unwrap().success());
}

#[test]
fn an_option_before_the_command_applies_to_it() {
    let state = State::new();
    for words in [&["--json", "status"][..], &["--json"]] {
        let (code, out, err) = state.nearfar(words);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["schema"], "nearfar.status/1");
    }
    let (code, help, _) = state.nearfar(&["--help"]);
    assert!(code == Some(0) && help.contains("\nPlace:\n  run "), "{help}");
}
