//! Rate limit for discarding pages at once: each discarded page that is needed again costs a fault, so a program that
//! fills and empties a kind repeatedly must not lose its pages every time.
#![expect(unsafe_code, reason = "a clock that asks no kernel")]

use core::sync::atomic::{AtomicU64, Ordering};

/// Initial budget, in MiB.
const FIRST_MIB: u64 = 4096;
/// Budget gained per second, in MiB: the faults for this take less than a hundredth of a CPU.
const MIB_EACH_SECOND: u64 = 64;

/// Time, in milliseconds, at which the budget used so far will have been regained.
static EARNED_MS: AtomicU64 = AtomicU64::new(0);

/// Whether `bytes` may be discarded now; if so, takes them off the budget.
pub(crate) fn may(bytes: usize) -> bool {
    may_at(now_ms(), bytes)
}

fn may_at(now_ms: u64, bytes: usize) -> bool {
    let costs_ms = (bytes as u64 >> 20).min(FIRST_MIB) * 1000 / MIB_EACH_SECOND;
    let spend = |earned_ms: u64| {
        let earned_ms = earned_ms.max(now_ms) + costs_ms;
        (earned_ms <= now_ms + FIRST_MIB * 1000 / MIB_EACH_SECOND).then_some(earned_ms)
    };
    EARNED_MS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok()
}

/// Milliseconds of a monotonic clock.
pub(crate) fn now_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_discard_budget_refills_over_time() {
        let now = now_ms() + (1 << 40);
        let gibibyte = 1 << 30;
        assert!((0..4).all(|_| may_at(now, gibibyte)));
        assert!(!may_at(now, gibibyte));
        assert!(!may_at(now + 15_000, gibibyte));
        assert!(may_at(now + 16_000, gibibyte));
        assert!(!may_at(now + 16_000, gibibyte));
    }
}
