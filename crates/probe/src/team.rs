//! A team of pinned threads that run, and are counted, over the same time.
//!
//! Threads start to work as they wake up, and the clock starts when the last of them has done its warm-up: so no window
//! includes a thread that has not started, or caches filled by earlier writes. They continue until all of them have
//! passed the last boundary, so that the load stays constant while any thread is counted. Counting by windows is in
//! `windows.rs`.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use nearfar_kernel::affinity::{self, AffinityError};
use nearfar_topology::CpuId;

use crate::clock::Clock;
use crate::windows::{Mark, Marks, Windows};

/// A task that runs in portions.
pub(crate) trait Work: Send {
    /// Does about `units` units; returns the number done.
    fn portion(&mut self, units: u64) -> u64;
    /// Receives the duration of the last portion.
    fn took(&mut self, _units: u64, _elapsed_ns: u64) {}
}

/// Reasons why a team could not run.
#[derive(Debug, thiserror::Error)]
pub enum TeamError {
    /// A thread could not be made.
    #[error("starting a thread for CPU {cpu}: {source}")]
    Spawn {
        /// Its CPU.
        cpu: CpuId,
        /// The errno.
        source: std::io::Error,
    },
    /// A thread could not be pinned to its CPU.
    #[error("pinning a thread: {0}")]
    Pin(#[from] AffinityError),
}

/// A barrier before the start.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    ready: usize,
    /// Whether a waiting thread failed to prepare.
    unfit: bool,
    /// Set once it is open: whether threads run or return.
    opened: Option<bool>,
}

impl Gate {
    /// Waits until the gate opens; returns whether to run.
    fn wait(&self, fit: bool) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ready += 1;
        state.unfit |= !fit;
        self.changed.notify_all();
        let opened = self.changed.wait_while(state, |state| state.opened.is_none());
        opened.unwrap_or_else(PoisonError::into_inner).opened == Some(true)
    }

    /// Waits until `threads` threads are waiting, then releases them; to return, if not `all_there` or if one failed.
    fn open(&self, threads: usize, all_there: bool) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = self.changed.wait_while(state, |state| state.ready < threads);
        let mut state = ready.unwrap_or_else(PoisonError::into_inner);
        state.opened = Some(all_there && !state.unfit);
        self.changed.notify_all();
    }
}

/// Progress of a team.
struct Course {
    /// Threads that have not done their warm-up yet.
    missing: AtomicUsize,
    /// Time at which the last one had; [`u64::MAX`] before.
    start_ns: AtomicU64,
    /// Threads that have not passed the last boundary yet.
    unfinished: AtomicUsize,
}

impl Course {
    fn new(threads: usize) -> Self {
        let (missing, unfinished) = (AtomicUsize::new(threads), AtomicUsize::new(threads));
        Self { missing, start_ns: AtomicU64::new(u64::MAX), unfinished }
    }

    /// Records that a thread has done its warm-up, at this time.
    fn begin(&self, now_ns: u64) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.start_ns.store(now_ns, Ordering::Release);
        }
    }

    /// Time at which all had.
    fn start_ns(&self) -> Option<u64> {
        let start_ns = self.start_ns.load(Ordering::Acquire);
        (start_ns != u64::MAX).then_some(start_ns)
    }

    /// Records that a thread has passed the last boundary.
    fn finish(&self) {
        let fewer = |threads: usize| threads.checked_sub(1);
        let _ = self.unfinished.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
    }

    fn goes_on(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed) > 0
    }
}

/// Runs each work on its CPU through the windows; returns the notes of each.
pub(crate) fn run(
    clock: Clock,
    windows: Windows,
    works: &mut [(CpuId, &mut dyn Work)],
) -> Result<Vec<Marks>, TeamError> {
    let (gate, course) = (Gate::default(), Course::new(works.len()));
    let (gate, course) = (&gate, &course);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut failed = None;
        for (cpu, work) in works {
            let cpu = *cpu;
            let body = move || -> Result<Option<Marks>, TeamError> {
                let pinned = affinity::set(&[cpu]);
                let go = gate.wait(pinned.is_ok());
                pinned?;
                Ok(go.then(|| pass(clock, windows, *work, course)))
            };
            match thread::Builder::new().name(format!("probe-{cpu}")).spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(source) => failed = Some(TeamError::Spawn { cpu, source }),
            }
        }
        gate.open(threads.len(), failed.is_none());
        let marks: Result<Vec<Option<Marks>>, TeamError> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        let marks = marks.map(|all| all.into_iter().flatten().collect());
        failed.map_or(marks, Err)
    })
}

/// Runs a work until all threads have passed the end of the windows.
fn pass(clock: Clock, windows: Windows, work: &mut dyn Work, course: &Course) -> Marks {
    let _release = ReleaseOnPanic(course);
    let mut portions = Portions::new(clock, windows);
    let mut now = Mark { at_ns: clock.now_ns(), units: 0 };
    let mut begun = None;
    let mut marks = Marks::new(windows, u64::MAX, now);
    let (mut started, mut finished) = (false, false);
    while course.goes_on() {
        let units = work.portion(portions.units);
        let before = std::mem::replace(&mut now.at_ns, clock.now_ns());
        now.units += units;
        work.took(units, now.at_ns - before);
        portions.took(now.at_ns - before);
        if begun.is_none() && now.units >= windows.warm_up_units {
            begun = Some(now);
            course.begin(now.at_ns);
        }
        if !started && let (Some(begun), Some(start_ns)) = (begun, course.start_ns()) {
            marks = Marks::new(windows, start_ns, begun);
            started = true;
        }
        if started && !finished && marks.pass(now) {
            finished = true;
            course.finish();
        }
    }
    marks
}

/// Releases the other threads if one panics, so that a bug shows as a panic and not as a hang.
struct ReleaseOnPanic<'a>(&'a Course);

impl Drop for ReleaseOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.unfinished.store(0, Ordering::Relaxed);
        }
    }
}

/// Size of a portion: long enough that the cost of reading the clock is negligible, short against a window.
struct Portions {
    units: u64,
    wanted_ns: u64,
}

impl Portions {
    /// A gigabyte of lines, more than any memory transfers in a window.
    const UNITS_MAX: u64 = 1 << 24;

    fn new(clock: Clock, windows: Windows) -> Self {
        const LEAST_NS: u64 = 50_000;
        // Even a portion of twice this length passes a boundary within the tolerance.
        let most = (windows.window_ns / 32).max(1);
        Self { units: 64, wanted_ns: (clock.reading_ns * 200).max(LEAST_NS).min(most) }
    }

    fn took(&mut self, elapsed_ns: u64) {
        if elapsed_ns < self.wanted_ns / 2 {
            self.units = (self.units * 2).min(Self::UNITS_MAX);
        } else if elapsed_ns > self.wanted_ns * 2 {
            self.units = (self.units / 2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::windows::rough_rates;

    struct Count(u64);

    impl Work for Count {
        fn portion(&mut self, units: u64) -> u64 {
            self.0 += units;
            units
        }
    }

    fn ours() -> CpuId {
        affinity::get().unwrap()[0]
    }

    const BRIEF: Windows =
        Windows { warm_up_units: 100, warm_up_ns: 10_000, window_ns: 50_000, count: 3 };

    #[test]
    fn every_thread_works_until_all_have_passed_the_windows() {
        let mut works = [Count(0), Count(0)];
        let mut on: Vec<(CpuId, &mut dyn Work)> =
            works.iter_mut().map(|work| (ours(), work as &mut dyn Work)).collect();
        let clock = Clock::start();
        let team = run(clock, BRIEF, &mut on).unwrap();
        assert!(clock.now_ns() >= BRIEF.warm_up_ns + 3 * BRIEF.window_ns);
        assert_eq!(rough_rates(&team).map(|rates| rates.len()), Some(2));
        assert!(works.iter().all(|work| work.0 > BRIEF.warm_up_units));
    }

    #[test]
    fn a_panic_in_one_thread_ends_the_others_and_propagates() {
        struct Panics;
        impl Work for Panics {
            fn portion(&mut self, _: u64) -> u64 {
                panic!("expected")
            }
        }
        let (mut one, mut other) = (Count(0), Panics);
        let endless = Windows { count: u32::MAX, ..BRIEF };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut works: [(CpuId, &mut dyn Work); 2] = [(ours(), &mut one), (ours(), &mut other)];
            run(Clock::start(), endless, &mut works)
        }));
        assert!(caught.is_err());
    }

    #[test]
    fn a_missing_cpu_is_an_error_and_ends_every_thread() {
        for absent in [1023, 999_999] {
            let (mut one, mut other) = (Count(0), Count(0));
            let mut works: [(CpuId, &mut dyn Work); 2] =
                [(ours(), &mut one), (CpuId(absent), &mut other)];
            let error = run(Clock::start(), BRIEF, &mut works).unwrap_err().to_string();
            assert!(error.contains(&absent.to_string()), "{error}");
        }
    }
}
