//! `make bench-alloc`: what it costs to run real programs under the preload library.
//!
//! Redis, and a C compiler over jemalloc's own sources, each in several ways in turns, round by round: as they are, under
//! Debian's jemalloc, and under ours: without a configuration, with the plain heap, and with the heap on near memory. Time is
//! that of CPUs, of the program itself (wait4), as other programs' work is not in it; memory is the most that was resident.
//! Ratios are to Debian's jemalloc in the same round; what is shown is medians of rounds.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what a benchmark says")]

#[path = "../alloc/clock.rs"]
mod clock;

mod child;
mod compile;
mod redis;
mod table;
mod ways;

use std::path::PathBuf;
use std::process::ExitCode;

use child::Used;
use ways::Way;

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Extent {
    rounds: usize,
    /// Requests of each sort a round.
    requests: u32,
    /// The most files that are compiled a round.
    files: usize,
    /// Rounds of compiling: fewer, as each file is a turn of its own.
    compilings: usize,
}

const FULL: Extent = Extent { rounds: 11, requests: 500_000, files: usize::MAX, compilings: 3 };
const SMOKE: Extent = Extent { rounds: 1, requests: 20_000, files: 3, compilings: 1 };

/// What was used in each way, round by round.
type Rounds = Vec<(Way, Vec<Used>)>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|one| one != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => compare(FULL),
        ["--smoke"] => compare(SMOKE),
        _ => Err("usage: preload [--smoke]".into()),
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
    Ok(())
}

/// A directory of this benchmark's own, kept from one run to the next.
fn scratch() -> Result<PathBuf, String> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench-preload");
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}

/// Each way once a round, another one first each time.
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

/// Each file in each way, one way right after the other, as what else the machine does changes from minute to minute.
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
