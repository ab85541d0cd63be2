//! Due times of a worker's requests: as soon as the previous one was answered (closed loop), or at a rate (open loop).

use std::iter::Peekable;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::random::Random;
use crate::requests::{Arrivals, Spacing};

use nearfar_kernel::clock::{self, Stopwatch};

/// In a closed loop one request in this many is timed.
pub(crate) const TIMED: u64 = 16;
/// Shorter waits are busy-waits, because a sleep may end this much late.
const SPIN_NS: u64 = 100_000;
/// Longer sleeps are divided, so that a run can be stopped in between.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// The most arrivals that are counted as overdue.
const COUNTED: usize = 100_000_000;

/// Nanoseconds since the start of a run.
pub(crate) fn ns(clock: Stopwatch) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A worker's share of a rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Distribution of the time between arrivals.
    pub(crate) spacing: Spacing,
    /// Requests per second.
    pub(crate) per_second: f64,
    /// Requests per arrival.
    pub(crate) together: u32,
    /// Delay of all arrivals in nanoseconds: workers with evenly spaced arrivals take turns.
    pub(crate) later: u64,
}

/// Due time of the next request.
#[derive(Debug)]
pub(crate) enum Pace {
    /// Immediately.
    Closed,
    /// At a rate, independent of earlier answers.
    Open {
        /// The arrival times.
        arrivals: Peekable<Arrivals>,
        /// The delay.
        later: u64,
        /// Requests per arrival.
        together: u32,
        /// Requests of the next arrival that have started.
        begun: u32,
    },
}

impl Pace {
    /// An open loop at this rate.
    pub(crate) fn open(rate: Rate, random: Random) -> Self {
        let Rate { spacing, per_second, together, later } = rate;
        let arrivals = Arrivals::new(spacing, per_second / f64::from(together), random).peekable();
        Self::Open { arrivals, later, together, begun: 0 }
    }

    /// Due time of the next request; `None` in a closed loop.
    pub(crate) fn due(&mut self) -> Option<u64> {
        match self {
            Self::Closed => None,
            Self::Open { arrivals, later, .. } => {
                arrivals.peek().map(|due| due.saturating_add(*later))
            }
        }
    }

    /// Records that the next request has started.
    pub(crate) fn begun(&mut self) {
        if let Self::Open { arrivals, together, begun, .. } = self {
            *begun += 1;
            if begun == together {
                *begun = 0;
                arrivals.next();
            }
        }
    }

    /// Number of requests that were due in this time and have not started; removes them, and those due before.
    pub(crate) fn overdue(&mut self, time: Range<u64>) -> u64 {
        match self {
            Self::Closed => 0,
            Self::Open { arrivals, later, together, begun } => {
                let first = arrivals.peek().map(|due| due.saturating_add(*later));
                let begun = if first.is_some_and(|due| due >= time.start) { *begun } else { 0 };
                let due = arrivals.take(COUNTED).map(|due| due.saturating_add(*later));
                let due = due.take_while(|due| *due < time.end);
                let left = due.filter(|due| *due >= time.start).count() as u64;
                (left * u64::from(*together)).saturating_sub(u64::from(begun))
            }
        }
    }
}

/// Waits until a time, or until `stop`; returns the current time.
pub(crate) fn wait(clock: Stopwatch, until: u64, stop: &AtomicBool) -> u64 {
    let mut now = ns(clock);
    while now < until && !stop.load(Ordering::Relaxed) {
        if until - now > SPIN_NS {
            let nap = Duration::from_nanos(until - now - SPIN_NS / 2);
            clock::sleep(nap.min(SLEEP_MAX));
        }
        std::hint::spin_loop();
        now = ns(clock);
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(together: u32, later: u64) -> Pace {
        let rate = Rate { spacing: Spacing::Constant, per_second: 1000.0, together, later };
        Pace::open(rate, Random::new(1))
    }

    #[test]
    fn an_open_loop_advances_even_if_requests_are_late() {
        let mut pace = rate(1, 0);
        assert_eq!((pace.due(), pace.due()), (Some(1_000_000), Some(1_000_000)));
        pace.begun();
        assert_eq!(pace.due(), Some(2_000_000));
        assert_eq!(rate(1, 0).overdue(6_000_000..10_000_000), 4, "without those of a warm-up");
        assert_eq!(pace.overdue(0..10_000_000), 8);
    }

    #[test]
    fn requests_that_are_due_together_keep_the_rate() {
        let mut pace = rate(4, 500);
        let mut due = || {
            let due = pace.due();
            pace.begun();
            due.unwrap()
        };
        let dues: Vec<u64> = (0..9).map(|_| due()).collect();
        assert_eq!(
            dues,
            [[4_000_500; 4], [8_000_500; 4]]
                .concat()
                .into_iter()
                .chain([12_000_500])
                .collect::<Vec<_>>()
        );
        // Three of the third arrival, and all of the fourth.
        assert_eq!(pace.overdue(0..20_000_000), 7);
    }

    #[test]
    fn a_closed_loop_is_always_due_and_never_late() {
        let mut pace = Pace::Closed;
        pace.begun();
        assert_eq!((pace.due(), pace.overdue(0..u64::MAX)), (None, 0));
    }

    #[test]
    fn a_wait_lasts_as_long_as_requested_unless_the_run_stops() {
        let clock = Stopwatch::start();
        let until = ns(clock) + 50_000;
        let stop = AtomicBool::new(false);
        assert!(wait(clock, until, &stop) >= until);
        stop.store(true, Ordering::Relaxed);
        assert!(wait(clock, u64::MAX, &stop) > 0);
    }
}
