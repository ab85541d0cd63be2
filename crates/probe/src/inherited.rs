//! Bandwidth of memory placed by the memory policy that this process was started with.
//!
//! Unlike a probe of a node it uses plain memory, touched once by one thread, so that the placement this program runs
//! under (none, `-m`, `-i`, `-w`) decides the location of its pages. It uses small pages, the unit of the placements: a
//! buffer that is quick to fill has too few huge pages for even shares.

use std::collections::BTreeMap;

use nearfar_kernel::affinity::{self, AffinityError};
use nearfar_kernel::fs::Fs;
use nearfar_topology::{Bytes, CpuId, Mix, NodeId};

use crate::budget::{Outgrown, TIMES_CACHE};
use crate::clock::Clock;
use crate::cpus;
pub use crate::loops::RegionError;
use crate::loops::{LINE, Line, Region};
use crate::marker;
use crate::pacer::Pacer;
use crate::report::{Bandwidth, Lab};
use crate::stats;
pub use crate::team::TeamError;
use crate::team::{self, Work};
use crate::windows::{self, Windows};
use crate::work::Stream;

/// Concurrent streams of a thread; prefetchers follow some 16 to 32.
const STREAMS: usize = 8;
const PAGE_LINES: usize = 4096 / LINE;
/// The smallest buffer.
const BYTES_MIN: Bytes = Bytes(64 << 20);
/// On a modelled clock nothing disturbs a window, and a guest second takes the host minutes.
const MODELLED: Windows =
    Windows { warm_up_units: 0, warm_up_ns: 500_000, window_ns: 600_000, count: 9 };
const REAL: Windows =
    Windows { warm_up_units: 0, warm_up_ns: 200_000_000, window_ns: 200_000_000, count: 5 };
/// Most attempts on a machine where threads miss windows.
const ATTEMPTS: u32 = 3;

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Read:write mix, with no more writes than reads.
    pub mix: Mix,
    /// Threads, one per CPU; by default all CPUs this process may use.
    pub threads: Option<usize>,
    /// Size of the buffer; by default several times the caches.
    pub size: Option<Bytes>,
}

/// Result of a measurement.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// Reads and writes together; in the lab's guest that of the modelled machine.
    pub bandwidth: Bandwidth,
    /// Number of threads.
    pub threads: usize,
    /// Size of the buffer.
    pub size: Bytes,
    /// Number of valid windows.
    pub repeats: u32,
    /// Bytes of the buffer on each node.
    pub residency: BTreeMap<NodeId, Bytes>,
    /// The lab, if this is its guest.
    pub lab: Option<Lab>,
}

/// Reasons why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum InheritedError {
    /// The mix has more writes than reads.
    #[error(
        "mix {0}: a line is read before it is modified, so a mix has at least as many reads as writes; the most write-heavy one is 1:1"
    )]
    TooManyWrites(Mix),
    /// More threads than CPUs, or none.
    #[error(
        "{asked} threads: this process may use {has} CPUs and each takes one thread; ask for 1 to {has}"
    )]
    Threads {
        /// Requested threads.
        asked: usize,
        /// Available CPUs.
        has: usize,
    },
    /// The buffer is too small.
    #[error("a buffer of {size}: each of {threads} threads needs at least {least}; ask for more")]
    TooSmall {
        /// The requested size.
        size: Bytes,
        /// Number of threads.
        threads: usize,
        /// The least size per thread.
        least: Bytes,
    },
    /// The lab's variables are invalid.
    #[error("{0}")]
    Marker(String),
    /// The CPUs this process may use are unknown.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// There is no memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The threads could not run.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// A thread got no CPU time.
    #[error("no thread got to run in any window; the machine is too busy to measure")]
    Starved,
}

/// Measures streams over memory that the process's own policy places.
///
/// # Errors
/// [`InheritedError`]; all memory is freed then.
pub fn measure(fs: &dyn Fs, request: Request) -> Result<Inherited, InheritedError> {
    let Request { mix, threads, size } = request;
    if mix.writes() > mix.reads() {
        return Err(InheritedError::TooManyWrites(mix));
    }
    let lab = marker::read().map_err(InheritedError::Marker)?;
    let cpus = cpus(threads)?;
    let size = size.unwrap_or_else(|| outgrowing(fs, &cpus, lab.as_ref()));
    let mut region = Region::inherited(usize::try_from(size.0).unwrap_or(usize::MAX / 2))?;
    let size = Bytes(region.bytes() as u64);
    let least = Bytes((Lanes::lines_min(mix) * LINE) as u64);
    let mut works = Lanes::of_threads(region.lines(), cpus.len(), mix)
        .ok_or(InheritedError::TooSmall { size, threads: cpus.len(), least })?;
    let windows =
        if lab.as_ref().is_some_and(|lab| lab.clock == "virtual") { MODELLED } else { REAL };
    let slow_motion = lab.as_ref().map_or(1.0, |lab| lab.slow_motion);
    let rates = count(windows, &cpus, &mut works)?;
    let samples: Vec<u64> = rates.iter().map(|rate| bytes_per_second(*rate, slow_motion)).collect();
    let of = stats::of_integers(&samples).ok_or(InheritedError::Starved)?;
    let bandwidth = Bandwidth::new(mix, of);
    let repeats = u32::try_from(samples.len()).unwrap_or(u32::MAX);
    let residency = region.residency()?;
    Ok(Inherited { bandwidth, threads: cpus.len(), size, repeats, residency, lab })
}

/// Lines per second of all threads together, for each window in which all of them ran; repeats while most windows are
/// disturbed, up to [`ATTEMPTS`] times. Without any valid window, the average rate from start to end.
fn count(
    windows: Windows,
    cpus: &[CpuId],
    works: &mut [Lanes<'_>],
) -> Result<Vec<f64>, InheritedError> {
    let enough = windows.count as usize / 2 + 1;
    let (mut counted, mut rough) = (Vec::new(), None);
    let works = works.iter_mut().map(|work| work as &mut dyn Work);
    let mut works: Vec<_> = cpus.iter().copied().zip(works).collect();
    for _ in 0..ATTEMPTS {
        let team = team::run(Clock::start(), windows, &mut works)?;
        counted.extend(windows::rates(&team).iter().map(|rates| rates.iter().sum::<f64>()));
        if counted.len() >= enough {
            return Ok(counted);
        }
        rough = windows::rough_rates(&team).map(|rates| rates.iter().sum::<f64>()).or(rough);
    }
    if counted.is_empty() {
        counted.extend(rough);
    }
    Ok(counted)
}

/// The CPUs to use, one per thread.
fn cpus(threads: Option<usize>) -> Result<Vec<CpuId>, InheritedError> {
    let allowed = affinity::get()?;
    let asked = threads.unwrap_or(allowed.len());
    if asked == 0 || asked > allowed.len() {
        return Err(InheritedError::Threads { asked, has: allowed.len() });
    }
    Ok(allowed[..asked].to_vec())
}

fn outgrowing(fs: &dyn Fs, cpus: &[CpuId], lab: Option<&Lab>) -> Bytes {
    let modelled = lab.and_then(|lab| lab.llc_kib).map(|kib| Bytes(kib.saturating_mul(1024)));
    let found = cpus::caches(fs, cpus);
    let one = modelled.or(found.one).unwrap_or_default();
    let all = modelled.or(found.all).unwrap_or_default();
    Outgrown { one, all, threads: cpus.len() }.streams(TIMES_CACHE).max(BYTES_MIN)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "saturates; figures are not negative"
)]
fn bytes_per_second(lines_per_s: f64, slow_motion: f64) -> u64 {
    (lines_per_s * LINE as f64 * slow_motion).round() as u64
}

/// Lanes: streams that one thread advances side by side, one round of each in turn.
///
/// So a thread's outstanding accesses are on several pages and, under interleaving, on several nodes at once; with one
/// stream each, a handful of threads would now and then all access the same node. For the same reason a lane is a prime
/// number of pages long, and lanes lie end to end across all threads: for any period of the interleaving, lanes start
/// at points spread evenly over it.
/// start at points spread evenly over it.
#[derive(Debug)]
struct Lanes<'a> {
    streams: Vec<Stream<'a>>,
    round: u64,
}

impl<'a> Lanes<'a> {
    /// The lanes of each thread; `None` if there are too few lines.
    fn of_threads(lines: &'a mut [Line], threads: usize, mix: Mix) -> Option<Vec<Self>> {
        let lanes = Self::count(mix);
        let pages = prime_at_most(lines.len() / PAGE_LINES / (threads * lanes).max(1))?;
        let mut parts = lines.chunks_exact_mut(pages * PAGE_LINES);
        let thread = |_| {
            let streams = parts.by_ref().take(lanes);
            let streams = streams.map(|part| Stream::new(part, mix, Pacer::FLAT_OUT));
            Some(Self { streams: streams.collect::<Option<_>>()?, round: Stream::burst_lines(mix) })
        };
        (0..threads).map(thread).collect()
    }

    /// Lanes per thread.
    fn count(mix: Mix) -> usize {
        // A stream of two arrays counts twice for the processor's prefetcher.
        let arrays = usize::from(mix.reads() > mix.writes()) + usize::from(mix.writes() > 0);
        STREAMS / arrays
    }

    /// The least number of lines per thread.
    fn lines_min(mix: Mix) -> usize {
        let round = usize::try_from(Stream::burst_lines(mix)).unwrap_or(usize::MAX);
        STREAMS * PAGE_LINES * (round.div_ceil(PAGE_LINES) + 2)
    }
}

impl Work for Lanes<'_> {
    fn portion(&mut self, units: u64) -> u64 {
        let mut done = 0;
        while done < units {
            done += self.streams.iter_mut().map(|stream| stream.portion(self.round)).sum::<u64>();
        }
        done
    }
}

/// The largest prime up to `most`.
fn prime_at_most(most: usize) -> Option<usize> {
    let prime = |n: &usize| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    (2..=most).rev().find(prime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::Tree;
    use std::collections::BTreeSet;

    fn machine() -> TreeFs {
        TreeFs(Tree::new())
    }

    #[test]
    fn threads_share_the_lines_and_count_reads_and_writes() {
        let mut lines = vec![Line::default(); 3 * STREAMS * 7 * PAGE_LINES];
        let mut threads = Lanes::of_threads(&mut lines, 3, Mix::ONE_TO_ONE).unwrap();
        assert_eq!(threads.len(), 3);
        let each = 2 * STREAMS as u64 * 7 * PAGE_LINES as u64;
        for lanes in &mut threads {
            assert_eq!(lanes.streams.len(), STREAMS);
            assert_eq!(lanes.portion(each), each);
        }
        assert!(lines.iter().all(|line| line.0[0] == 1), "each line modified once");
    }

    #[test]
    fn lanes_start_at_points_spread_evenly_over_any_round() {
        assert_eq!(prime_at_most(100), Some(97));
        let lanes = 12 * Lanes::count(Mix::TWO_TO_ONE);
        assert_eq!(lanes, 48);
        for round in 2..=64 {
            let points: BTreeSet<_> = (0..lanes).map(|lane| lane * 97 % round).collect();
            assert_eq!(points.len(), lanes.min(round), "a round of {round}");
        }
    }

    #[test]
    fn too_few_lines_give_no_lanes() {
        for mix in ["1:0", "2:1", "1:1", "100:1"].map(|mix| mix.parse().unwrap()) {
            let mut lines = vec![Line::default(); 3 * Lanes::lines_min(mix)];
            assert!(Lanes::of_threads(&mut lines, 3, mix).is_some(), "{mix}");
            assert!(Lanes::of_threads(&mut lines[..PAGE_LINES], 3, mix).is_none(), "{mix}");
        }
    }

    #[test]
    fn an_invalid_thread_count_is_rejected_with_the_limit() {
        let request = Request { mix: Mix::READS, threads: Some(100_000), size: None };
        let error = measure(&machine(), request).unwrap_err().to_string();
        assert!(error.contains("100000 threads") && error.contains("ask for 1 to"), "{error}");
        let none = Request { threads: Some(0), ..request };
        assert!(measure(&machine(), none).is_err());
    }

    #[test]
    fn more_writes_than_reads_are_refused() {
        let request = Request { mix: "1:2".parse().unwrap(), threads: None, size: None };
        assert!(measure(&machine(), request).unwrap_err().to_string().contains("1:1"));
    }

    #[test]
    fn a_buffer_exceeds_the_modelled_cache_and_a_minimum_size() {
        let lab = |llc_kib| Lab {
            machine: "m".into(),
            clock: "virtual".into(),
            slow_motion: 1.0,
            llc_kib: Some(llc_kib),
        };
        assert_eq!(outgrowing(&machine(), &[], Some(&lab(32 << 10))), Bytes(128 << 20));
        assert_eq!(outgrowing(&machine(), &[], Some(&lab(1))), BYTES_MIN);
        let twelve: Vec<CpuId> = (0..12).map(CpuId).collect();
        let size = outgrowing(&machine(), &twelve, Some(&lab(8 << 10)));
        assert_eq!(size, Bytes(120 << 20), "no thread's part fits the cache");
        assert_eq!(outgrowing(&machine(), &[], None), BYTES_MIN);
    }
}
