//! The virtual clock: one time for the guest, derived from the times of its vCPUs.
//!
//! Each vCPU has its own time, in picoseconds, that only it advances: by instructions and stalls. A clock shows
//!
//! - to a running vCPU its own time,
//! - to all others (the emulator's main loop, devices, idle vCPUs) the announced time of the vCPU furthest ahead; while
//!   all vCPUs are idle that time stands still, and jumps to the next timer once as much real time has passed as the
//!   timer has left: a host that is slow to run a woken vCPU or to serve a device costs the guest nothing,
//!
//! and in both cases never less than any reader has been shown before. So time never runs backwards for any reader,
//! across threads either, and a timer never appears to fire early. Reading a vCPU's own time does not advance it.
//!
//! Time is announced when a timer is due ([`Timeline::announce`]), else in coarse steps: the main loop would otherwise
//! wake repeatedly for a time that approaches much more slowly than real time passes.
//!
//! The states `running` and `idle` are set, not counted: calls that are repeated or late have no effect. Real time is
//! an argument; this module reads no clock and does not wait. Duties of the caller: to call [`Timeline::advance`] from
//! each running vCPU at least every few microseconds of its time, to wait a little where [`Timeline::ahead_of_slowest`]
//! is large, and to wake threads that wait for timers when [`Timeline::rest`] reports that the last vCPU went idle.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A vCPU further behind the others than this was not scheduled, and is moved forward: 10 ms.
const LEFT_BEHIND_PS: u64 = 10_000_000_000;

/// A vCPU that wakes joins the others no further back than this: 5 ms.
const LATE_MOST_PS: u64 = LEFT_BEHIND_PS / 2;

/// Running vCPUs announce at least at this interval of their time: 250 us.
const ANNOUNCED_EVERY_PS: u64 = 250_000_000;

/// The state of one vCPU, in a cache line (and its neighbour) of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part {
    time_ps: AtomicU64,
    running: AtomicBool,
    /// The time of the machine as this vCPU went idle, and the real time.
    rested_ps: AtomicU64,
    rested_ns: AtomicU64,
}

/// State that changes only when a vCPU goes idle or wakes.
#[derive(Debug, Default)]
struct Shared {
    /// A lower bound of the time of any vCPU that wakes and of any outside reader.
    reached_ps: u64,
    /// The real time, in nanoseconds, that corresponds to the time reached while all vCPUs are idle.
    idle_since_ns: u64,
    /// Time that passed in jumps to timers.
    idle_ps: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Timeline {
    parts: Box<[Part]>,
    shared: Mutex<Shared>,
    /// The furthest time that running vCPUs have announced.
    announced_ps: AtomicU64,
    shown_ns: AtomicU64,
    advanced: AtomicU64,
    advanced_ps: AtomicU64,
    late_ps: AtomicU64,
}

/// Time that did not come from the work of vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jumps {
    /// Time that passed in jumps to timers while all vCPUs were idle.
    pub idle_ps: u64,
    /// How often a vCPU that was left far behind was moved forward.
    pub advanced: u64,
    /// By how much in all.
    pub advanced_ps: u64,
    /// Time of the others that woken vCPUs have missed because the host did not run them, beyond the
    /// time given back.
    pub late_ps: u64,
}

impl Timeline {
    /// A timeline with `vcpus` idle vCPUs, which shows `start_ns` at the real time `real_ns`.
    #[must_use]
    pub fn new(vcpus: usize, start_ns: u64, real_ns: u64) -> Self {
        Self {
            parts: (0..vcpus).map(|_| Part::default()).collect(),
            shared: Mutex::new(Shared {
                reached_ps: start_ns * 1000,
                idle_since_ns: real_ns,
                idle_ps: 0,
            }),
            announced_ps: AtomicU64::new(0),
            shown_ns: AtomicU64::new(0),
            advanced: AtomicU64::new(0),
            advanced_ps: AtomicU64::new(0),
            late_ps: AtomicU64::new(0),
        }
    }

    /// Whether `vcpu` counts as running.
    #[must_use]
    pub fn is_running(&self, vcpu: usize) -> bool {
        self.parts[vcpu].running.load(Ordering::Relaxed)
    }

    /// `vcpu`, until now idle with its own time at `own_ps`, runs; returns the time to continue from. That is the time
    /// of the vCPU furthest ahead, less the time that passed while the host did not run this one, for `kept_ns` of real time.
    pub fn wake(&self, vcpu: usize, own_ps: u64, real_ns: u64, kept_ns: u64) -> u64 {
        let mut shared = self.lock();
        let part = &self.parts[vcpu];
        if part.running.load(Ordering::Relaxed) {
            return own_ps;
        }
        let now = self.outside_ps(&shared);
        shared.reached_ps = now;
        let passed_ps = now.saturating_sub(part.rested_ps.load(Ordering::Relaxed));
        let real = real_ns.saturating_sub(part.rested_ns.load(Ordering::Relaxed)).max(1);
        // Guest time passed evenly over the real time, as far as is known.
        let late = u128::from(passed_ps) * u128::from(kept_ns.min(real)) / u128::from(real);
        let late_ps = u64::try_from(late).unwrap_or(u64::MAX);
        let back_ps = late_ps.min(LATE_MOST_PS);
        self.late_ps.fetch_add(late_ps - back_ps, Ordering::Relaxed);
        let own_ps = own_ps.max(now - back_ps.min(now));
        part.time_ps.store(own_ps, Ordering::Relaxed);
        part.running.store(true, Ordering::Release);
        own_ps
    }

    /// `vcpu` goes idle at `own_ps`; returns whether it was the last, so that from now on time waits for a timer.
    pub fn rest(&self, vcpu: usize, own_ps: u64, real_ns: u64) -> bool {
        let mut shared = self.lock();
        let part = &self.parts[vcpu];
        if !part.running.swap(false, Ordering::Relaxed) {
            return false;
        }
        part.time_ps.store(own_ps, Ordering::Relaxed);
        shared.reached_ps = shared.reached_ps.max(own_ps);
        part.rested_ps.store(self.outside_ps(&shared), Ordering::Relaxed);
        part.rested_ns.store(real_ns, Ordering::Relaxed);
        let last = self.running().next().is_none();
        if last {
            shared.idle_since_ns = real_ns;
        }
        last
    }

    /// A running `vcpu` has reached `own_ps`; returns the time to continue from, which is later only if it was left far
    /// behind.
    #[inline]
    pub fn advance(&self, vcpu: usize, own_ps: u64) -> u64 {
        let furthest = self.running().max().unwrap_or(0);
        let own_ps = if own_ps + LEFT_BEHIND_PS < furthest {
            let moved_ps = furthest - LEFT_BEHIND_PS / 100;
            self.advanced.fetch_add(1, Ordering::Relaxed);
            self.advanced_ps.fetch_add(moved_ps - own_ps, Ordering::Relaxed);
            moved_ps
        } else {
            own_ps
        };
        self.parts[vcpu].time_ps.store(own_ps, Ordering::Relaxed);
        if own_ps > self.announced_ps.load(Ordering::Relaxed) + ANNOUNCED_EVERY_PS {
            self.announce(own_ps);
        }
        own_ps
    }

    /// Announces to all readers that a running vCPU has reached `own_ps`.
    pub fn announce(&self, own_ps: u64) {
        self.announced_ps.fetch_max(own_ps, Ordering::Relaxed);
    }

    /// Lead of `vcpu` at `own_ps` over the slowest other running vCPU, and that one's time.
    #[must_use]
    pub fn ahead_of_slowest(&self, vcpu: usize, own_ps: u64) -> Option<Lead> {
        let others = self.parts.iter().enumerate().filter(|(other, _)| *other != vcpu);
        let running = others.filter(|(_, part)| part.running.load(Ordering::Relaxed));
        let (slowest_ps, slowest) =
            running.map(|(other, part)| (part.time_ps.load(Ordering::Relaxed), other)).min()?;
        Some(Lead { lead_ps: own_ps.saturating_sub(slowest_ps), slowest_ps, slowest })
    }

    /// Time shown to a running vCPU at `own_ps`, in nanoseconds.
    #[inline]
    #[must_use]
    pub fn show_vcpu(&self, own_ps: u64) -> u64 {
        self.show(own_ps)
    }

    /// Time that a running vCPU at `own_ps` would be shown, without recording it as shown.
    #[must_use]
    pub fn peek(&self, own_ps: u64) -> u64 {
        self.shown_ns.load(Ordering::Relaxed).max(own_ps / 1000)
    }

    /// Time shown to all others, in nanoseconds. `due_ns` is asked while all vCPUs are idle: the time until the next
    /// timer is due, if there is one. It may ask for the time by [`Timeline::peek_idle`], and for nothing else.
    #[must_use]
    pub fn show_outsider(&self, real_ns: u64, due_ns: impl FnOnce() -> Option<u64>) -> u64 {
        let shared = self.lock();
        if self.running().next().is_some() {
            let now = self.announced_ps.load(Ordering::Relaxed).max(shared.reached_ps);
            drop(shared);
            return self.show(now);
        }
        let reached_ps = shared.reached_ps;
        drop(shared);
        // Asked without the lock, because it is answered with locks of the emulator's.
        let due_ns = due_ns();
        let mut shared = self.lock();
        let still_idle = self.running().next().is_none() && shared.reached_ps == reached_ps;
        if still_idle {
            match due_ns {
                Some(due_ns) if real_ns.saturating_sub(shared.idle_since_ns) >= due_ns => {
                    shared.reached_ps += due_ns * 1000;
                    shared.idle_ps += due_ns * 1000;
                    shared.idle_since_ns += due_ns;
                }
                Some(_) => {}
                None => shared.idle_since_ns = real_ns,
            }
        }
        let now = shared.reached_ps;
        drop(shared);
        self.show(now)
    }

    /// The time at which idle vCPUs stand, in nanoseconds, without recording it as shown.
    #[must_use]
    pub fn peek_idle(&self) -> u64 {
        let reached_ns = self.lock().reached_ps / 1000;
        self.shown_ns.load(Ordering::Relaxed).max(reached_ns)
    }

    /// The jumps so far.
    #[must_use]
    pub fn jumps(&self) -> Jumps {
        Jumps {
            idle_ps: self.lock().idle_ps,
            advanced: self.advanced.load(Ordering::Relaxed),
            advanced_ps: self.advanced_ps.load(Ordering::Relaxed),
            late_ps: self.late_ps.load(Ordering::Relaxed),
        }
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

    /// The time of the machine as a whole: a vCPU that wakes continues from here.
    fn outside_ps(&self, shared: &Shared) -> u64 {
        self.running().max().unwrap_or(0).max(shared.reached_ps)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // No code under this lock can panic half-way through a change.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A vCPU's lead over the slowest other running one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// Its lead, picoseconds.
    pub lead_ps: u64,
    /// The time of the slowest.
    pub slowest_ps: u64,
    /// Its index.
    pub slowest: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const US: u64 = 1_000_000;

    /// As seen by the main loop, with the next timer `due_ns` after the time reached.
    fn outside(line: &Timeline, real_ns: u64, due_ns: u64) -> u64 {
        line.show_outsider(real_ns, || Some(due_ns))
    }

    #[test]
    fn while_all_are_idle_time_jumps_to_the_next_timer() {
        let line = Timeline::new(2, 0, 5000);
        assert_eq!(outside(&line, 5000, 2000), 0);
        assert_eq!(outside(&line, 6999, 2000), 0);
        // However late the host asks.
        assert_eq!(outside(&line, 9000, 2000), 2000);
        assert_eq!(outside(&line, 9000, 3000), 2000);
        assert_eq!(outside(&line, 10_000, 3000), 5000, "real time has not been lost");
        assert_eq!(line.jumps().idle_ps, 5 * US);
    }

    #[test]
    fn a_wake_without_a_timer_costs_no_time() {
        let line = Timeline::new(2, 0, 0);
        assert_eq!(outside(&line, 1_000_000, 4_000_000), 0);
        assert_eq!(line.wake(0, 0, 0, 0), 0);
        line.rest(0, US, 2_000_000);
        assert_eq!(line.show_outsider(900_000_000, || None), 1000);
        assert_eq!(outside(&line, 900_000_500, 1000), 1000, "it waits from now");
    }

    #[test]
    fn time_advances_only_with_the_vcpus() {
        let line = Timeline::new(2, 0, 0);
        assert_eq!(line.wake(0, US, 0, 0), US);
        line.announce(US);
        assert_eq!(outside(&line, 1_000_000, 10), 1000);
        line.advance(0, 3 * US);
        assert_eq!(outside(&line, 1_000_001, 10), 1000);
        line.announce(3 * US);
        assert_eq!(outside(&line, 1_000_001, 10), 3000);
        assert!(line.rest(0, 4 * US, 2_000_000));
        assert_eq!(outside(&line, 2_000_500, 500), 4500);
    }

    #[test]
    fn outsiders_are_never_far_behind_the_vcpu_furthest_ahead() {
        let line = Timeline::new(2, 0, 0);
        line.wake(0, 0, 0, 0);
        for own in 1..100 {
            line.advance(0, own * 10 * US);
            let behind = own * 10_000 - outside(&line, 0, 10);
            assert!(behind <= ANNOUNCED_EVERY_PS / 1000, "{behind}");
        }
        assert_eq!(line.peek(990 * US), 990_000);
        assert!(outside(&line, 0, 10) < 990_000);
    }

    #[test]
    fn a_vcpu_that_wakes_joins_the_one_furthest_ahead() {
        let line = Timeline::new(3, 0, 0);
        line.wake(0, 0, 0, 0);
        line.wake(1, 0, 0, 0);
        line.advance(0, 50 * US);
        line.advance(1, 20 * US);
        assert_eq!(line.wake(2, 7 * US, 0, 0), 50 * US);
    }

    #[test]
    fn a_vcpu_delayed_by_the_host_gets_its_lost_time_back() {
        let line = Timeline::new(2, 0, 0);
        line.wake(0, 0, 0, 0);
        line.wake(1, 0, 0, 0);
        line.rest(1, 0, 0);
        // In 200 us of real time 100 us pass for the other, a quarter of them while the host did not run this one.
        line.advance(0, 100 * US);
        assert_eq!(line.wake(1, 0, 200_000, 50_000), 75 * US);
        line.rest(1, 80 * US, 300_000);
        line.advance(0, 200_000 * US);
        assert_eq!(line.wake(1, 80 * US, 400_000, 100_000), 195_000 * US, "5 ms at most");
        assert_eq!(line.jumps().late_ps, (200_000 - 100 - 5000) * US);
    }

    #[test]
    fn only_the_last_vcpu_to_rest_gets_true() {
        let line = Timeline::new(2, 0, 0);
        line.wake(0, 0, 0, 0);
        line.wake(1, 0, 0, 0);
        assert!(!line.rest(1, 0, 10));
        assert!(!line.rest(1, 0, 10));
        assert!(line.rest(0, 0, 10));
        assert!(!line.rest(0, 0, 10));
    }

    #[test]
    fn a_repeated_wake_of_a_vcpu_has_no_effect() {
        let line = Timeline::new(2, 0, 0);
        line.wake(1, 0, 0, 0);
        assert_eq!(line.wake(1, 9 * US, 0, 0), 9 * US);
        assert!(line.rest(1, 9 * US, 1000));
        assert_eq!(outside(&line, 3000, 2000), 11_000);
    }

    #[test]
    fn reading_the_time_does_not_advance_a_slow_vcpu() {
        let line = Timeline::new(2, 0, 0);
        line.wake(0, 0, 0, 0);
        line.wake(1, 0, 0, 0);
        line.advance(0, 30 * US);
        assert_eq!(line.show_vcpu(30 * US), 30_000);
        assert_eq!(line.show_vcpu(10 * US), 30_000);
        assert_eq!(line.advance(1, 11 * US), 11 * US);
        assert_eq!(
            line.ahead_of_slowest(0, 30 * US),
            Some(Lead { lead_ps: 19 * US, slowest_ps: 11 * US, slowest: 1 })
        );
        assert_eq!(
            line.ahead_of_slowest(1, 11 * US),
            Some(Lead { lead_ps: 0, slowest_ps: 30 * US, slowest: 0 })
        );
    }

    #[test]
    fn a_vcpu_kept_from_running_is_moved_up() {
        let line = Timeline::new(2, 0, 0);
        line.wake(0, 0, 0, 0);
        line.wake(1, 0, 0, 0);
        line.advance(0, 2 * LEFT_BEHIND_PS);
        let moved = line.advance(1, 5 * US);
        assert!(moved > LEFT_BEHIND_PS && moved < 2 * LEFT_BEHIND_PS);
    }

    proptest! {
        /// For any order of events, on any number of vCPUs: no reader sees time go backwards, and time advances while
        /// all are idle.
        #[test]
        fn time_never_runs_backwards(events in proptest::collection::vec((0usize..4, 0u8..6, 1u64..90_000), 1..300)) {
            let line = Timeline::new(4, 0, 0);
            let (mut own, mut real, mut last) = ([0u64; 4], 0, 0);
            for (vcpu, what, amount) in events {
                real += amount;
                let shown = match what {
                    0 => { own[vcpu] = line.wake(vcpu, own[vcpu], real, amount / 2); None }
                    1 => { line.rest(vcpu, own[vcpu], real); None }
                    2 if line.is_running(vcpu) => { own[vcpu] = line.advance(vcpu, own[vcpu] + amount * 1000); None }
                    4 if line.is_running(vcpu) => { line.announce(own[vcpu]); None }
                    3 if line.is_running(vcpu) => Some(line.show_vcpu(own[vcpu])),
                    _ => Some(outside(&line, real, 1000)),
                };
                if let Some(shown) = shown {
                    prop_assert!(shown >= last, "{} after {}", shown, last);
                    last = shown;
                }
                if (0..4).all(|vcpu| !line.is_running(vcpu)) {
                    let before = outside(&line, real, 1000);
                    real += 1000;
                    last = outside(&line, real, 1000);
                    prop_assert_eq!(last, before + 1000);
                }
            }
        }
    }
}
