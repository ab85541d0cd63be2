//! `make bench-alloc`: allocation by kind beside its peers, in one run.
//!
//! Each measurement runs in a process of its own, because libraries that replace `malloc` must be loaded at its start.
//! Peers alternate, round by round; the table shows medians over rounds, and ratios to jemalloc, the allocator under
//! nearfar.
//!
//! - `pairs`: 64 objects of 16 to 1024 bytes are allocated, then freed, over and over; one kind.
//! - `thousand`: 1,000 objects of 16 bytes are allocated, then freed.
//! - `large`: objects of 4, 5 and 8 MiB, one at a time, each page written.
//! - `mixed`: objects of 16 bytes to 32 KiB, small ones more often; each is freed by the next thread, in another order.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "what a benchmark says")]

mod clock;
mod libraries;
mod loops;
mod table;

use std::process::{Command, ExitCode};

use libraries::Library;
use loops::Load;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|one| one != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["run", library, load, threads, milliseconds] => run(library, load, threads, milliseconds),
        [] => compare(9, 300),
        ["--smoke"] => compare(1, 20),
        _ => Err("usage: alloc [--smoke]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one measurement and prints nanoseconds per allocation and free on standard output.
fn run(library: &str, load: &str, threads: &str, milliseconds: &str) -> Result<(), String> {
    let library: Library = library.parse()?;
    let load: Load = load.parse()?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    let threads = usize::try_from(number(threads)?).map_err(|error| error.to_string())?;
    let calls = libraries::open(library)?;
    println!("{:.3}", loops::nanoseconds(&calls, load, threads, number(milliseconds)?));
    Ok(())
}

fn compare(rounds: usize, milliseconds: u64) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    for load in Load::ALL {
        for threads in load.threads().iter().copied() {
            let mut found: Vec<(Library, Vec<f64>)> =
                Library::ALL.iter().map(|library| (*library, Vec::new())).collect();
            let mut absent = Vec::new();
            for round in 0..rounds {
                for (library, figures) in &mut found {
                    if absent.iter().any(|(other, _)| other == library) {
                        continue;
                    }
                    let mut command = Command::new(&own);
                    command.args(["run", library.name(), load.name()]);
                    command.args([threads.to_string(), milliseconds.to_string()]);
                    if let Some(preload) = library.preload() {
                        command.env("LD_PRELOAD", preload);
                    }
                    let output = command.output().map_err(|error| error.to_string())?;
                    let said = String::from_utf8_lossy(&output.stdout);
                    match said.trim().parse() {
                        Ok(figure) => figures.push(figure),
                        Err(_) if round == 0 => {
                            let why = String::from_utf8_lossy(&output.stderr).trim().to_string();
                            absent.push((*library, why));
                        }
                        Err(_) => return Err(format!("{}: {said}", library.name())),
                    }
                }
            }
            table::print(load, threads, &found, &absent);
        }
    }
    Ok(())
}
