//! The README's commands exactly as printed there, on each kernel: all succeed.

use std::path::Path;

use nearfar_kernel::process;

use crate::damon::wait;
use crate::inside::{done, error, nearfar};
use crate::tier::system;

const README: &str = include_str!("../../../../README.md");
const RECORD: &str = "/tmp/readme.nfr";

/// The commands in the README, and their form here, with values for CMD, FILE and sizes that suit a small machine.
const PLAIN: [(&str, &[&str]); 12] = [
    ("nearfar topo", &["topo"]),
    ("nearfar doctor", &["doctor"]),
    ("nearfar probe", &["probe", "--quick"]),
    ("nearfar weights --mix 2:1", &["weights", "--mix", "2:1"]),
    ("nearfar run -w auto --report -- CMD", &["run", "-w", "auto", "--report", "--", "true"]),
    ("nearfar run -p near --report -- CMD", &["run", "-p", "near", "--report", "--", "true"]),
    ("nearfar run --tier -- CMD", &["run", "--tier", "--", "sleep", "1"]),
    ("nearfar run --heap far -- CMD", &["run", "--heap", "far", "--", "true"]),
    ("nearfar sense", &["sense", "--duration", "1s"]),
    ("nearfar record -o FILE -- CMD", &["record", "-o", RECORD, "--", "sleep", "2"]),
    ("nearfar report heatmap FILE", &["report", "info", RECORD]),
    (
        "nearfar cache bench --workload zipf:0.99",
        &["cache", "bench", "--workload", "zipf:0.99", "--seconds", "1"],
    ),
];

pub(crate) fn plain_commands_succeed_and_leave_nothing() {
    let before = system();
    for (shown, arguments) in PLAIN {
        assert!(README.contains(shown), "the README has no `{shown}` any more");
        let output = nearfar(arguments).output().unwrap();
        assert!(output.status.success(), "{shown}: {}: {}", output.status, error(&output));
    }
    done(&["weights", "--restore"]);
    assert_eq!(system(), before);
    for service in ["tier", "balance"] {
        assert!(README.contains(&format!("nearfar {service} start")));
        done(&[service, "start"]);
        done(&[service, "status"]);
        assert!(done(&[service, "stop"]).contains("is stopped (process"));
        assert_eq!(system(), before, "{service}");
    }
    assert!(Path::new(RECORD).exists());
}

/// Ends what runs as this service, as a power failure of it would. When it returns, the process has ended: one that is
/// still ending has a service, which `off` would end.
fn kill(service: &str) {
    let runs = |one: &process::Running| one.arguments.get(1).is_some_and(|word| word == service);
    let process = process::running("nearfar").into_iter().find(runs).unwrap().pid;
    let process = process::Identity::of(process).unwrap();
    process.kill().unwrap();
    while process.is_running() {
        wait();
    }
}

pub(crate) fn off_stops_and_restores_everything_after_any_end_of_a_service() {
    const NOTHING: &str = "nearfar moves no pages and has changed no settings.\n";
    assert!(README.contains("nearfar off"));
    let before = system();
    assert_eq!(done(&["off"]), NOTHING);
    for (service, what) in [("tier", "tiering"), ("balance", "balancing")] {
        for killed in [false, true] {
            done(&["weights", "--from", "hmat", "--apply"]);
            done(&[service, "start"]);
            let status = done(&[]);
            assert!(status.contains(&format!("nearfar {service} start")), "{status}");
            assert!(status.contains("weighted_interleave/node"), "{status}");
            if killed {
                kill(service);
            }
            let said = done(&["off"]);
            assert_eq!(said.contains(&format!("ended {what} (process ")), !killed, "{said}");
            assert!(
                said.contains("restored /sys/kernel/mm/mempolicy/weighted_interleave"),
                "{said}"
            );
            assert_eq!(system(), before, "{service}, killed: {killed}");
            assert_eq!(done(&["off"]), NOTHING);
        }
    }
}
