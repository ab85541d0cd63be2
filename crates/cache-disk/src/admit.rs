//! Disk admission: writes only objects that are used repeatedly, within a write budget.
//!
//! Writes wear a device out, so there is a budget of bytes per 24 hours, refilled evenly, with a burst of one hour's
//! worth. All bytes actually written are charged to it. An object is admitted by its number of uses (known to the
//! caller) plus its number of recent offers (remembered here by part of its hash). The required number depends on the
//! rest of the budget: `least_hits` while more than three quarters of the hour's worth are left, one more for each
//! quarter below. Size counts, too: an object twice as large as the average needs twice as many uses. Time is passed in
//! by ticks.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use super::config::Config;
use super::locks::lock;
use super::stats::{Counters, one};
use super::words::{low32, mixed, size, wide};

const DAY: u64 = 86_400;
const HOURS: u64 = 24;
/// Bits of a remembered hash that count offers.
const COUNT: u32 = 7;

/// A candidate for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The hash of its key.
    pub hash: u64,
    /// Bytes of key and value.
    pub bytes: usize,
    /// Number of uses while it was in memory; saturating counters suffice.
    pub hits: u32,
}

/// Time of the last refill, and the remainder of its division.
#[derive(Debug, Default)]
struct Last {
    second: Option<u32>,
    carry: u64,
}

/// The admission policy.
#[derive(Debug)]
pub(super) struct Admission {
    per_day: u64,
    /// Maximum saved budget.
    burst: i64,
    left: AtomicI64,
    last: Mutex<Last>,
    least_hits: u32,
    ghosts: Box<[AtomicU32]>,
    /// Sixteenths of a byte.
    average: AtomicU64,
    counters: Arc<Counters>,
}

impl Admission {
    pub(super) fn new(config: &Config, counters: Arc<Counters>) -> Self {
        let burst = i64::try_from(config.budget_per_day / HOURS).unwrap_or(i64::MAX).max(1);
        let ghosts = config.ghosts.max(1).next_power_of_two();
        Self {
            per_day: config.budget_per_day,
            burst,
            left: AtomicI64::new(burst),
            last: Mutex::default(),
            least_hits: config.least_hits,
            ghosts: (0..ghosts).map(|_| AtomicU32::new(0)).collect(),
            average: AtomicU64::new(0),
            counters,
        }
    }

    /// Refills the budget for the time since the last call.
    pub(super) fn refill(&self, now: u32) {
        if self.per_day == 0 {
            return;
        }
        let mut last = lock(&self.last);
        let passed = now.saturating_sub(last.second.unwrap_or(now));
        last.second = Some(now);
        let parts = u128::from(passed) * u128::from(self.per_day) + u128::from(last.carry);
        last.carry = u64::try_from(parts % u128::from(DAY)).unwrap_or(0);
        let gained = i64::try_from(parts / u128::from(DAY)).unwrap_or(i64::MAX);
        let _ = self.left.fetch_update(Relaxed, Relaxed, |left| {
            Some(left.saturating_add(gained).min(self.burst))
        });
    }

    /// Charges written bytes.
    pub(super) fn spend(&self, bytes: usize) {
        if self.per_day > 0 {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            let _ =
                self.left.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(bytes)));
        }
    }

    /// Remaining bytes; 0 without a budget.
    pub(super) fn left(&self) -> u64 {
        if self.per_day == 0 { 0 } else { u64::try_from(self.left.load(Relaxed)).unwrap_or(0) }
    }

    /// Whether the object should be written.
    pub(super) fn admit(&self, offer: &Offer) -> bool {
        let left = self.left.load(Relaxed);
        if self.per_day > 0 && left <= 0 {
            self.remember(offer.hash);
            one(&self.counters.refused_budget);
            return false;
        }
        let uses = offer.hits.saturating_add(self.offers(offer.hash));
        if u64::from(uses) < self.need(left, wide(offer.bytes)) {
            self.remember(offer.hash);
            one(&self.counters.refused_use);
            return false;
        }
        let old = self.average.load(Relaxed);
        let bytes = wide(offer.bytes);
        // Of two concurrent updates one is lost, which an average tolerates.
        self.average.store(if old == 0 { bytes * 16 } else { old - old / 16 + bytes }, Relaxed);
        one(&self.counters.admitted);
        true
    }

    /// Required uses for an object of this size.
    fn need(&self, left: i64, bytes: u64) -> u64 {
        let least = u64::from(self.least_hits);
        let quarters = i128::from(left) * 4 / i128::from(self.burst);
        let short = u64::try_from(3 - quarters.clamp(0, 3)).unwrap_or(0);
        if self.per_day == 0 || short == 0 {
            return least;
        }
        let average = (self.average.load(Relaxed) / 16).max(1);
        let need = least + short;
        if bytes > average { need.saturating_mul(bytes).div_ceil(average) } else { need }
    }

    fn ghost(&self, hash: u64) -> (&AtomicU32, u32) {
        let hash = mixed(hash);
        let at = size(hash >> 32) & (self.ghosts.len() - 1);
        (&self.ghosts[at], low32(hash) & !COUNT)
    }

    /// Number of recent offers.
    fn offers(&self, hash: u64) -> u32 {
        let (ghost, mark) = self.ghost(hash);
        let held = ghost.load(Relaxed);
        if held & !COUNT == mark { held & COUNT } else { 0 }
    }

    fn remember(&self, hash: u64) {
        let (ghost, mark) = self.ghost(hash);
        ghost.store(mark | (self.offers(hash) + 1).min(COUNT), Relaxed);
    }

    pub(super) fn table_bytes(&self) -> usize {
        size_of_val(&*self.ghosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn made(budget_per_day: u64, least_hits: u32) -> Admission {
        let config = Config { budget_per_day, least_hits, ghosts: 1024, ..Config::default() };
        Admission::new(&config, Arc::default())
    }

    fn offer(hash: u64, hits: u32) -> Offer {
        Offer { hash, bytes: 1000, hits }
    }

    #[test]
    fn an_object_without_hits_is_admitted_on_its_second_offer() {
        let admission = made(0, 1);
        assert!(!admission.admit(&offer(1, 0)));
        assert!(admission.admit(&offer(2, 1)));
        assert!(admission.admit(&offer(1, 0)));
        assert!(made(0, 0).admit(&offer(1, 0)), "nothing asked for, all admitted");
    }

    #[test]
    fn a_smaller_budget_requires_more_hits_and_an_empty_one_admits_nothing() {
        let admission = made(24_000, 1);
        admission.refill(1);
        assert!(admission.admit(&offer(1, 1)));
        admission.spend(600);
        assert!(!admission.admit(&offer(2, 1)));
        assert!(admission.admit(&offer(3, 3)));
        admission.spend(500);
        assert_eq!(admission.left(), 0);
        assert!(!admission.admit(&offer(4, 1000)));
        assert_eq!(admission.counters.read().refused_budget, 1);
        // 100 bytes were overspent.
        admission.refill(1 + 360);
        assert!(!admission.admit(&offer(5, 1000)));
        admission.refill(1 + 3600);
        assert!(admission.admit(&offer(5, 1000)));
    }

    #[test]
    fn large_objects_need_more_hits_when_the_budget_shrinks() {
        let admission = made(24_000, 1);
        (0..50).for_each(|hash| assert!(admission.admit(&offer(hash, 1))));
        let large = Offer { hash: 99, bytes: 10_000, hits: 4 };
        assert!(admission.admit(&large));
        admission.spend(600);
        assert!(!admission.admit(&large));
        assert!(admission.admit(&offer(100, 4)));
    }

    proptest! {
        #[test]
        fn the_write_budget_saves_at_most_an_hour_and_never_exceeds_the_daily_rate(
            steps in proptest::collection::vec((0..4000_u32, 0..2000_usize), 1..100),
            per_day in 24..1_000_000_u64,
        ) {
            let admission = made(per_day, 0);
            let (mut now, mut spent) = (1, 0_u64);
            admission.refill(now);
            for (pass, wish) in steps {
                now += pass;
                admission.refill(now);
                prop_assert!(admission.left() <= per_day / HOURS);
                if wish as u64 <= admission.left() {
                    admission.spend(wish);
                    spent += wish as u64;
                }
            }
            prop_assert!(spent <= per_day / HOURS + per_day * u64::from(now) / DAY + 1);
        }
    }
}
