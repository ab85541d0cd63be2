//! Helpers for tests inside a guest: nearfar, the kernel's weights, programs that hold memory.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use nearfar_kernel::fs::RootFs;
use nearfar_kernel::mapped::{self, Mapping};
use nearfar_kernel::{affinity, mempolicy};
use nearfar_topology::{CpuId, NodeId};

use crate::NEARFAR;

const WEIGHTS: &str = "/sys/kernel/mm/mempolicy/weighted_interleave";
pub(crate) const STATE: &str = "/tmp/nearfar-state";

/// Settings of the kernel's that tests change for themselves.
pub(crate) const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
pub(crate) const HUGE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The values of those settings, read once before any test.
pub(crate) fn settings() -> [(&'static str, String); 2] {
    let all = [BALANCING, HUGE].map(|file| (file, std::fs::read_to_string(file).unwrap()));
    all.map(|(file, words)| (file, words.split(['[', ']']).nth(1).unwrap_or(&words).to_owned()))
}

/// Restores these values.
pub(crate) fn put_back(settings: &[(&'static str, String)]) {
    for (file, was) in settings {
        std::fs::write(file, was).unwrap();
    }
}

/// Undoes changes that the previous test may have left.
pub(crate) fn fresh() {
    let is_left = |file: &str| Path::new(STATE).join("journal").join(file).exists();
    let claimed = is_left("moves-pages.claim");
    if claimed || is_left("tier.json") || is_left("tier-budgets.json") {
        let _ = nearfar(&["tier", "stop", "--overwrite"]).output();
    }
    if claimed || is_left("balance.json") {
        let _ = nearfar(&["balance", "stop", "--overwrite"]).output();
    }
    let _ = std::fs::remove_dir_all(STATE);
    if std::fs::write(format!("{WEIGHTS}/auto"), "true").is_err() {
        for node in std::fs::read_dir(WEIGHTS).unwrap() {
            std::fs::write(node.unwrap().path(), "1").unwrap();
        }
    }
}

/// A file of the kernel's weights.
pub(crate) fn weight(file: &str) -> String {
    std::fs::read_to_string(format!("{WEIGHTS}/{file}")).unwrap().trim().to_string()
}

pub(crate) fn write_weight(file: &str, text: &str) -> std::io::Result<()> {
    std::fs::write(format!("{WEIGHTS}/{file}"), text)
}

/// All of the kernel's weights, by node, then `auto` if there is one.
pub(crate) fn weights() -> String {
    let mut names: Vec<String> = std::fs::read_dir(WEIGHTS)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_by_key(|name| (name == "auto", name.clone()));
    names.iter().map(|name| weight(name)).collect::<Vec<_>>().join(":")
}

/// Where `make library` has put libraries.
pub(crate) fn libraries() -> PathBuf {
    Path::new(NEARFAR).parent().unwrap().join("../abi").canonicalize().unwrap()
}

pub(crate) fn nearfar(arguments: &[&str]) -> Command {
    program(NEARFAR, arguments)
}

/// `nearfar-bench`.
pub(crate) fn bench(arguments: &[&str]) -> Command {
    program(env!("CARGO_BIN_EXE_nearfar-bench"), arguments)
}

fn program(file: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(file);
    command.args(arguments).env("NEARFAR_STATE", STATE).stdin(Stdio::null());
    // Where `make library` has put it.
    let built = Path::new(NEARFAR).parent().unwrap().join("../abi");
    command.env("NEARFAR_PRELOAD", built.join("libnearfar_preload.so"));
    command
}

/// The same as someone without privilege.
pub(crate) fn unprivileged(arguments: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--bounding-set=-all",
        NEARFAR,
    ]);
    command.args(arguments).env("NEARFAR_STATE", STATE).stdin(Stdio::null()).output().unwrap()
}

/// Runs to the end, which must be a success.
pub(crate) fn done(arguments: &[&str]) -> String {
    printed(nearfar(arguments))
}

/// The standard output of a command that must succeed.
pub(crate) fn printed(mut command: Command) -> String {
    let output = command.output().unwrap();
    if error(&output).contains("did not end within") {
        tell_of_timers();
    }
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Prints the kernel's time and the time of each CPU's next timer: one that has passed long ago means that the emulator
/// has lost an interrupt, and not that the program under test hangs.
fn tell_of_timers() {
    let list = std::fs::read_to_string("/proc/timer_list").unwrap_or_default();
    let tells = ["now at", "cpu:", "next_event", "expires_next", "Per CPU device"];
    list.lines().filter(|line| tells.iter().any(|part| line.contains(part))).for_each(|line| {
        println!("timers: {line}");
    });
}

pub(crate) fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// With this environment variable, this program holds 64 MiB until its input ends, or until a child of it has slept for
/// the given seconds; or it holds other parts of memory, or uses them, or copies or reads them by several threads, repeatedly until its input ends. See
/// [`held`].
pub(crate) const HOLD: &str = "NEARFAR_TEST_HOLD";

pub(crate) fn hold() {
    let how = std::env::var(HOLD);
    if how.as_deref() == Ok(crate::placement::PARTS) {
        return crate::placement::hold_parts();
    }
    let halves = how.as_deref().ok().and_then(|how| how.strip_prefix("halves "));
    halves.into_iter().for_each(settle);
    let cpus = affinity::get().unwrap();
    if how.as_deref() == Ok("share") {
        // First touched by one CPU, and without a policy: NUMA balancing passes over memory that has one.
        affinity::set(&cpus[..1]).unwrap();
    }
    let mut memory = std::hint::black_box(vec![1_u8; 64 << 20]);
    println!("up");
    match how.as_deref() {
        Ok("touch") => touch(&mut memory),
        Ok("grow") => grow(&mut memory),
        Ok("copy") => copy(&memory),
        Ok("share") => share(&memory, &cpus),
        Ok(_) if halves.is_some() => use_halves(&mut memory[..16 << 20]),
        Ok("input") => drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap()),
        seconds => drop(Command::new("sleep").arg(seconds.unwrap()).status().unwrap()),
    }
    assert_eq!(memory[memory.len() - 1], 1);
}

/// Writes to every page again and again until the input ends.
fn touch(memory: &mut [u8]) {
    let ended = std::thread::spawn(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    while !ended.is_finished() {
        for page in memory.chunks_mut(4096) {
            std::hint::black_box(&mut page[0]);
            page[0] = 1;
        }
    }
}

/// The same with 112 MiB more, and then with another 16, a mebibyte a quarter of a second.
fn grow(memory: &mut [u8]) {
    let ended = std::thread::spawn(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    let (mut more, mut passes) = (Vec::new(), 0_u32);
    let began = nearfar_kernel::clock::Stopwatch::start();
    while !ended.is_finished() {
        let due = 112 + began.elapsed().as_millis() / 250;
        while more.len() < 128 && (more.len() as u128) < due {
            more.push(vec![1_u8; 1 << 20]);
        }
        let all = std::iter::once(&mut *memory).chain(more.iter_mut().map(Vec::as_mut_slice));
        for page in all.flat_map(|part| part.chunks_mut(4096)) {
            page[0] = 1;
        }
        passes = std::hint::black_box(passes.wrapping_add(1));
    }
}

/// Binds to a CPU, allocates new memory on a node, and lets NUMA balancing scan it.
fn settle(place: &str) {
    let (cpu, node) = place.split_once(' ').unwrap();
    affinity::set(&[CpuId(cpu.parse().unwrap())]).unwrap();
    let node = NodeId(node.parse().unwrap());
    mempolicy::bind_and_balance(&[node].into_iter().collect()).unwrap();
}

/// Reads every line of the first half and writes to every line of the second, again and again until the input ends.
fn use_halves(memory: &mut [u8]) {
    let ended = std::thread::spawn(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    let (read, written) = memory.split_at_mut(memory.len() / 2);
    while !ended.is_finished() {
        for line in read.chunks(64) {
            std::hint::black_box(line[0]);
        }
        for line in written.chunks_mut(64) {
            std::hint::black_box(&mut line[0]);
            line[0] = 1;
        }
    }
}

/// Copies the memory again and again, by a thread a CPU but one, until the input ends.
fn copy(memory: &[u8]) {
    let ended = AtomicBool::new(false);
    let cpus = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for _ in 1..cpus.max(2) {
            scope.spawn(|| {
                let mut own = vec![0_u8; memory.len()];
                while !ended.load(Ordering::Relaxed) {
                    own.copy_from_slice(std::hint::black_box(memory));
                    std::hint::black_box(&own);
                }
            });
        }
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
        ended.store(true, Ordering::Relaxed);
    });
}

/// Reads a line of every page, pauses and repeats, by a thread on each CPU, until the input ends. Pauses because the
/// emulator has work for each line.
fn share(memory: &[u8], cpus: &[CpuId]) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for cpu in cpus.iter().copied() {
            let ended = &ended;
            scope.spawn(move || {
                affinity::set(&[cpu]).unwrap();
                // Other lines each time: those of one time fit into a cache.
                let mut lines = (usize::try_from(cpu.0).unwrap()..).map(|line| line % 64 * 64);
                while !ended.load(Ordering::Relaxed) {
                    let line = lines.next().unwrap();
                    for page in memory.chunks(4096) {
                        std::hint::black_box(page[line]);
                    }
                    std::thread::park_timeout(std::time::Duration::from_millis(20));
                }
            });
        }
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
        ended.store(true, Ordering::Relaxed);
    });
}

/// MiB of anonymous memory on nodes 0, 1 and 2 of a program that holds 64 MiB, run with `options`. Pages of its files are
/// where programs before it have had them read.
pub(crate) fn held(options: &[&str]) -> [u64; 3] {
    held_by(&mut holder(options))
}

/// The same of this program as it is started by `command`.
pub(crate) fn held_by(command: &mut Command) -> [u64; 3] {
    on_nodes(&mappings_of(command))
}

/// The same of the 64 MiB alone: a huge page of any other memory would be a whole turn of interleaving.
pub(crate) fn spread(options: &[&str]) -> [u64; 3] {
    let mut mappings = mappings_of(&mut holder(options));
    mappings.sort_by_key(Mapping::resident);
    on_nodes(&mappings[mappings.len() - 1..])
}

/// nearfar becomes the program: the id is the same.
fn holder(options: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = nearfar(&[&["run"], options, &[program.to_str().unwrap()]].concat());
    command.env(HOLD, "input");
    command
}

/// The anonymous mappings of a program that holds memory.
fn mappings_of(command: &mut Command) -> Vec<Mapping> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    await_up(&mut child);
    let mut mappings = mapped::of_process(&RootFs::live().unwrap(), child.id()).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    mappings.retain(|mapping| mapping.file.is_none());
    mappings
}

fn on_nodes(mappings: &[Mapping]) -> [u64; 3] {
    [0, 1, 2].map(|node| {
        let bytes = mappings.iter().filter_map(|mapping| mapping.nodes.get(&NodeId(node)));
        bytes.map(|bytes| bytes.0).sum::<u64>() >> 20
    })
}

/// Waits for the line that a program prints when it has started.
pub(crate) fn await_up(child: &mut Child) {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
}

/// A run that continues until it is ended, and whether it has started.
pub(crate) fn long_run(options: &[&str]) -> Child {
    let script = "echo up; exec sleep 100";
    let arguments = [&["run"], options, &["--report=/dev/null", "--", "sh", "-c", script]].concat();
    let mut child =
        nearfar(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    await_up(&mut child);
    child
}

/// Ends a long run as a user would, and waits for it.
pub(crate) fn end(mut run: Child) {
    let pid = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(143));
}
