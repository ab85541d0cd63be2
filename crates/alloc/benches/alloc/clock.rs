//! The one place where this benchmark reads a clock or sleeps.
#![expect(clippy::disallowed_methods, reason = "this is that place")]

use std::time::{Duration, Instant};

/// Sleeps; what that took.
pub(crate) fn sleep(duration: Duration) -> Duration {
    let start = Instant::now();
    std::thread::sleep(duration);
    start.elapsed()
}
