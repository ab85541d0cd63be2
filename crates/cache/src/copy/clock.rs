//! The clock that rates are measured by; the one place of the copying that reads time. Tests bring their own.

use std::time::Instant;

/// Something that tells time.
pub trait Clock {
    /// Nanoseconds since whenever; never less than before.
    fn now_ns(&self) -> u64;
}

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic(Instant);

impl Monotonic {
    /// Counts from now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "clock.rs is where time is read")]
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
