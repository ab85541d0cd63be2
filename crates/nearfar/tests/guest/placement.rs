//! `nearfar run` on machines with near and far memory: pages land on the requested nodes; weights are set and restored.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use nearfar_kernel::clock::sleep;
use nearfar_kernel::fs::RootFs;
use nearfar_kernel::mapped::{self, Mapping};
use nearfar_kernel::process;
use nearfar_topology::{Bytes, NodeId};

use crate::inside::{
    HOLD, STATE, await_up, done, end, error, held, long_run, nearfar, spread, unprivileged, weight,
    weights,
};

/// A holder holds 64 MiB and has a little more.
const HELD: u64 = 64;

pub(crate) fn bound_memory_is_on_its_nodes() {
    for far in [&["-m", "far"][..], &["-m", "cxl", "-C", "0"], &["-m", "1"]] {
        let [near_mib, far_mib, _] = held(far);
        assert!(far_mib >= HELD && near_mib < 8, "{far:?}: {near_mib} near, {far_mib} far");
    }
    let [near_mib, far_mib, _] = held(&["-m", "near"]);
    assert!(near_mib >= HELD && far_mib == 0, "{near_mib} near, {far_mib} far");
}

/// Devices of the emulator read and write this memory for the guest, as when a program's pages are read from the host.
pub(crate) fn programs_run_in_the_memory_of_an_emulated_cxl_device() {
    let file = "/tmp/nearfar-cxl.json";
    done(&[
        "run",
        "-m",
        "cxl",
        &format!("--report={file}"),
        "--",
        "sh",
        "-c",
        "cat /etc/passwd | sort",
    ]);
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let cxl = &report["nodes"][1];
    assert!(cxl["kind"] == "cxl" && cxl["peak_bytes"].as_u64().unwrap() > 0, "{report}");
}

pub(crate) fn preferred_and_interleaved_memory_is_on_its_nodes() {
    for options in [&["-p", "1"][..], &["-P", "far"]] {
        let mib = held(options);
        assert!(mib[1] >= HELD, "{options:?}: {mib:?}");
    }
    for options in [&["-l"][..], &[]] {
        let mib = held(options);
        assert!(mib[0] >= HELD && mib[1] < 8, "{options:?}: {mib:?}");
    }
    let half = spread(&["-i", "all"]);
    // Each mapping of huge pages takes turns of 2 MiB, and may give either node one more.
    assert!(half[0].abs_diff(half[1]) <= 8 && half[0] + half[1] >= HELD - 1, "{half:?}");
}

pub(crate) fn a_report_has_the_programs_peak_memory() {
    let file = "/tmp/nearfar-report.json";
    let holder = std::env::current_exe().unwrap();
    let sink = format!("--report={file}");
    // Long enough for a slow emulator to be looked at while it holds.
    let mut run = nearfar(&["run", "-m", "far", &sink, "--", holder.to_str().unwrap()]);
    assert!(run.env(HOLD, "8").output().unwrap().status.success());
    let report = std::fs::read_to_string(file).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let peak = |node: usize| report["nodes"][node]["peak_bytes"].as_u64().unwrap();
    assert!(peak(1) >= HELD << 20 && peak(0) < 8 << 20, "{report}");
    assert!(report["processes_max"].as_u64().unwrap() >= 2, "{report}");
    assert_eq!(report["nodes"][1]["kind"], "cxl");
}

/// Per cent of all bandwidth that each node has at 2:1.
fn shares() -> Vec<u64> {
    let json = done(&["weights", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let nodes = report["nodes"].as_array().unwrap();
    let of = |node: &serde_json::Value| node["bandwidth_bytes_per_second"].as_u64().unwrap();
    let all: u64 = nodes.iter().map(of).sum();
    nodes.iter().map(|node| of(node) * 100 / all).collect()
}

pub(crate) fn automatic_weights_distribute_pages_by_bandwidth() {
    let shares = shares();
    let mib = spread(&["-w", "auto"]);
    let all: u64 = mib.iter().sum();
    assert!(all >= HELD - 2, "{mib:?}");
    for (share, mib_here) in shares.iter().zip(&mib) {
        let found = mib_here * 100 / all;
        assert!(found.abs_diff(*share) <= 6, "shares {shares:?} per cent, MiB {mib:?}");
    }
}

pub(crate) fn weights_set_for_a_run_are_restored_when_it_ends() {
    let before = weights();
    let run = long_run(&["-w", "auto"]);
    assert_eq!(weights(), "2:1");
    end(run);
    assert_eq!(weights(), before);
    // Also when the program can't even be started.
    for stays in [&["--report"][..], &[]] {
        let run = [&["run", "-w", "auto"], stays, &["no-such-command"]].concat();
        let status = nearfar(&run).output().unwrap().status.code();
        assert_eq!((status, weights()), (Some(127), before.clone()), "{run:?}");
    }
}

pub(crate) fn weights_of_a_killed_run_are_restored_by_the_next() {
    let before = weights();
    for next in
        [&["weights", "--restore"][..], &["run", "-w", "auto", "--report=/dev/null", "true"]]
    {
        let mut run = long_run(&["-w", "auto"]);
        run.kill().unwrap();
        run.wait().unwrap();
        assert_eq!(weights(), "2:1", "nobody was left to put them back");
        done(next);
        assert_eq!(weights(), before, "{next:?}");
    }
}

pub(crate) fn two_runs_share_weights_and_the_last_restores_them() {
    let before = weights();
    let first = long_run(&["-w", "auto"]);
    let second = long_run(&["-w", "auto"]);
    end(first);
    assert_eq!(weights(), "2:1", "the second still runs by them");
    let text = done(&["weights", "--restore"]);
    assert_eq!((text.as_str(), weights().as_str()), ("nothing to restore\n", "2:1"));
    end(second);
    assert_eq!(weights(), before);
}

pub(crate) fn a_run_without_a_parent_leaves_weights_to_restore() {
    let before = weights();
    let output = nearfar(&["run", "-w", "auto", "true"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(error(&output).contains("nearfar weights --restore"), "{output:?}");
    assert_eq!(weight("node0"), "2");
    done(&["weights", "--restore"]);
    assert_eq!(weights(), before);
}

pub(crate) fn without_root_a_run_uses_matching_weights_and_refuses_others() {
    let output = unprivileged(&["run", "-w", "auto", "true"]);
    let text = error(&output);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(
        text.contains("CAP_DAC_OVERRIDE") && text.contains("nearfar weights --apply"),
        "{text}"
    );
    assert!(!std::fs::exists(STATE).unwrap(), "nothing was written");
    done(&["weights", "--apply"]);
    let output = unprivileged(&["run", "-w", "auto", "cat", "/proc/self/numa_maps"]);
    let maps = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(maps.contains("weighted interleave:0-1"), "{output:?}");
}

/// The value of [`HOLD`] for [`hold_parts`].
pub(crate) const PARTS: &str = "parts";
const PART: usize = 32 << 20;
static DATA: [AtomicU8; PART] = [const { AtomicU8::new(0) }; PART];

/// Holds at least 32 MiB of stack and as many of static data, and a child its heap, until the input ends.
pub(crate) fn hold_parts() {
    let stack = || {
        let array = std::hint::black_box([1_u8; PART]);
        DATA.iter().step_by(4096).for_each(|page| page.store(1, Ordering::Relaxed));
        let mut child = Command::new(std::env::current_exe().unwrap());
        let mut child = child.env(HOLD, "input").stdout(Stdio::null()).spawn().unwrap();
        println!("up");
        child.wait().unwrap();
        assert_eq!((array[PART - 1], DATA[0].load(Ordering::Relaxed)), (1, 1));
    };
    std::thread::Builder::new().stack_size(6 * PART).spawn(stack).unwrap().join().unwrap();
}

/// The large private mappings of a program and its descendants.
fn large(fs: &RootFs, parent: u32) -> Vec<Mapping> {
    let pids = process::tree(fs, parent).unwrap().into_iter().filter(|pid| *pid != parent);
    let all = pids.flat_map(|pid| mapped::of_process(fs, pid).unwrap());
    all.filter(|mapping| mapping.is_private && mapping.resident() >= Bytes(24 << 20)).collect()
}

pub(crate) fn a_programs_own_weights_apply_to_stack_static_data_and_children() {
    let (fs, before) = (RootFs::live().unwrap(), weights());
    let program = std::env::current_exe().unwrap();
    let mut run = nearfar(&["run", "-w", "near=3,far=1", "--", program.to_str().unwrap()]);
    run.env(HOLD, PARTS).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = run.spawn().unwrap();
    await_up(&mut run);
    // Huge pages take turns of 2 MiB, so a mapping of 32 MiB may have two turns more or less on a node.
    let is_spread = |mapping: &Mapping| {
        let far = mapping.nodes.get(&NodeId(1)).map_or(0, |bytes| bytes.0);
        (far * 4).abs_diff(mapping.resident().0) <= 16 << 20
    };
    let mut found = large(&fs, run.id());
    for _ in 0..400 {
        if found.len() >= 3 && found.iter().all(is_spread) {
            break;
        }
        sleep(Duration::from_millis(50));
        found = large(&fs, run.id());
    }
    assert!(found.len() >= 3 && found.iter().all(is_spread), "{found:#?}");
    assert_eq!(weights(), before, "the machine's");
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
}
