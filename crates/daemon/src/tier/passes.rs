//! Timing of the passes of a node's schemes.
//!
//! A DAMON scheme is applied again and again at an interval counted from the commit. One command so sets two intervals: pages
//! are cleared at one and counted or migrated at the other, a sampling window later, and the next command comes before either
//! is due again. [`PassTiming`] picks the intervals and learns how long a pass takes.

use nearfar_policy::tiering::clock_hand::PAGE;
use nearfar_policy::tiering::scale;
use nearfar_topology::Nanoseconds;

use super::intervals::{INTERVALS, ONCE};

/// Intervals at which the schemes of a node are applied after a command, and again after as long if the next command is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    /// Of the scheme that clears accessed bits; `None` where nothing is cleared.
    pub(super) forget_us: Option<u64>,
    /// Of the schemes that count or migrate.
    pub(super) act_us: u64,
}

impl Pass {
    /// Delays the pass to `then_us` if that is later: with its window if one command can hold both intervals; otherwise, and
    /// by age, with a window of all the time until then.
    pub(super) fn put_off(self, then_us: u64, window: Nanoseconds, by_age: bool) -> Self {
        let window_us = self.forget_us.map_or(window.0 / 1000, |forget_us| self.act_us - forget_us);
        if then_us <= self.act_us {
            return self;
        }
        let forget_us = then_us.saturating_sub(window_us);
        let told = !by_age && forget_us >= window_us + APART_US;
        Self { forget_us: told.then_some(forget_us), act_us: then_us }
    }
}

/// Least time from the end of a window until its pages are cleared again, and between two passes of which one needs the
/// other's result.
const APART_US: u64 = 100_000;
/// Estimated time to migrate one 4 KiB page.
const MOVE_NS: u64 = 5_000;

/// How long the passes of a node's kdamond take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassTiming {
    /// Bytes scanned by all schemes at the last count.
    tried: u64,
    /// CPU time of one pass over all addresses.
    pass_ns: u64,
}

impl PassTiming {
    /// Scales the time of a pass to a node whose addresses have changed from `before` bytes to `now`.
    pub(super) fn resize(&mut self, before: u64, now: u64) {
        if before > 0 {
            self.pass_ns = scale(self.pass_ns, now, before);
        }
    }

    /// Takes in the CPU time of scans since the last call, and the bytes scanned, growing. A pass that `moved` pages says
    /// nothing about the cost of a scan.
    pub(super) fn learn_cost(&mut self, spent_ns: u64, tried: u64, (span, moved): (u64, bool)) {
        let passes = tried.saturating_sub(std::mem::replace(&mut self.tried, tried));
        if passes >= span && spent_ns > 0 && !moved {
            let pass = scale(spent_ns, span, passes);
            self.pass_ns = if self.pass_ns == 0 { pass } else { u64::midpoint(self.pass_ns, pass) };
        }
    }

    /// Intervals for a sampling window, where this part of the node's addresses (bytes, of span) is cleared, not before
    /// `first`. Windows longer than [`ONCE`] begin with the pass before.
    pub(super) fn pass(
        &self,
        window: Nanoseconds,
        first: Nanoseconds,
        (bytes, span): (u64, u64),
    ) -> Pass {
        if window > ONCE {
            return self.pass_at(window);
        }
        let (window_us, pass_us) = (window.0 / 1000, self.pass_ns / 1000);
        // Not cleared again between the two, nor before the next command, which waits for a pass that is late.
        let forget_us = (first.0 / 1000).max(window_us / 3 * 4 + APART_US).max(self.apart_us());
        // A page is visited as much later as the pass before took.
        let took_us = scale(pass_us, bytes, span);
        let act_us = forget_us + window_us.saturating_sub(took_us).max(INTERVALS.sample_us);
        Pass { forget_us: Some(forget_us), act_us }
    }

    /// Estimated time of a pass over this part of the node's addresses (bytes, of span) that migrates `moved` bytes.
    pub(super) fn takes_us(&self, (tried, span): (u64, u64), moved: u64) -> u64 {
        let passes_us = scale(self.pass_ns / 1000, tried, span);
        passes_us.saturating_add(scale(moved / PAGE, MOVE_NS, 1000)).saturating_add(APART_US)
    }

    /// A pass at `time` that clears nothing first.
    pub(super) fn pass_at(&self, time: Nanoseconds) -> Pass {
        Pass { forget_us: None, act_us: (time.0 / 1000).max(self.apart_us()) }
    }

    /// Least interval: the thread is to take at most half of a CPU.
    fn apart_us(&self) -> u64 {
        INTERVALS.aggr_us.max(self.pass_ns / 1000 * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_cleared_a_window_before_they_are_counted_and_once_between_commands() {
        let mut timing = PassTiming::default();
        let ms = |ms: u64| Nanoseconds(ms * 1_000_000);
        let times = |pass: Pass| (pass.forget_us.map(|us| us / 1000), pass.act_us / 1000);
        assert_eq!(times(timing.pass(ms(50), ONCE, (1 << 30, 1 << 30))), (Some(400), 450));
        assert_eq!(times(timing.pass(ms(350), ONCE, (1 << 30, 1 << 30))), (Some(566), 916));
        assert_eq!(times(timing.pass(ms(2000), ONCE, (1 << 30, 1 << 30))), (None, 2000));
        timing.pass_ns = 30_000_000;
        assert_eq!(times(timing.pass(ms(50), ONCE, (1 << 30, 1 << 30))), (Some(400), 420));
        assert_eq!(
            times(timing.pass(ms(50), ONCE, (1 << 29, 1 << 30))),
            (Some(400), 435),
            "half of it"
        );
        timing.pass_ns = 1_000_000_000;
        assert_eq!(times(timing.pass(ms(50), ONCE, (1 << 30, 1 << 30))), (Some(2000), 2010));
        for window in (10..=400).step_by(10) {
            for (pass_ms, first) in [(1000, 200), (0, 0), (0, 400)] {
                timing.pass_ns = pass_ms * 1_000_000;
                let pass = timing.pass(ms(window), ms(first), (1 << 30, 1 << 30));
                let next_us = pass.forget_us.unwrap() * 2;
                assert!(next_us > pass.act_us + pass.act_us / 8, "{window} ms: {pass:?}");
            }
        }
    }

    #[test]
    fn pass_time_is_learned_only_from_complete_passes_without_migration() {
        let mut timing = PassTiming::default();
        let mut learned = |spent_ms: u64, tried_gib: u64, moved: bool| {
            timing.learn_cost(spent_ms * 1_000_000, tried_gib << 30, (1 << 30, moved));
            timing.pass_ns / 1_000_000
        };
        assert_eq!(learned(10, 1, false), 10);
        assert_eq!(learned(40, 3, false), 15, "20 ms, half of which is believed");
        assert_eq!(learned(0, 4, false), 15, "all of it was between scans");
        assert_eq!(learned(50, 4, false), 15, "no pass");
        assert_eq!(learned(50, 5, true), 15, "pages were moved");
    }

    #[test]
    fn a_postponed_pass_keeps_its_window_if_one_command_can_express_it() {
        let ms = |ms: u64| ms * 1000;
        let pass = Pass { forget_us: Some(ms(200)), act_us: ms(250) };
        let window = Nanoseconds(50_000_000);
        let later = Pass { forget_us: Some(ms(450)), act_us: ms(500) };
        assert_eq!(pass.put_off(ms(500), window, false), later);
        assert_eq!(later.put_off(ms(400), window, false), later);
        let long = Pass { forget_us: None, act_us: ms(600) };
        let (window, with) =
            (Nanoseconds(600_000_000), |forget_us| Pass { forget_us, act_us: ms(2000) });
        assert_eq!(long.put_off(ms(2000), window, false), with(Some(ms(1400))));
        assert_eq!(long.put_off(ms(2000), window, true), with(None));
        assert_eq!(long.put_off(ms(2000), Nanoseconds(1_000_000_000), false), with(None));
    }
}
