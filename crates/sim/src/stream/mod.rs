//! Access by access simulation: each access is drawn, counted for its page, and loads the machine.
//!
//! An epoch has the number of accesses that the machine served in the previous epoch, so the stream is closed like the
//! model. They are drawn in [`SHARDS`] shards, each with its own random stream, and threads process the shards; counts
//! are sums, so the result is the same for any number of threads. The counts of pages then give the demand on each
//! node, and the steady state under that demand gives the epoch's figures.
//!
//! All workers draw from the same source. The placement is taken from [`Pages`], and is constant.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::flow::{self, Demand};
use crate::machine::{LINE, Machine};
use crate::metrics::{Figures, figures, mean};
use crate::pages::Pages;
use crate::rng::Rng;
use crate::workload::Workload;

pub mod source;

pub use source::{NoSource, Source, Span};

/// Shards per epoch.
pub const SHARDS: u64 = 16;

/// Parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Accesses to draw; the last epoch may draw more.
    pub accesses: u64,
    /// Length of an epoch.
    pub epoch_ms: u32,
    /// Number of threads that draw.
    pub threads: u32,
    /// Seed of all random draws.
    pub seed: u64,
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Streamed {
    /// Accesses drawn.
    pub accesses: u64,
    /// Number of epochs.
    pub epochs: u64,
    /// Pages accessed at least once in the last epoch.
    pub touched: u64,
    /// Mean of the epochs' figures.
    pub figures: Figures,
}

/// Streams `source` over `pages` on `machine`; the workload gives the outstanding lines of each worker.
#[must_use]
pub fn run(
    machine: &Machine,
    workload: &Workload,
    pages: &Pages,
    source: &Source,
    options: Options,
) -> Streamed {
    let mut counts = vec![0u32; source.pages() as usize];
    let mut figures: Vec<Figures> = Vec::new();
    let (mut drawn, mut epoch) = (0u64, 0u64);
    // The first epoch uses the throughput without contention.
    let mut now = first(machine, workload, options.epoch_ms);
    while drawn < options.accesses {
        draw(source, (epoch, now), options, &mut counts);
        let found = felt(machine, workload, pages, &counts);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "lines of an epoch"
        )]
        let served = (found.gbps / LINE * f64::from(options.epoch_ms) * 1e6) as u64;
        (drawn, epoch, now) = (drawn + now, epoch + 1, served.max(1));
        figures.push(found);
    }
    let touched = counts.iter().filter(|count| **count > 0).count() as u64;
    Streamed { accesses: drawn, epochs: epoch, touched, figures: mean(figures.iter()) }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "lines of an epoch")]
fn first(machine: &Machine, workload: &Workload, epoch_ms: u32) -> u64 {
    let lines = workload.workers.iter().map(|of| {
        let nearest = machine.latency_ns[of.row].iter().copied().fold(f64::INFINITY, f64::min);
        of.lines / (of.think_ns + nearest + machine.concurrent_ns)
    });
    ((lines.sum::<f64>() * f64::from(epoch_ms) * 1e6) as u64).max(1)
}

/// Draws an epoch's accesses into `counts`, which is cleared first.
fn draw(source: &Source, (epoch, accesses): (u64, u64), options: Options, counts: &mut [u32]) {
    counts.fill(0);
    let next = AtomicU64::new(0);
    let work = |counts: &mut [u32]| {
        loop {
            let shard = next.fetch_add(1, Ordering::Relaxed);
            if shard >= SHARDS {
                break;
            }
            // The first shards take the remainder of the division.
            let share = accesses / SHARDS + u64::from(shard < accesses % SHARDS);
            let stream = (epoch * SHARDS + shard).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            source.count(epoch, share, &mut Rng::new(options.seed ^ stream), counts);
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..options.threads.max(1))
            .map(|_| {
                scope.spawn(|| {
                    let mut own = vec![0u32; source.pages() as usize];
                    work(&mut own);
                    own
                })
            })
            .collect();
        work(counts);
        for other in others {
            // A failed thread contributes no counts; this thread has then drawn the remaining shards.
            for (count, more) in counts.iter_mut().zip(other.join().unwrap_or_default()) {
                *count += more;
            }
        }
    });
}

/// The steady state with demand on each page in proportion to its count.
fn felt(machine: &Machine, workload: &Workload, pages: &Pages, counts: &[u32]) -> Figures {
    let mut on = vec![0u64; machine.nodes.len()];
    for (count, node) in counts.iter().zip(&pages.node) {
        on[usize::from(*node)] += u64::from(*count);
    }
    #[expect(clippy::cast_precision_loss, reason = "counts as shares")]
    let shares: Vec<f64> = {
        let all = on.iter().sum::<u64>().max(1) as f64;
        on.iter().map(|count| *count as f64 / all).collect()
    };
    let reads = workload.regions.first().map_or(1.0, |region| region.reads);
    let demand = |of: &crate::workload::Worker| Demand {
        row: of.row,
        lines: of.lines,
        think_ns: of.think_ns,
        reads,
        shares: shares.clone(),
    };
    let demands: Vec<Demand> = workload.workers.iter().map(demand).collect();
    let flow = flow::solve(machine, &demands, &[]);
    let shares: Vec<Vec<f64>> = demands.into_iter().map(|demand| demand.shares).collect();
    figures(machine, workload, &shares, &flow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::steady;
    use crate::policy::Policy;
    use crate::published::colloid;
    use crate::workload;

    fn options(threads: u32, seed: u64) -> Options {
        Options { accesses: 3_000_000, epoch_ms: 1, threads, seed }
    }

    #[test]
    fn the_thread_count_does_not_change_the_result() {
        let machine = colloid::machine(135.0).unwrap();
        let workload = workload::find("hot-set", &machine).unwrap();
        let mut pages = Pages::of(&workload, 1);
        Policy::FirstTouch.place(&mut pages, &workload, &machine);
        let source = Source::hot_set(4608, 1536, 0.9, 1).unwrap();
        let run = |threads, seed| run(&machine, &workload, &pages, &source, options(threads, seed));
        assert_eq!(run(1, 5), run(3, 5));
        assert_ne!(run(1, 5).figures, run(1, 6).figures);
        assert!(run(2, 5).accesses >= 3_000_000);
    }

    #[test]
    fn every_access_is_drawn_for_any_count_and_number_of_threads() {
        let source = Source::uniform(100).unwrap();
        for (accesses, threads) in [(1, 1), (1003, 1), (1003, 4), (16, 40)] {
            let mut counts = vec![7; 100];
            draw(&source, (0, accesses), options(threads, 1), &mut counts);
            assert_eq!(counts.iter().map(|count| u64::from(*count)).sum::<u64>(), accesses);
        }
    }

    #[test]
    fn a_stream_with_the_heat_of_a_workload_matches_its_steady_state() {
        let machine = colloid::machine(135.0).unwrap();
        let workload = workload::find("hot-set", &machine).unwrap();
        let mut pages = Pages::of(&workload, 1);
        Policy::FirstTouch.place(&mut pages, &workload, &machine);
        // 0.85 go to the hot third, and a third of the rest: 0.9 of all.
        let source = Source::hot_set(4608, 1536, 0.85, 0).unwrap();
        let streamed = run(&machine, &workload, &pages, &source, options(2, 1)).figures;
        let steady = steady(&machine, &workload, &pages);
        assert!((streamed.gbps / steady.gbps - 1.0).abs() < 0.01, "{streamed:?} {steady:?}");
    }

    #[test]
    fn a_moving_hot_set_lowers_the_local_access_ratio() {
        let machine = colloid::machine(192.0).unwrap();
        let workload = workload::find("hot-set", &machine).unwrap();
        let mut pages = Pages::of(&workload, 1);
        Policy::FirstTouch.place(&mut pages, &workload, &machine);
        let local = |move_epochs| {
            let source = Source::hot_set(4608, 1536, 0.85, move_epochs).unwrap();
            run(&machine, &workload, &pages, &source, options(1, 1)).figures.local_access_ratio
        };
        assert!(local(0) > 0.89 && local(1) < 0.7, "{} {}", local(0), local(1));
    }
}
