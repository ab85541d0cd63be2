//! Limits a stream to a rate, by busy-waiting after each burst.
//!
//! A burst is too short to be timed by itself, so the pacer gets the time of many of them at once, and corrects the
//! wait by a part of the difference; so the cost of a turn and of a burst need be known only roughly. While the memory
//! can't keep up, the stream does not wait at all.

/// Picoseconds, so that rounding does not lose the slow drift of many small corrections.
type Picoseconds = u64;

/// Keeps bursts `interval` apart by a pause after each.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    interval: Option<Picoseconds>,
    turn: Picoseconds,
    pause: Picoseconds,
    /// Difference between the pauses wanted and the whole turns so far.
    owed: Picoseconds,
}

/// A burst, and the time of a turn of the wait loop after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    pub(crate) bytes: u64,
    pub(crate) turn_ps: u64,
}

impl Pacer {
    /// Without a limit.
    pub(crate) const FLAT_OUT: Self = Self { interval: None, turn: 1, pause: 0, owed: 0 };

    /// Bursts at `bytes_per_second`; `most_bytes_per_second` is the rate without pauses.
    pub(crate) fn at_rate(bytes_per_second: u64, most_bytes_per_second: u64, burst: Burst) -> Self {
        let interval = |rate: u64| {
            let ps = u128::from(burst.bytes) * 1_000_000_000_000 / u128::from(rate.max(1));
            u64::try_from(ps).unwrap_or(u64::MAX)
        };
        let (interval, busy) = (interval(bytes_per_second), interval(most_bytes_per_second));
        let pause = interval.saturating_sub(busy);
        Self { interval: Some(interval), turn: burst.turn_ps.max(1), pause, owed: 0 }
    }

    /// Turns of the wait loop after each burst of the next portion; fractions of a turn are carried over to later
    /// portions.
    pub(crate) fn spins(&mut self) -> u64 {
        let wanted = self.pause.saturating_add(self.owed);
        self.owed = wanted % self.turn;
        wanted / self.turn
    }

    /// Reports that the `bursts` of a portion took `elapsed_ns`.
    pub(crate) fn took(&mut self, bursts: u64, elapsed_ns: u64) {
        let (Some(interval), Some(took)) = (self.interval, (elapsed_ns * 1000).checked_div(bursts))
        else {
            return;
        };
        // Memory can't be this slow at a rate it has sustained before: the portion was interrupted, and its time means
        // little.
        let took = took.min(interval.saturating_mul(4));
        // Corrects a quarter of the difference: single portions vary, the rate should not.
        let missing = interval.abs_diff(took) / 4;
        self.pause = if took < interval {
            self.pause.saturating_add(missing)
        } else {
            self.pause.saturating_sub(missing)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The mean interval in the steady state, on a memory with these times per burst and turn, which may differ from
    /// the pacer's initial estimates.
    fn settle(pacer: &mut Pacer, burst_ps: u64, turn_ps: u64) -> u64 {
        let mut portion = || {
            let interval_ps = burst_ps + pacer.spins() * turn_ps;
            pacer.took(1000, interval_ps);
            interval_ps
        };
        for _ in 0..200 {
            portion();
        }
        (0..200).map(|_| portion()).sum::<u64>() / 200
    }

    proptest! {
        #[test]
        fn the_pacer_converges_to_its_rate_despite_a_wrong_spin_cost(
            rate in 100_000_000u64..5_000_000_000, burst_ps in 1000u64..100_000, believed in 300u64..2000,
        ) {
            let wanted_ps = 512 * 1_000_000_000_000 / rate;
            prop_assume!(burst_ps < wanted_ps);
            let burst = Burst { bytes: 512, turn_ps: believed };
            let mut pacer = Pacer::at_rate(rate, 50_000_000_000, burst);
            let settled = settle(&mut pacer, burst_ps, 700);
            prop_assert!(settled.abs_diff(wanted_ps) <= wanted_ps / 50, "{settled} for {wanted_ps}");
        }
    }

    #[test]
    fn the_pacer_does_not_spin_if_memory_is_slower_than_the_rate() {
        let burst = Burst { bytes: 512, turn_ps: 500 };
        let mut pacer = Pacer::at_rate(1_000_000_000, 2_000_000_000, burst);
        settle(&mut pacer, 600_000, 500);
        assert_eq!(pacer.spins(), 0);
    }

    #[test]
    fn a_pacer_at_full_rate_never_spins() {
        let mut pacer = Pacer::FLAT_OUT;
        pacer.took(1, 1);
        pacer.took(0, 5);
        assert_eq!(pacer.spins(), 0);
    }
}
