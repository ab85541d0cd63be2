//! The one place of the load generator that reads a clock or sleeps.
#![expect(clippy::disallowed_methods, reason = "this is the clock")]

use std::time::{Duration, Instant};

/// Time since it was made.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// What has passed since.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Waits.
pub fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}
