//! `nearfar balance` on real kernels, on a machine with four nodes: memory that was all on one node is spread (observed
//! by the lab's emulated PMU, so that nothing else migrates pages), all settings are restored after any end, and
//! invalid requests are refused.

use std::process::{Child, Command, Stdio};

use nearfar_kernel::residency;
use rustix::process::{Pid, Signal, kill_process};

use crate::damon::{Holder, live, wait};
use crate::inside::{HOLD, STATE, await_up, done, error, nearfar, unprivileged};
use crate::notified::notifies;
use crate::tier::{START as TIER, mib_on, nap, random, system};

/// Programs here are busy for a tenth of the time.
const START: [&str; 6] = ["balance", "start", "--policy", "carrefour", "--busy-above", "1"];
/// How often balancing is ended at a random moment; the environment can ask for more.
const ENDS: &str = "NEARFAR_TEST_BALANCE_ENDS";

fn status() -> serde_json::Value {
    serde_json::from_str(&done(&["balance", "status", "--json"])).unwrap()
}

pub(crate) fn balancing_notifies_systemd_when_ready_alive_and_stopping() {
    let before = system();
    let service = [&START[..], &["--sensor", "hint-faults", "--foreground"]].concat();
    notifies(&mut nearfar(&service), "STATUS=balancing");
    assert_eq!(system(), before);
}

/// A program with 64 MiB on node 0, used by a thread of each node.
fn program(how: &str) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.env(HOLD, how).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    await_up(&mut child);
    child
}

fn end(mut program: Child) {
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

fn on(pid: u32) -> [u64; 4] {
    [0, 1, 2, 3].map(|node| mib_on(pid, node))
}

/// Waits until the program's memory is as wished; how it is then.
fn until(pid: u32, wished: impl Fn([u64; 4]) -> bool) -> [u64; 4] {
    for _ in 0..400 {
        if wished(on(pid)) {
            break;
        }
        wait();
    }
    on(pid)
}

/// Waits until the status satisfies `wished`, and returns it.
fn until_status(wished: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    for _ in 0..400 {
        if wished(&status()) {
            break;
        }
        wait();
    }
    status()
}

fn moved(status: &serde_json::Value) -> u64 {
    status["pages"]["moved"].as_u64().unwrap_or(0)
}

/// Hint faults need the kernel's NUMA balancing, which spreads such memory by itself; so this test does not check which
/// of the two migrated it.
pub(crate) fn hint_faults_alone_find_used_pages_and_settings_are_restored() {
    let before = system();
    let program = program("share");
    let said = done(&START);
    assert!(said.contains("the machine, policy carrefour"), "{said}");
    let seen = |status: &serde_json::Value| status["sensors"][0]["seen"].as_u64().unwrap_or(0);
    let status = until_status(|status| seen(status) >= 60);
    assert!(seen(&status) >= 60, "{status}");
    assert_eq!(status["sensors"][0]["name"], "hint-faults", "{status}");
    assert_eq!(status["schema"], "nearfar.balance/1");
    assert_eq!(status["nodes"].as_array().unwrap().len(), 4);
    let text = done(&["balance", "status"]);
    assert!(
        text.contains("imbalance of controllers") && text.contains("sensor hint-faults"),
        "{text}"
    );
    let why = done(&["why"]);
    assert!(why.contains("balance (process ") && why.contains("pages to move"), "{why}");
    // Two at once undo each other's work.
    let again = nearfar(&START).output().unwrap();
    assert!(!again.status.success() && error(&again).contains("already running"), "{again:?}");
    let tier = nearfar(&[&TIER[..], &["--near", "0", "--far", "1"]].concat()).output().unwrap();
    assert!(!tier.status.success() && error(&tier).contains("already moves pages"), "{tier:?}");
    assert!(done(&["balance", "stop"]).contains("as before"));
    assert_eq!(system(), before);
    let none = nearfar(&["balance", "status"]).output().unwrap();
    assert!(!none.status.success() && error(&none).contains("nearfar balance start"), "{none:?}");
    end(program);
}

pub(crate) fn balancing_of_one_process_ends_with_it() {
    let before = system();
    let (ours, other) = (program("share"), program("share"));
    let pid = ours.id().to_string();
    let mut command = nearfar(&[&START[..], &["--foreground", "--pid", &pid]].concat());
    let balance = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Of the lines that it reads, few are sampled; so it takes a while until all is spread.
    let goes = |mib: [u64; 4]| mib[0] <= 60 && mib[1..].iter().all(|mib| *mib >= 1);
    let mib = until(ours.id(), goes);
    // The status is written between batches, so it may lag behind the memory.
    let status = until_status(|status| moved(status) > 700);
    assert!(goes(mib), "{mib:?} MiB: {status}");
    assert!(moved(&status) > 700, "{status}");
    assert_eq!(status["sensors"][0]["name"], "lab", "{status}");
    assert_eq!(status["sensors"][0]["nature"], "emulated", "{status}");
    assert!(on(other.id())[0] >= 62, "{:?} MiB of another: {status}", on(other.id()));
    assert!(status["scope"].as_str().unwrap().contains(&format!("process {pid} ")), "{status}");
    end(ours);
    let ended = balance.wait_with_output().unwrap();
    assert!(!ended.status.success() && error(&ended).contains("has ended"), "{ended:?}");
    let said = error(&nearfar(&["balance", "status"]).output().unwrap());
    assert!(said.contains("ended by itself"), "{said}");
    end(other);
    assert_eq!(system(), before);
}

pub(crate) fn impossible_balancing_is_refused_and_changes_nothing() {
    let before = system();
    let refused = |arguments: &[&str], says: &str| {
        let output = nearfar(&[&START[..], arguments].concat()).output().unwrap();
        let said = error(&output);
        assert!(!output.status.success() && said.contains(says), "{arguments:?}: {said}");
        assert_eq!(system(), before, "{arguments:?}");
    };
    refused(&["--pid", "4194303"], "no such process");
    refused(&["--pid", "2"], "no memory of its own");
    refused(&["--cgroup", "nowhere"], "nowhere");
    refused(&["--sensor", "crystal-ball"], "crystal-ball");
    refused(&["--sensor", "ibs"], "ibs");
    refused(&["--rate", "0"], "0");
    refused(&["--dry-run", "--cgroup", "nowhere"], "nowhere");
    let planned = done(&[&START[..], &["--dry-run", "--sensor", "hint-faults"]].concat());
    assert!(
        planned.contains("would balance the machine") && planned.contains("hint-faults"),
        "{planned}"
    );
    assert_eq!(system(), before, "a dry run changes nothing");
    let output = nearfar(&["balance", "start", "--busy-above", "1"]).output().unwrap();
    assert!(
        error(&output).contains("--busy-above is a threshold of --policy carrefour"),
        "{output:?}"
    );
    assert_eq!(output.status.code(), Some(2));
    std::fs::create_dir_all(STATE).unwrap();
    let output = unprivileged(&START);
    assert!(!output.status.success() && error(&output).contains("root"), "{output:?}");
    assert_eq!(system(), before);
    // A state that is no state is not taken for a running one.
    std::fs::create_dir_all(format!("{STATE}/journal")).unwrap();
    let state = format!("{STATE}/journal/balance.json");
    std::fs::write(&state, "{\"schema\": \"nearfar.balance/1\", \"pid\"").unwrap();
    let output = nearfar(&["balance", "status"]).output().unwrap();
    assert!(!output.status.success() && error(&output).contains("balance stop"), "{output:?}");
    done(&["balance", "stop"]);
    assert_eq!(system(), before);
}

pub(crate) fn settings_are_restored_after_any_end_of_balancing() {
    let times = std::env::var(ENDS).ok().and_then(|ends| ends.parse().ok()).unwrap_or(6);
    let before = system();
    let program = program("share");
    let (mut state, mut left) = (0x9e37_79b9_7f4a_7c15, 0);
    for end in 0..times {
        let mut balance =
            nearfar(&START).arg("--foreground").stdout(Stdio::null()).spawn().unwrap();
        let surely = end == 1;
        for _ in 0..300 {
            let set = std::path::Path::new(&format!("{STATE}/journal/balance.json")).exists();
            if !surely || set {
                break;
            }
            wait();
        }
        nap(random(&mut state) % 2500);
        let pid = Pid::from_child(&balance);
        let killed = surely || random(&mut state).is_multiple_of(2);
        kill_process(pid, if killed { Signal::KILL } else { Signal::TERM }).unwrap();
        balance.wait().unwrap();
        if killed {
            left += u32::from(system() != before);
            // The next start puts it back as well as stop does.
            if random(&mut state).is_multiple_of(2) {
                done(&START);
            }
            done(&["balance", "stop"]);
        }
        assert_eq!(system(), before, "end {end}");
    }
    println!(
        "balancing ended {times} times at random moments; {left} times something was left and put back"
    );
    let residency = residency::of_process(&live(), program.id());
    assert!(residency.total().0 >= 60 << 20, "{residency:?}");
    end(program);
}

pub(crate) fn only_processes_of_the_cgroup_are_sampled() {
    let before = system();
    let busy = Holder::start(&live(), "busy", "share");
    let waits = Holder::start(&live(), "waits", "input");
    let seen = |status: &serde_json::Value| status["sensors"][0]["seen"].as_u64().unwrap_or(0);
    done(&[&START[..], &["--cgroup", "busy"]].concat());
    // Its memory may be of 32 huge pages, each of which faults once at a time.
    let status = until_status(|status| seen(status) >= 60);
    assert_eq!(status["scope"], "cgroup /busy");
    assert!(seen(&status) >= 60, "{status}");
    done(&["balance", "stop"]);
    done(&[&START[..], &["--cgroup", "waits"]].concat());
    (0..10).for_each(|_| wait());
    let status = self::status();
    assert!(seen(&status) < 30, "{status}");
    done(&["balance", "stop"]);
    assert_eq!(system(), before);
    busy.end();
    waits.end();
}
