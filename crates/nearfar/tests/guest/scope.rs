//! `nearfar tier` on real kernels, for scopes smaller than the machine and with changing options: settings while it
//! runs, a process tree, a program run with it, a record of it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::damon::{Holder, wait, wait_with_room};
use crate::inside::{HOLD, STATE, await_up, done, error, nearfar, unprivileged};
use crate::tier::{START, far_program, mib_on, promoted, status, system};

const FILE: &str = "/tmp/tier.toml";

/// Options in force, by key: the value and where it is from.
fn options(arguments: &[&str]) -> BTreeMap<String, (serde_json::Value, String)> {
    let text = done(&[&["tier", "config", "--json"], arguments].concat());
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["schema"], "nearfar.tier-config/1");
    let of = |(key, entry): (&String, &serde_json::Value)| {
        (key.clone(), (entry["value"].clone(), entry["from"].as_str().unwrap().to_string()))
    };
    json["options"].as_object().unwrap().iter().map(of).collect()
}

fn refused(arguments: &[&str], says: &[&str]) -> Option<i32> {
    let output = nearfar(arguments).output().unwrap();
    let said = error(&output);
    assert!(!output.status.success(), "{arguments:?}: {output:?}");
    for says in says {
        assert!(said.contains(says), "{arguments:?}: `{says}` is not in: {said}");
    }
    output.status.code()
}

pub(crate) fn options_are_shown_changed_at_run_time_saved_and_loaded() {
    let before = system();
    refused(&["tier", "config"], &["not running", "tier start", "--save"]);
    refused(&["tier", "config", "--cpu", "7"], &["not running"]);
    std::fs::write(FILE, "keep_damon_stat = false\nheadroom_percent = 4\nnear = \"0\"\n").unwrap();
    assert_eq!(options(&["--check", FILE])["headroom_percent"].1, "file");
    done(&["tier", "start", "--config", FILE, "--cpu", "6"]);
    let is = |options: &BTreeMap<String, (serde_json::Value, String)>, key: &str| {
        let (value, from) = &options[key];
        format!("{value} {from}")
    };
    let now = options(&[]);
    assert_eq!(is(&now, "headroom_percent"), "4 file");
    assert_eq!(is(&now, "cpu_percent"), "6 option");
    assert_eq!(is(&now, "traffic_percent"), "10 default");
    assert_eq!(is(&now, "near"), "\"0\" file");
    let traffic = status()["boundaries"][0]["traffic_max_bytes_per_second"].as_u64().unwrap();

    let changed = options(&["--headroom", "5", "--traffic", "20"]);
    assert_eq!(is(&changed, "headroom_percent"), "5 changed");
    assert_eq!(is(&changed, "traffic_percent"), "20 changed");
    assert_eq!(is(&changed, "cpu_percent"), "6 option");
    let now = status();
    assert_eq!(now["boundaries"][0]["traffic_max_bytes_per_second"].as_u64().unwrap(), traffic * 2);
    assert_eq!(now["settings"]["options"]["headroom_percent"], 5);
    let text = done(&["tier", "config"]);
    assert!(text.contains("headroom_percent") && text.contains("changed while it runs"), "{text}");
    refused(&["tier", "config", "--headroom", "51"], &["51", "0 to 50"]);
    assert_eq!(options(&[]), changed);

    // Invalid requests, and requests for another process, are ignored.
    let request = format!("{STATE}/journal/tier-change.json");
    for text in [
        "",
        "{",
        "{\"schema\":\"nearfar.tier-change/1\",\"of\":{\"pid\":1,\"started_ticks\":1},\"options\":{}}",
    ] {
        std::fs::write(&request, text).unwrap();
        for _ in 0..20 {
            if std::path::Path::new(&request).exists() {
                wait();
            }
        }
        assert!(!std::path::Path::new(&request).exists(), "{text}");
    }
    assert_eq!(options(&["--save", "/tmp/saved.toml"]), changed);
    done(&["tier", "stop"]);
    assert_eq!(system(), before);
    let again = options(&["--check", "/tmp/saved.toml"]);
    let values = |options: &BTreeMap<String, (serde_json::Value, String)>| {
        options.values().map(|(value, _)| value.clone()).collect::<Vec<_>>()
    };
    assert_eq!(values(&again), values(&changed));
}

pub(crate) fn an_invalid_option_file_is_refused_with_its_line_and_changes_nothing() {
    let before = system();
    for (text, says) in [
        (
            "headroom_percent = 2\ntraffic_percent = 0\n",
            ["line 2: `traffic_percent = 0`", "from 1 to 100"],
        ),
        ("headroom = 2\n", ["line 1: `headroom = 2`", "unknown field"]),
        ("near = \"0", ["line 1: `near = \"0`", FILE]),
        ("\u{1}\u{7f}[[[", ["line 1", FILE]),
    ] {
        std::fs::write(FILE, text).unwrap();
        assert_eq!(refused(&["tier", "config", "--check", FILE], &says), Some(2));
        assert_eq!(refused(&[&START[..], &["--config", FILE]].concat(), &says), Some(2));
        assert_eq!(system(), before, "{text}");
    }
    assert_eq!(refused(&["tier", "start", "--config", "/none"], &["--config /none"]), Some(2));
    assert_eq!(
        refused(&["tier", "config", "--check", "/dev/zero"], &["not a regular file"]),
        Some(2)
    );
    assert_eq!(system(), before);
}

pub(crate) fn a_process_tree_is_tiered_by_its_cgroup_if_it_is_alone_there() {
    let before = system();
    let tree = Holder::start_at("tree", "touch", 1);
    let pid = tree.pid().to_string();
    // We are in the root cgroup, with all others.
    let us = std::process::id().to_string();
    refused(&[&START[..], &["--pid", &us]].concat(), &["holds", "--cgroup /", "run --tier"]);
    refused(&[&START[..], &["--pid", "2"]].concat(), &["kthreadd is a thread of the kernel"]);
    refused(&[&START[..], &["--pid", "4194304"]].concat(), &["no such process"]);
    refused(&[&START[..], &["--pid", "0"]].concat(), &["0"]);
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    let procs = "/sys/fs/cgroup/tree/cgroup.procs";
    std::fs::write(procs, other.id().to_string()).unwrap();
    let stranger = format!("sleep {}", other.id());
    refused(&[&START[..], &["--pid", &pid]].concat(), &["1 other process", &stranger, "/tree"]);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(system(), before);

    let mut command = nearfar(&[&START[..], &["--foreground", "--pid", &pid]].concat());
    let mut tier = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    for _ in 0..600 {
        if mib_on(tree.pid(), 0) >= 56 {
            break;
        }
        wait_with_room();
    }
    let near = mib_on(tree.pid(), 0);
    assert!(near >= 56, "{near} MiB near\n{}\n{}", done(&["tier", "status"]), done(&["why"]));
    let now = status();
    assert_eq!((now["cgroup"].as_str(), now["tree"].as_u64()), (Some("/tree"), pid.parse().ok()));
    assert!(done(&["tier", "status"]).contains(&format!("process {pid} and its descendants")));
    tree.end();
    let mut said = String::new();
    tier.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!tier.wait().unwrap().success(), "{said}");
    assert!(said.contains(&format!("process {pid} (")) && said.contains("has ended"), "{said}");
    refused(&["tier", "status"], &["ended by itself", &pid]);
    assert_eq!(system(), before);
}

pub(crate) fn tiering_is_recorded_and_continues_if_recording_fails() {
    let before = system();
    let program = far_program();
    let full = [&START[..], &["--record", "/dev/full"]].concat();
    refused(&full, &["--record", "/dev/full", "No space left"]);
    assert_eq!(system(), before);
    done(&[&START[..], &["--record", "/tmp/tier.nfr"]].concat());
    for _ in 0..600 {
        if promoted(&status()) >= 48 {
            break;
        }
        wait();
    }
    let moved = promoted(&status());
    assert!(moved >= 48, "{moved} MiB");
    assert!(status()["recording"]["bytes"].as_u64().unwrap() > 0);
    done(&["tier", "stop"]);
    let report = done(&["report", "residency", "/tmp/tier.nfr", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report.to_string().contains("bytes"), "{report}");
    let info = done(&["report", "info", "/tmp/tier.nfr"]);
    assert!(!info.contains("cut off"), "{info}");

    // The reader of the record closes it.
    assert!(Command::new("mkfifo").arg("/tmp/tier.fifo").status().unwrap().success());
    let taker = ["-c", "400", "/tmp/tier.fifo"];
    let mut taker = Command::new("head").args(taker).stdout(Stdio::null()).spawn().unwrap();
    done(&[&START[..], &["--record", "/tmp/tier.fifo"]].concat());
    for _ in 0..600 {
        if !status()["recording"]["error"].is_null() {
            break;
        }
        wait();
    }
    let text = done(&["tier", "status"]);
    assert!(text.contains("then no more") && text.contains("tier.fifo"), "{text}");
    assert!(taker.wait().unwrap().success());
    done(&["tier", "stop"]);
    assert_eq!(system(), before);
    end_program(program);
}

const CGROUPS: &str = "/sys/fs/cgroup";

/// All state that a run with tiering may change, including the cgroups and their settings below the root.
fn with_cgroups() -> BTreeMap<String, String> {
    let mut files = system();
    let control = std::fs::read_to_string(format!("{CGROUPS}/cgroup.subtree_control")).unwrap();
    files.insert("subtree_control".into(), control);
    let entries = std::fs::read_dir(CGROUPS).unwrap().map(Result::unwrap);
    let cgroups = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    files.extend(cgroups.map(|entry| (entry.file_name().into_string().unwrap(), String::new())));
    files
}

fn is_put_back(before: &BTreeMap<String, String>) {
    for _ in 0..200 {
        if with_cgroups() == *before {
            return;
        }
        wait();
    }
    assert_eq!(with_cgroups(), *before);
}

/// The memory controller off below the root, and a file that lets a run have DAMON.
fn nothing_set() -> BTreeMap<String, String> {
    std::fs::write(FILE, "keep_damon_stat = false\n").unwrap();
    std::fs::write(format!("{CGROUPS}/cgroup.subtree_control"), "-memory").unwrap();
    let before = with_cgroups();
    assert!(!before["subtree_control"].contains("memory"));
    before
}

/// A run of a program that uses 64 MiB of far memory until its input ends: it, and the program's process.
fn tiered_run() -> (Child, u32) {
    let program = std::env::current_exe().unwrap();
    let config = format!("--tier={FILE}");
    let mut command = nearfar(&["run", "-p", "1", &config, program.to_str().unwrap()]);
    command.env(HOLD, "touch").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    await_up(&mut run);
    let cgroup = format!("{CGROUPS}/nearfar-run-{}/cgroup.procs", run.id());
    let procs = std::fs::read_to_string(cgroup).unwrap();
    (run, procs.trim().parse().unwrap())
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

fn tiering_pid() -> u32 {
    u32::try_from(status()["pid"].as_u64().unwrap()).unwrap()
}

fn stderr_of(run: &mut Child) -> String {
    let mut said = String::new();
    run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

pub(crate) fn tiering_of_a_run_is_limited_to_it_and_ends_with_its_program() {
    let before = nothing_set();
    let config = format!("--tier={FILE}");
    let run =
        |command: &[&str]| nearfar(&[&["run", &config, "--"], command].concat()).output().unwrap();
    let output = run(&["sh", "-c", "cat /proc/self/cgroup; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("/nearfar-run-"), "{output:?}");
    assert_eq!(with_cgroups(), before);
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).status.code(), Some(137));
    let none = run(&["/no/such/program"]);
    assert_eq!(none.status.code(), Some(127), "{none:?}");
    assert_eq!(with_cgroups(), before);

    let other = far_program();
    let (mut run, program) = tiered_run();
    for _ in 0..600 {
        if mib_on(program, 0) >= 56 {
            break;
        }
        wait();
    }
    assert!(mib_on(program, 0) >= 56, "{} MiB near", mib_on(program, 0));
    assert!(mib_on(other.id(), 0) <= 8, "{} MiB of others near", mib_on(other.id(), 0));
    assert_eq!(status()["cgroup"], format!("/nearfar-run-{}", run.id()));
    // One at a time.
    assert_eq!(
        refused(&["run", &config, "--", "true"], &["already running", "nearfar tier stop"]),
        Some(125)
    );
    refused(&START, &["already running", "nearfar tier stop"]);
    assert_eq!(options(&["--cpu", "7"])["cpu_percent"].1, "changed");
    signal(run.id(), Signal::TERM);
    // To wait for it would close its program's input, which ends that as well.
    let input = run.stdin.take();
    assert_eq!(run.wait().unwrap().code(), Some(143));
    drop(input);
    assert_eq!(with_cgroups(), before);
    end_program(other);
}

fn end_program(mut program: Child) {
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

pub(crate) fn an_impossible_run_with_tiering_is_refused_and_changes_nothing() {
    let before = nothing_set();
    let config = format!("--tier={FILE}");
    for placed in ["-m", "-i", "-w"] {
        assert_eq!(refused(&["run", placed, "0", &config, "true"], &["--tier"]), Some(2));
    }
    if std::path::Path::new("/sys/module/damon_stat/parameters/enabled").exists() {
        std::fs::write(FILE, "keep_damon_stat = true\n").unwrap();
        assert_eq!(
            refused(&["run", &config, "true"], &["damon_stat", "keep_damon_stat"]),
            Some(125)
        );
    }
    let output = unprivileged(&["run", &config, "true"]);
    assert!(!output.status.success() && error(&output).contains("root"), "{output:?}");
    std::fs::write(FILE, "pid = 1\n").unwrap();
    assert_eq!(refused(&["run", &config, "true"], &["CMD alone", FILE]), Some(2));
    assert_eq!(with_cgroups(), before);
    let plan = done(&["run", "-p", "1", "--tier", "--dry-run", "--", "true"]);
    assert!(plan.contains("tiering  nodes 0 over 1"), "{plan}");
}

pub(crate) fn settings_of_a_killed_run_with_tiering_are_restored() {
    let before = nothing_set();
    // The run ends: tiering continues with the program and ends with it.
    let (mut run, program) = tiered_run();
    signal(run.id(), Signal::KILL);
    let input = run.stdin.take();
    run.wait().unwrap();
    wait();
    assert_eq!(status()["cgroup"], format!("/nearfar-run-{}", run.id()));
    drop(input);
    is_put_back(&before);
    // The process that adopted it may not have reaped it yet.
    let command = std::fs::read(format!("/proc/{program}/cmdline")).unwrap_or_default();
    assert!(command.is_empty(), "{}", String::from_utf8_lossy(&command));

    // Tiering ends: the run restores its settings when the program ends.
    let (mut run, _) = tiered_run();
    signal(tiering_pid(), Signal::KILL);
    wait();
    assert_ne!(with_cgroups(), before);
    drop(run.stdin.take());
    let said = stderr_of(&mut run);
    assert!(run.wait().unwrap().success() && said.contains("tiering ended before CMD"), "{said}");
    assert_eq!(with_cgroups(), before);

    // Both end: the next start or stop restores the settings, and the program continues.
    for next in [&["tier", "stop"][..], &START] {
        let (mut run, program) = tiered_run();
        let tiering = tiering_pid();
        signal(run.id(), Signal::KILL);
        signal(tiering, Signal::KILL);
        // To wait for it would close its input.
        let input = run.stdin.take();
        run.wait().unwrap();
        wait();
        refused(&["tier", "status"], &["was killed", "nearfar tier stop"]);
        done(next);
        done(&["tier", "stop"]);
        assert_eq!(with_cgroups(), before);
        let cgroup = std::fs::read_to_string(format!("/proc/{program}/cgroup")).unwrap();
        assert_eq!(cgroup, "0::/\n");
        drop(input);
    }
}

pub(crate) fn tiering_continues_for_children_of_an_ended_run_and_can_be_stopped() {
    let before = nothing_set();
    let config = format!("--tier={FILE}");
    let script = "sleep 1000 >/dev/null 2>&1 & echo $!";
    let output = nearfar(&["run", &config, "sh", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(error(&output).contains("1 of its descendants still runs"), "{output:?}");
    let left: u32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    assert!(status()["cgroup"].as_str().unwrap().starts_with("/nearfar-run-"));
    signal(left, Signal::TERM);
    is_put_back(&before);

    let (mut run, program) = tiered_run();
    done(&["tier", "stop"]);
    assert_eq!(with_cgroups(), before);
    let cgroup = std::fs::read_to_string(format!("/proc/{program}/cgroup")).unwrap();
    assert_eq!(cgroup, "0::/\n");
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
    assert_eq!(with_cgroups(), before);
}
