//! The one place where this benchmark reads a clock.
#![expect(clippy::disallowed_methods, reason = "this is that place")]

use std::time::Instant;

/// Seconds that something takes.
pub(crate) fn seconds(act: impl FnOnce()) -> f64 {
    let start = Instant::now();
    act();
    start.elapsed().as_secs_f64()
}
