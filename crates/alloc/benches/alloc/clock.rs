//! The only module of this benchmark that reads a clock or sleeps.
#![expect(clippy::disallowed_methods, reason = "this is that place")]

use std::time::{Duration, Instant};

/// Sleeps for `duration` and returns the time actually slept.
pub(crate) fn sleep(duration: Duration) -> Duration {
    let start = Instant::now();
    std::thread::sleep(duration);
    start.elapsed()
}
