//! The one place of the binary that reads a clock or sleeps.
#![expect(clippy::disallowed_methods, reason = "this is the clock")]

use std::time::{Duration, Instant, SystemTime};

/// Time since it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// What has passed since.
    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Waits.
pub(crate) fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// Nanoseconds since 1970; 0 if the clock says it is before.
pub(crate) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What has passed since the machine was switched on, but for the time it was asleep.
pub(crate) fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.try_into().unwrap_or_default()
}
