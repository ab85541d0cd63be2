//! Get-or-set of 4 KiB values, zipf 0.9 over 400 thousand keys, from some memory over 1 GiB of disk, for comparison
//! with other caches.
//!
//! `cargo run --release -p nearfar-cache --example disk_hybrid -- FILE [depth=16] [seconds=20] [memory_mb=112]
//! [least_hits=0] [access=auto] [movers=1] [reinsert=7]` One thread has `depth` disk reads in flight, as 16 tasks of an
//! executor would; movers make room in the background, and one of their threads ticks the disk. With movers=0 storing
//! threads make room, and that one thread only ticks. Values contain their key and are checked.

mod clock;

use std::io::{Error, Write, stdout};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use nearfar_cache::disk::{self, Access, Outcome, Reader, Wait};
use nearfar_cache::mover::Movers;
use nearfar_cache::{Cache, Config, DiskTier, Lookup, Making, Ticket};

const KEYS: usize = 400_000;
const VALUE: usize = 4096;

fn name(key: usize) -> Vec<u8> {
    format!("key-{key:012}").into_bytes()
}

fn value(key: usize) -> Vec<u8> {
    key.to_le_bytes().repeat(VALUE / size_of::<usize>())
}

/// Draws keys, the first most often.
struct Zipf {
    sums: Vec<f64>,
    state: u64,
}

impl Zipf {
    fn new() -> Self {
        let mut sum = 0.0;
        let sums = (1..=KEYS).map(|rank| {
            sum += (rank as f64).powf(-0.9);
            sum
        });
        Self { sums: sums.collect(), state: 0x9e37_79b9_7f4a_7c15 }
    }

    fn draw(&mut self) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let share = (self.state >> 11) as f64 / (1_u64 << 53) as f64;
        let sum = share * self.sums[KEYS - 1];
        self.sums.partition_point(|one| *one < sum).min(KEYS - 1)
    }
}

/// Results: operations, hits in memory and on disk, and their durations.
#[derive(Default)]
struct Tally {
    all: u64,
    memory: u64,
    disk: u64,
    /// Values that found no room in memory.
    refused: u64,
    micros: Vec<u32>,
}

/// A read in flight: its key, its ticket, and its start time.
type Asked = (usize, Ticket, Instant);

struct Bench<'a> {
    cache: &'a Cache,
    reader: Reader,
    asked: Vec<Option<Asked>>,
    free: Vec<usize>,
    tally: Tally,
    out: Vec<u8>,
}

impl Bench<'_> {
    fn check(&self, key: usize) {
        assert_eq!(self.out[..8], key.to_le_bytes(), "another key's value");
    }

    fn store(&mut self, key: usize) {
        self.tally.refused += u64::from(self.cache.set(&name(key), &value(key)).is_err());
    }

    /// Requests a key; stores it on a miss, starts a read if it is on disk.
    fn ask(&mut self, key: usize) -> Result<(), Error> {
        self.tally.all += 1;
        self.out.clear();
        match self.cache.lookup(&name(key), &mut self.out, &mut |_, _, _| ()) {
            Lookup::Hit(_) => {
                self.check(key);
                self.tally.memory += 1;
            }
            Lookup::Below(ticket) => self.submit((key, ticket, clock::now()))?,
            Lookup::Miss => self.store(key),
        }
        Ok(())
    }

    fn submit(&mut self, asked: Asked) -> Result<(), Error> {
        let slot = self.free.pop().ok_or(Error::other("as many are under way as there can be"))?;
        let submitted = self.reader.submit(slot as u64, asked.1.place(), &name(asked.0));
        submitted.map_err(|full| Error::other(full.to_string()))?;
        self.asked[slot] = Some(asked);
        Ok(())
    }

    /// Processes completed reads.
    fn land(&mut self, wait: Wait) -> Result<(), Error> {
        let mut more = Vec::new();
        let Self { cache, reader, asked, free, tally, out } = self;
        let mut missed = Vec::new();
        reader.poll(wait, &mut |slot, outcome: Outcome<'_>| {
            let slot = usize::try_from(slot).unwrap_or(0);
            let Some((key, ticket, since)) = asked[slot].take() else { return };
            free.push(slot);
            out.clear();
            match cache.landed(&name(key), (ticket, outcome), out, &mut |_, _, _| ()) {
                Lookup::Hit(_) => {
                    assert_eq!(out[..8], key.to_le_bytes(), "another key's value");
                    tally.disk += 1;
                    tally
                        .micros
                        .push(u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX));
                }
                Lookup::Below(ticket) => more.push((key, ticket, since)),
                Lookup::Miss => missed.push(key),
            }
        })?;
        missed.into_iter().for_each(|key| self.store(key));
        more.into_iter().try_for_each(|asked| self.submit(asked))
    }
}

fn run(cache: &Cache, depth: usize, seconds: u64) -> Result<Tally, Error> {
    let reader = cache.reader(depth)?.ok_or(Error::other("the cache has a disk"))?;
    let mut zipf = Zipf::new();
    let (asked, free) = ((0..depth).map(|_| None).collect(), (0..depth).collect());
    let mut bench = Bench { cache, reader, asked, free, tally: Tally::default(), out: Vec::new() };
    let begin = clock::now();
    while !bench.tally.all.is_multiple_of(1024)
        || bench.tally.all == 0
        || begin.elapsed().as_secs() < seconds
    {
        bench.ask(zipf.draw())?;
        // Polled only occasionally, or if no other work is left.
        if bench.free.is_empty() {
            bench.land(Wait::ForOne)?;
        } else if bench.tally.all.is_multiple_of(16) && bench.reader.under_way() > 0 {
            bench.land(Wait::No)?;
        }
    }
    Ok(bench.tally)
}

fn report(
    out: &mut dyn Write,
    tally: &mut Tally,
    cache: &Cache,
    seconds: u64,
) -> Result<(), Error> {
    let share = |part: u64| part as f64 / tally.all as f64;
    let (all, memory, found) = (tally.all, share(tally.memory), share(tally.memory + tally.disk));
    tally.micros.sort_unstable();
    let at = |part: usize| tally.micros.get(tally.micros.len() * part / 1000).copied().unwrap_or(0);
    let disk = cache.counted().disk.unwrap_or_default();
    writeln!(out, "{} operations a second", all / seconds.max(1))?;
    writeln!(out, "found: {found:.3}, of all in memory {memory:.3}")?;
    let (p50, p90, p99, p999) = (at(500), at(900), at(990), at(999));
    writeln!(out, "from disk, in us: p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}")?;
    writeln!(out, "write amplification: {} thousandths", disk.own.large_amplification())?;
    writeln!(out, "no room in memory: {}", tally.refused)?;
    writeln!(out, "came to memory: {}, were gone: {}", disk.promoted, disk.evicted)?;
    disk.each(&mut |name, number| {
        let _ = writeln!(out, "{name} {number}");
    });
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let file = args.first().ok_or("give the file to use; it is made with 1 GiB")?;
    let option = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
    let number = |name, default: u64| option(name).map_or(Ok(default), str::parse);
    let access = if option("access") == Some("plain") { Access::Plain } else { Access::Auto };
    let own = disk::Config {
        bytes: 1 << 30,
        region_bytes: 4 << 20,
        small_bytes: 0,
        writing: 3,
        least_hits: u32::try_from(number("least_hits", 0)?)?,
        reinsert_percent: u8::try_from(number("reinsert", 7)?)?,
        access,
        ..disk::Config::default()
    };
    let movers = usize::try_from(number("movers", 1)?)?;
    let config = Config {
        disk: Some(DiskTier { path: PathBuf::from(file), config: own, clock_zero: 0 }),
        items: Some(KEYS as u64),
        making: if movers > 0 { Making::Background } else { Making::Inline },
        ..Config::of_bytes(number("memory_mb", 112)? << 20)
    };
    let cache = Arc::new(Cache::new(&config)?);
    nearfar_cache::store::Store::flush(&*cache, 0);
    let movers = Movers::start(&cache, movers)?;
    let seconds = number("seconds", 20)?;
    let mut tally = run(&cache, usize::try_from(number("depth", 16)?)?, seconds)?;
    drop(movers);
    report(&mut stdout().lock(), &mut tally, &cache, seconds)?;
    Ok(cache.close()?)
}
