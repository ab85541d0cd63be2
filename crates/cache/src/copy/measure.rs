//! How fast this machine's CPU copies, by length and way: what [`CpuConfig`] is set by.
//!
//! Items of one length are copied one after another from one region to another, both larger than caches if the caller says so:
//! as a mover does it, to places that are in no cache. What is left out: what a copy does to others' caches, which speaks for
//! going around them where the two are alike.
#![expect(unsafe_code, reason = "jobs are made of memory that is owned here")]

use super::clock::Clock;
use super::cpu::{Cpu, CpuConfig};
use super::job::Job;
use super::stream::Lanes;
use super::{Copier, Outcome};

/// Jobs in a batch.
const BATCH: usize = 32;

/// What was measured for a length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of an item.
    pub bytes: usize,
    /// Bytes a second through caches ([`Lanes::None`]) and around them, for each kind of lanes there is.
    pub rates: Vec<(Lanes, u64)>,
}

/// Measures each length over regions of `region` bytes, the best of `rounds`.
#[must_use]
pub fn measure(lengths: &[usize], region: usize, rounds: u32, clock: &dyn Clock) -> Vec<Measured> {
    let (mut from, mut to) = (vec![1_u8; region], vec![2_u8; region]);
    let mut ways = vec![Lanes::None];
    ways.extend(Lanes::all());
    let one = |bytes: &usize| {
        let rate = |lanes: &Lanes| {
            let best =
                (0..rounds).map(|_| round(&mut from, &mut to, *bytes, (*lanes, clock))).max();
            (*lanes, best.unwrap_or(0))
        };
        Measured { bytes: *bytes, rates: ways.iter().map(rate).collect() }
    };
    lengths.iter().map(one).collect()
}

/// Bytes a second in one go through the regions.
fn round(from: &mut [u8], to: &mut [u8], bytes: usize, way: (Lanes, &dyn Clock)) -> u64 {
    let (lanes, clock) = way;
    let mut cpu = Cpu::new(CpuConfig { stream_from: 1, wide_from: 1, lanes });
    let stride = bytes.max(1).next_multiple_of(64);
    let count = from.len().min(to.len()) / stride;
    let (source, destination) = (from.as_mut_ptr(), to.as_mut_ptr());
    // SAFETY: item `at` is within both regions, which are borrowed as long as jobs are, and items are a stride apart.
    let job = |at: usize| unsafe {
        Job::new(source.wrapping_add(at * stride), destination.wrapping_add(at * stride), bytes)
    };
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(BATCH);
    let began = clock.now_ns();
    for first in (0..count).step_by(BATCH) {
        let jobs: Vec<Job> = (first..count.min(first + BATCH)).map(job).collect();
        cpu.copy(&jobs, &mut outcomes);
    }
    let ns = clock.now_ns().saturating_sub(began).max(1);
    let copied = (count * bytes) as u128;
    u64::try_from(copied * 1_000_000_000 / u128::from(ns)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Each look at it takes a microsecond.
    struct Ticks(Cell<u64>);

    impl Clock for Ticks {
        fn now_ns(&self) -> u64 {
            self.0.set(self.0.get() + 1000);
            self.0.get()
        }
    }

    #[test]
    fn each_length_is_measured_each_way_by_the_clock_it_is_given() {
        let measured = measure(&[100, 1000], 10_000, 2, &Ticks(Cell::new(0)));
        let rates: Vec<u64> = measured.iter().map(|one| one.rates[0].1).collect();
        assert_eq!(rates, [78 * 100 * 1_000_000, 9 * 1000 * 1_000_000]);
        assert!(measured.iter().all(|one| one.rates.len() == 1 + Lanes::all().len()));
    }

    #[test]
    fn a_region_too_small_for_one_item_has_no_rate() {
        assert_eq!(measure(&[1000], 100, 1, &Ticks(Cell::new(0)))[0].rates[0].1, 0);
    }
}
