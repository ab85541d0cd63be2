//! Get-or-set compared with other caches in one run: throughput, hit ratio and memory, as ratios to the best of them.
//!
//! Each measurement is a process of its own, so that resident memory is that of one cache; the caches alternate within
//! a round, and the median over the rounds is reported. Keys are drawn before the clock starts. A miss sets the key, as
//! look-aside clients do.

mod peers;

use std::env;
use std::process::{Command, ExitCode};
use std::sync::Barrier;
use std::time::Instant;

use nearfar_topology::median;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Zipf};

use peers::{KEY, Key, NAMES, Size, VALUE};

const USAGE: &str = "nearfar-bench-cache [NAME=VALUE ...]
  keys=8000000         keys there are
  items=1000000        items a cache holds, where it counts them
  bytes=88080384       bytes of items, where it counts those: whole MiB
  draws=10000000       keys drawn per thread
  zipf=0.9,0.99,1.0,1.1  exponents
  threads=1,2
  rounds=3
  caches=nearfar,segcache,quick_cache,foyer,moka";

#[derive(Clone, Debug)]
struct Plan {
    keys: u64,
    size: Size,
    draws: usize,
    exponents: Vec<f64>,
    threads: Vec<usize>,
    rounds: usize,
    caches: Vec<String>,
}

/// The results of one measurement.
#[derive(Clone, Copy, Debug)]
struct Found {
    per_second: f64,
    hits: f64,
    megabytes: f64,
}

fn list<T: std::str::FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',').map(|one| one.parse().ok()).collect()
}

fn plan(arguments: impl Iterator<Item = String>) -> Result<Plan, String> {
    let mut plan = Plan {
        keys: 8_000_000,
        size: Size { items: 1_000_000, bytes: 84 << 20 },
        draws: 10_000_000,
        exponents: vec![0.9, 0.99, 1.0, 1.1],
        threads: vec![1, 2],
        rounds: 3,
        caches: NAMES.map(str::to_owned).to_vec(),
    };
    for argument in arguments {
        let set = argument.split_once('=').and_then(|(name, value)| {
            match name {
                "keys" => plan.keys = value.parse().ok()?,
                "items" => plan.size.items = value.parse().ok()?,
                "bytes" => plan.size.bytes = value.parse().ok()?,
                "draws" => plan.draws = value.parse().ok()?,
                "zipf" => plan.exponents = list(value)?,
                "threads" => plan.threads = list(value)?,
                "rounds" => plan.rounds = value.parse().ok()?,
                "caches" => plan.caches = list(value)?,
                _ => return None,
            }
            Some(())
        });
        set.ok_or_else(|| format!("{argument}: no option of the form NAME=VALUE that is known here\n{USAGE}"))?;
    }
    if plan.rounds == 0 || plan.threads.contains(&0) || plan.draws == 0 || plan.keys == 0 {
        return Err(format!("nothing would be measured\n{USAGE}"));
    }
    Ok(plan)
}

/// Resident memory of this process in bytes.
fn resident() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<f64>().ok());
    pages.unwrap_or(f64::NAN) * 4096.0
}

fn key(number: u32) -> Key {
    let mut key = [0; KEY];
    key[..8].copy_from_slice(&u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key[8..12].copy_from_slice(&number.to_le_bytes());
    key
}

fn draw(plan: &Plan, exponent: f64, seed: u64) -> Result<Vec<u32>, String> {
    let zipf = Zipf::new(plan.keys as f64, exponent).map_err(|error| error.to_string())?;
    let mut random = SmallRng::seed_from_u64(seed);
    Ok((0..plan.draws).map(|_| zipf.sample(&mut random) as u32).collect())
}

/// One measurement, in this process.
fn measure(plan: &Plan, name: &str, exponent: f64, threads: usize) -> Result<Found, String> {
    let drawn = (0..=threads).map(|seed| draw(plan, exponent, seed as u64 + 1)).collect::<Result<Vec<_>, _>>()?;
    let before = resident();
    let cache = peers::make(name, plan.size)?;
    let run = |drawn: &[u32]| {
        let (mut out, mut hits) = (Vec::with_capacity(2 * VALUE), 0_u64);
        for number in drawn {
            let key = key(*number);
            out.clear();
            if cache.get(&key, &mut out) {
                hits += 1;
            } else {
                cache.set(&key, &[number.to_le_bytes()[0]; VALUE]);
            }
        }
        hits
    };
    run(&drawn[0]);
    let start = Barrier::new(threads + 1);
    let (hits, seconds) = std::thread::scope(|scope| {
        let one = |drawn| {
            let (run, start) = (&run, &start);
            scope.spawn(move || {
                start.wait();
                run(drawn)
            })
        };
        let workers: Vec<_> = drawn[1..].iter().map(|drawn| one(drawn.as_slice())).collect();
        start.wait();
        let began = Instant::now();
        let hits: u64 = workers.into_iter().map(|worker| worker.join().unwrap_or(0)).sum();
        (hits, began.elapsed().as_secs_f64())
    });
    let asked = (threads * plan.draws) as f64;
    Ok(Found { per_second: asked / seconds, hits: hits as f64 / asked, megabytes: (resident() - before) / 1e6 })
}

/// One measurement, in a process of its own.
fn child(plan: &Plan, name: &str, exponent: f64, threads: usize) -> Result<Found, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let Size { items, bytes } = plan.size;
    let options = [
        format!("keys={}", plan.keys),
        format!("items={items}"),
        format!("bytes={bytes}"),
        format!("draws={}", plan.draws),
        format!("zipf={exponent}"),
        format!("threads={threads}"),
        format!("caches={name}"),
    ];
    let output = Command::new(program).arg("--one").args(options).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let figures: Option<Vec<f64>> = text.split_whitespace().map(|one| one.parse().ok()).collect();
    match figures.as_deref() {
        Some([per_second, hits, megabytes]) => {
            Ok(Found { per_second: *per_second, hits: *hits, megabytes: *megabytes })
        }
        _ => Err(format!("{name} gave no figures: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn table(plan: &Plan, exponent: f64, threads: usize) -> Result<bool, String> {
    let mut found: Vec<Vec<Found>> = vec![Vec::new(); plan.caches.len()];
    for _ in 0..plan.rounds {
        for (name, found) in plan.caches.iter().zip(&mut found) {
            found.push(child(plan, name, exponent, threads)?);
        }
    }
    let of = |found: &[Found], what: fn(&Found) -> f64| median(found.iter().map(what)).unwrap_or(f64::NAN);
    let rows: Vec<Found> = found
        .iter()
        .map(|found| Found {
            per_second: of(found, |one| one.per_second),
            hits: of(found, |one| one.hits),
            megabytes: of(found, |one| one.megabytes),
        })
        .collect();
    println!("zipf {exponent}, {threads} thread(s), {} keys, {} rounds", plan.keys, plan.rounds);
    println!("  {:<12} {:>10} {:>8} {:>10}", "", "million/s", "hits", "MB");
    for (name, row) in plan.caches.iter().zip(&rows) {
        println!("  {name:<12} {:>10.2} {:>8.4} {:>10.1}", row.per_second / 1e6, row.hits, row.megabytes);
    }
    let (Some(ours), others) = (rows.first(), rows.get(1..).unwrap_or_default()) else { return Ok(true) };
    if plan.caches[0] != NAMES[0] || others.is_empty() {
        return Ok(true);
    }
    let most = |what: fn(&Found) -> f64| others.iter().map(what).fold(f64::MIN, f64::max);
    let least = others.iter().map(|one| one.megabytes).fold(f64::MAX, f64::min);
    let speed = ours.per_second / most(|one| one.per_second);
    let goals = [
        ("throughput to the fastest of them", speed, 1.4, speed >= 1.4),
        ("hit ratio to the best of theirs", ours.hits / most(|one| one.hits), 1.0, ours.hits >= most(|one| one.hits)),
        ("memory to the leanest of them", ours.megabytes / least, 1.0, ours.megabytes <= least * 1.03),
    ];
    for (what, ratio, goal, reached) in goals {
        println!("  {what:<36} {ratio:>6.3}  {goal:.1}  {}", if reached { "reached" } else { "MISSED" });
    }
    Ok(goals.iter().all(|goal| goal.3))
}

fn run() -> Result<bool, String> {
    let mut arguments = env::args().skip(1).peekable();
    let one = arguments.next_if(|first| first == "--one").is_some();
    let plan = plan(arguments)?;
    if one {
        let found = measure(&plan, &plan.caches[0], plan.exponents[0], plan.threads[0])?;
        println!("{} {} {}", found.per_second, found.hits, found.megabytes);
        return Ok(true);
    }
    let mut all = true;
    for exponent in &plan.exponents {
        for threads in &plan.threads {
            all &= table(&plan, *exponent, *threads)?;
        }
    }
    Ok(all)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}
