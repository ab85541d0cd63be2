//! The one place of the server that reads clocks.
#![expect(clippy::disallowed_methods, reason = "this is the clock")]

use std::time::{Duration, Instant, SystemTime};

/// Time since it was made, with its seconds where those of the wall clock were then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
    /// The wall clock's second that it was made in, and the part of it that was over.
    unix: Duration,
}

impl Clock {
    pub(super) fn start() -> Self {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), unix }
    }

    /// The Unix second in which it was made.
    pub(super) fn unix_start(&self) -> i64 {
        i64::try_from(self.unix.as_secs()).unwrap_or(i64::MAX)
    }

    fn since(&self) -> Duration {
        Duration::from_nanos(self.unix.subsec_nanos().into()) + self.start.elapsed()
    }

    /// Seconds that have begun since then.
    pub(super) fn seconds(&self) -> u32 {
        u32::try_from(self.since().as_secs()).unwrap_or(u32::MAX)
    }

    /// How long it is to the next second.
    pub(super) fn until_next_second(&self) -> Duration {
        Duration::from_secs(1) - Duration::from_nanos(self.since().subsec_nanos().into())
    }

    /// Microseconds since it was made.
    pub(super) fn micros(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A moment after which no one waits any longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) fn after(wait: Duration) -> Self {
        Self(Instant::now().checked_add(wait))
    }

    /// How long it is until then.
    pub(super) fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    pub(super) fn passed(self) -> bool {
        self.left().is_zero()
    }
}
