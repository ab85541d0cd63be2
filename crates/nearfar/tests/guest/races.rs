//! Concurrent starts, stops and kills of services, on real kernels. In any interleaving, a stop that reports success
//! has ended the service, and after the last stop all settings are restored and nothing runs.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nearfar_kernel::claim::{Claim, Holder};
use rustix::process::{Pid, Signal, kill_process};

use crate::inside::{STATE, await_up, done, error, nearfar, weights};
use crate::tier::{far_program, nap, random, system};

/// How often; the environment can ask for more.
const RACES: &str = "NEARFAR_TEST_RACES";

/// Commands that start a service, and the service for its stop command.
const STARTED: [(&[&str], &str); 3] = [
    (&["tier", "start"], "tier"),
    (&["balance", "start", "--policy", "carrefour", "--sensor", "hint-faults"], "balance"),
    (&["run", "--tier", "--", "sleep", "0.5"], "tier"),
];

/// Counts of the outcomes.
#[derive(Debug, Default)]
struct Seen {
    /// Stops that ended a process, and stops that found none.
    ended: u32,
    none: u32,
    /// Rounds that `nearfar off` ends, with changed weights.
    offs: u32,
    fronts_killed: u32,
    services_killed: u32,
    stops_killed: u32,
    left: u32,
}

/// Processes that do a service's work.
fn services() -> Vec<u32> {
    let words = |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let all = std::fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let words = words(*pid);
        let words: Vec<_> = words.split(|byte| *byte == 0).collect();
        words.contains(&&b"--foreground"[..]) && words.contains(&&b"start"[..])
    })
    .collect()
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    state.is_some_and(|state| !matches!(state, "Z" | "X"))
}

fn kill(pid: u32, signal: Signal) {
    // It may have ended by itself.
    let _ = kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal);
}

fn quiet(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The process that moves pages, or is about to.
fn holder() -> Option<Holder> {
    Claim::holder(&Path::new(STATE).join("journal/moves-pages"))
}

/// Stops the service, and checks that it has ended and the message.
fn stop(service: &str, seen: &mut Seen) {
    let held = holder();
    let Output { status, stdout, stderr } = nearfar(&[service, "stop"]).output().unwrap();
    assert!(held.is_none() || held != holder(), "{service} stop: {held:?} runs on");
    let said = String::from_utf8(stdout).unwrap();
    let why = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{service} stop: {status} {said} {why}");
    match said.split_once("(process ") {
        Some((_, rest)) => {
            let pid: u32 = rest.split(')').next().unwrap().parse().unwrap();
            assert!(
                !is_alive(pid),
                "{service} stop says that {pid} is stopped, and it runs: {said}"
            );
            seen.ended += 1;
        }
        None => seen.none += 1,
    }
}

/// Ends and restores everything, and checks that nothing is left of it.
fn off() {
    let held = holder();
    let Output { status, stdout, stderr } = nearfar(&["off"]).output().unwrap();
    assert!(held.is_none() || held != holder(), "off: {held:?} runs on");
    let said = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    assert!(status.success(), "off: {status} {said}");
}

pub(crate) fn settings_are_restored_after_any_race_of_starts_stops_and_kills() {
    let times = std::env::var(RACES).ok().and_then(|times| times.parse().ok()).unwrap_or(6);
    let before = (system(), weights());
    let mut program = far_program();
    let (mut state, mut seen) = (0x2545_f491_4f6c_dd1d, Seen::default());
    for round in 0..times {
        let (command, service) = STARTED[round % STARTED.len()];
        let by_off = random(&mut state).is_multiple_of(3);
        if by_off {
            done(&["weights", "0=5,1=2", "--apply"]);
            seen.offs += 1;
        }
        let end = |seen: &mut Seen| if by_off { off() } else { stop(service, seen) };
        let mut front = quiet(&mut nearfar(command));
        nap(random(&mut state) % 2_000);
        match random(&mut state) % 4 {
            0 => {
                let hard = random(&mut state).is_multiple_of(2);
                kill(front.id(), if hard { Signal::KILL } else { Signal::INT });
                seen.fronts_killed += 1;
            }
            1 => services().into_iter().for_each(|pid| {
                kill(pid, Signal::KILL);
                seen.services_killed += 1;
            }),
            _ => {}
        }
        if random(&mut state) % 10 < 4 {
            let mut killed = quiet(&mut nearfar(&[service, "stop"]));
            nap(random(&mut state) % 800);
            killed.kill().unwrap();
            killed.wait().unwrap();
            seen.stops_killed += 1;
        }
        end(&mut seen);
        // The start may have come after the stop; the run ends by itself, and one more stop follows.
        if command[0] == "run" && random(&mut state).is_multiple_of(2) {
            kill(front.id(), Signal::TERM);
        }
        front.wait().unwrap();
        seen.left += u32::from(system() != before.0);
        end(&mut seen);
        assert_eq!(services(), [0; 0], "round {round}: {command:?}");
        assert_eq!((system(), weights()), before, "round {round}: {command:?}");
        let claim = Path::new(STATE).join("journal/moves-pages.claim");
        assert!(!claim.exists(), "round {round}: {}", claim.display());
    }
    println!("{times} races of starts, stops and kills: {seen:?}; each time all was as before");
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

pub(crate) fn a_stop_ends_a_start_in_progress() {
    let before = system();
    let mut program = far_program();
    for (command, service) in &STARTED[..2] {
        let mut front = quiet(&mut nearfar(command));
        // The claim comes first; self-tests, first decisions and the state file follow.
        while holder().is_none_or(|holder| holder.of.as_deref() != Some(service)) {
            assert!(front.try_wait().unwrap().is_none(), "{command:?} ended without a claim");
            nap(10);
        }
        let mut seen = Seen::default();
        stop(service, &mut seen);
        assert_eq!((seen.ended, seen.none), (1, 0), "{service} stop names the process it ended");
        front.wait().unwrap();
        assert_eq!(services(), [0; 0], "{command:?}");
        assert_eq!(system(), before, "{command:?}");
    }
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

pub(crate) fn another_users_lock_is_an_error_with_its_holder_and_settings_are_restored() {
    let before = system();
    done(&["tier", "start"]);
    let lock = format!("{STATE}/journal/lock");
    // As a user: the file can't even be opened.
    let mut unprivileged = Command::new("setpriv");
    unprivileged.args(["--reuid=65534", "--regid=65534", "--clear-groups", "flock", "-n", &lock]);
    let refused = unprivileged.arg("true").output().unwrap();
    assert!(!refused.status.success(), "{refused:?}");
    // Held by root without end: the stop names the lock holder, and the next stop restores all settings.
    refused_while_held(&lock, &["tier", "stop"]);
    done(&["tier", "stop"]);
    assert_eq!(system(), before);
    done(STARTED[1].0);
    refused_while_held(&lock, &["balance", "stop"]);
    done(&["balance", "stop"]);
    assert_eq!(system(), before);
    done(&["tier", "start"]);
    kill(holder().unwrap().identity.pid, Signal::KILL);
    while holder().is_some() {
        nap(10);
    }
    let (left, lock) = (system(), format!("{STATE}/journal/damon.lock"));
    let planned = done(&["tier", "start", "--dry-run"]);
    assert!(planned.contains("would promote"), "a start would restore what is left: {planned}");
    refused_while_held(&lock, &["tier", "start", "--dry-run"]);
    assert_eq!(system(), left, "a dry run changes nothing");
    refused_while_held(&lock, &["tier", "stop"]);
    done(&["tier", "stop"]);
    assert_eq!(system(), before);
}

/// Another process has the lock without end: the command fails, and names it.
fn refused_while_held(lock: &str, command: &[&str]) {
    let mut held = Command::new("flock");
    let held = held.args(["--no-fork", lock, "sh", "-c", "echo up; exec sleep 1000"]);
    let mut held = held.stdout(Stdio::piped()).spawn().unwrap();
    await_up(&mut held);
    let output = nearfar(command).output().unwrap();
    let named = format!("process {}", held.id());
    assert!(!output.status.success() && error(&output).contains(&named), "{output:?}");
    kill(held.id(), Signal::KILL);
    held.wait().unwrap();
}
