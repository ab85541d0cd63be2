//! The virtual clock: one time for the guest, made of the times its vCPUs have reached.
//!
//! Each vCPU has a time of its own, in picoseconds, that only it moves: instructions and stalls. What a clock shows is
//!
//! - to a running vCPU its own time,
//! - to everyone else (the emulator's main loop, devices, idle vCPUs) the time of the vCPU furthest ahead, as far as that
//!   has been announced; while all vCPUs are idle that time goes on as real time does,
//!
//! and in both cases never less than anyone has been shown before. So time never runs backwards for anybody, across
//! threads either, and a timer never appears to fire early. A vCPU's own time is not moved by looking at it.
//!
//! Time is announced when a timer is due ([`Timeline::announce`]), else in coarse steps: the main loop would otherwise
//! wake again and again for a time that comes nearer much more slowly than real time passes.
//!
//! The states `running` and `idle` are set, not counted: telling the timeline twice, or telling it late, changes
//! nothing. Real time comes in as an argument; this module reads no clock and does not wait. What the caller must do:
//! call [`Timeline::advance`] from each running vCPU at least every few microseconds of its time, wait a little where
//! [`Timeline::ahead_of_slowest`] is large, and wake whoever waits for timers when [`Timeline::rest`] says that the
//! last vCPU went idle.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A vCPU further behind the others than this has been kept from running, and is moved up: 10 ms.
const LEFT_BEHIND_PS: u64 = 10_000_000_000;

/// Running vCPUs announce at least every so much of their time: 250 us.
const ANNOUNCED_EVERY_PS: u64 = 250_000_000;

/// One vCPU's part, in a cache line (and its neighbour) of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part {
    time_ps: AtomicU64,
    running: AtomicBool,
}

/// What changes only when a vCPU goes idle or wakes.
#[derive(Debug, Default)]
struct Shared {
    /// A time that has been reached: no vCPU that wakes, and no outsider, is before it.
    reached_ps: u64,
    /// The real time, in nanoseconds, at which the last running vCPU went idle.
    idle_since_ns: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Timeline {
    parts: Box<[Part]>,
    shared: Mutex<Shared>,
    /// The furthest time that running vCPUs have announced.
    announced_ps: AtomicU64,
    shown_ns: AtomicU64,
}

impl Timeline {
    /// A timeline on which `vcpus` vCPUs are idle, and which shows `start_ns` at the real time `real_ns`.
    #[must_use]
    pub fn new(vcpus: usize, start_ns: u64, real_ns: u64) -> Self {
        Self {
            parts: (0..vcpus).map(|_| Part::default()).collect(),
            shared: Mutex::new(Shared { reached_ps: start_ns * 1000, idle_since_ns: real_ns }),
            announced_ps: AtomicU64::new(0),
            shown_ns: AtomicU64::new(0),
        }
    }

    /// Whether `vcpu` counts as running.
    #[must_use]
    pub fn is_running(&self, vcpu: usize) -> bool {
        self.parts[vcpu].running.load(Ordering::Relaxed)
    }

    /// `vcpu`, until now idle with its own time at `own_ps`, runs: the time it goes on from.
    pub fn wake(&self, vcpu: usize, own_ps: u64, real_ns: u64) -> u64 {
        let mut shared = self.lock();
        let part = &self.parts[vcpu];
        if part.running.load(Ordering::Relaxed) {
            return own_ps;
        }
        let now = self.outside_ps(&shared, real_ns);
        shared.reached_ps = now;
        let own_ps = own_ps.max(now);
        part.time_ps.store(own_ps, Ordering::Relaxed);
        part.running.store(true, Ordering::Release);
        own_ps
    }

    /// `vcpu` goes idle at `own_ps`; whether it was the last, so that from now on time goes as real time does.
    pub fn rest(&self, vcpu: usize, own_ps: u64, real_ns: u64) -> bool {
        let mut shared = self.lock();
        let part = &self.parts[vcpu];
        if !part.running.swap(false, Ordering::Relaxed) {
            return false;
        }
        part.time_ps.store(own_ps, Ordering::Relaxed);
        shared.reached_ps = shared.reached_ps.max(own_ps);
        let last = self.running().next().is_none();
        if last {
            shared.idle_since_ns = real_ns;
        }
        last
    }

    /// A running `vcpu` has reached `own_ps`: the time it goes on from, which is later only if it was left far behind.
    #[inline]
    pub fn advance(&self, vcpu: usize, own_ps: u64) -> u64 {
        let furthest = self.running().max().unwrap_or(0);
        let own_ps = if own_ps + LEFT_BEHIND_PS < furthest {
            furthest - LEFT_BEHIND_PS / 100
        } else {
            own_ps
        };
        self.parts[vcpu].time_ps.store(own_ps, Ordering::Relaxed);
        if own_ps > self.announced_ps.load(Ordering::Relaxed) + ANNOUNCED_EVERY_PS {
            self.announce(own_ps);
        }
        own_ps
    }

    /// Has everyone else see that a running vCPU has reached `own_ps`.
    pub fn announce(&self, own_ps: u64) {
        self.announced_ps.fetch_max(own_ps, Ordering::Relaxed);
    }

    /// How far `vcpu` at `own_ps` is ahead of the slowest other running vCPU, and where that one is.
    #[must_use]
    pub fn ahead_of_slowest(&self, vcpu: usize, own_ps: u64) -> Option<Lead> {
        let others = self.parts.iter().enumerate().filter(|(other, _)| *other != vcpu);
        let running = others.filter(|(_, part)| part.running.load(Ordering::Relaxed));
        let slowest_ps = running.map(|(_, part)| part.time_ps.load(Ordering::Relaxed)).min()?;
        Some(Lead { lead_ps: own_ps.saturating_sub(slowest_ps), slowest_ps })
    }

    /// What a running vCPU at `own_ps` is shown, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn show_vcpu(&self, own_ps: u64) -> u64 {
        self.show(own_ps)
    }

    /// What a running vCPU at `own_ps` would be shown, without its having been shown.
    #[must_use]
    pub fn peek(&self, own_ps: u64) -> u64 {
        self.shown_ns.load(Ordering::Relaxed).max(own_ps / 1000)
    }

    /// What everyone else is shown, in nanoseconds.
    #[must_use]
    pub fn show_outsider(&self, real_ns: u64) -> u64 {
        let shared = self.lock();
        let now = if self.running().next().is_some() {
            self.announced_ps.load(Ordering::Relaxed).max(shared.reached_ps)
        } else {
            self.outside_ps(&shared, real_ns)
        };
        drop(shared);
        self.show(now)
    }

    #[inline]
    fn show(&self, ps: u64) -> u64 {
        let ns = ps / 1000;
        self.shown_ns.fetch_max(ns, Ordering::Relaxed).max(ns)
    }

    fn running(&self) -> impl Iterator<Item = u64> {
        let running = self.parts.iter().filter(|part| part.running.load(Ordering::Relaxed));
        running.map(|part| part.time_ps.load(Ordering::Relaxed))
    }

    /// Where the machine as a whole is: a vCPU that wakes goes on from here.
    fn outside_ps(&self, shared: &Shared, real_ns: u64) -> u64 {
        match self.running().max() {
            Some(furthest) => furthest.max(shared.reached_ps),
            None => shared.reached_ps + real_ns.saturating_sub(shared.idle_since_ns) * 1000,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Nothing in here can panic half-way through a change.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A vCPU's lead over the slowest other running one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// How far it is ahead, picoseconds.
    pub lead_ps: u64,
    /// The time of the slowest.
    pub slowest_ps: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: u64 = 1_000_000;

    #[test]
    fn time_goes_as_real_time_while_all_are_idle() {
        let line = Timeline::new(2, 0, 5000);
        assert_eq!(line.show_outsider(5000), 0);
        assert_eq!(line.show_outsider(7500), 2500);
    }

    #[test]
    fn time_stands_with_the_vcpus_however_long_they_take() {
        let line = Timeline::new(2, 0, 0);
        assert_eq!(line.wake(0, 0, 1000), US);
        assert_eq!(line.show_outsider(1_000_000), 1000);
        line.advance(0, 3 * US);
        assert_eq!(line.show_outsider(1_000_001), 1000);
        line.announce(3 * US);
        assert_eq!(line.show_outsider(1_000_001), 3000);
        assert!(line.rest(0, 4 * US, 2_000_000));
        assert_eq!(line.show_outsider(2_000_500), 4500);
    }

    #[test]
    fn outsiders_are_never_far_behind_the_vcpu_furthest_ahead() {
        let line = Timeline::new(2, 0, 0);
        line.wake(0, 0, 0);
        for own in 1..100 {
            line.advance(0, own * 10 * US);
            let behind = own * 10_000 - line.show_outsider(0);
            assert!(behind <= ANNOUNCED_EVERY_PS / 1000, "{behind}");
        }
        assert_eq!(line.peek(990 * US), 990_000);
        assert!(line.show_outsider(0) < 990_000);
    }

    #[test]
    fn a_vcpu_that_wakes_joins_the_one_furthest_ahead() {
        let line = Timeline::new(3, 0, 0);
        line.wake(0, 0, 0);
        line.wake(1, 0, 0);
        line.advance(0, 50 * US);
        line.advance(1, 20 * US);
        assert_eq!(line.wake(2, 7 * US, 0), 50 * US);
    }

    #[test]
    fn only_the_last_to_rest_is_told_so() {
        let line = Timeline::new(2, 0, 0);
        line.wake(0, 0, 0);
        line.wake(1, 0, 0);
        assert!(!line.rest(1, 0, 10));
        assert!(!line.rest(1, 0, 10));
        assert!(line.rest(0, 0, 10));
        assert!(!line.rest(0, 0, 10));
    }

    #[test]
    fn being_told_twice_that_a_vcpu_runs_leaves_no_trace() {
        let line = Timeline::new(2, 0, 0);
        line.wake(1, 0, 0);
        assert_eq!(line.wake(1, 9 * US, 500), 9 * US);
        assert!(line.rest(1, 9 * US, 1000));
        assert_eq!(line.show_outsider(3000), 11_000);
    }

    #[test]
    fn a_slow_vcpu_is_not_moved_by_what_it_is_shown() {
        let line = Timeline::new(2, 0, 0);
        line.wake(0, 0, 0);
        line.wake(1, 0, 0);
        line.advance(0, 30 * US);
        assert_eq!(line.show_vcpu(30 * US), 30_000);
        assert_eq!(line.show_vcpu(10 * US), 30_000);
        assert_eq!(line.advance(1, 11 * US), 11 * US);
        assert_eq!(
            line.ahead_of_slowest(0, 30 * US),
            Some(Lead { lead_ps: 19 * US, slowest_ps: 11 * US })
        );
        assert_eq!(
            line.ahead_of_slowest(1, 11 * US),
            Some(Lead { lead_ps: 0, slowest_ps: 30 * US })
        );
    }

    #[test]
    fn a_vcpu_kept_from_running_is_moved_up() {
        let line = Timeline::new(2, 0, 0);
        line.wake(0, 0, 0);
        line.wake(1, 0, 0);
        line.advance(0, 2 * LEFT_BEHIND_PS);
        let moved = line.advance(1, 5 * US);
        assert!(moved > LEFT_BEHIND_PS && moved < 2 * LEFT_BEHIND_PS);
    }

    proptest! {
        /// Any order of events, on any number of vCPUs: no reader sees time go backwards, and time moves on while all
        /// are idle.
        #[test]
        fn time_never_runs_backwards(events in proptest::collection::vec((0usize..4, 0u8..6, 1u64..90_000), 1..300)) {
            let line = Timeline::new(4, 0, 0);
            let (mut own, mut real, mut last) = ([0u64; 4], 0, 0);
            for (vcpu, what, amount) in events {
                real += amount;
                let shown = match what {
                    0 => { own[vcpu] = line.wake(vcpu, own[vcpu], real); None }
                    1 => { line.rest(vcpu, own[vcpu], real); None }
                    2 if line.is_running(vcpu) => { own[vcpu] = line.advance(vcpu, own[vcpu] + amount * 1000); None }
                    4 if line.is_running(vcpu) => { line.announce(own[vcpu]); None }
                    3 if line.is_running(vcpu) => Some(line.show_vcpu(own[vcpu])),
                    _ => Some(line.show_outsider(real)),
                };
                if let Some(shown) = shown {
                    prop_assert!(shown >= last, "{} after {}", shown, last);
                    last = shown;
                }
                if (0..4).all(|vcpu| !line.is_running(vcpu)) {
                    let before = line.show_outsider(real);
                    real += 1000;
                    last = line.show_outsider(real);
                    prop_assert_eq!(last, before + 1000);
                }
            }
        }
    }
}
