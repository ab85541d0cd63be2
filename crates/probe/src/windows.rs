//! Windows of time in which a team is counted, and the notes of each thread at their boundaries.
//!
//! All threads share one grid of boundaries. A thread notes its own time and count at its first reading of the clock
//! after a boundary; its rate in a window is the difference of counts over the difference of times, so a late reading
//! affects both alike. But a thread that was off its CPU reads too late to represent the same time as the others: a
//! boundary missed by more than an eighth of a window is not noted, and a window is valid only if every thread noted
//! both its ends.

/// The schedule: once every thread has done `warm_up_units`, `warm_up_ns` pass, then come `count` windows of
/// `window_ns`, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    pub(crate) warm_up_units: u64,
    pub(crate) warm_up_ns: u64,
    pub(crate) window_ns: u64,
    pub(crate) count: u32,
}

/// A thread's time and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) at_ns: u64,
    pub(crate) units: u64,
}

/// A thread's notes.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    windows: Windows,
    start_ns: u64,
    /// At each boundary, unless it was missed; one entry per boundary so far.
    noted: Vec<Option<Mark>>,
    first: Mark,
    last: Mark,
}

impl Marks {
    /// No boundary noted yet; the warm-up begins at `start_ns`, the thread began at `begun`.
    pub(crate) fn new(windows: Windows, start_ns: u64, begun: Mark) -> Self {
        Self { windows, start_ns, noted: Vec::new(), first: begun, last: begun }
    }

    /// Records `now`; returns true once the last boundary has been passed.
    pub(crate) fn pass(&mut self, now: Mark) -> bool {
        let Windows { warm_up_ns, window_ns, count, .. } = self.windows;
        let boundaries = u64::from(count) + 1;
        let Some(since) = now.at_ns.checked_sub(self.start_ns + warm_up_ns) else { return false };
        let passed = (since / window_ns + 1).min(boundaries);
        if passed > self.noted.len() as u64 {
            let late_ns = since - (passed - 1) * window_ns;
            while (self.noted.len() as u64) + 1 < passed {
                self.noted.push(None);
            }
            self.noted.push((late_ns <= window_ns / 8).then_some(now));
            self.last = now;
        }
        passed == boundaries
    }
}

/// Units per second of each thread, for each valid window.
pub(crate) fn rates(team: &[Marks]) -> Vec<Vec<f64>> {
    let boundaries = team.iter().map(|marks| marks.noted.len()).min().unwrap_or(0);
    (1..boundaries)
        .filter_map(|end| {
            let of = |marks: &Marks| rate(marks.noted[end - 1]?, marks.noted[end]?);
            team.iter().map(of).collect()
        })
        .collect()
}

/// Units per second of each thread from its start to the last boundary, ignoring windows; `None` if that time is zero
/// for one.
pub(crate) fn rough_rates(team: &[Marks]) -> Option<Vec<f64>> {
    team.iter().map(|marks| rate(marks.first, marks.last)).collect()
}

fn rate(from: Mark, to: Mark) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    let (units, ns) = ((to.units - from.units) as f64, (to.at_ns - from.at_ns) as f64);
    (units > 0.0 && ns > 0.0).then_some(units / ns * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three windows of 100 ns after a warm-up of 50, begun at 1000.
    fn noted(at: &[(u64, u64)]) -> (Marks, bool) {
        let windows = Windows { warm_up_units: 0, warm_up_ns: 50, window_ns: 100, count: 3 };
        let mut marks = Marks::new(windows, 1000, Mark { at_ns: 1000, units: 0 });
        let mut done = false;
        for (at_ns, units) in at {
            done = marks.pass(Mark { at_ns: *at_ns, units: *units });
        }
        (marks, done)
    }

    #[test]
    fn rates_are_per_thread_over_its_own_time_between_boundaries() {
        let (one, done) =
            noted(&[(1049, 1), (1050, 10), (1100, 12), (1150, 20), (1251, 40), (1350, 50)]);
        let (other, _) = noted(&[(1060, 0), (1160, 5), (1260, 10), (1360, 20)]);
        assert!(done);
        let rates = rates(&[one, other]);
        assert_eq!(rates.len(), 3);
        assert_eq!(rates[0], [0.1e9, 0.05e9]);
        assert_eq!(rates[2][1], 0.1e9);
    }

    #[test]
    fn a_window_is_discarded_if_any_thread_missed_its_boundary() {
        let (one, _) = noted(&[(1050, 10), (1150, 20), (1250, 40), (1350, 50)]);
        let (late, done) = noted(&[(1050, 10), (1170, 20), (1250, 40), (1350, 50)]);
        assert!(done);
        assert_eq!(rates(&[one.clone(), late]), [[0.1e9, 0.1e9]]);
        let (slept, done) = noted(&[(1049, 3), (1999, 13)]);
        assert!(done);
        assert_eq!(rates(&[one, slept.clone()]), Vec::<Vec<f64>>::new());
        assert_eq!(rough_rates(&[slept]), Some(vec![13.0 / 999.0 * 1e9]));
    }

    #[test]
    fn a_thread_that_did_nothing_has_no_rate() {
        let (idle, _) = noted(&[(1050, 0), (1150, 0)]);
        assert!(rates(std::slice::from_ref(&idle)).is_empty());
        assert_eq!(rough_rates(&[idle]), None);
        assert!(rates(&[]).is_empty());
    }
}
