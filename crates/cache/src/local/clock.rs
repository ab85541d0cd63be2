//! The one place of a cache in a program that reads clocks: the coarse one, as each operation does, which takes a few nanoseconds.
#![expect(clippy::disallowed_methods, reason = "this is the clock")]

use std::time::SystemTime;

use rustix::time::{ClockId, clock_gettime};

/// Seconds since it was made; it begins at 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    zero: i64,
    unix_zero: u32,
}

impl Clock {
    pub(super) fn start() -> Self {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let unix_zero = u32::try_from(unix.as_secs()).unwrap_or(u32::MAX).saturating_sub(1);
        Self { zero: coarse() - 1, unix_zero }
    }

    /// The Unix second in which it stood at 0.
    pub(super) const fn unix_zero(self) -> u32 {
        self.unix_zero
    }

    #[inline]
    pub(super) fn second(self) -> u32 {
        u32::try_from(coarse() - self.zero).unwrap_or(u32::MAX)
    }
}

fn coarse() -> i64 {
    clock_gettime(ClockId::MonotonicCoarse).tv_sec
}
