//! A team of pinned threads that work at the same time and are counted over the same time.
//!
//! All threads start together, warm up, and go on until every one of them has passed the last boundary, so that in
//! each window all are at work. Each thread notes its own time and count at the first reading of the clock after a
//! boundary; its rate in a window is the difference of counts over that of times. So a boundary is hit to within one
//! portion of work, and what is missed there costs nothing: time and count are missed alike.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use nearfar_kernel::affinity::{self, AffinityError};
use nearfar_topology::CpuId;

use crate::clock::Clock;

/// Something that can be done in portions.
pub(crate) trait Work: Send {
    /// Does about `units` units; returns how many were done.
    fn portion(&mut self, units: u64) -> u64;
    /// Says how long the last portion of `units` units took.
    fn took(&mut self, _units: u64, _elapsed_ns: u64) {}
}

/// When is counted: `count` windows of `window_ns`, one after another, after `warm_up_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    pub(crate) warm_up_ns: u64,
    pub(crate) window_ns: u64,
    pub(crate) count: u32,
}

/// What a thread had done at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) at_ns: u64,
    pub(crate) units: u64,
}

/// Why a team could not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TeamError {
    /// A thread could not be made.
    #[error("starting a thread for CPU {cpu}: {source}")]
    Spawn {
        /// Its CPU.
        cpu: CpuId,
        /// The errno.
        source: std::io::Error,
    },
    /// A thread could not be put on its CPU.
    #[error("pinning a thread: {0}")]
    Pin(#[from] AffinityError),
}

/// Where threads wait for each other before the start.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    ready: usize,
    /// Whether one that is waiting could not get ready.
    unfit: bool,
    /// `Some(Some(start))` once all may go, `Some(None)` once all should go home.
    opened: Option<Option<u64>>,
}

impl Gate {
    /// Waits until the gate opens; the start, or nothing if there is none.
    fn wait(&self, fit: bool) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ready += 1;
        state.unfit |= !fit;
        self.changed.notify_all();
        let opened = self.changed.wait_while(state, |state| state.opened.is_none());
        opened.unwrap_or_else(PoisonError::into_inner).opened.flatten()
    }

    /// Waits until `threads` threads are waiting, then lets them go; home, if not `all_there` or if one is unfit.
    fn open(&self, threads: usize, all_there: bool, clock: Clock) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = self.changed.wait_while(state, |state| state.ready < threads);
        let mut state = ready.unwrap_or_else(PoisonError::into_inner);
        state.opened = Some((all_there && !state.unfit).then(|| clock.now_ns()));
        self.changed.notify_all();
    }
}

/// Puts each work on its CPU and lets all work through the windows; the marks of each, `count` + 1 of them.
pub(crate) fn run(
    clock: Clock,
    windows: Windows,
    works: Vec<(CpuId, &mut dyn Work)>,
) -> Result<Vec<Vec<Mark>>, TeamError> {
    let (gate, unfinished) = (Gate::default(), AtomicUsize::new(works.len()));
    let (gate, unfinished) = (&gate, &unfinished);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut failed = None;
        for (cpu, work) in works {
            let body = move || -> Result<Vec<Mark>, TeamError> {
                let pinned = affinity::set(&[cpu]);
                let start_ns = gate.wait(pinned.is_ok());
                pinned?;
                Ok(start_ns
                    .map(|start_ns| pass(clock, windows, start_ns, work, unfinished))
                    .unwrap_or_default())
            };
            match thread::Builder::new().name(format!("probe-{cpu}")).spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(source) => failed = Some(TeamError::Spawn { cpu, source }),
            }
        }
        gate.open(threads.len(), failed.is_none(), clock);
        let marks: Result<_, TeamError> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        failed.map_or(marks, Err)
    })
}

/// Works from the start to the end of the windows and beyond, until all have come that far.
fn pass(
    clock: Clock,
    windows: Windows,
    start_ns: u64,
    work: &mut dyn Work,
    unfinished: &AtomicUsize,
) -> Vec<Mark> {
    let boundary = |index: u64| start_ns + windows.warm_up_ns + index * windows.window_ns;
    let wanted = u64::from(windows.count) + 1;
    let mut portions = Portions::new(clock, windows);
    let mut marks = Vec::new();
    let (mut now, mut units) = (clock.now_ns(), 0);
    let _release = ReleaseOnPanic(unfinished);
    while unfinished.load(Ordering::Relaxed) > 0 {
        let done = work.portion(portions.units);
        let before = std::mem::replace(&mut now, clock.now_ns());
        units += done;
        work.took(done, now - before);
        let next = marks.len() as u64;
        if next == 0 {
            portions.took(now - before);
        }
        if next < wanted && now >= boundary(next) {
            marks.push(Mark { at_ns: now, units });
            if next + 1 == wanted {
                let fewer = |threads: usize| threads.checked_sub(1);
                let _ = unfinished.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
            }
        }
    }
    marks
}

/// Lets the others stop too if one of them panics, so that a mistake shows as a panic and not as a hang.
struct ReleaseOnPanic<'a>(&'a AtomicUsize);

impl Drop for ReleaseOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// How large a portion is: long enough that reading the clock does not count, short against a window.
struct Portions {
    units: u64,
    wanted_ns: u64,
}

impl Portions {
    /// A gigabyte of lines; no memory passes that in a window.
    const UNITS_MAX: u64 = 1 << 24;

    fn new(clock: Clock, windows: Windows) -> Self {
        const LEAST_NS: u64 = 20_000;
        let most = (windows.window_ns / 16).max(1);
        Self { units: 64, wanted_ns: (clock.reading_ns * 200).max(LEAST_NS).min(most) }
    }

    fn took(&mut self, elapsed_ns: u64) {
        if elapsed_ns < self.wanted_ns / 2 {
            self.units = (self.units * 2).min(Self::UNITS_MAX);
        } else if elapsed_ns > self.wanted_ns * 4 {
            self.units = (self.units / 2).max(1);
        }
    }
}

/// Units a second of all threads together, per window. A window that a thread missed (no time passed in it, because
/// it was not on its CPU for longer than that) is left out.
pub(crate) fn rates(marks: &[Vec<Mark>]) -> Vec<f64> {
    let windows = marks.iter().map(|of| of.len().saturating_sub(1)).min().unwrap_or(0);
    (0..windows)
        .filter_map(|index| {
            let rate = |of: &Vec<Mark>| {
                let (from, to) = (of[index], of[index + 1]);
                #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
                let (units, ns) = ((to.units - from.units) as f64, (to.at_ns - from.at_ns) as f64);
                (ns > 0.0).then_some(units / ns * 1e9)
            };
            marks.iter().map(rate).sum::<Option<f64>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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

    const BRIEF: Windows = Windows { warm_up_ns: 10_000, window_ns: 50_000, count: 3 };

    #[test]
    fn every_thread_marks_every_boundary_in_order() {
        let mut works = [Count(0), Count(0)];
        let on = works.iter_mut().map(|work| (ours(), work as &mut dyn Work)).collect();
        let clock = Clock::start();
        let clock_started_ns = clock.now_ns();
        let marks = run(clock, BRIEF, on).unwrap();
        assert_eq!(marks.len(), 2);
        for of in &marks {
            assert_eq!(of.len(), 4);
            assert!(of.is_sorted_by_key(|mark| (mark.at_ns, mark.units)));
            let last_boundary_ns = BRIEF.warm_up_ns + 3 * BRIEF.window_ns;
            assert!(of[3].at_ns - clock_started_ns >= last_boundary_ns);
        }
        assert!(works.iter().zip(&marks).all(|(work, of)| work.0 >= of[3].units));
    }

    #[test]
    fn a_panic_of_one_ends_the_others_and_shows() {
        struct Panics;
        impl Work for Panics {
            fn portion(&mut self, _: u64) -> u64 {
                panic!("expected")
            }
        }
        let (mut one, mut other) = (Count(0), Panics);
        let endless = Windows { count: u32::MAX, ..BRIEF };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let works: Vec<(CpuId, &mut dyn Work)> = vec![(ours(), &mut one), (ours(), &mut other)];
            run(Clock::start(), endless, works)
        }));
        assert!(caught.is_err());
    }

    #[test]
    fn a_cpu_that_is_not_there_is_named_and_nobody_is_left_waiting() {
        for absent in [1023, 999_999] {
            let (mut one, mut other) = (Count(0), Count(0));
            let works: Vec<(CpuId, &mut dyn Work)> =
                vec![(ours(), &mut one), (CpuId(absent), &mut other)];
            let error = run(Clock::start(), BRIEF, works).unwrap_err().to_string();
            assert!(error.contains(&absent.to_string()), "{error}");
        }
    }

    #[test]
    fn rates_add_up_per_window_over_each_threads_own_time() {
        let of = |marks: &[(u64, u64)]| {
            marks.iter().map(|(at_ns, units)| Mark { at_ns: *at_ns, units: *units }).collect()
        };
        let marks: [Vec<Mark>; 2] =
            [of(&[(0, 0), (100, 10), (200, 30)]), of(&[(50, 7), (150, 17), (350, 57)])];
        assert_eq!(rates(&marks), [0.2e9, 0.4e9]);
    }

    #[test]
    fn a_window_that_a_thread_slept_through_is_left_out() {
        let mark = |at_ns, units| Mark { at_ns, units };
        assert_eq!(
            rates(&[vec![mark(0, 0), mark(10, 5), mark(10, 5), mark(20, 15)]]),
            [0.5e9, 1e9]
        );
        assert_eq!(rates(&[]), Vec::<f64>::new());
    }
}
