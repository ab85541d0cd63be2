//! Get-or-set of 4 KiB values, zipf 0.9 over 400 thousand keys, from some memory over 1 GiB of disk, for comparison with others.
//!
//! `cargo run --release -p nearfar-cache --example disk_hybrid -- FILE [depth=16] [seconds=20] [memory_mb=96] [least_hits=0]
//! [access=auto]`
//! One thread has `depth` operations under way, as 16 tasks of an executor have; a second one ticks. Memory is a clock of
//! values, with 16 MiB of buffers beside it: it stands for the engine, as the table of places does for its index. What leaves
//! memory is written unless the disk has it still. Values tell their key and are checked.

mod clock;

use std::collections::{HashMap, VecDeque};
use std::io::{Error, Write, stdout};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use nearfar_cache::disk::{
    Access, Config, Disk, Fate, Item, Keeper, Object, Offer, Place, Places, Refused, Wait, Where,
};
use nearfar_cache::store::Meta;

const KEYS: usize = 400_000;
const VALUE: usize = 4096;

/// A place and one, or 0, for each key.
struct Table(Vec<AtomicU64>);

impl Table {
    fn get(&self, key: usize) -> Option<Place> {
        self.0[key].load(Relaxed).checked_sub(1).and_then(Place::from_bits)
    }

    fn drop_place(&self, key: u64, place: Place) {
        let entry = usize::try_from(key).ok().and_then(|key| self.0.get(key));
        entry.map(|entry| entry.compare_exchange(place.bits() + 1, 0, Relaxed, Relaxed));
    }
}

/// The hash of a key is its number here, so that the table needs no other.
impl Keeper for Table {
    fn evicted(&self, hash: u64, place: Place) -> Fate {
        self.drop_place(hash, place);
        Fate::Gone
    }
    fn moved(&self, _: u64, _: Place, _: Place) -> bool {
        false
    }
    fn gone(&self, hash: u64, place: Place) {
        self.drop_place(hash, place);
    }
    fn lost(&self, _: Places) {}
}

struct Memory {
    values: HashMap<usize, (Vec<u8>, u32)>,
    order: VecDeque<usize>,
    most: usize,
}

struct Bench<'a> {
    disk: &'a Disk,
    table: &'a Table,
    memory: Memory,
    dropped: u64,
}

impl Bench<'_> {
    fn insert(&mut self, key: usize, value: Vec<u8>) {
        if self.memory.values.insert(key, (value, 0)).is_none() {
            self.memory.order.push_back(key);
        }
        while self.memory.values.len() > self.memory.most {
            let Some(old) = self.memory.order.pop_front() else { return };
            let Some((_, uses)) = self.memory.values.get_mut(&old) else { continue };
            if *uses > 0 && old != key {
                *uses = (*uses).min(3) - 1;
                self.memory.order.push_back(old);
            } else if let Some((value, uses)) = self.memory.values.remove(&old) {
                self.demote(old, &value, uses);
            }
        }
    }

    fn demote(&mut self, key: usize, value: &[u8], hits: u32) {
        let name = name(key);
        let hash = key as u64;
        let offer = Offer { hash, bytes: value.len() + name.len(), hits };
        if self.table.get(key).is_some() || !self.disk.admit(&offer) {
            return;
        }
        let object = Object { hash, key: &name, meta: Meta::default() };
        match self.disk.append(&object, &[value]) {
            Ok(place) => self.table.0[key].store(place.bits() + 1, Relaxed),
            Err(Refused::Busy) => self.dropped += 1,
            Err(error) => {
                let _ = writeln!(stdout(), "refused: {error}");
            }
        }
    }
}

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

/// What came of it: operations, found in memory, on disk, and how long those took.
#[derive(Default)]
struct Tally {
    all: u64,
    memory: u64,
    disk: u64,
    micros: Vec<u32>,
}

fn run(bench: &mut Bench<'_>, depth: usize, seconds: u64) -> Result<Tally, Error> {
    let mut reader = bench.disk.reader(depth)?;
    let (mut zipf, mut tally, mut asked) = (Zipf::new(), Tally::default(), Vec::new());
    asked.resize(depth, (0_usize, clock::now()));
    let mut free: Vec<usize> = (0..depth).collect();
    let begin = clock::now();
    let mut told: Vec<(usize, Option<Vec<u8>>)> = Vec::new();
    while tally.all % 1024 != 0 || tally.all == 0 || begin.elapsed().as_secs() < seconds {
        let key = zipf.draw();
        tally.all += 1;
        if let Some((_, uses)) = bench.memory.values.get_mut(&key) {
            *uses += 1;
            tally.memory += 1;
        } else if let Some(place) = bench.table.get(key)
            && let Some(slot) = free.pop()
        {
            asked[slot] = (key, clock::now());
            let full = reader.submit(slot as u64, Where::Large(place), &name(key));
            full.map_err(|full| Error::other(full.to_string()))?;
        } else {
            bench.insert(key, value(key));
        }
        let wait = if free.is_empty() { Wait::ForOne } else { Wait::No };
        // Looked for only now and then, or when nothing else can be done.
        if free.is_empty() || (tally.all % 16 == 0 && reader.under_way() > 0) {
            reader.poll(wait, &mut |slot, item: Option<Item<'_>>| {
                let slot = usize::try_from(slot).unwrap_or(0);
                told.push((slot, item.map(|item| item.value.to_vec())));
            })?;
        }
        for (slot, found) in told.drain(..) {
            let (key, since): (usize, Instant) = asked[slot];
            free.push(slot);
            if let Some(found) = &found {
                assert_eq!(found[..8], key.to_le_bytes(), "another key's value");
                tally.disk += 1;
                tally.micros.push(u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX));
            }
            bench.insert(key, found.unwrap_or_else(|| value(key)));
        }
    }
    Ok(tally)
}

fn report(out: &mut dyn Write, tally: &mut Tally, disk: &Disk, seconds: u64) -> Result<(), Error> {
    let share = |part: u64| part as f64 / tally.all as f64;
    let (all, memory, found) = (tally.all, share(tally.memory), share(tally.memory + tally.disk));
    tally.micros.sort_unstable();
    let at = |part: usize| tally.micros.get(tally.micros.len() * part / 1000).copied().unwrap_or(0);
    let stats = disk.stats();
    writeln!(out, "{}: {} operations a second", disk.how(), all / seconds.max(1))?;
    writeln!(out, "found: {found:.3}, of all in memory {memory:.3}")?;
    writeln!(
        out,
        "from disk, in us: p50 {}, p90 {}, p99 {}, p99.9 {}",
        at(500),
        at(900),
        at(990),
        at(999)
    )?;
    writeln!(out, "write amplification: {} thousandths", stats.large_amplification())?;
    stats.each(&mut |name, number| {
        let _ = writeln!(out, "{name} {number}");
    });
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let file = args.first().ok_or("give the file to use; it is made with 1 GiB")?;
    let option = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
    let number = |name, default: u64| option(name).map_or(Ok(default), str::parse);
    let (seconds, megabytes) = (number("seconds", 20)?, usize::try_from(number("memory_mb", 96)?)?);
    let access = if option("access") == Some("plain") { Access::Plain } else { Access::Auto };
    let config = Config {
        bytes: 1 << 30,
        region_bytes: 4 << 20,
        small_bytes: 0,
        writing: 3,
        least_hits: u32::try_from(number("least_hits", 0)?)?,
        access,
        ..Config::default()
    };
    let (disk, _) = Disk::open(Path::new(file), &config, &mut |_| {})?;
    disk.clear()?;
    let table = Table((0..KEYS).map(|_| AtomicU64::new(0)).collect());
    let most = (megabytes << 20) / (VALUE + 100);
    let memory = Memory { values: HashMap::new(), order: VecDeque::new(), most };
    let mut bench = Bench { disk: &disk, table: &table, memory, dropped: 0 };
    let over = AtomicBool::new(false);
    let depth = usize::try_from(number("depth", 16)?)?;
    let tally = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                disk.tick(1, &table);
                clock::rest();
            }
        });
        let tally = run(&mut bench, depth, seconds);
        over.store(true, Relaxed);
        tally
    });
    let out = &mut stdout().lock();
    report(out, &mut tally?, &disk, seconds)?;
    writeln!(out, "not written, as buffers were full: {}", bench.dropped)?;
    Ok(disk.close()?)
}
