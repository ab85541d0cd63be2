//! Rate limit of migration: bytes per second, with bursts of at most a tenth of a second's worth.

use nearfar_topology::{Bytes, BytesPerSecond, Nanoseconds};

/// Maximum saved allowance, in time.
const SAVED_NS: u64 = 100_000_000;
const SECOND_NS: u128 = 1_000_000_000;

/// An allowance.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    a_second: BytesPerSecond,
    /// Saved allowance, in billionths of a byte; negative after a migration larger than it.
    saved: i128,
    at: Nanoseconds,
}

impl Rate {
    /// A limit of this many bytes per second, from `now` on.
    #[must_use]
    pub const fn new(a_second: BytesPerSecond, now: Nanoseconds) -> Self {
        Self { a_second, saved: 0, at: now }
    }

    /// Changes the rate, keeping the saved allowance.
    pub const fn set(&mut self, a_second: BytesPerSecond) {
        self.a_second = a_second;
    }

    /// The bytes that may be migrated now. A larger migration may start if this is positive, and is charged afterwards.
    pub fn available(&mut self, now: Nanoseconds) -> Bytes {
        let since = u128::from(now.0.saturating_sub(self.at.0));
        self.at = now;
        let gained = since.saturating_mul(u128::from(self.a_second.0));
        let most = i128::from(SAVED_NS).saturating_mul(i128::from(self.a_second.0));
        let gained = i128::try_from(gained).unwrap_or(most);
        self.saved = self.saved.saturating_add(gained).min(most);
        let whole = u128::try_from(self.saved).unwrap_or(0) / SECOND_NS;
        Bytes(u64::try_from(whole).unwrap_or(u64::MAX))
    }

    /// Charges migrated bytes.
    pub fn spend(&mut self, moved: Bytes) {
        self.saved -= i128::from(moved.0) * 1_000_000_000;
    }

    /// The time at which `wanted` bytes will be available.
    #[must_use]
    pub fn next(&self, wanted: Bytes) -> Nanoseconds {
        let most = i128::from(SAVED_NS) * i128::from(self.a_second.0) / 1_000_000_000;
        let missing = i128::from(wanted.0).min(most) * 1_000_000_000 - self.saved;
        let speed = i128::from(self.a_second.0.max(1));
        Nanoseconds(u64::try_from(missing.max(0) / speed).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_tenth_of_a_second_is_saved_at_most_and_debts_are_paid_first() {
        let mut rate = Rate::new(BytesPerSecond(1000), Nanoseconds(0));
        assert_eq!(rate.available(Nanoseconds(0)), Bytes(0));
        assert_eq!(rate.available(Nanoseconds(10 * MS)), Bytes(10));
        assert_eq!(rate.available(Nanoseconds(10_000 * MS)), Bytes(100));
        rate.spend(Bytes(600));
        assert_eq!(rate.next(Bytes(50)), Nanoseconds(550 * MS));
        assert_eq!(rate.available(Nanoseconds(10_500 * MS)), Bytes(0));
        assert_eq!(rate.available(Nanoseconds(10_550 * MS)), Bytes(50));
    }

    proptest! {
        #[test]
        fn never_more_than_the_rate_allows(
            a_second in 1_u64..10_000_000_000,
            steps in prop::collection::vec((0_u64..500 * MS, 0_u64..100), 1..60),
        ) {
            let mut rate = Rate::new(BytesPerSecond(a_second), Nanoseconds(0));
            let (mut now, mut moved) = (0, 0_u128);
            for (wait, part) in steps {
                now += wait;
                let may = rate.available(Nanoseconds(now)).0;
                let bytes = u64::try_from(u128::from(may) * u128::from(part) / 100).unwrap();
                rate.spend(Bytes(bytes));
                moved += u128::from(bytes);
            }
            prop_assert!(moved <= u128::from(a_second) * u128::from(now) / 1_000_000_000);
        }
    }
}
