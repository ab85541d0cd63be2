//! The one place of this example that reads time, and rests.

use std::time::{Duration, Instant};

/// Now.
#[expect(clippy::disallowed_methods, reason = "clock.rs is where time is read")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Lets others go on for a moment.
#[expect(clippy::disallowed_methods, reason = "clock.rs is where one sleeps")]
pub(crate) fn rest() {
    std::thread::sleep(Duration::from_micros(200));
}
