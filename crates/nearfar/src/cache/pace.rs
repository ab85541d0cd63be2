//! When a worker's requests are due: as soon as the one before was answered (a closed loop), or at a rate (an open one).

use std::iter::Peekable;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearfar_cache::workload::{Arrivals, Random, Spacing};

use crate::clock::{self, Stopwatch};

/// Shorter waits are spent looking at the clock, for a sleep may come back so much late.
const SPIN_NS: u64 = 100_000;
/// Longer sleeps are cut here, so that a run that is to stop does.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Arrivals that could not begin are counted up to this many.
const COUNTED: usize = 100_000_000;

/// Nanoseconds since a run's start.
pub(crate) fn ns(clock: Stopwatch) -> u64 {
    u64::try_from(clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A worker's share of a rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// What lies between two arrivals.
    pub(crate) spacing: Spacing,
    /// Requests a second.
    pub(crate) per_second: f64,
    /// Requests that are due together.
    pub(crate) together: u32,
    /// Nanoseconds by which all are later: workers whose arrivals are evenly spaced take turns.
    pub(crate) later: u64,
}

/// When the next request is due.
#[derive(Debug)]
pub(crate) enum Pace {
    /// At once.
    Closed,
    /// At a rate, whatever became of the ones before.
    Open {
        /// When.
        arrivals: Peekable<Arrivals>,
        /// By so much later.
        later: u64,
        /// So many at each.
        together: u32,
        /// Of those of the next arrival, have begun.
        begun: u32,
    },
}

impl Pace {
    /// At this rate.
    pub(crate) fn open(rate: Rate, random: Random) -> Self {
        let Rate { spacing, per_second, together, later } = rate;
        let arrivals = Arrivals::new(spacing, per_second / f64::from(together), random).peekable();
        Self::Open { arrivals, later, together, begun: 0 }
    }

    /// When the next is due; `None` in a closed loop.
    pub(crate) fn due(&mut self) -> Option<u64> {
        match self {
            Self::Closed => None,
            Self::Open { arrivals, later, .. } => {
                arrivals.peek().map(|due| due.saturating_add(*later))
            }
        }
    }

    /// The next has begun.
    pub(crate) fn begun(&mut self) {
        if let Self::Open { arrivals, together, begun, .. } = self {
            *begun += 1;
            if begun == together {
                *begun = 0;
                arrivals.next();
            }
        }
    }

    /// How many were due before `end` and have not begun. Those that have not are taken away.
    pub(crate) fn overdue(&mut self, end: u64) -> u64 {
        match self {
            Self::Closed => 0,
            Self::Open { arrivals, later, together, begun } => {
                let due = |due: &u64| due.saturating_add(*later) < end;
                let left = arrivals.take(COUNTED).take_while(due).count() as u64;
                (left * u64::from(*together)).saturating_sub(u64::from(*begun))
            }
        }
    }
}

/// Waits for a moment, or until `stop`; gives the time it is.
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
    fn an_open_loop_goes_on_whether_or_not_requests_begin() {
        let mut pace = rate(1, 0);
        assert_eq!((pace.due(), pace.due()), (Some(1_000_000), Some(1_000_000)));
        pace.begun();
        assert_eq!(pace.due(), Some(2_000_000));
        assert_eq!(pace.overdue(10_000_000), 8);
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
        assert_eq!(pace.overdue(20_000_000), 7);
    }

    #[test]
    fn a_closed_loop_is_due_always_and_never_late() {
        let mut pace = Pace::Closed;
        pace.begun();
        assert_eq!((pace.due(), pace.overdue(u64::MAX)), (None, 0));
    }

    #[test]
    fn a_wait_ends_no_earlier_than_asked_for_unless_all_is_to_stop() {
        let clock = Stopwatch::start();
        let until = ns(clock) + 50_000;
        let stop = AtomicBool::new(false);
        assert!(wait(clock, until, &stop) >= until);
        stop.store(true, Ordering::Relaxed);
        assert!(wait(clock, u64::MAX, &stop) > 0);
    }
}
