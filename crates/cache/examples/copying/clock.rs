//! The clock of the example.
#![expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]

use std::time::Instant;

/// The present time.
pub(crate) fn now() -> Instant {
    Instant::now()
}
