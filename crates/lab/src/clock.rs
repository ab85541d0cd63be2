//! The lab's clock: the only file here that reads the time and sleeps. All other code takes instants and durations as
//! arguments.

#![expect(clippy::disallowed_methods, reason = "this is the file where time comes from")]

use std::time::{Duration, Instant};

/// Now.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits.
pub(crate) fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// A deadline; without a limit it never passes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// `limit` from now; never if there is none, or if it is beyond the clock's range.
    pub(crate) fn after(limit: Option<Duration>) -> Self {
        Self(limit.and_then(|limit| now().checked_add(limit)))
    }

    /// Whether it has passed.
    pub(crate) fn passed(self) -> bool {
        self.0.is_some_and(|at| now() >= at)
    }

    /// The time left, at most `cap`.
    pub(crate) fn left(self, cap: Duration) -> Duration {
        self.0.map_or(cap, |at| at.saturating_duration_since(now()).min(cap))
    }
}
