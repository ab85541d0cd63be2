//! The one place of the binary that reads a clock or sleeps.
#![expect(clippy::disallowed_methods, reason = "this is the clock")]

use std::time::{Duration, Instant};

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
