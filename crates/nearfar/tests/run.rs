//! `nearfar run` from a user's view: programs run here, plans for recorded machines (--dry-run), exit statuses,
//! signals, and refused arguments.

#![expect(clippy::unwrap_used, reason = "a test that can't set itself up should stop")]

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/machines").join(name)
}

fn nearfar() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearfar"));
    command
        .arg("run")
        .env("NEARFAR_STATE", concat!(env!("CARGO_TARGET_TMPDIR"), "/run-state"))
        .env("NEARFAR_PRELOAD", preload());
    command
}

fn run(arguments: &[&str]) -> Output {
    nearfar().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard output of a run that must succeed.
fn shown(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    text(&output.stdout)
}

/// The message of a run that must end with `status` before CMD.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
    assert_eq!(text(&output.stdout), "", "{arguments:?}");
    text(&output.stderr)
}

/// The output of --dry-run for `arguments` on a recorded machine.
fn planned(machine: &str, arguments: &[&str]) -> String {
    let path = recording(machine);
    let fixed = ["--dry-run", "--sysfs", path.to_str().unwrap()];
    shown(&[&fixed, arguments, &["true"]].concat())
}

fn refused_on(machine: &str, arguments: &[&str], status: i32) -> String {
    let path = recording(machine);
    let fixed = ["--dry-run", "--sysfs", path.to_str().unwrap()];
    refused(&[&fixed, arguments, &["true"]].concat(), status)
}

#[test]
fn the_program_has_the_policy_and_no_parent() {
    for (option, policy) in [
        (&["-m", "0"][..], "bind:0"),
        (&["-i", "0"], "interleave:0"),
        (&["-p", "0"], "prefer:0"),
        (&["-P", "0"], "prefer:0"),
        (&["-l"], "local"),
        (&["-w", "near"], "weighted interleave:0"),
        (&[], "default"),
    ] {
        let maps = shown(&[option, &["cat", "/proc/self/numa_maps"]].concat());
        let first = maps.lines().next().unwrap();
        assert!(first.contains(&format!(" {policy} ")), "{option:?}: {first}");
    }
    let child = nearfar().args(["sh", "-c", "echo $$"]).stdout(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim(), id.to_string(), "we became the program");
}

#[test]
fn the_program_runs_on_the_requested_cpus() {
    let status = shown(&["-C", "0", "cat", "/proc/self/status"]);
    assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    let status = shown(&["-N", "0", "--report=/dev/null", "--", "cat", "/proc/self/status"]);
    assert!(status.contains("Cpus_allowed_list:\t0"), "{status}");
}

#[test]
fn the_exit_status_is_the_programs_or_follows_shell_conventions() {
    for report in [&[][..], &["--report=/dev/null"]] {
        let status = |command: &[&str]| run(&[report, command].concat()).status.code();
        assert_eq!(status(&["true"]), Some(0));
        assert_eq!(status(&["sh", "-c", "exit 7"]), Some(7));
        assert_eq!(status(&["sh", "-c", "exit 255"]), Some(255));
        assert_eq!(status(&["/etc/passwd"]), Some(126));
        assert_eq!(status(&["/etc"]), Some(126));
        assert_eq!(status(&["no-such-command"]), Some(127));
    }
    // With a parent in between, a signal shows as a shell shows it.
    assert_eq!(run(&["--report=/dev/null", "sh", "-c", "kill -KILL $$"]).status.code(), Some(137));
}

#[test]
fn failures_before_the_program_starts_exit_with_125_also_for_tiering() {
    let nodes = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    if nodes.trim() != "0" {
        return;
    }
    for option in ["--tier", "--balance"] {
        assert_eq!(run(&[option, "--", "true"]).status.code(), Some(125), "{option}");
    }
}

#[test]
fn an_error_that_can_not_be_written_keeps_its_status() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = nearfar();
    command.args(["-m", "1023", "--", "true"]).stderr(full);
    assert_eq!(command.status().unwrap().code(), Some(2));
}

#[test]
fn options_after_the_program_are_the_programs() {
    assert_eq!(shown(&["-m", "0", "echo", "-m", "--report", "--"]), "-m --report --\n");
    assert_eq!(shown(&["--", "echo", "-l"]), "-l\n");
}

#[test]
fn a_report_has_the_nodes_of_the_process_trees_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.json");
    // A child of the program holds 64 MiB for a while; standard output stays the program's.
    let script = "tail -c 64M /dev/zero | head -c 0; sleep 0.1; echo done";
    let holder = "head -c 64M /dev/zero | (sleep 0.4; tail -c 60M | wc -c)";
    let option = format!("--report={}", file.display());
    let output =
        run(&[&option, "-i", "0", "--", "sh", "-c", &format!("{holder}; {script}; exit 3")]);
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(3), "62914560\ndone\n")
    );
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&report["schema"], &report["exit_status"]), (&"nearfar.run/1".into(), &3.into()));
    assert_eq!(report["memory_policy"], "interleaving over node 0");
    assert!(report["processes_max"].as_u64().unwrap() >= 2, "{report}");
    assert!(
        report["nodes"][0]["peak_bytes"].as_u64() >= report["nodes"][0]["final_bytes"].as_u64()
    );
    assert!(report["peak_total_bytes"].as_u64().unwrap() > 100_000, "{report}");
}

#[test]
fn memory_that_a_child_shares_with_its_parent_is_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program, file) =
        (dir.path().join("vfork.c"), dir.path().join("vfork"), dir.path().join("report.json"));
    // The parent waits for as long as its child has its memory.
    std::fs::write(
        &source,
        "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
         int main(void) { size_t n = 64 << 20; char *p = malloc(n); memset(p, 1, n);\n\
         if (vfork() == 0) { sleep(1); _exit(0); } return p[5] != 1; }\n",
    )
    .unwrap();
    let built = Command::new("cc").args(["-O0", "-w", "-o"]).args([&program, &source]).status();
    assert!(built.unwrap().success());
    let option = format!("--report={}", file.display());
    assert!(run(&[&option, "--", program.to_str().unwrap()]).status.success());
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(report["processes_max"], 2, "{report}");
    let peak = report["peak_total_bytes"].as_u64().unwrap() >> 20;
    assert!((64..96).contains(&peak), "{peak} MiB: {report}");
}

#[test]
fn a_report_without_a_file_goes_to_standard_error() {
    let output = run(&["--report", "--", "sleep", "0.1"]);
    let error = text(&output.stderr);
    assert_eq!(text(&output.stdout), "");
    assert!(error.contains("memory by node") && error.contains("peak"), "{error}");
}

/// Starts a watched program that says when it is ready and how it was signalled.
fn signalled(trap: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let script =
        format!("trap 'echo got {trap}; exit 9' {trap}; echo ready; while :; do sleep 0.05; done");
    let mut command = nearfar();
    command.args(["--report=/dev/null", "--", "sh", "-c", &script]).stdout(Stdio::piped());
    let mut child = command.process_group(0).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, lines)
}

#[test]
fn signals_sent_to_the_parent_reach_the_program() {
    for (signal, trap) in [(Signal::TERM, "TERM"), (Signal::USR1, "USR1"), (Signal::HUP, "HUP")] {
        let (mut child, mut lines) = signalled(trap);
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, format!("got {trap}\n"));
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

#[test]
fn real_time_signals_reach_the_program() {
    // SIGRTMIN+3, by which containers ask systemd to shut down.
    let (mut child, mut lines) = signalled("37");
    let kill = format!("kill -37 {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "got 37\n");
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn the_parent_ends_when_its_program_is_killed() {
    let (mut child, _lines) = signalled("USR1");
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    // To all of the job, as a terminal or `timeout` does.
    kill_process_group(pid, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn node_sets_resolve_against_the_machine_and_the_cpus() {
    for (machine, arguments, expected) in [
        ("two-sockets.tree", &["-m", "near"][..], "memory   binding to nodes 0-1"),
        ("two-sockets.tree", &["-m", "near", "-N", "1"], "memory   binding to node 1"),
        ("two-sockets.tree", &["-m", "local", "--cpubind", "1"], "memory   binding to node 1"),
        ("two-sockets.tree", &["-m", "remote", "-N", "1"], "memory   binding to node 0"),
        ("two-sockets.tree", &["-N", "1", "-C", "33"], "cpus     33"),
        ("cxl-region-two-devices.tree", &["-m", "cxl"], "binding to node 2"),
        ("cxl-region-two-devices.tree", &["-p", "far"], "preferring node 2"),
        ("cxl-region-two-devices.tree", &["-P", "dram"], "preferring nodes 0-1"),
        ("cxl-region-two-devices.tree", &["-p", "near"], "preferring nodes 0-1"),
        ("hbm-flat.tree", &["-i", "tier:0"], "interleaving over nodes 2-3"),
        ("sparse-ids.tree", &["-m", "1023"], "binding to node 1023"),
        ("memoryless.tree", &["-N", "1"], "cpus     16-31"),
        ("hbm-flat.tree", &["-w", "0,2"], "weights  1:1, as they are"),
        ("hbm-flat.tree", &["-w", "0=2,2=2"], "weights  1:1, as the machine has them"),
        ("hbm-flat.tree", &["-w", "0=3,2=1"], "memory   interleaving over nodes 0,2"),
        ("hbm-flat.tree", &["-w", "0=3,2=1"], "weights  3:1, CMD's own (75 %, 25 %)"),
        ("two-sockets.tree", &["-N", "1", "-m", "same"], "memory   binding to node 1"),
        ("sparse-ids.tree", &["-m", "+0"], "binding to node 0"),
        ("two-sockets.tree", &["--balance"], "balance  balanced, CMD and its descendants"),
    ] {
        let plan = planned(machine, arguments);
        assert!(plan.contains(expected), "{machine} {arguments:?}: {plan}");
    }
}

#[test]
fn automatic_weights_are_set_unless_already_in_force() {
    let plan = planned("hbm-flat.tree", &["-w", "auto", "-N", "0"]);
    assert!(plan.contains("weighted interleaving over nodes 0,2"), "{plan}");
    assert!(plan.contains("set to 1:2 (now 1:1) until nearfar weights --restore"), "{plan}");
    let plan = planned("hbm-flat.tree", &["-w", "auto", "-N", "0", "--report"]);
    assert!(plan.contains("until CMD ends"), "{plan}");
    let plan = planned("lab-hbm-dram-cxl.tree", &["-w", "auto"]);
    assert!(plan.contains("weights  8:19:4, as the machine has them"), "{plan}");
}

#[test]
fn weights_over_sockets_are_refused_without_link_bandwidths() {
    for machine in ["hbm-flat.tree", "cxl-region-two-devices.tree"] {
        let error = refused_on(machine, &["-w", "auto"], 125);
        assert!(error.contains("links between them is not known"), "{error}");
        assert!(error.contains("nearfar probe") && error.contains("of one socket"), "{error}");
    }
}

#[test]
fn without_weighted_interleave_a_run_is_refused_or_falls_back_with_a_note() {
    for arguments in [&["-w", "all"][..], &["-w", "auto"]] {
        let error = refused_on("one-tier.tree", arguments, 125);
        assert!(error.contains("lacks weighted_interleave") && error.contains("6.9"), "{error}");
        assert!(error.contains("--fallback"), "{error}");
        let plan = planned("one-tier.tree", &[arguments, &["--fallback"]].concat());
        assert!(plan.contains("memory   interleaving over nodes 0-1"), "{plan}");
        assert!(plan.contains("falling back to 1:1 interleave"), "{plan}");
    }
}

#[test]
fn usage_errors_name_the_request_and_the_available_nodes() {
    for (machine, arguments, part) in [
        ("two-sockets.tree", &["-m", "7"][..], "-m: node set `7`: no node 7"),
        ("two-sockets.tree", &["-i", "cxl"], "names no node here"),
        ("two-sockets.tree", &["-p", "far"], "names no node here"),
        ("two-sockets.tree", &["-w", "near,far"], "`far` names no node here"),
        ("two-sockets.tree", &["--mix", "2:1"], "--mix 2:1: only -w auto"),
        ("two-sockets.tree", &["-w", "0=3,7=1"], "no node 7 with memory here"),
        ("two-sockets.tree", &["-w", "0=3,0-1=1"], "node 0 is given two weights"),
        ("two-sockets.tree", &["-w", "0=3,1=0"], "`1=0` is not NODES=WEIGHT"),
        ("two-sockets.tree", &["-m", ""], "empty"),
        ("two-sockets.tree", &["-m", "same"], "-m same: stands for the nodes of -N"),
        (
            "two-sockets.tree",
            &["-m", "+2"],
            "`+2` names no node here; this machine has 2 allowed nodes",
        ),
        ("two-sockets.tree", &["-m", "0", "-i", "1"], "cannot be used with"),
        ("two-sockets.tree", &["-l", "-w", "all"], "cannot be used with"),
        ("two-sockets.tree", &["-m", "0", "-m", "1"], "cannot be used multiple times"),
        ("two-sockets.tree", &["-N", "0", "-C", "33"], "CPU 33 is not on the nodes that -N names"),
        ("two-sockets.tree", &["-C", "4000"], "no CPU 4000 here"),
        ("two-sockets.tree", &["-C", "x"], "is not a set of CPUs"),
        ("two-sockets.tree", &["-w", "automatic"], "or auto"),
        ("two-sockets.tree", &["--fallback"], "--weighted-interleave"),
        ("memoryless.tree", &["-m", "1"], "no node 1 with memory here"),
        ("hbm-flat.tree", &["-N", "2"], "node 2 has no CPUs"),
        ("hbm-flat.tree", &["-w", "auto", "--mix", "x"], "`x` is not a read:write mix"),
    ] {
        let error = refused_on(machine, arguments, 2);
        assert!(error.contains(part), "{machine} {arguments:?}: {error}");
    }
    let error = refused(&["-m", "0"], 2);
    assert!(error.contains("<CMD>"), "{error}");
    let path = recording("two-sockets.tree");
    let error = refused(&["--sysfs", path.to_str().unwrap(), "true"], 2);
    assert!(error.contains("--dry-run"), "{error}");
}

#[test]
fn a_report_that_can_not_be_written_stops_the_program_from_starting() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("ran");
    for dry in [&["--dry-run"][..], &[]] {
        let arguments =
            [dry, &["--report=/no/such/dir/x", "touch", mark.to_str().unwrap()]].concat();
        let error = refused(&arguments, 2);
        assert!(error.contains("/no/such/dir/x") && !mark.exists(), "{error}");
    }
}

#[test]
fn balancing_of_one_node_is_refused_in_a_dry_run_too() {
    let error = refused_on("laptop.tree", &["--balance"], 125);
    assert!(error.contains("--balance: there is one node with memory"), "{error}");
}

#[test]
fn a_heap_is_planned_with_its_nodes() {
    let planned_heap = planned("lab-cxl-2tier.tree", &["--heap", "far;limit=4g;spill=near"]);
    assert!(planned_heap.contains("heap     heap=far;limit=4g;spill=near ("), "{planned_heap}");
    for (heap, named) in [
        ("nowhere", "`nowhere`"),
        ("hbm", "hbm"),
        ("heap=far colour=red", "`colour=red`"),
        ("far near", "`far near`"),
    ] {
        let said = refused_on("lab-cxl-2tier.tree", &["--heap", heap], 2);
        assert!(said.contains("--heap") && said.contains(named), "{heap}: {said}");
    }
}

#[test]
fn a_running_heap_is_of_its_kind() {
    let mut command = nearfar();
    command.args(["--heap", "heap=bind:0 report=stderr"]);
    let output = command.args(["sort", "/etc/passwd"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(told["kinds"][0]["place"], "bind:0;spill=default");
    // Where the library is not, nothing runs.
    let output =
        nearfar().env("NEARFAR_PRELOAD", "/nowhere").args(["--heap", "0", "true"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text(&output.stderr).contains("NEARFAR_PRELOAD"), "{output:?}");
}

/// Where `make library` has put it.
fn preload() -> PathBuf {
    let target = std::env::current_exe().unwrap();
    let library = target.ancestors().nth(3).unwrap().join("abi/libnearfar_preload.so");
    assert!(library.is_file(), "no {}: make library", library.display());
    library
}

/// Runs `act` in a thread, and programs it starts, without the calls for memory policies, as in a container with the default
/// profile.
fn without_policies<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let calls = [libc::SYS_mbind, libc::SYS_set_mempolicy, libc::SYS_get_mempolicy];
    let rules = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    let confined = std::thread::spawn(move || {
        seccompiler::apply_filter(&program).unwrap();
        act()
    });
    confined.join().unwrap()
}

#[test]
fn a_sandbox_that_refuses_policies_is_named_with_the_remedy_before_a_start() {
    without_policies(|| {
        assert!(run(&["--", "true"]).status.success(), "no policy is asked for");
        for policy in [&["-m", "0"][..], &["-i", "0"], &["-p", "0"], &["-l"]] {
            let said = refused(&[policy, &["--", "echo", "started"]].concat(), 125);
            assert!(said.contains("set_mempolicy is not permitted here"), "{said}");
            assert!(said.contains("seccomp") && said.contains("CAP_SYS_NICE"), "{said}");
            assert_eq!(said.matches("not permitted").count(), 2, "said once: {said}");
        }
    });
}

#[test]
fn without_permission_to_place_memory_heap_and_cache_do_not_start() {
    without_policies(|| {
        let mut heap = nearfar();
        heap.args(["--heap", "0", "--", "echo", "started"]);
        let mut cache = Command::new(env!("CARGO_BIN_EXE_nearfar"));
        cache.args(["cache", "serve", "-l", "127.0.0.1", "-p", "0", "-m", "0=64m"]);
        let said = |command: &str| {
            let output = Command::new(env!("CARGO_BIN_EXE_nearfar")).arg(command).output();
            output.map(|output| text(&output.stdout) + &text(&output.stderr)).unwrap()
        };
        for (command, finding) in
            [("topo", "no memory can be placed here"), ("doctor", "is not permitted here")]
        {
            let said = said(command);
            assert!(said.contains(finding) && said.contains("seccomp"), "{command}: {said}");
        }
        for (mut command, status) in [(heap, 125), (cache, 1)] {
            let output = command.output().unwrap();
            let said = text(&output.stderr);
            assert_eq!(
                (output.status.code(), text(&output.stdout).as_str()),
                (Some(status), ""),
                "{said}"
            );
            assert!(said.contains("mbind is not permitted here"), "{said}");
            assert!(said.contains("seccomp") && said.contains("CAP_SYS_NICE"), "{said}");
            assert_eq!(said.matches("mbind").count(), 1, "said once: {said}");
        }
    });
}

#[test]
fn near_and_far_are_relative_to_the_cpus_of_option_n() {
    let on = |node: &str, memory: &[&str]| {
        planned("two-sockets.tree", &[&["-N", node], memory].concat())
    };
    assert!(on("0", &["-p", "near"]).contains("preferring node 0"));
    assert!(on("1", &["-p", "near"]).contains("preferring node 1"));
    assert!(on("1", &["-m", "far"]).contains("binding to node 0"));
    // Without -N, the machine has one tier and so no far memory.
    assert!(refused_on("two-sockets.tree", &["-m", "far"], 2).contains("names no node"));
}
