//! Boots guests, runs tests in them, and counts results.
//!
//! A busy host may slow a guest down any number of times, so the limit of a test is in the guest's time, and the host
//! only waits for signs of life: a line from the guest at least every [`SILENCE`]. A guest that gives none (its kernel's
//! stacks are then shown), or whose emulator or kernel dies, is booted once more, for the tests without a result. A
//! failed test is never repeated.

use std::io::{BufRead as _, BufReader, Write as _};
use std::ops::Add;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nearfar_kernel::clock::{Stopwatch, sleep, unix_ns};

use crate::{Guest, NEARFAR, TESTS, pods};

/// Seconds of the guest in which a test must end.
const LIMIT: u64 = 1800;
/// A line of a guest that lives, and how often it comes, in the guest's time. A guest with emulated timing may take
/// minutes of the host for a second of its own.
const ALIVE: &str = "alive";
const BEAT: Duration = Duration::from_millis(100);
/// How long no line may come, in the host's time.
const SILENCE: Duration = Duration::from_secs(300);
/// How long a kernel may take to print its stacks.
const PANIC: Duration = Duration::from_secs(60);
/// The status of `nearfar lab` if the emulator or the guest's kernel died, or the guest did not come up.
const LAB_FAILED: i32 = 125;

/// Numbers of tests by result, and of guests that had to boot again.
#[derive(Default)]
pub(crate) struct Outcome {
    passed: usize,
    failed: usize,
    ignored: usize,
    restarted: usize,
}

impl Outcome {
    /// Counts and names tests that are not run.
    pub(crate) fn ignore(&mut self, guest: &Guest, tests: &[&str], why: &str) {
        for test in tests {
            println!("test {test} on {} ... ignored, {why}", guest.name());
        }
        self.ignored += tests.len();
    }

    /// Prints the numbers.
    pub(crate) fn end(&self) -> ExitCode {
        let Self { passed, failed, ignored, restarted } = self;
        if *restarted > 0 {
            println!("{restarted} guest{} restarted", if *restarted == 1 { "" } else { "s" });
        }
        let verdict = if *failed == 0 { "ok" } else { "FAILED" };
        println!("\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored");
        if *failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Add for Outcome {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
            restarted: self.restarted + other.restarted,
        }
    }
}

/// Runs the tests of each guest, `jobs` guests at a time; guests with most tests first.
pub(crate) fn boot_all(mut guests: Vec<(&Guest, Vec<&str>)>, jobs: usize) -> Outcome {
    guests.sort_by_key(|(_, tests)| tests.len());
    let queue = Mutex::new(guests);
    let next = || queue.lock().unwrap().pop();
    let work = || {
        let mut outcome = Outcome::default();
        while let Some((guest, tests)) = next() {
            boot(guest, tests, &mut outcome);
        }
        outcome
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).fold(Outcome::default(), Add::add)
    })
}

/// Seconds until the run must end, if it must.
fn left() -> Option<u64> {
    let until = std::env::var("NEARFAR_TEST_UNTIL").ok()?.parse::<u64>().unwrap();
    Some(until.saturating_sub(unix_ns() / 1_000_000_000))
}

/// The end of a guest.
enum Ended {
    /// Its runner ended with this status.
    Status(ExitStatus),
    /// It gave no sign of life any more.
    Silent,
    /// The time for the run was over.
    Over,
}

/// Runs `tests` in `guest`.
fn boot(guest: &Guest, tests: Vec<&str>, outcome: &mut Outcome) {
    let (name, mut missing) = (guest.name(), tests);
    for is_last in [false, true] {
        if left().is_some_and(|left| left < 60) {
            return outcome.ignore(guest, &missing, "the time for this run is over");
        }
        let began = Stopwatch::start();
        let ended = attend(start(guest, &missing), &name, &mut missing, outcome);
        println!("guest {name}: {} s", began.elapsed().as_secs());
        let why = match ended {
            Ended::Over => return outcome.ignore(guest, &missing, "the time for this run is over"),
            Ended::Status(_) if missing.is_empty() => return,
            Ended::Status(status) => format!("the guest ended without its result ({status})"),
            Ended::Silent => format!("the guest gave no sign of life for {} s", SILENCE.as_secs()),
        };
        let is_dead = match ended {
            Ended::Status(status) => status.code() == Some(LAB_FAILED),
            _ => true,
        };
        println!("guest {name}: {why}");
        if is_last || !is_dead {
            missing.iter().for_each(|test| println!("test {test} on {name} ... FAILED, {why}"));
            outcome.failed += missing.len();
            return;
        }
        outcome.restarted += 1;
    }
}

/// Starts a guest that runs these tests.
fn start(guest: &Guest, tests: &[&str]) -> Child {
    let mut lab = Command::new(NEARFAR);
    // Libraries of the build are not those that programs in a guest are to find.
    lab.env_remove("LD_LIBRARY_PATH");
    lab.args(["lab", "run", "-M", guest.machine, "-K", guest.kernel, "--timing", guest.timing]);
    // A boot takes some 15 s; on a host with other work more than the default limit of 120 s was seen.
    lab.args(["--boot-timeout", &SILENCE.as_secs().to_string()]);
    lab.arg("-e").arg(format!("NEARFAR_TEST_GUEST={}", guest.name()));
    for name in [pods::BIN, "LAB"] {
        if let Ok(value) = std::env::var(name) {
            lab.arg("-e").arg(format!("{name}={value}"));
        }
    }
    lab.arg("--").arg(std::env::current_exe().unwrap()).args(tests);
    lab.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Shows the lines of a guest until it ends; tests with a result are counted, and no longer `missing`.
fn attend(mut lab: Child, name: &str, missing: &mut Vec<&str>, outcome: &mut Outcome) -> Ended {
    let (sender, lines) = mpsc::channel();
    let stdout = BufReader::new(lab.stdout.take().unwrap());
    std::thread::spawn(move || {
        stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let stderr = BufReader::new(lab.stderr.take().unwrap());
    let said = std::thread::spawn(move || {
        let lines = stderr.lines().map_while(Result::ok);
        lines.inspect(|line| println!("{line}")).last().unwrap_or_default()
    });
    // Before the first line the guest boots, which `lab` limits.
    let mut patience = SILENCE * 2;
    loop {
        let left = left().map(Duration::from_secs);
        match lines.recv_timeout(left.map_or(patience, |left| left.min(patience))) {
            Ok(line) if line == ALIVE => {}
            Ok(line) => match line.strip_prefix("test ").and_then(|rest| rest.split(' ').next()) {
                Some(test) => {
                    missing.retain(|name| *name != test);
                    let has_passed = line.ends_with(" ... ok");
                    *(if has_passed { &mut outcome.passed } else { &mut outcome.failed }) += 1;
                    println!("{line}");
                }
                None => println!("{name}: {line}"),
            },
            Err(RecvTimeoutError::Disconnected) => {
                let status = lab.wait().unwrap();
                if status.code() == Some(LAB_FAILED) {
                    show_console(&said.join().unwrap());
                }
                return Ended::Status(status);
            }
            Err(RecvTimeoutError::Timeout) => {
                let is_over = left.is_some_and(|left| left < patience);
                if is_over || !interrupt(&lab) {
                    let _ = lab.kill();
                }
                lab.wait().unwrap();
                show_console(&said.join().unwrap());
                return if is_over { Ended::Over } else { Ended::Silent };
            }
        }
        patience = SILENCE;
    }
}

/// Makes a guest's kernel print the stack of each task and panic, through QEMU's monitor in the run's directory; false
/// if QEMU did not end then.
fn interrupt(lab: &Child) -> bool {
    let of_run = format!("nearfar-lab-{}-", lab.id());
    let runs = std::fs::read_dir(std::env::temp_dir()).unwrap().map_while(Result::ok);
    let run = runs.into_iter().find(|run| run.file_name().to_string_lossy().starts_with(&of_run));
    let Some(Ok(mut monitor)) = run.map(|run| UnixStream::connect(run.path().join("monitor")))
    else {
        return false;
    };
    monitor.set_read_timeout(Some(PANIC)).unwrap();
    let _ = writeln!(monitor, r#"{{"execute":"qmp_capabilities"}}{{"execute":"inject-nmi"}}"#);
    BufReader::new(monitor).lines().all(|line| line.is_ok())
}

/// Shows the console that a message of `nearfar lab` names.
fn show_console(message: &str) {
    if let Some((_, log)) = message.rsplit_once(": ")
        && let Ok(console) = std::fs::read_to_string(log)
    {
        println!("{console}");
    }
}

/// In a guest: runs tests by their names.
pub(crate) fn run_inside(guest: &str, names: &[&str]) {
    let settings = crate::inside::settings();
    let running = Arc::new(Mutex::new(None));
    watch(guest.to_owned(), Arc::clone(&running));
    for (name, _, test) in TESTS.iter().filter(|test| names.contains(&test.0)) {
        crate::inside::fresh();
        let began = Stopwatch::start();
        *running.lock().unwrap() = Some((*name, began));
        let passed = catch_unwind(AssertUnwindSafe(test)).is_ok();
        *running.lock().unwrap() = None;
        crate::inside::put_back(&settings);
        let (took, result) = (began.elapsed().as_secs(), if passed { "ok" } else { "FAILED" });
        println!("test {name} on {guest} ({took} s of the guest) ... {result}");
    }
}

/// Shows that the guest lives, and ends it if a test does not end.
#[expect(clippy::exit, reason = "the test's thread can't be ended")]
fn watch(guest: String, running: Arc<Mutex<Option<(&'static str, Stopwatch)>>>) {
    std::thread::spawn(move || {
        loop {
            println!("{ALIVE}");
            sleep(BEAT);
            let running = *running.lock().unwrap();
            if let Some((test, began)) = running
                && began.elapsed().as_secs() > LIMIT
            {
                println!(
                    "test {test} on {guest} ({LIMIT} s of the guest) ... FAILED, it did not end"
                );
                std::process::exit(1);
            }
        }
    });
}
