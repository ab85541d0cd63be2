//! `make bench-alloc`: the cost of running real programs under the preload library.
//!
//! Redis, and a C compiler over jemalloc's own sources, run in several configurations, alternating round by round:
//! unmodified, under Debian's jemalloc, and under our library without a configuration, with the plain heap, and with
//! the heap on near memory. Then thirteen everyday programs run beside glibc, Debian's jemalloc and mimalloc.
//!
//! Time is the CPU time of the program itself (wait4), which leaves out the load of other programs; memory is the peak
//! resident size. Ratios are to Debian's jemalloc, for the thirteen programs to glibc, within the same round; the
//! tables show medians over rounds.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what a benchmark says")]

#[path = "../alloc/clock.rs"]
mod clock;

mod child;
mod compile;
mod programs;
mod redis;
mod table;
mod ways;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use child::Used;
use ways::Way;

/// The amount of work.
#[derive(Clone, Copy, Debug)]
struct Extent {
    rounds: usize,
    /// Requests of each type per round.
    requests: u32,
    /// The most files compiled per round.
    files: usize,
    /// Rounds of compiling: fewer, because configurations alternate file by file.
    compilings: usize,
    /// Rounds of each of the thirteen programs.
    runs: usize,
}

const FULL: Extent =
    Extent { rounds: 11, requests: 500_000, files: usize::MAX, compilings: 3, runs: 9 };
const SMOKE: Extent = Extent { rounds: 1, requests: 20_000, files: 3, compilings: 1, runs: 1 };

/// Resource usage per configuration, round by round.
type Rounds = Vec<(Way, Vec<Used>)>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|one| one != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => compare(FULL),
        ["--smoke"] => compare(SMOKE),
        ["--programs"] => scratch().and_then(|dir| programs(FULL.runs, &dir)),
        ["--programs", "--smoke"] => scratch().and_then(|dir| programs(SMOKE.runs, &dir)),
        _ => Err("usage: preload [--programs] [--smoke]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(extent: Extent) -> Result<(), String> {
    let dir = scratch()?;
    let mut ways = Way::all()?;
    ways.retain(|way| {
        let absent = way.check().inspect_err(|why| println!("{}: absent: {why}", way.name));
        absent.is_ok()
    });
    let name = format!("redis-server, {} SET and as many GET of 100 bytes", extent.requests);
    let rounds = in_turns(&ways, extent.rounds, |way| redis::run(way, extent.requests, &dir))?;
    table::print(&name, &rounds);

    let project = compile::Project::prepare(&dir)?;
    let files = project.files(extent.files);
    let name = format!("cc -O1 -c, {} files of jemalloc's, one after the other", files.len());
    let rounds = files_in_turns(&ways, extent.compilings, &project, &files)?;
    table::print(&name, &rounds);
    println!("Wanted of `heap=default`: time within 2 %, memory within 5 % of jemalloc's.");
    programs(extent.runs, &dir)
}

/// Runs each of the thirteen programs in all configurations, alternating.
fn programs(runs: usize, dir: &Path) -> Result<(), String> {
    let data = programs::prepare(dir)?;
    let mut ways = Way::of_programs()?;
    ways.retain(|way| {
        let absent = way.check().inspect_err(|why| println!("{}: absent: {why}", way.name));
        absent.is_ok()
    });
    let mut all = Vec::new();
    for program in &programs::ALL {
        if let Some(missing) = program.missing() {
            println!("{}: not measured, as {missing} is not installed", program.name);
            continue;
        }
        all.push((program.name, in_turns(&ways, runs, |way| program.run(way, &data))?));
    }
    table::print_programs(&all);
    println!("Wanted of `heap=0`: 1.05 times glibc's CPU time together.");
    Ok(())
}

/// The benchmark's scratch directory, kept between runs.
fn scratch() -> Result<PathBuf, String> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench-preload");
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}

/// Runs each configuration once per round, starting with a different one each time.
fn in_turns(
    ways: &[Way],
    rounds: usize,
    run: impl Fn(&Way) -> Result<Used, String>,
) -> Result<Rounds, String> {
    let mut found: Rounds = ways.iter().map(|way| (way.clone(), Vec::new())).collect();
    for round in 0..rounds {
        for turn in 0..found.len() {
            let at = (round + turn) % found.len();
            let (way, figures) = &mut found[at];
            figures.push(run(way).map_err(|why| format!("{}: {why}", way.name))?);
        }
    }
    Ok(found)
}

/// Compiles each file in all configurations, one directly after the other, because the host's load changes from minute
/// to minute.
fn files_in_turns(
    ways: &[Way],
    rounds: usize,
    project: &compile::Project,
    files: &[PathBuf],
) -> Result<Rounds, String> {
    let mut all: Rounds =
        ways.iter().map(|way| (way.clone(), vec![Used::default(); rounds])).collect();
    for file in files {
        let once = in_turns(ways, rounds, |way| project.compile(way, file))?;
        for ((_, sums), (_, used)) in all.iter_mut().zip(once) {
            sums.iter_mut().zip(used).for_each(|(sum, one)| sum.add(one));
        }
    }
    Ok(all)
}
