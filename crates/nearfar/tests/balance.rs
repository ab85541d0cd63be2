//! Messages and exit statuses of `nearfar balance` on machines with nothing to balance, or without permission.

#![expect(clippy::unwrap_used, reason = "this is a test program")]

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Output};

mod other_user;

use other_user::OtherUser;

/// On a machine with one node the command refuses for that reason; on others for the reason in the arguments.
fn balance(state: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    let Output { status, stdout, stderr } =
        command.arg("balance").args(arguments).env("NEARFAR_STATE", state).output().unwrap();
    assert!(stdout.is_empty() || status.success(), "{arguments:?}");
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn usage_errors_have_status_2_and_name_the_argument() {
    let state = tempfile::tempdir().unwrap();
    for (arguments, says) in [
        (&["start", "--policy", "fair"][..], "[possible values: balanced, carrefour, colloid]"),
        (&["start", "--rate", "0"], "--rate"),
        (&["start", "--rate", "much"], "--rate"),
        (&["start", "--pid", "0"], "--pid"),
        (&["start", "--pid", "1", "--cgroup", "x"], "--cgroup"),
        (&["restart"], "restart"),
    ] {
        let (code, said) = balance(state.path(), arguments);
        assert!(code == Some(2) && said.contains(says), "{arguments:?}: {code:?} {said}");
    }
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0, "nothing is written");
}

#[test]
fn a_service_that_does_not_run_has_no_status_and_can_be_stopped() {
    let state = tempfile::tempdir().unwrap();
    let (code, said) = balance(state.path(), &["status"]);
    assert!(code == Some(1) && said.contains("start it with: nearfar balance start"), "{said}");
    assert_eq!(balance(state.path(), &["stop"]).0, Some(0));
    // A process that was killed: its number is ours, but it started at another time.
    let journal = state.path().join("journal");
    claim(state.path(), 1);
    let killed = format!(
        "{{\"schema\":\"nearfar.balance/1\",\"pid\":{},\"started_ticks\":1}}",
        std::process::id()
    );
    std::fs::write(journal.join("balance.json"), killed).unwrap();
    let (code, said) = balance(state.path(), &["status"]);
    assert!(code == Some(1) && said.contains("was killed"), "{said}");
    assert_eq!(balance(state.path(), &["stop"]).0, Some(0));
    assert!(!journal.join("balance.json").exists());
}

#[test]
fn json_status_is_json_without_a_running_service() {
    let state = tempfile::tempdir().unwrap();
    for command in ["balance", "tier"] {
        let mut status = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        status.args([command, "status", "--json"]).env("NEARFAR_STATE", state.path());
        let Output { status, stdout, stderr } = status.output().unwrap();
        assert_eq!((status.code(), stderr.len()), (Some(1), 0), "{command}");
        let found: serde_json::Value = serde_json::from_slice(&stdout).unwrap();
        assert_eq!(found["schema"], format!("nearfar.{command}/1"));
        assert_eq!(found["running"], false);
        assert!(
            found["why"].as_str().unwrap().contains("is not running; start it with"),
            "{found}"
        );
    }
}

/// When this process started, in ticks since boot.
fn started() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap()
}

/// Records that balancing runs as this process, which started then.
fn claim(state: &Path, started: u64) {
    let journal = state.join("journal");
    std::fs::create_dir_all(&journal).unwrap();
    let text = format!(
        "{{\"schema\":\"nearfar.claim/1\",\"pid\":{},\"started_ticks\":{started},\"of\":\"balance\"}}\n",
        std::process::id()
    );
    std::fs::write(journal.join("moves-pages.claim"), text).unwrap();
}

#[test]
fn an_unreadable_state_does_not_prevent_a_stop() {
    for text in ["", "{\"schema\":\"nearfar.balance/9\"}", "not json", "\u{0}"] {
        let state = tempfile::tempdir().unwrap();
        claim(state.path(), 1);
        let file = state.path().join("journal/balance.json");
        std::fs::write(&file, text).unwrap();
        let (code, said) = balance(state.path(), &["status"]);
        assert!(code == Some(1) && said.contains("nearfar balance stop"), "{text}: {said}");
        assert_eq!(balance(state.path(), &["stop"]).0, Some(0), "{text}");
        assert!(!file.exists(), "{text}");
    }
}

#[test]
fn files_of_another_user_are_refused() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        println!("SKIPPED: only root can give files away");
        return;
    }
    let state = tempfile::tempdir().unwrap();
    claim(state.path(), started());
    let [file, claimed] =
        ["balance.json", "moves-pages.claim"].map(|name| state.path().join("journal").join(name));
    std::fs::write(&file, state_of(7)).unwrap();
    assert_eq!(balance(state.path(), &["status"]).0, Some(0));
    chown(&file, Some(65534), None).unwrap();
    let (code, said) = balance(state.path(), &["status"]);
    assert!(code == Some(1) && said.contains("balance.json"), "{said}");
    // Neither this process, which the claim names, nor any setting is touched.
    chown(&claimed, Some(65534), None).unwrap();
    let (code, said) = balance(state.path(), &["stop"]);
    assert!(code == Some(1) && said.contains("moves-pages.claim"), "{said}");
    assert!(said.contains("belongs to another user") && said.contains("remove it"), "{said}");
    std::fs::remove_file(&claimed).unwrap();
    assert_eq!(balance(state.path(), &["stop"]).0, Some(0));
}

#[test]
fn an_unreadable_claim_is_not_reported_as_a_killed_service() {
    let Some(user) = OtherUser::new() else { return };
    let status = |started| {
        claim(user.dir(), started);
        let claimed = user.dir().join("journal/moves-pages.claim");
        std::fs::set_permissions(claimed, Permissions::from_mode(0o600)).unwrap();
        let state = state_of(7).replace(&format!(":{},", self::started()), &format!(":{started},"));
        std::fs::write(user.dir().join("journal/balance.json"), state).unwrap();
        let mut command = user.nearfar(&["balance", "status"]);
        let output = command.env("NEARFAR_STATE", user.dir()).output().unwrap();
        let Output { status, stderr, .. } = output;
        (status.code(), String::from_utf8(stderr).unwrap())
    };
    assert_eq!(status(started()), (Some(0), String::new()));
    let (code, said) = status(1);
    assert!(code == Some(1) && said.contains("was killed"), "{said}");
}

/// A state of a process that runs (this one), with a number everywhere that there may be one.
fn state_of(number: u64) -> String {
    let started = started();
    let (pid, n, bp) = (std::process::id(), number, number.min(u64::from(u32::MAX)));
    let metrics = format!(
        r#"{{"counted":true,"accesses_per_ms":{n},"local_access_ratio_bp":{bp},"controller_imbalance_bp":{bp},
            "interconnect_imbalance_bp":{bp},"reads_bp":{bp},"memory_in_use_bp":{bp}}}"#
    );
    format!(
        r#"{{"schema":"nearfar.balance/1","pid":{pid},"started_ticks":{started},"running_s":{n},"metrics":{metrics},
            "sensors":[{{"name":"ibs","seen":{n},"lost":{n},"throttled":{n},"unplaced":{n}}}],
            "nodes":[{{"node":65535,"total_bytes":{n},"free_bytes":{n},"share_bp":{bp},"price_ns":{n},"weight":255,
                "latency_ns":{{"65535":{n}}}}}],
            "decision":{{"gain_bp":{bp},"confidence_bp":{bp},"moves":{n},"splits":{n},"left":{{"x":{n}}}}},
            "effect":{{"moved_pages":{n},"predicted_gain_bp":{bp},"before":{metrics},"after":{metrics}}},
            "moves":[{{"from":0,"to":1,"bytes":{n},"pages":{n}}}],"pages":{{"moved":{n}}},"retried":{n},"waiting":{n},
            "splits":{{"done":{n},"failed":{n}}},
            "cost":{{"cpu_ms":{n},"sensors_cpu_ms":{n},"interruptions":{n},"calls":{n}}}}}"#
    )
}

#[test]
fn any_numbers_in_a_state_file_are_shown_or_the_file_is_refused() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("journal/balance.json");
    claim(state.path(), started());
    let status = |bytes: &[u8], json: bool| {
        std::fs::write(&file, bytes).unwrap();
        balance(state.path(), if json { &["status", "--json"] } else { &["status"] })
    };
    for number in [0, 1, 1 << 33, u64::MAX] {
        for json in [false, true] {
            let (code, said) = status(state_of(number).as_bytes(), json);
            assert_eq!(code, Some(0), "{number}: {said}");
        }
    }
    let whole = state_of(7);
    let cut = (0..whole.len()).step_by(97).map(|at| whole.as_bytes()[..at].to_vec());
    let odd = [
        whole.replace("\"retried\":7", "\"retried\":18446744073709551616").into_bytes(),
        whole.replace("\"retried\":7", "\"retried\":-7").into_bytes(),
        whole.replace("\"retried\":7", "\"retried\":1e400").into_bytes(),
        whole.replace("\"weight\":255", "\"weight\":256").into_bytes(),
        whole.replace("65535", "65536").into_bytes(),
        whole.replace("\"moves\":[", "\"moves\":[[").into_bytes(),
        b"[".repeat(1 << 20),
        b"{\"nodes\":".repeat(1 << 16),
        b"\xff\xfe\0".to_vec(),
        b"null".to_vec(),
    ];
    for bytes in cut.chain(odd) {
        let (code, said) = status(&bytes, false);
        let shown = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(60)..]).into_owned();
        assert!(code == Some(1) && said.contains("balance.json"), "{shown}: {code:?} {said}");
        assert!(!said.contains("panicked") && said.len() < 1000, "{said}");
    }
}

#[test]
fn a_recording_and_a_machine_with_one_node_have_nothing_to_balance() {
    let state = tempfile::tempdir().unwrap();
    let (code, said) = balance(state.path(), &["start", "--sysfs", "/"]);
    assert!(code == Some(1) && said.contains("a recording has no pages to move"), "{said}");
    let tree =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/machines/lab-hbm-dram-cxl.tree");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    let planned = command.args(["tier", "start", "--dry-run", "--sysfs", tree]).output().unwrap();
    let lines = String::from_utf8(planned.stdout).unwrap();
    assert!(planned.status.success() && lines.lines().count() == 2, "{lines}");
    assert!(
        lines.starts_with("would promote from node 0 (dram, 1.8 GiB) to node 1 (hbm"),
        "{lines}"
    );
    let nodes = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    if nodes.trim() == "0" {
        for foreground in [&["start"][..], &["start", "--foreground"]] {
            let (code, said) = balance(state.path(), foreground);
            assert!(code == Some(1) && said.contains("one node with memory"), "{said}");
        }
        let (code, said) = balance(state.path(), &["status"]);
        assert!(code == Some(1) && said.contains("is not running"), "{said}");
        assert!(!said.contains("ended by itself"), "a start that was refused never ran: {said}");
        let is_root = rustix::process::geteuid().is_root();
        for (arguments, says) in [
            (&["tier", "start"][..], if is_root { "in one tier" } else { "needs root" }),
            (&["tier", "status"], "is not running; start it"),
            (&["weights"], "the only one to interleave over"),
            (&["run", "-w", "auto", "--", "true"], "-w auto: node 0 is the only one"),
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
            let output = command.args(arguments).env("NEARFAR_STATE", state.path()).output();
            let said = String::from_utf8(output.unwrap().stderr).unwrap();
            assert!(
                said.contains(says) && !said.contains("nearfar probe"),
                "{arguments:?}: {said}"
            );
            assert!(!said.contains("ended by itself"), "{arguments:?}: {said}");
        }
    }
}

#[test]
fn an_unprivileged_user_gets_one_message_that_root_is_needed() {
    let Some(user) = OtherUser::new() else { return };
    for arguments in [
        &["tier", "start"][..],
        &["tier", "stop"],
        &["balance", "start"],
        &["balance", "stop"],
        &["off"],
    ] {
        let mut command = user.nearfar(arguments);
        let output = command.env("NEARFAR_STATE", user.dir().join("state")).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("needs root: run it with sudo; nothing was changed"), "{said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    }
    let record = user.nearfar(&["record", "-o", "/dev/null", "--all"]).output().unwrap();
    let said = String::from_utf8(record.stderr).unwrap();
    assert!(said.contains("needs root (sudo)") && said.lines().count() == 1, "{said}");
    assert!(said.matches("Permission denied").count() <= 1, "{said}");
    assert!(!user.dir().join("state").exists());
}
