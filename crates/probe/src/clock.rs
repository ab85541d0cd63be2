//! The only module of this crate that reads clocks.

use std::time::{Instant, SystemTime};

/// A monotonic clock that counts nanoseconds from its creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// Cost of one reading.
    pub(crate) reading_ns: u64,
}

impl Clock {
    /// Starts a clock and measures the cost of reading it.
    #[expect(clippy::disallowed_methods, reason = "clock.rs is where time is read")]
    pub(crate) fn start() -> Self {
        const READINGS: u64 = 256;
        let clock = Self { origin: Instant::now(), reading_ns: 0 };
        let before = clock.now_ns();
        for _ in 1..READINGS {
            std::hint::black_box(clock.now_ns());
        }
        Self { reading_ns: (clock.now_ns() - before) / READINGS, ..clock }
    }

    /// Nanoseconds since the start.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Seconds since 1970; zero on a machine whose clock is earlier.
#[expect(clippy::disallowed_methods, reason = "clock.rs is where time is read")]
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
