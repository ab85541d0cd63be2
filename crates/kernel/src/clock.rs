//! The clock and sleep, for this crate and those above it.
#![expect(clippy::disallowed_methods, reason = "this is the clock")]

use std::time::{Duration, Instant, SystemTime};

/// Measures elapsed time (`CLOCK_MONOTONIC`).
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Suspends the calling thread.
pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// Nanoseconds since 1970; 0 if the clock is set before.
#[must_use]
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of the calling thread.
#[must_use]
pub fn of_thread() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.try_into().unwrap_or_default()
}

/// Time since boot, without the time spent suspended.
#[must_use]
pub fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.try_into().unwrap_or_default()
}
