//! A station: a point with a capacity, such as a memory controller's reads or writes, or a link's direction.
//!
//! Modelled time is divided into slots of about a microsecond, each with room for a fixed amount of service. An access
//! takes its service from the slot of its own time, or from the next with room, and is served there. So vCPUs need not
//! come in order of time: one that lags finds the slots of its time as the others left them, and one that leads takes
//! nothing from those behind. The last access of a slot may exceed it; the excess is taken from the next, so the
//! capacity is exact.
//!
//! A station's utilisation is a running mean over slots old enough that no vCPU still adds to them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of slots kept.
const SLOTS: usize = 2048;
/// Least number of services that fit a slot, so that its edges do not matter.
const SERVICES_MIN: u64 = 24;
/// Least length of a slot: 2^20 ps, about a microsecond.
const SLOT_SHIFT_MIN: u32 = 20;
/// No vCPU adds to a slot this much older than another's time (the allowed skew with a margin): 2^25 ps, 34 us.
const SETTLED_SHIFT: u32 = 25;
/// The running mean's time constant: 2^29 ps, about half a millisecond. Much longer than `SETTLED_SHIFT`, or the
/// latency derived from it would oscillate.
const MEAN_SHIFT: u32 = 29;

/// A slot's word: its number and the service taken, picoseconds.
const USED_BITS: u32 = 28;
const USED_MASK: u64 = (1 << USED_BITS) - 1;

/// Full utilisation as returned by [`Station::load`].
pub(crate) const FULL_LOAD: u64 = 1 << 16;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Station {
    slot_shift: u32,
    slots: Box<[AtomicU64]>,
    /// Slots before this one are in the mean.
    settled: AtomicU64,
    /// Mean utilisation times 2^32.
    mean: AtomicU64,
}

impl Station {
    /// An idle station whose longest service takes `service_ps`.
    pub(crate) fn new(service_ps: u64) -> Self {
        let wanted = (service_ps * SERVICES_MIN).max(1 << SLOT_SHIFT_MIN);
        let slot_shift = wanted.next_power_of_two().ilog2().min(USED_BITS - 1);
        Self {
            slot_shift,
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            settled: AtomicU64::new(0),
            mean: AtomicU64::new(0),
        }
    }

    /// Takes `service_ps` of capacity at `time_ps` or as soon as possible after it; returns the time of service.
    #[inline]
    pub(crate) fn take(&self, time_ps: u64, service_ps: u64) -> u64 {
        let first = time_ps >> self.slot_shift;
        let room = 1 << self.slot_shift;
        self.settle(first);
        for slot in first..first + SLOTS as u64 / 2 {
            match self.add(slot, service_ps, room) {
                Added::Full => {}
                Added::Past => return time_ps,
                Added::Done { over_ps } => {
                    if over_ps > 0 {
                        self.add(slot + 1, over_ps, u64::MAX);
                    }
                    return if slot == first { time_ps } else { slot << self.slot_shift };
                }
            }
        }
        (first + SLOTS as u64 / 2) << self.slot_shift
    }

    /// Adds service to a slot that has used less than `room` so far.
    #[inline]
    fn add(&self, slot: u64, service_ps: u64, room: u64) -> Added {
        let cell = self.cell(slot);
        let mut word = cell.load(Relaxed);
        loop {
            let used = match (word >> USED_BITS).cmp(&slot) {
                std::cmp::Ordering::Equal => word & USED_MASK,
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Greater => return Added::Past,
            };
            if used >= room {
                return Added::Full;
            }
            let sum = (used + service_ps).min(USED_MASK);
            let new = slot << USED_BITS | sum;
            match cell.compare_exchange_weak(word, new, Relaxed, Relaxed) {
                Ok(_) => return Added::Done { over_ps: sum.saturating_sub(room.max(used)) },
                Err(now) => word = now,
            }
        }
    }

    /// Recent utilisation, [`FULL_LOAD`] when saturated.
    #[inline]
    pub(crate) fn load(&self) -> u64 {
        self.mean.load(Relaxed) >> 16
    }

    /// Adds slots that have become old to the mean.
    #[inline]
    fn settle(&self, slot: u64) {
        let due = slot.saturating_sub(1 + (1 << SETTLED_SHIFT >> self.slot_shift));
        let settled = self.settled.load(Relaxed);
        if due > settled && self.settled.compare_exchange(settled, due, Relaxed, Relaxed).is_ok() {
            self.average(settled, due);
        }
    }

    #[cold]
    fn average(&self, from: u64, to: u64) {
        let weight = MEAN_SHIFT.saturating_sub(self.slot_shift).max(2);
        let remembered = SLOTS as u64 / 2;
        let mut mean = if to - from > remembered { 0 } else { self.mean.load(Relaxed) };
        for slot in from.max(to.saturating_sub(remembered))..to {
            let word = self.cell(slot).load(Relaxed);
            let used = if word >> USED_BITS == slot { word & USED_MASK } else { 0 };
            let share = used.min(1 << self.slot_shift) << 32 >> self.slot_shift;
            mean = mean - (mean >> weight) + (share >> weight);
        }
        self.mean.store(mean, Relaxed);
    }

    #[inline]
    fn cell(&self, slot: u64) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "masked by the number of slots")]
        let place = slot as usize & (SLOTS - 1);
        &self.slots[place]
    }
}

enum Added {
    Done {
        /// The excess over the slot.
        over_ps: u64,
    },
    Full,
    /// The slot is too old and no longer kept.
    Past,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_idle_station_serves_at_once() {
        let station = Station::new(1600);
        for n in 0..1000 {
            let time = n * 100_000;
            assert_eq!(station.take(time, 1600), time);
        }
        assert!(station.load() < FULL_LOAD / 50);
    }

    #[test]
    fn a_saturated_station_serves_its_capacity_exactly() {
        for service in [640, 1600, 4923, 64_000, 6_400_000] {
            let station = Station::new(service);
            let mut time = 0;
            let count = 50_000;
            for _ in 0..count {
                time = station.take(time, service);
            }
            let served_in = time as f64 / (count * service) as f64;
            assert!((0.98..1.02).contains(&served_in), "service {service}: {served_in}");
        }
    }

    #[test]
    fn the_load_is_the_share_of_capacity_taken() {
        for percent in [10usize, 50, 90] {
            let station = Station::new(1600);
            for time in (0..5_000_000_000).step_by(160_000 / percent) {
                station.take(time, 1600);
            }
            let load = station.load() * 100 / FULL_LOAD;
            assert!(load.abs_diff(percent as u64) <= 2, "{load} for {percent}");
        }
    }

    #[test]
    fn a_long_pause_resets_the_load() {
        let station = Station::new(1600);
        let mut time = 0;
        for _ in 0..10_000 {
            time = station.take(time, 1600);
        }
        station.take(time + 1_000_000_000_000, 1600);
        assert_eq!(station.load(), 0);
    }

    #[test]
    fn a_lagging_vcpu_gets_the_capacity_left_by_the_leader() {
        let station = Station::new(1600);
        for n in 0..1000 {
            station.take(30_000_000 + n * 3200, 1600);
        }
        for n in 0..1000 {
            let time = n * 3200;
            assert_eq!(station.take(time, 1600), time);
        }
    }

    proptest! {
        /// With vCPUs up to 30 us apart, in any order: nothing is served before its time, and no window of time serves
        /// more than its capacity.
        #[test]
        fn capacity_is_never_exceeded(
            service in 300u64..20_000,
            jitter in proptest::collection::vec(0u64..30_000_000, 2000..4000),
        ) {
            let station = Station::new(service);
            let mut served: Vec<u64> = Vec::new();
            for (n, jitter) in jitter.iter().enumerate() {
                let time = n as u64 * service / 2 + jitter;
                let at = station.take(time, service);
                prop_assert!(at >= time);
                served.push(at >> station.slot_shift);
            }
            served.sort_unstable();
            let first = served[0];
            for upto in first..=*served.last().unwrap() {
                let count = served.partition_point(|slot| *slot <= upto) as u64;
                let room = ((upto - first + 1) << station.slot_shift) + service;
                prop_assert!(count * service <= room, "{} services by slot {}", count, upto - first);
            }
        }
    }
}
