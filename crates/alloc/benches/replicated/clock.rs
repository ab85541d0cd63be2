//! The only module of this benchmark that reads a clock.
#![expect(clippy::disallowed_methods, reason = "this is that place")]

use std::time::Instant;

/// Run time of `act` in seconds.
pub(crate) fn seconds(act: impl FnOnce()) -> f64 {
    let start = Instant::now();
    act();
    start.elapsed().as_secs_f64()
}
