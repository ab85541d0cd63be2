//! The clock of this program, for its running time.
#![expect(clippy::disallowed_methods, reason = "where this program asks for the time")]

use std::time::Instant;

pub(crate) fn now() -> Instant {
    Instant::now()
}
