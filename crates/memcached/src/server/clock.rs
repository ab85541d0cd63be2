//! Clocks of the server; no other file of it reads clocks.
#![expect(clippy::disallowed_methods, reason = "this is the clock")]

use std::time::{Duration, Instant, SystemTime};

/// Time since it was created; its seconds begin with those of the wall clock at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
    /// The wall clock's time at creation.
    unix: Duration,
}

impl Clock {
    pub(super) fn start() -> Self {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), unix }
    }

    /// The Unix second of its creation.
    pub(super) fn unix_start(&self) -> i64 {
        i64::try_from(self.unix.as_secs()).unwrap_or(i64::MAX)
    }

    fn since(&self) -> Duration {
        Duration::from_nanos(self.unix.subsec_nanos().into()) + self.start.elapsed()
    }

    /// Number of seconds begun since then.
    pub(super) fn seconds(&self) -> u32 {
        u32::try_from(self.since().as_secs()).unwrap_or(u32::MAX)
    }

    /// Time until the next second.
    pub(super) fn until_next_second(&self) -> Duration {
        Duration::from_secs(1) - Duration::from_nanos(self.since().subsec_nanos().into())
    }

    /// Nanoseconds since it was created.
    pub(super) fn nanos(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Microseconds since it was created.
    pub(super) fn micros(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A time after which waits end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) fn after(wait: Duration) -> Self {
        Self(Instant::now().checked_add(wait))
    }

    /// Time until then.
    pub(super) fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    pub(super) fn passed(self) -> bool {
        self.left().is_zero()
    }
}
