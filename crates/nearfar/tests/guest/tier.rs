//! `nearfar tier` on real kernels: used memory is promoted, all settings are restored after any end, and invalid
//! requests are refused.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use nearfar_kernel::fs::{Fs as _, RootFs};
use nearfar_kernel::residency;
use nearfar_topology::NodeId;
use rustix::process::{Pid, Signal, kill_process};

use crate::damon::{Holder, snapshot, wait, wait_with_room};
use crate::goals::total_and_free;
use crate::inside::{HOLD, STATE, await_up, done, error, nearfar, unprivileged};
use crate::notified::notifies;

const BALANCING: &str = "proc/sys/kernel/numa_balancing";
/// Scan interval of the kernel's NUMA balancing; debugfs.
const PACE: &str = "sys/kernel/debug/sched/numa_balancing/scan_period_max_ms";
pub(crate) const START: [&str; 2] = ["tier", "start"];
/// How often tiering is ended at a random moment; the environment can ask for more.
const ENDS: &str = "NEARFAR_TEST_TIER_ENDS";

/// All that tiering and balancing may change.
pub(crate) fn system() -> BTreeMap<String, String> {
    let fs = RootFs::live().unwrap();
    let mut files = snapshot(&fs);
    for file in [BALANCING, PACE] {
        files.extend(fs.read(file).unwrap().map(|text| (file.to_string(), text)));
    }
    files
}

pub(crate) fn status() -> serde_json::Value {
    serde_json::from_str(&done(&["tier", "status", "--json"])).unwrap()
}

/// A program with 64 MiB on node 1, which it uses over and over.
pub(crate) fn far_program() -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = nearfar(&["run", "-p", "1", program.to_str().unwrap()]);
    command.env(HOLD, "touch").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    await_up(&mut child);
    child
}

pub(crate) fn mib_on(pid: u32, node: u16) -> u64 {
    let residency = residency::of_process(&RootFs::live().unwrap(), pid);
    residency.nodes.get(&NodeId(node)).map_or(0, |bytes| bytes.0 >> 20)
}

/// MiB moved from node 1 to node 0.
pub(crate) fn promoted(status: &serde_json::Value) -> u64 {
    let moves = status["moves"].as_array().unwrap();
    let pair = moves.iter().find(|moves| moves["from"] == 1 && moves["to"] == 0).unwrap();
    pair["bytes"].as_u64().unwrap() >> 20
}

pub(crate) fn used_memory_is_promoted_and_settings_are_restored() {
    let before = system();
    let mut program = far_program();
    assert!(mib_on(program.id(), 1) >= 60, "{} MiB", mib_on(program.id(), 1));
    let shown: serde_json::Value = serde_json::from_str(&done(&["ps", "--json"])).unwrap();
    let first = &shown["processes"][0];
    assert_eq!(first["pid"], program.id(), "the most far memory is first: {shown}");
    assert!(first["far_bytes"].as_u64().unwrap() >= 60 << 20, "{first}");
    let planned = done(&["tier", "start", "--dry-run"]);
    assert!(planned.contains("would promote from node 1 (cxl"), "{planned}");
    assert!(
        planned.contains("would set /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds from 0 to 2"),
        "{planned}"
    );
    let is_on = before[BALANCING].trim() != "0";
    assert_eq!(planned.contains(&format!("would set /{BALANCING}")), is_on, "{planned}");
    assert_eq!(system(), before, "a dry run changes nothing");
    let said = done(&START);
    assert!(said.contains("nodes 0 over 1"), "{said}");
    let now = system();
    assert_ne!(now, before);
    assert_eq!(now.get(BALANCING).map(|text| text.trim()), Some("0"));
    for _ in 0..200 {
        if mib_on(program.id(), 0) >= 56 && promoted(&status()) >= 48 {
            break;
        }
        wait();
    }
    let (near, status) = (mib_on(program.id(), 0), status());
    assert!(near >= 56, "{near} MiB near: {status}");
    assert_eq!(status["schema"], "nearfar.tier/1");
    assert!(promoted(&status) >= 48, "{status}");
    let text = done(&["tier", "status"]);
    assert!(text.contains("node 1 to 0") && text.contains("CPU time"), "{text}");
    let why = done(&["why"]);
    assert!(why.contains("0 over 1: ") && why.contains("to promote"), "{why}");
    assert!(why.contains("balance: it does not run"), "{why}");

    let planned = ["tier", "start", "--dry-run"];
    for again in [
        nearfar(&START).output().unwrap(),
        nearfar(&planned).output().unwrap(),
        unprivileged(&planned),
    ] {
        assert!(!again.status.success() && error(&again).contains("already running"), "{again:?}");
    }
    let other = nearfar(&["balance", "start", "--dry-run"]).output().unwrap();
    assert!(error(&other).contains("already moves pages"), "{other:?}");
    assert!(done(&["tier", "stop"]).contains("as before"));
    assert_eq!(system(), before);
    let none = nearfar(&["tier", "status"]).output().unwrap();
    assert_eq!(none.status.code(), Some(1));
    assert!(error(&none).contains("nearfar tier start"), "{none:?}");
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

pub(crate) fn balancing_notifies_systemd_when_ready_alive_and_stopping() {
    let before = system();
    let service = [&START[..], &["--foreground"]].concat();
    notifies(&mut nearfar(&service), "STATUS=tiering nodes 0 over 1");
    assert_eq!(system(), before);
}

pub(crate) fn only_the_cgroups_memory_is_tiered_and_tiering_ends_with_it() {
    let before = system();
    let (ours, other) =
        (Holder::start_at("ours", "touch", 1), Holder::start_at("other", "touch", 1));
    let mut command = nearfar(&START);
    let arguments = ["--foreground", "--near", "0", "--far", "1", "--cgroup", "ours"];
    let mut tier =
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    for _ in 0..200 {
        if mib_on(ours.pid(), 0) >= 56 {
            break;
        }
        wait_with_room();
    }
    assert!(mib_on(ours.pid(), 0) >= 56, "{} MiB near", mib_on(ours.pid(), 0));
    assert!(mib_on(other.pid(), 0) <= 8, "{} MiB of others near", mib_on(other.pid(), 0));
    assert_eq!(status()["cgroup"], "/ours");
    ours.end();
    let mut said = String::new();
    tier.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!tier.wait().unwrap().success() && said.contains("/ours"), "{said}");
    other.end();
    assert_eq!(system(), before);
}

/// Numbers at random, the same in each run.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// How tiering is ended, and how often it was so.
#[derive(Debug, Default)]
struct Ends {
    term: u32,
    kill: u32,
    kill_as_it_stops: u32,
    at_the_start: u32,
    /// Cases in which settings were left to restore, and those in which each command restored them.
    left: u32,
    by_start: u32,
}

pub(crate) fn nap(ms: u64) {
    let seconds = format!("{}.{:03}", ms / 1000, ms % 1000);
    assert!(Command::new("sleep").arg(seconds).status().unwrap().success());
}

pub(crate) fn the_system_is_restored_after_any_end_of_tiering() {
    let times = std::env::var(ENDS).ok().and_then(|ends| ends.parse().ok()).unwrap_or(9);
    let before = system();
    let mut program = far_program();
    let (mut state, mut ends) = (0x9e37_79b9_7f4a_7c15, Ends::default());
    for end in 0..times {
        let mut command = nearfar(&START);
        let mut tier = command.arg("--foreground").stdout(Stdio::null()).spawn().unwrap();
        // As it starts, as it runs, and as it stops.
        let (starts, stops) = (end % 3 == 0, end % 3 == 2);
        let ms = random(&mut state) % if starts { 150 } else { 1500 };
        // However long a start takes here: one that is killed surely had something set.
        let surely = end == 1;
        for _ in 0..300 {
            if !surely || std::path::Path::new(&format!("{STATE}/journal/tier.json")).exists() {
                break;
            }
            wait();
        }
        nap(ms);
        let pid = Pid::from_child(&tier);
        let killed = if stops {
            kill_process(pid, Signal::TERM).unwrap();
            nap(random(&mut state) % 400);
            true
        } else {
            random(&mut state).is_multiple_of(2) || surely
        };
        kill_process(pid, if killed { Signal::KILL } else { Signal::TERM }).unwrap();
        let ended = tier.wait().unwrap();
        ends.at_the_start += u32::from(starts);
        let by = if stops { &mut ends.kill_as_it_stops } else { &mut ends.kill };
        *(if killed { by } else { &mut ends.term }) += 1;
        if killed {
            let left = system() != before;
            ends.left += u32::from(left);
            // The next start puts it back as well as stop does.
            if random(&mut state).is_multiple_of(2) {
                ends.by_start += u32::from(left);
                done(&START);
            }
            done(&["tier", "stop"]);
        } else {
            // Before it listens, a signal ends it as it ends any program; nothing has been changed by then.
            assert!(ended.success() || ended.signal().is_some(), "{ended:?} after {ms} ms");
        }
        assert_eq!(system(), before, "after {ms} ms: {ended:?}");
    }
    let Ends { term, kill, kill_as_it_stops, at_the_start, left, by_start } = ends;
    println!(
        "tiering ended {times} times at random moments: {term} by SIGTERM, {kill} by SIGKILL, {kill_as_it_stops} by SIGKILL after \
         SIGTERM; {at_the_start} of them within 150 ms of its start. {left} times something was left, put back {by_start} times by \
         the next start and {} times by stop; each time all files were as before",
        left - by_start
    );
    assert!(left > 0, "nothing was ever left, so nothing was tested");
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

pub(crate) fn impossible_tiering_is_refused_and_changes_nothing() {
    let before = system();
    let refused = |arguments: &[&str], says: &str| {
        let output = nearfar(arguments).output().unwrap();
        let said = error(&output);
        assert!(!output.status.success() && said.contains(says), "{arguments:?}: {said}");
        assert_eq!(system(), before, "{arguments:?}");
    };
    if std::path::Path::new("/sys/module/damon_stat/parameters/enabled").exists() {
        refused(&["tier", "start", "--keep-damon-stat"], "damon_stat");
    }
    for bad in ["--headroom=51", "--traffic=0", "--cpu=101", "--cpu=much"] {
        refused(&["tier", "start", bad], bad.split_once('=').unwrap().1);
    }
    std::fs::create_dir_all(STATE).unwrap();
    let output = unprivileged(&START);
    assert!(!output.status.success() && error(&output).contains("root"), "{output:?}");
    assert_eq!(system(), before);

    let nr = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
    std::fs::write(nr, "1").unwrap();
    let output = nearfar(&START).output().unwrap();
    assert!(!output.status.success() && error(&output).contains("configured"), "{output:?}");
    std::fs::write(nr, "0").unwrap();
    assert_eq!(system(), before);

    refused(&[&START[..], &["--near", "0", "--far", "all"]].concat(), "can't be both");
    refused(&[&START[..], &["--far", "7"]].concat(), "--far");
    refused(&[&START[..], &["--cgroup", "nowhere"]].concat(), "nowhere");

    // A state that is no state, or another program's number, is not taken for a running one.
    std::fs::create_dir_all(format!("{STATE}/journal")).unwrap();
    let state = format!("{STATE}/journal/tier.json");
    std::fs::write(&state, "{\"schema\": \"nearfar.tier/1\", \"pid\"").unwrap();
    refused(&["tier", "status"], "tier stop");
    done(&START);
    std::fs::write(&state, "").unwrap();
    for (arguments, says) in [(&["tier", "status"], "tier.json"), (&START, "already running")] {
        let output = nearfar(arguments).output().unwrap();
        assert!(!output.status.success() && error(&output).contains(says), "{output:?}");
    }
    assert!(done(&["tier", "stop"]).contains("is stopped (process"));
    assert_eq!(system(), before);
}

/// Free memory of node 0, as the kernel counts it, in bytes.
fn free_near() -> u64 {
    total_and_free(&RootFs::live().unwrap())[1] << 10
}

/// Whether DAMON keeps memory of node 0 free; it does not during a scan.
fn is_kept_free() -> bool {
    let schemes = "/sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes";
    let number: usize = read(&format!("{schemes}/nr_schemes"));
    (0..number).map(|at| format!("{schemes}/{at}")).any(|scheme| {
        let goals: usize = read(&format!("{scheme}/quotas/goals/nr_goals"));
        let metric = || std::fs::read_to_string(format!("{scheme}/quotas/goals/0/target_metric"));
        let awake = || read::<u64>(&format!("{scheme}/access_pattern/sz/max")) > 0;
        goals > 0 && metric().unwrap().trim() == "node_mem_free_bp" && awake()
    })
}

fn read<N: std::str::FromStr<Err: std::fmt::Debug>>(path: &str) -> N {
    std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// Stops the tiering process while it idles between scans.
fn stop_at_rest(pid: Pid) {
    let rests = (0..100).any(|_| {
        nap(100);
        if !is_kept_free() {
            return false;
        }
        // The kernel receives the written settings shortly after.
        nap(300);
        kill_process(pid, Signal::STOP).unwrap();
        nap(100);
        let rests = is_kept_free();
        if !rests {
            kill_process(pid, Signal::CONT).unwrap();
        }
        rests
    });
    assert!(rests, "between scans nothing keeps near memory free: {}", status());
}

/// Previously used memory is idle, and scans have become rare; then a program takes all free memory.
pub(crate) fn free_near_memory_is_maintained_between_scans() {
    let before = system();
    let cold = [Holder::start_at("cold", "input", 0), Holder::start_at("colder", "input", 0)];
    // Scans are slow in a test build, and CPU time is not under test here.
    let said = done(&[&START[..], &["--headroom", "20", "--cpu", "100"]].concat());
    assert!(said.contains("nodes 0 over 1"), "{said}");
    let boundary = || status()["boundaries"][0].clone();
    for _ in 0..600 {
        if boundary()["period_ms"].as_u64().unwrap() >= 8_000 {
            break;
        }
        wait();
    }
    let now = boundary();
    assert!(now["period_ms"].as_u64().unwrap() >= 8_000, "{now}");
    // Linux 7.1 and newer have schemes that are done once their goal is reached.
    let tuned = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().starts_with("7.2");
    assert_eq!(now["kept_up_by"], if tuned { "kernel" } else { "nearfar" });
    // The kernel receives settings before pages move.
    nap(5_000);
    let pid = Pid::from_raw(status()["pid"].as_i64().unwrap().try_into().unwrap()).unwrap();
    if tuned {
        stop_at_rest(pid);
    }
    let headroom = now["near"]["total_bytes"].as_u64().unwrap() / 5;
    // More than requested may be free; memory not usable by programs is the free memory beyond that.
    let room = now["near"]["free_bytes"].as_u64().unwrap();
    let kept = free_near().saturating_sub(headroom.max(room));
    let new = Holder::start(&RootFs::live().unwrap(), "new", "input");
    // Memory is freed at once, so the amount of free memory shows little.
    let taken = mib_on(new.pid(), 0) << 20;
    assert!(taken >= headroom / 4 * 3, "{taken} bytes of new pages are near");
    for _ in 0..900 {
        if free_near() > kept + headroom / 3 {
            break;
        }
        wait();
    }
    let after = free_near();
    if tuned {
        kill_process(pid, Signal::CONT).unwrap();
    }
    assert!(
        after > kept + headroom / 3,
        "{after} free again, {kept} not for programs: {}",
        status()
    );
    done(&["tier", "stop"]);
    cold.into_iter().chain([new]).for_each(Holder::end);
    assert_eq!(system(), before);
}

pub(crate) fn settings_changed_by_others_are_left_alone() {
    let before = system();
    done(&START);
    std::fs::write(format!("/{BALANCING}"), "2").unwrap();
    done(&["tier", "stop", "--overwrite"]);
    assert_eq!(system(), before);
    done(&START);
    std::fs::write(format!("/{BALANCING}"), "2").unwrap();
    let output = nearfar(&["tier", "stop"]).output().unwrap();
    let said = error(&output);
    assert!(!output.status.success() && said.contains("--overwrite"), "{output:?}");
    assert_eq!(system()[BALANCING].trim(), "2");
    done(&["tier", "stop", "--overwrite"]);
    assert_eq!(system(), before);
}
