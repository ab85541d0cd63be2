//! Stress test that checks every value: threads store, change, remove, flush, resize and read, over two tiers of memory
//! and a disk, with movers in the background. Each read must return one whole item of the requested key, not older than
//! changes acknowledged before it began; a change must find exactly the last acknowledged state.
//!
//! `cargo run --release -p nearfar-cache --example stress -- [--operations 10000000] [--threads 4] [--keys 6000]
//! [--movers 2] [--seed 1] [--restarts 9] [--directory DIR]` After each of `1 + restarts` equal parts the cache is closed and
//! reopened from its disk, in DIR or else the system's directory for temporary files, and its contents must be exactly the
//! last acknowledged ones. Prints a summary; exit status 1 on any error.

mod expected;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use nearfar_cache::copy::Copying;
use nearfar_cache::evict::Eviction;
use nearfar_cache::mover::Movers;
use nearfar_cache::store::Store as _;
use nearfar_cache::{Cache, Config, DiskTier, Making, PageSize, Tier, disk};
use nearfar_kernel::mempolicy::Policy;

use expected::Expected;
use worker::{Tally, Worker};

const MIB: u64 = 1 << 20;
/// Times that all is flushed, on average.
const FLUSHES: u64 = 8;

/// As typed.
#[derive(Clone, Debug)]
struct Options {
    operations: u64,
    threads: u64,
    keys: u64,
    movers: u64,
    seed: u64,
    restarts: u64,
    directory: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            operations: 10_000_000,
            threads: 4,
            keys: 6000,
            movers: 2,
            seed: 1,
            restarts: 9,
            directory: None,
        }
    }
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name}: a value is missing"))?;
            let number = match name.as_str() {
                "--operations" => &mut options.operations,
                "--threads" => &mut options.threads,
                "--keys" => &mut options.keys,
                "--movers" => &mut options.movers,
                "--seed" => &mut options.seed,
                "--restarts" => &mut options.restarts,
                "--directory" => {
                    options.directory = Some(value.into());
                    continue;
                }
                _ => return Err(format!("{name}: there is no such option")),
            };
            *number = value.parse().map_err(|_| format!("{name} {value}: write a number"))?;
        }
        let is_fit = options.threads > 0 && options.keys > 0 && options.movers <= 64;
        is_fit
            .then_some(options)
            .ok_or_else(|| "--threads and --keys: at least 1; --movers: at most 64".into())
    }
}

fn config(options: &Options, path: PathBuf) -> Config {
    let tier =
        |mib| Tier { bytes: mib * MIB, policy: Policy::Default, eviction: Eviction::default() };
    let disk = disk::Config {
        bytes: 96 * MIB,
        region_bytes: 1 << 20,
        small_bytes: 16 * MIB,
        small_waiting: 1 << 20,
        ..disk::Config::default()
    };
    Config {
        tiers: vec![tier(2), tier(4)],
        disk: Some(DiskTier { path, config: disk, clock_zero: 0 }),
        items: Some(2 * options.keys),
        slab: Some(64 << 10),
        item_max: None,
        pages: PageSize::Base,
        making: if options.movers > 0 { Making::Background } else { Making::Inline },
        copying: Copying::Cpu,
    }
}

/// Runs it; returns the counts, and the figures of the cache.
fn run(options: &Options) -> Result<(Tally, String), Box<dyn std::error::Error>> {
    let folder = match &options.directory {
        Some(directory) => tempfile::tempdir_in(directory)?,
        None => tempfile::tempdir()?,
    };
    let config = config(options, folder.path().join("disk"));
    let expected = Expected::new(options.keys);
    let (mut tally, mut figures) = (Tally::default(), String::new());
    let mut cache = Arc::new(Cache::new(&config)?);
    for part in 0..=options.restarts {
        let movers = Movers::start(&cache, usize::try_from(options.movers)?)?;
        work(options, part, (&cache, &expected), &mut tally);
        movers.end()?;
        figures.clear();
        for (name, value) in stats(&cache) {
            figures.push_str(&format!("{name} {value}\n"));
        }
        cache.close()?;
        drop(cache);
        cache = Arc::new(Cache::new(&config)?);
        Worker::new((&cache, &expected), 0, 1).look_again(&mut tally);
    }
    cache.close()?;
    Ok((tally, figures))
}

/// One part of the operations, by all threads.
fn work(options: &Options, part: u64, (cache, expected): (&Cache, &Expected), tally: &mut Tally) {
    std::thread::scope(|scope| {
        let start = |number: u64| {
            let share = options.operations / options.threads / (options.restarts + 1);
            let seed = options.seed.wrapping_mul(1_000_003).wrapping_add(number);
            let seed = seed.wrapping_mul(1_000_003).wrapping_add(part);
            let flushes = (options.operations / FLUSHES).max(1);
            let mut worker = Worker::new((cache, expected), seed, flushes);
            scope.spawn(move || {
                (0..share).rev().for_each(|left| worker.step(left));
                worker.tally
            })
        };
        let threads: Vec<_> = (0..options.threads).map(start).collect();
        for thread in threads {
            match thread.join() {
                Ok(one) => tally.add(&one),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
}

/// Figures that show whether all parts of the cache were active.
fn stats(cache: &Cache) -> Vec<(String, u64)> {
    const SHOWN: [&str; 9] = [
        "demoted",
        "promoted",
        "evictions",
        "slabs_dealt",
        "regions_evicted",
        "reinserted",
        "large_hits",
        "small_hits",
        "errors",
    ];
    let mut found = Vec::new();
    cache.stats(&mut |name, value| {
        if SHOWN.iter().any(|one| name.ends_with(one)) {
            found.push((name.to_owned(), value));
        }
    });
    found
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "what it came to")]
fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("stress: {error}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok((tally, figures)) => {
            print!("{figures}{tally}");
            ExitCode::from(u8::from(tally.wrong > 0))
        }
        Err(error) => {
            eprintln!("stress: {error}");
            ExitCode::from(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_stress_run_covers_all_parts_and_finds_no_error() {
        for movers in [0, 2] {
            let options =
                Options { operations: 160_000, movers, restarts: 1, ..Options::default() };
            let (tally, figures) = run(&options).unwrap();
            assert_eq!(tally.wrong, 0, "{tally}");
            assert!(tally.hits > 10_000 && tally.edits > 1000 && tally.found_again > 0, "{tally}");
            assert!(!figures.contains("disk_large_hits 0\n"), "{figures}");
        }
    }

    #[test]
    fn options_are_parsed_and_invalid_ones_rejected() {
        let read = |text: &str| Options::read(text.split_whitespace().map(str::to_owned));
        assert_eq!(read("--operations 5 --threads 2").unwrap().operations, 5);
        for (text, said) in [
            ("--colour 1", "--colour"),
            ("--keys", "missing"),
            ("--keys x", "write a number"),
            ("--threads 0", "at least 1"),
        ] {
            assert!(read(text).unwrap_err().contains(said), "{text}");
        }
    }
}
