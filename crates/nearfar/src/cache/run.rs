//! Carries out a plan: a thread a worker, this one to look on, and what came of it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::anyhow;
use nearfar_cache::workload::{Random, Stream};
use nearfar_topology::Bytes;

use super::found::{Found, Load, Memory, Window, ratio};
use super::job::{Job, Meter, Span};
use super::pace::{Pace, ns};
use super::plan::{Loop, Plan};
use super::source::{self, Passing, Source};
use super::spec::Workload;
use super::tally::Tally;
use super::values::Values;
use crate::clock::{self, Stopwatch};
use crate::demo::progress::StatusLine;
use crate::report::words;

/// Between two looks at how far workers are.
const LOOK: Duration = Duration::from_millis(20);
/// A run has about so many windows.
const WINDOWS: f64 = 100.0;
/// Windows are no shorter.
const WINDOW_MIN_S: f64 = 0.1;
/// What is the end where nothing else is: not for ever, so that sums do not overflow.
const NEVER: u64 = u64::MAX / 4;

/// What a load is put on.
pub(crate) trait Subject: Sync {
    /// What it is called.
    fn name(&self) -> String;

    /// What it says it is.
    fn version(&self) -> Option<String>;

    /// One worker's part, from its beginning to its end.
    ///
    /// # Errors
    /// The subject can't be asked at all. What goes wrong with single requests is counted.
    fn work(&self, job: &mut Job<'_>) -> anyhow::Result<()>;

    /// Its memory now.
    fn memory(&self) -> Memory;

    /// Told each second how many have passed.
    fn second(&self, second: u32);
}

/// Which part of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Preload,
    Measure,
}

/// Runs it.
pub(crate) fn run(plan: &Plan, subject: &dyn Subject, load: Load) -> anyhow::Result<Found> {
    let line = StatusLine::new();
    let memory_before = subject.memory();
    if plan.besides.preload {
        let (stored, _) = phase(plan, subject, Phase::Preload, &line)?;
        let Tally { errors, wrong, .. } = stored;
        if let Some(first) = errors.first.or(wrong.first) {
            return Err(anyhow!("storing all keys: {} errors, first: {first}", errors.count));
        }
    }
    let (tally, windows) = phase(plan, subject, Phase::Measure, &line)?;
    let memory_after = subject.memory();
    let found = Found::new((subject.name(), subject.version()), load, tally);
    Ok(Found { windows, memory_before, memory_after, ..found })
}

fn phase(
    plan: &Plan,
    subject: &dyn Subject,
    phase: Phase,
    line: &StatusLine,
) -> anyhow::Result<(Tally, Vec<Window>)> {
    let meters: Vec<Meter> = (0..plan.threads).map(|_| Meter::default()).collect();
    let stop = AtomicBool::new(false);
    let clock = Stopwatch::start();
    let span = span(plan, phase, clock);
    let (reading, sources) = sources(plan, phase);
    std::thread::scope(|scope| {
        let reader = reading.map(|(passing, file)| scope.spawn(move || passing.read(file)));
        let mut workers = Vec::new();
        for (source, meter) in sources.into_iter().zip(&meters) {
            let job = job(plan, phase, workers.len(), source, (span, meter, &stop));
            workers.push(spawn(scope, subject, job, &stop));
        }
        let mut look = Look { meters: &meters, span, line, windows: Vec::new(), last: [0; 3], due: 0.0 };
        let mut second = 0;
        while !workers.iter().all(ScopedJoinHandle::is_finished) {
            clock::sleep(LOOK);
            let now = clock.elapsed();
            if now.as_secs() > second {
                second = now.as_secs();
                subject.second(u32::try_from(second).unwrap_or(u32::MAX));
            }
            look.on(now.as_secs_f64(), phase);
        }
        let mut tally = Tally::default();
        let mut failed = None;
        for worker in workers {
            match worker.join() {
                Ok(Ok(part)) => tally.join(part),
                Ok(Err(error)) => failed = failed.or(Some(error)),
                Err(_) => failed = failed.or_else(|| Some(anyhow!("a worker ended by a panic"))),
            }
        }
        // Its own failure says why workers had nothing more to do.
        match reader.map(ScopedJoinHandle::join) {
            Some(Ok(Err(error))) => return Err(error),
            Some(Err(_)) => return Err(anyhow!("the reader of the trace ended by a panic")),
            _ => {}
        }
        failed.map_or_else(|| Ok((tally, look.windows)), Err)
    })
}

fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    subject: &'scope dyn Subject,
    mut job: Job<'scope>,
    stop: &'scope AtomicBool,
) -> ScopedJoinHandle<'scope, anyhow::Result<Tally>> {
    scope.spawn(move || {
        let worked = subject.work(&mut job);
        if worked.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        worked.map(|()| job.tally)
    })
}

fn nanoseconds(seconds: f64) -> u64 {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    u64::try_from(time.as_nanos()).unwrap_or(NEVER).min(NEVER)
}

fn span(plan: &Plan, phase: Phase, clock: Stopwatch) -> Span {
    if phase == Phase::Preload {
        return Span { clock, counts_from: NEVER, end: NEVER, operations: u64::MAX };
    }
    let counts_from = ns(clock) + nanoseconds(plan.length.warm_up);
    let end = plan.length.seconds.map_or(NEVER, |seconds| counts_from + nanoseconds(seconds));
    let all = plan.length.operations.map(|all| all / u64::from(plan.threads));
    Span { clock, counts_from, end, operations: all.unwrap_or(u64::MAX) }
}

/// Each worker's requests, and who reads them.
fn sources(plan: &Plan, phase: Phase) -> (Option<(Passing, &Path)>, Vec<Source>) {
    let workers = 0..u64::from(plan.threads);
    let drawn = match &plan.workload {
        Workload::Drawn(drawn) => drawn,
        Workload::Trace(file, _) => {
            let (passing, sources) = source::passing(plan.threads as usize);
            return (Some((passing, file)), sources);
        }
    };
    let run = clock::unix_ns();
    let source = |worker: u64| {
        let workload = Arc::clone(drawn);
        match phase {
            Phase::Preload => Source::Stores { workload, next: worker, step: plan.threads.into() },
            Phase::Measure => Source::Drawn(Stream::new(workload, worker, run)),
        }
    };
    (None, workers.map(source).collect())
}

fn job<'a>(
    plan: &Plan,
    phase: Phase,
    worker: usize,
    source: Source,
    others: (Span, &'a Meter, &'a AtomicBool),
) -> Job<'a> {
    let pace = match plan.pace {
        Loop::Open(rate, spacing) if phase == Phase::Measure => {
            // A seed apart from that of the requests themselves.
            let random = Random::of_worker(!plan.seed, worker as u64);
            Pace::open(spacing, rate / f64::from(plan.threads), random)
        }
        _ => Pace::Closed,
    };
    // No two versions of a run are the same, those stored first included.
    let writer = 2 * u32::try_from(worker).unwrap_or(0) + u32::from(phase == Phase::Preload);
    let values = if plan.besides.verify { Values::checked(writer) } else { Values::any() };
    let (span, meter, stop) = others;
    Job::new(source, pace, values, span, (meter, stop))
}

/// How far workers are, over time.
struct Look<'a> {
    meters: &'a [Meter],
    span: Span,
    line: &'a StatusLine,
    windows: Vec<Window>,
    last: [u64; 3],
    due: f64,
}

impl Look<'_> {
    fn on(&mut self, now: f64, phase: Phase) {
        let end = Duration::from_nanos(self.span.end).as_secs_f64();
        let known = self.span.end < NEVER;
        let length = if known { (end / WINDOWS).max(WINDOW_MIN_S) } else { 1.0 };
        if now < self.due + length {
            return;
        }
        let sum = |of: fn(&Meter) -> u64| self.meters.iter().map(of).sum::<u64>();
        let counts = [
            sum(|meter| meter.operations.load(Ordering::Relaxed)),
            sum(|meter| meter.reads.load(Ordering::Relaxed)),
            sum(|meter| meter.hits.load(Ordering::Relaxed)),
        ];
        let [operations, reads, hits] = [0, 1, 2].map(|at| counts[at] - self.last[at]);
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let operations_per_s = operations as f64 / (now - self.due);
        let window = Window { end_s: now, operations_per_s, hit_ratio: ratio(hits, reads) };
        self.windows.push(window);
        (self.last, self.due) = (counts, now);
        let what = match phase {
            Phase::Preload => "storing all keys",
            Phase::Measure if ns(self.span.clock) < self.span.counts_from => "warming up",
            Phase::Measure => "measuring",
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
        let rate = words::grouped(operations_per_s as u64);
        let hit = window.hit_ratio.map_or(String::new(), |ratio| format!(", hit ratio {ratio:.3}"));
        let left = if known { format!(" of {end:.0}") } else { String::new() };
        self.line.show(format_args!("[{now:.0}{left} s] {what}: {rate} requests/s{hit}"));
    }
}

/// Memory of this process, for those who make what will be measured in it.
pub(crate) fn own_memory() -> Option<Bytes> {
    super::engine::resident("self")
}
