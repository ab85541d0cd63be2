//! Threads on all nodes read one table: stored once, or with a copy on each node.
#![expect(unsafe_code, reason = "memory of a node is read")]

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use nearfar_alloc::Replicated;
use nearfar_alloc::ffi::{nf_free, nf_malloc_placed};
use nearfar_kernel::affinity;
use nearfar_kernel::fs::{self, RootFs};
use nearfar_topology::{CpuId, Overrides, median};

use crate::clock;

/// Larger than the CPU caches.
const SIZE: usize = 32 << 20;
/// Bytes per read.
const CHUNK: usize = 4096;
/// Dependent loads in the pointer chase.
const LOADS: usize = 20_000;
const LINE: usize = 64;

/// How to read the table.
#[derive(Clone, Copy)]
enum Way<'a> {
    /// A single copy on node 0.
    Once(&'a [u8]),
    /// Through the library, from the thread's copy.
    Read(&'a Replicated),
    /// Directly from the thread's copy.
    View(&'a Replicated),
}

impl Way<'_> {
    const NAMES: [&'static str; 3] = ["once, on node 0", "replicated, read", "replicated, view"];

    /// The bytes, if they are directly accessible.
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Once(bytes) => Some(bytes),
            Self::View(region) => {
                // SAFETY: the region has that many bytes, as long as it lives, and no thread writes.
                Some(unsafe { core::slice::from_raw_parts(region.as_ptr(), SIZE) })
            }
            Self::Read(_) => None,
        }
    }

    fn stream(&self) {
        let mut into = [0; CHUNK];
        for at in (0..SIZE).step_by(CHUNK) {
            self.take(at, &mut into);
            black_box(&mut into);
        }
    }

    #[inline]
    fn take(&self, at: usize, into: &mut [u8]) {
        match self {
            // Always within the region.
            Self::Read(region) => drop(black_box(region.read(at, into))),
            _ => {
                if let Some(bytes) = self.bytes() {
                    into.copy_from_slice(&bytes[at..at + into.len()]);
                }
            }
        }
    }

    /// A pointer chase: each place contains the index of the next.
    fn chase(&self, from: usize) {
        let mut at = from;
        for _ in 0..LOADS {
            let mut next = [0; 8];
            self.take(at, &mut next);
            at = usize::from_le_bytes(next);
        }
        black_box(at);
    }
}

/// A table of cache lines that form one cycle through all of them.
fn table() -> Vec<u8> {
    let lines = SIZE / LINE;
    let mut bytes = vec![0; SIZE];
    // A full period: the multiplier minus one is a multiple of four, the increment is odd and the count is a power of
    // two.
    let next = |line: usize| (line.wrapping_mul(0x5851_f42d) + 0x1405_7b7f) % lines;
    for line in 0..lines {
        bytes[line * LINE..][..8].copy_from_slice(&(next(line) * LINE).to_le_bytes());
    }
    bytes
}

pub(crate) fn compare(rounds: usize) -> Result<(), String> {
    let content = table();
    let region = Replicated::new("", SIZE).map_err(|error| error.to_string())?;
    region.write(0, &content).map_err(|error| error.to_string())?;
    region.sync();
    // SAFETY: a string.
    let once = unsafe { nf_malloc_placed(c"bind:0".as_ptr(), SIZE) }.cast::<u8>();
    if once.is_null() {
        return Err("no memory on node 0".into());
    }
    // SAFETY: as many bytes.
    unsafe { once.copy_from_nonoverlapping(content.as_ptr(), SIZE) };
    // SAFETY: as above, and no thread writes them any more.
    let bytes = unsafe { core::slice::from_raw_parts(once, SIZE) };
    let ways = [Way::Once(bytes), Way::Read(&region), Way::View(&region)];
    let cpus = cpus()?;
    let mut found: [[Vec<f64>; 2]; 3] = Default::default();
    for _ in 0..rounds {
        for (way, [rates, latencies]) in ways.iter().zip(&mut found) {
            let seconds = on_all(&cpus, |_| way.stream())?;
            rates.push(SIZE as f64 * cpus.len() as f64 / seconds / 1e9);
            let seconds = on_all(&cpus, |thread| way.chase(thread * SIZE / 8 / LINE * LINE))?;
            latencies.push(seconds * 1e9 / LOADS as f64);
        }
    }
    println!(
        "{} MiB read by a thread on each of nodes {:?} at once: bandwidth of all, and latency of a load that waits for the last",
        SIZE >> 20,
        region.nodes()
    );
    let medians = found.map(|figures| figures.map(|one| median(one).unwrap_or(f64::NAN)));
    let [rate_once, latency_once] = medians[0];
    for (name, [rate, latency]) in Way::NAMES.iter().zip(medians) {
        println!(
            "  {name:<18} {rate:6.2} GB/s  {:5.2} x   {latency:7.1} ns  {:5.2} x",
            rate / rate_once,
            latency / latency_once
        );
    }
    // SAFETY: not used any more.
    unsafe { nf_free(once.cast()) };
    Ok(())
}

/// One CPU of each node with CPUs.
fn cpus() -> Result<Vec<CpuId>, String> {
    let live = RootFs::live().map_err(|error| error.to_string())?;
    let machine = fs::topology(&live, &Overrides::new()).0;
    Ok(machine.nodes.values().filter_map(|node| node.cpus.first().copied()).collect())
}

/// Runs `act` on each CPU at once, in a thread of its own; returns the seconds of the slowest.
fn on_all(cpus: &[CpuId], act: impl Fn(usize) + Sync) -> Result<f64, String> {
    let (start, slowest) = (Barrier::new(cpus.len()), AtomicU64::new(0));
    let pinned = std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .enumerate()
            .map(|(thread, cpu)| {
                let (start, slowest, act) = (&start, &slowest, &act);
                scope.spawn(move || {
                    let pinned = affinity::set(&[*cpu]);
                    start.wait();
                    let seconds = clock::seconds(|| act(thread));
                    // Times are not negative, so their bits sort as the numbers do.
                    slowest.fetch_max(seconds.to_bits(), Ordering::Relaxed);
                    pinned.map_err(|error| error.to_string())
                })
            })
            .collect();
        let ends = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread has ended".into())));
        ends.collect::<Result<Vec<()>, String>>()
    });
    pinned.map(|_| f64::from_bits(slowest.load(Ordering::Relaxed)))
}
