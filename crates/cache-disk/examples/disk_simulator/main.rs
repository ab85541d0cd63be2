//! Runs the disk tier on a simulated device, seed after seed, and prints a summary.
//!
//! `cargo run --release -p nearfar-cache-disk --example disk_simulator -- [--seeds N] [--first SEED] [--threads N]
//! [--seconds N]` `SEED=n` in the environment runs that seed and prints each operation. Ends with status 1 at the first
//! seed with an error. A million seeds take some minutes; `cargo test -p nearfar-cache-disk --test disk_simulator` runs the
//! first two thousand.

mod clock;
mod simulator;

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::io::{Error, Write, stdout};
use std::thread;

use simulator::{Tally, run};

/// The command line.
struct Args {
    seeds: u64,
    first: u64,
    threads: u64,
    /// No seed begins later.
    seconds: u64,
}

fn args() -> Result<Args, Error> {
    let mut args = Args { seeds: 100_000, first: 1, threads: 2, seconds: u64::MAX };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let number = words.next().and_then(|number| number.parse().ok());
        match (word.as_str(), number) {
            ("--seeds", Some(number)) => args.seeds = number,
            ("--first", Some(number)) => args.first = number,
            ("--threads", Some(number @ 1..=64)) => args.threads = number,
            ("--seconds", Some(number)) => args.seconds = number,
            _ => {
                return Err(Error::other(format!(
                    "{word}: write --seeds N, --first SEED, --threads N or --seconds N"
                )));
            }
        }
    }
    Ok(args)
}

/// Runs seeds until none is left, or one has an error.
fn work(next: &AtomicU64, end: u64, is_over: impl Fn() -> bool) -> (Tally, Option<String>) {
    let mut tally = Tally::default();
    loop {
        let seed = next.fetch_add(1, Relaxed);
        if seed >= end || is_over() {
            return (tally, None);
        }
        match run(seed, false) {
            Ok(one) => tally.add(&one),
            Err(wrong) => {
                next.store(end, Relaxed);
                return (tally, Some(wrong));
            }
        }
    }
}

fn main() -> Result<(), Error> {
    if let Some(seed) = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        let tally = run(seed, true).map_err(Error::other)?;
        return write!(stdout(), "{tally}");
    }
    let Args { seeds, first, threads, seconds } = args()?;
    let (begin, next) = (clock::now(), AtomicU64::new(first));
    let done: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| work(&next, first + seeds, || begin.elapsed().as_secs() >= seconds))
            })
            .collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
    });
    let mut tally = Tally::default();
    done.iter().for_each(|(one, _)| tally.add(one));
    let seconds = begin.elapsed().as_secs_f64();
    let mut out = stdout();
    write!(out, "{tally}")?;
    writeln!(
        out,
        "{:>14.0}  seeds a second, on {threads} threads, for {seconds:.0} s",
        tally.seeds as f64 / seconds
    )?;
    let wrong: Vec<String> = done.into_iter().filter_map(|(_, wrong)| wrong).collect();
    writeln!(out, "{:>14}  wrong", wrong.len())?;
    if wrong.is_empty() { Ok(()) } else { Err(Error::other(wrong.join("\n"))) }
}
