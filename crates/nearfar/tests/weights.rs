//! `nearfar weights` from a user's view: on recorded machines, and on directories created from them, where --apply and
//! `--restore` really write.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nearfar_topology::Tree;
use serde_json::{Value, json};
use tempfile::TempDir;

mod other_user;

use other_user::OtherUser;

const DIR: &str = "sys/kernel/mm/mempolicy/weighted_interleave";

fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines").join(name)
}

/// A machine that can be written to, with a state directory beside it.
struct Machine {
    dir: TempDir,
}

impl Machine {
    /// Four nodes, as `hbm-flat.tree` has them, with the weights and `auto` given.
    fn planted(weights: [u8; 4], auto: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = std::fs::read_to_string(recording("hbm-flat.tree")).unwrap();
        let mut tree = Tree::parse(&text);
        for (node, weight) in weights.iter().enumerate() {
            tree.insert(&format!("{DIR}/node{node}"), &weight.to_string());
        }
        if let Some(auto) = auto {
            tree.insert(&format!("{DIR}/auto"), auto);
        }
        Self::of(dir, &tree)
    }

    fn of(dir: TempDir, tree: &Tree) -> Self {
        std::fs::create_dir(dir.path().join("root")).unwrap();
        nearfar_kernel::fs::plant(tree, &dir.path().join("root")).unwrap();
        Self { dir }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn weights(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        command.env("NEARFAR_STATE", self.dir.path().join("state"));
        command.arg("weights").arg("--sysfs").arg(self.root()).args(arguments).output().unwrap()
    }

    fn shown(&self, arguments: &[&str]) -> String {
        let output = self.weights(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.shown(&[&["--json"], arguments].concat())).unwrap()
    }

    fn refused(&self, arguments: &[&str], status: i32) -> String {
        let output = self.weights(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn value(&self, file: &str) -> String {
        std::fs::read_to_string(self.root().join(DIR).join(file)).unwrap().trim().to_string()
    }

    fn values(&self) -> String {
        (0..4).map(|node| self.value(&format!("node{node}"))).collect::<Vec<_>>().join(":")
    }

    fn write(&self, file: &str, text: &str) -> String {
        let path = self.dir.path().join(file);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    }
}

/// Two sockets, neither probed nor known to firmware, under a kernel without weighted interleave.
fn unmeasured() -> Machine {
    let text = std::fs::read_to_string(recording("one-tier.tree")).unwrap();
    Machine::of(tempfile::tempdir().unwrap(), &Tree::parse(&text))
}

#[test]
fn firmware_bandwidths_give_weights_and_their_expected_bandwidth() {
    let report = Machine::planted([1, 1, 1, 1], None).json(&[]);
    assert_eq!(report["schema"], "nearfar.weights/2");
    assert_eq!((&report["source"], &report["mix"]), (&json!("hmat"), &json!("2:1")));
    let weights: Vec<_> =
        report["nodes"].as_array().unwrap().iter().map(|node| &node["weight"]).collect();
    assert_eq!(weights, [1, 1, 2, 2]);
    assert_eq!(report["ideal_bytes_per_second"], 1_500_000_000_000_u64);
    assert_eq!(report["chosen"]["loss_bp"], 0);
    assert_eq!(report["even"]["aggregate_bytes_per_second"], 1_000_000_000_000_u64);
    assert_eq!((&report["kernel"], &report["kernel_auto"]), (&report["even"], &Value::Null));
    assert_eq!((&report["applied"], &report["writes"]), (&json!(false), &json!([])));
}

#[test]
fn weights_over_sockets_have_a_note_that_links_are_unknown() {
    let machine = Machine::planted([1, 1, 1, 1], None);
    let said = String::from_utf8(machine.weights(&[]).stderr).unwrap();
    assert!(said.contains("the bandwidth of the links between them is not known"), "{said}");
    assert!(said.contains("nearfar probe") && said.contains("of one socket"), "{said}");
    let near = machine.weights(&["--nodes", "0,2"]);
    assert_eq!(String::from_utf8(near.stderr).unwrap(), "", "one socket");
}

#[test]
fn a_set_of_nodes_gets_weights_of_its_own() {
    let machine = Machine::planted([1, 1, 1, 1], None);
    let report = machine.json(&["--nodes", "dram"]);
    assert_eq!(report["nodes"].as_array().unwrap().len(), 2);
    assert_eq!(report["chosen"]["weights"], json!([1, 1]));
    let text = machine.shown(&["--nodes", "0,2"]);
    assert!(text.contains("1:2") && text.contains("add --apply"), "{text}");
}

#[test]
fn equivalent_weights_need_not_be_set() {
    let text = Machine::planted([30, 30, 60, 61], Some("true")).shown(&[]);
    assert!(text.contains("No need to set them"), "{text}");
}

#[test]
fn applied_weights_are_undone_by_restore() {
    let machine = Machine::planted([7, 1, 1, 1], Some("true"));
    let report = machine.json(&["--apply"]);
    assert_eq!((&report["applied"], report["writes"].as_array().unwrap().len()), (&json!(true), 4));
    let planned = machine.json(&["--restore", "--dry-run"]);
    for writes in [&report["writes"], &planned["put_back"]] {
        let of = |one: &Value| one["path"].as_str().unwrap().starts_with(&format!("/{DIR}/"));
        assert!(writes.as_array().unwrap().iter().all(of), "{writes}");
    }
    assert_eq!((machine.values().as_str(), machine.value("auto").as_str()), ("1:1:2:2", "false"));
    assert!(machine.shown(&[]).contains("nearfar weights --restore"));
    let text = machine.shown(&["--restore"]);
    assert!(text.contains("restored 7") && text.contains("restored true"), "{text}");
    assert_eq!((machine.values().as_str(), machine.value("auto").as_str()), ("7:1:1:1", "true"));
    assert_eq!(machine.shown(&["--restore"]), "nothing to restore\n");
}

#[test]
fn settings_are_restored_even_if_the_journal_becomes_unwritable() {
    let machine = Machine::planted([7, 1, 1, 1], Some("true"));
    machine.shown(&["--apply"]);
    let user = if rustix::process::geteuid().is_root() { "-m" } else { "-mr" };
    let script = "mount --bind $NEARFAR_STATE $NEARFAR_STATE && mount -o remount,bind,ro $NEARFAR_STATE && \"$@\"";
    let mut command = Command::new("unshare");
    command.args([
        user,
        "sh",
        "-c",
        script,
        "sh",
        env!("CARGO_BIN_EXE_nearfar"),
        "weights",
        "--restore",
    ]);
    let output = command
        .args(["--sysfs", machine.root().to_str().unwrap()])
        .env("NEARFAR_STATE", machine.dir.path().join("state"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("Read-only file system"),
        "{output:?}"
    );
    assert_eq!((machine.values().as_str(), machine.value("auto").as_str()), ("7:1:1:1", "true"));
    assert_eq!(machine.shown(&["--restore"]), "nothing to restore\n", "the values are old ones");
}

#[test]
fn an_unprivileged_restore_changes_nothing_and_names_the_cause_once() {
    let Some(user) = OtherUser::new() else { return };
    let machine = Machine::planted([7, 1, 1, 1], None);
    machine.shown(&["--apply"]);
    let state = machine.dir.path().join("state");
    for (mode, what) in [(0o700, "a closed state directory"), (0o755, "settings of root")] {
        for (dir, mode) in
            [(machine.dir.path(), 0o755), (&state.join("journal"), mode), (&state, mode)]
        {
            set_permissions(dir, Permissions::from_mode(mode)).unwrap();
        }
        let root = machine.root();
        let mut restore =
            user.nearfar(&["weights", "--sysfs", root.to_str().unwrap(), "--restore"]);
        let output = restore.env("NEARFAR_STATE", &state).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        assert!(said.matches("Permission denied").count() <= 1, "{what}: {said}");
        assert!(said.contains("needs root (sudo)") && said.lines().count() == 1, "{what}: {said}");
        assert_eq!(machine.values(), "1:1:2:2", "{what}");
    }
}

#[test]
fn a_dry_run_of_an_unprivileged_user_names_the_needed_privilege() {
    let Some(user) = OtherUser::new() else { return };
    let machine = Machine::planted([7, 1, 1, 1], None);
    set_permissions(machine.dir.path(), Permissions::from_mode(0o755)).unwrap();
    let root = machine.root();
    let words = [
        "run",
        "-w",
        "auto",
        "-N",
        "0",
        "--dry-run",
        "--sysfs",
        root.to_str().unwrap(),
        "--",
        "true",
    ];
    let state = machine.dir.path().join("state");
    let output = user.nearfar(&words).env("NEARFAR_STATE", &state).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("-w auto: setting these weights needs root"), "{said}");
}

#[test]
fn each_written_setting_is_printed_with_verbose() {
    let machine = Machine::planted([7, 1, 1, 1], None);
    let output = machine.weights(&["0=3,2-3=4", "--apply", "-v"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let file = machine.root().join(DIR).join("node2");
    assert!(said.contains(&format!("nearfar: wrote 4 to {}\n", file.display())), "{said}");
    let quiet = machine.weights(&["--restore", "-q"]);
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{quiet:?}");
    assert!(machine.refused(&["-q", "-v"], 2).contains("--verbose"));
}

#[test]
fn a_restore_after_two_applies_returns_to_the_first_state() {
    let machine = Machine::planted([7, 1, 1, 1], None);
    machine.shown(&["--apply"]);
    let again = machine.shown(&["--apply"]);
    assert!(again.contains("set already"), "{again}");
    let file = machine.write(
        "other.json",
        r#"{"schema":"nearfar.bandwidth/1","nodes":[{"id":0,"read_bytes_per_second":3000000000},
            {"id":2,"read_bytes_per_second":1000000000}]}"#,
    );
    machine.shown(&["--apply", "--nodes", "0,2", "--from", &file]);
    assert_eq!(machine.values(), "3:1:1:2");
    machine.shown(&["--restore"]);
    assert_eq!(machine.values(), "7:1:1:1");
}

#[test]
fn given_weights_are_evaluated_set_and_restored() {
    let machine = Machine::planted([7, 1, 1, 1], None);
    let report = machine.json(&["0=3,2=1"]);
    assert_eq!((&report["chosen"]["weights"], &report["given"]), (&json!([3, 1]), &json!(true)));
    assert!(machine.shown(&["0=3,2=1"]).contains("computed"), "they stand beside computed ones");
    assert_eq!(machine.values(), "7:1:1:1", "they are not set without being told");
    assert!(machine.shown(&["0=3,2-3=4", "--apply"]).contains("wrote 3"));
    assert_eq!(machine.values(), "3:1:4:4");
    machine.shown(&["--restore"]);
    assert_eq!(machine.values(), "7:1:1:1");
    for (given, part) in [
        ("0=3,0-1=2", "node 0 is given two weights"),
        ("0:3", "write 0=3,1=1"),
        ("0=0", "1 to 255"),
        ("0=256", "1 to 255"),
        ("9=1", "no node 9"),
    ] {
        let said = machine.refused(&[given, "--apply"], 2);
        assert!(said.contains(part), "{given}: {said}");
    }
    assert_eq!(machine.values(), "7:1:1:1");
}

#[test]
fn figures_of_the_labs_firmware_are_marked_emulated() {
    for (recording, emulated) in [("lab-cxl-2tier", true), ("cxl-region-two-devices", false)] {
        let path =
            format!("{}/../../fixtures/machines/{recording}.tree", env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        let output = command.args(["weights", "--json", "--sysfs", &path]).output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&found["source"], &found["emulated"]), (&json!("hmat"), &json!(emulated)));
    }
}

#[test]
fn a_dry_run_prints_the_writes_and_performs_none() {
    let machine = Machine::planted([7, 1, 1, 1], Some("true"));
    let text = machine.shown(&["--apply", "--dry-run"]);
    assert!(text.contains("would write 1") && text.contains("(was 7)"), "{text}");
    assert!(text.contains("would write false") && text.contains("(was true)"), "{text}");
    assert_eq!(machine.values(), "7:1:1:1");
    assert!(!machine.dir.path().join("state").exists());
    machine.shown(&["--apply"]);
    let text = machine.shown(&["--restore", "--dry-run"]);
    assert!(text.contains("would restore true") && text.contains("(was false)"), "{text}");
    assert_eq!(machine.values(), "1:1:2:2");
}

#[test]
fn weights_changed_by_others_since_are_kept_unless_overwritten() {
    let machine = Machine::planted([7, 1, 1, 1], None);
    machine.shown(&["--apply"]);
    std::fs::write(machine.root().join(DIR).join("node2"), "9\n").unwrap();
    for words in [&["--restore", "--dry-run"][..], &["--restore"]] {
        let error = machine.refused(words, 1);
        assert!(error.contains("node2 reads 9") && error.contains("--overwrite"), "{error}");
        assert_eq!(machine.values(), "1:1:9:2");
    }
    let text = machine.shown(&["--restore", "--overwrite", "--dry-run"]);
    assert!(text.contains("node2 (was 9)"), "{text}");
    machine.shown(&["--restore", "--overwrite"]);
    assert_eq!(machine.values(), "7:1:1:1");
}

#[test]
fn operations_impossible_on_a_recording_are_refused_before_any_write() {
    let state = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command.env("NEARFAR_STATE", state.path());
    let output = command
        .args(["weights", "--apply", "--sysfs"])
        .arg(recording("hbm-flat.tree"))
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("recording") && error.contains("nothing was changed"), "{error}");
    let left = std::fs::read_dir(state.path().join("journal")).unwrap();
    assert!(left.into_iter().all(|file| file.unwrap().path().extension().is_none()));
}

#[test]
fn an_unmeasured_machine_gets_the_advice_to_probe() {
    let error = unmeasured().refused(&[], 1);
    assert!(error.contains("node 0 (dram)") && error.contains("nearfar probe"), "{error}");
    let error = unmeasured().refused(&["--from", "probe"], 1);
    assert!(error.contains("no probe of this machine is saved"), "{error}");
}

#[test]
fn a_saved_probe_of_this_machine_is_preferred_to_firmware() {
    let machine = Machine::planted([1, 1, 1, 1], None);
    let topo = Command::new(env!("CARGO_BIN_EXE_nearfar"))
        .args(["topo", "--json", "--sysfs"])
        .arg(machine.root())
        .output()
        .unwrap();
    let topo: Value = serde_json::from_slice(&topo.stdout).unwrap();
    let mut report = nearfar_probe::testkit::report();
    report.machine.fingerprint = topo["fingerprint"].as_str().unwrap().into();
    nearfar_probe::save(&machine.dir.path().join("state"), &report).unwrap();
    let shown = machine.json(&["--nodes", "0,1"]);
    assert_eq!((&shown["source"], &shown["emulated"]), (&json!("probe"), &json!(false)));
    // 50 and 36 GB/s at 2:1.
    assert_eq!(shown["ideal_bytes_per_second"], 86_000_000_000_u64);
    let hmat = machine.json(&["--nodes", "0,1", "--from", "hmat"]);
    assert_eq!(hmat["source"], "hmat");
    let error = machine.refused(&["--nodes", "0,3"], 1);
    assert!(error.contains("node 3 (hbm)") && error.contains("did not measure it"), "{error}");
    let error = machine.refused(&["--nodes", "0,1", "--mix", "1:9"], 2);
    assert!(error.contains("no bandwidth at 1:9"), "{error}");
}

#[test]
fn the_kernels_own_weights_are_shown_without_bandwidths() {
    let report = Machine::planted([3, 1, 1, 1], Some("true")).json(&["--from", "kernel"]);
    assert_eq!((&report["source"], &report["kernel_auto"]), (&json!("kernel"), &json!(true)));
    assert_eq!(
        (&report["nodes"][0]["weight"], &report["ideal_bytes_per_second"]),
        (&json!(3), &Value::Null)
    );
    let error = unmeasured().refused(&["--from", "kernel"], 1);
    assert!(error.contains("6.9"), "{error}");
}

#[test]
fn a_node_too_slow_to_interleave_is_named_with_the_way_to_exclude_it() {
    let machine = Machine::planted([1, 1, 1, 1], None);
    let file = machine.write(
        "slow.json",
        r#"{"schema":"nearfar.bandwidth/1","nodes":[{"id":0,"read_bytes_per_second":100000000000},
            {"id":1,"read_bytes_per_second":100000000000},{"id":2,"read_bytes_per_second":100000000}]}"#,
    );
    let error = machine.refused(&["--nodes", "0-2", "--from", &file], 1);
    assert!(error.contains("node 2 is too slow") && error.contains("with --nodes 0-1"), "{error}");
}

#[test]
fn invalid_input_is_refused_entirely_with_status_2() {
    let machine = Machine::planted([1, 1, 1, 1], None);
    let absurd = machine.write(
        "absurd.json",
        r#"{"schema":"nearfar.bandwidth/1","nodes":[{"id":0,"read_bytes_per_second":0}]}"#,
    );
    let foreign = machine.write("foreign.json", r#"{"hello": 1}"#);
    for (arguments, part) in [
        (&["--nodes", "9"][..], "no node 9"),
        (&["--nodes", "cxl"], "names no node here"),
        (&["--nodes", ""], "empty"),
        (&["--mix", "0:0"], "`0:0` is not"),
        (&["--from", "/no/such/file"], "/no/such/file"),
        (&["--from", &absurd], "can't be right"),
        (&["--from", &foreign], "no schema"),
        (&["-N", "2"], "has no CPUs"),
        (&["--restore", "--apply"], "cannot be used"),
        (&["--restore", "--mix", "1:1"], "cannot be used"),
        (&["--overwrite"], "--restore"),
        (&["--dry-run"], "--apply|--restore"),
    ] {
        let error = machine.refused(arguments, 2);
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    assert_eq!(machine.values(), "1:1:1:1");
}
