//! Runs a plan: one thread per worker, this one to sample their progress, and the result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

use crate::random::Random;
use crate::requests::{Spacing, Stream};
use anyhow::anyhow;

use super::gate::{Gate, Waiting};
use super::job::{Job, Meter, NEVER, Phase, Shared, Span};
use super::look::Look;
use super::pace::{Pace, Rate};
use super::plan::{Loop, Plan};
use super::results::{Found, Memory, Window};
use super::source::{self, Passing, Source, TraceFile};
use super::spec::Workload;
use super::tally::Tally;
use super::values::Values;
use nearfar_command::progress::StatusLine;
use nearfar_kernel::clock::{self, Stopwatch};

/// Interval between samples of the workers' progress.
const LOOK: Duration = Duration::from_millis(20);

/// The target of a load.
pub trait Subject: Sync {
    /// Its name.
    fn name(&self) -> String;

    /// Its version, as it reports it.
    fn version(&self) -> Option<String>;

    /// Runs one worker's part, from start to end.
    ///
    /// # Errors
    /// The subject can't be reached at all. Failures of single requests are counted.
    fn work(&self, job: &mut Job<'_>) -> anyhow::Result<()>;

    /// Its current memory use.
    fn memory(&self) -> Memory;

    /// Called each second with the number of seconds since the start of the run.
    fn second(&self, second: u32);
}

/// A run in progress.
struct Run<'a> {
    plan: &'a Plan,
    subject: &'a dyn Subject,
    line: StatusLine,
    /// Time since the first phase began.
    life: Stopwatch,
}

/// State shared by all workers.
#[derive(Default)]
struct Common {
    gate: Gate,
    meters: Vec<Meter>,
    stop: AtomicBool,
}

/// Runs the plan against the subject.
///
/// # Errors
/// The subject can't be reached, or stopped answering.
pub fn run(plan: &Plan, subject: &dyn Subject) -> anyhow::Result<Found> {
    let run = Run { plan, subject, line: StatusLine::new(), life: Stopwatch::start() };
    let memory_before = subject.memory();
    if plan.besides.preload {
        let (stored, _) = run.phase(Phase::Preload)?;
        let Tally { errors, wrong, .. } = stored;
        if let Some(first) = errors.first.or(wrong.first) {
            return Err(anyhow!("storing all keys: {} errors, first: {first}", errors.count));
        }
    }
    let (tally, windows) = run.phase(Phase::Measure)?;
    let memory_after = subject.memory();
    let found = Found::new((subject.name(), subject.version()), plan.load(), tally);
    Ok(Found { windows, memory_before, memory_after, ..found })
}

impl Run<'_> {
    fn phase(&self, phase: Phase) -> anyhow::Result<(Tally, Vec<Window>)> {
        let threads = self.plan.threads;
        let meters = (0..threads).map(|_| Meter::default()).collect();
        let common = Common { meters, ..Common::default() };
        let span = span(self.plan, phase);
        let (reading, sources) = sources(self.plan, phase);
        let limit = self.plan.length.operations.unwrap_or(u64::MAX);
        std::thread::scope(|scope| {
            let (mut workers, mut failed) = (Vec::new(), None);
            let reader =
                reading.map(|(passing, file)| scope.spawn(move || passing.read(file, limit)));
            for (number, source) in sources.into_iter().enumerate() {
                let job = self.job(number, source, span, &common);
                let work = || work(self.subject, job, &common.stop);
                match Builder::new().spawn_scoped(scope, work) {
                    Ok(worker) => workers.push(worker),
                    Err(error) => failed = Some(anyhow!("starting thread {number}: {error}")),
                }
            }
            if failed.is_some() {
                common.stop.store(true, Ordering::Relaxed);
            }
            let windows = self.look_on(span, &common, &workers);
            let tally = tallied(workers);
            // A failure of the trace's reader is the reason why workers had nothing more to do.
            match reader.map(ScopedJoinHandle::join) {
                Some(Ok(Err(error))) => return Err(error),
                Some(Err(_)) => return Err(anyhow!("the reader of the trace ended by a panic")),
                _ => {}
            }
            failed.map_or(tally, Err).map(|tally| (tally, windows))
        })
    }

    /// One worker's job.
    fn job<'c>(&self, number: usize, source: Source, span: Span, common: &'c Common) -> Job<'c> {
        let plan = self.plan;
        let worker = u32::try_from(number).unwrap_or(0);
        let mut span = span;
        if span.phase == Phase::Measure {
            span.operations = operations(plan, worker);
        }
        let pace = match plan.pace {
            Loop::Open(rate, spacing) if span.phase == Phase::Measure => {
                // The seed differs from that of the requests themselves.
                let random = Random::of_worker(!plan.seed, worker.into());
                Pace::open(share(plan, (rate, spacing), worker), random)
            }
            _ => Pace::Closed,
        };
        // Each version number is used only once in a run, including keys stored first.
        let writer = 2 * worker + u32::from(span.phase == Phase::Preload);
        let values = if plan.besides.verify { Values::checked(writer) } else { Values::any() };
        let Common { gate, meters, stop } = common;
        let shared = Shared { waiting: Waiting::before(gate), meter: &meters[number], stop };
        Job::new(source, pace, values, span, shared)
    }

    /// Starts the workers, and samples their progress until all have ended.
    fn look_on(
        &self,
        span: Span,
        common: &Common,
        workers: &[ScopedJoinHandle<'_, anyhow::Result<Tally>>],
    ) -> Vec<Window> {
        let mut look = Look::new(&common.meters, span, &self.line);
        let clock = common.gate.open(workers.len());
        let mut told = None;
        while !workers.iter().all(ScopedJoinHandle::is_finished) {
            let second = self.life.elapsed().as_secs();
            if told.replace(second) != Some(second) {
                self.subject.second(u32::try_from(second).unwrap_or(u32::MAX));
            }
            clock::sleep(LOOK);
            look.on(clock.elapsed().as_secs_f64());
        }
        look.windows(clock.elapsed().as_secs_f64())
    }
}

fn work(subject: &dyn Subject, mut job: Job<'_>, stop: &AtomicBool) -> anyhow::Result<Tally> {
    let worked = subject.work(&mut job);
    if worked.is_err() {
        stop.store(true, Ordering::Relaxed);
    }
    worked.map(|()| job.tally)
}

/// The sum of all workers' counts, or the first failure.
fn tallied(workers: Vec<ScopedJoinHandle<'_, anyhow::Result<Tally>>>) -> anyhow::Result<Tally> {
    // Waits for all before a failure is reported.
    let ended: Vec<_> = workers.into_iter().map(ScopedJoinHandle::join).collect();
    let mut tally = Tally::default();
    for worked in ended {
        tally.join(worked.map_err(|_| anyhow!("a worker ended by a panic"))??);
    }
    Ok(tally)
}

/// A worker's share of the rate. With even spacing, workers take turns.
fn share(plan: &Plan, (rate, spacing): (f64, Spacing), worker: u32) -> Rate {
    let together = plan.server.map_or(1, |asking| asking.multiget);
    let later = match spacing {
        Spacing::Constant => nanoseconds(f64::from(worker) * f64::from(together) / rate),
        Spacing::Poisson => 0,
    };
    Rate { spacing, per_second: rate / f64::from(plan.threads), together, later }
}

fn nanoseconds(seconds: f64) -> u64 {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    u64::try_from(time.as_nanos()).unwrap_or(NEVER).min(NEVER)
}

fn span(plan: &Plan, phase: Phase) -> Span {
    if phase == Phase::Preload {
        return Span { phase, counts_from: NEVER, end: NEVER, operations: u64::MAX };
    }
    let counts_from = nanoseconds(plan.length.warm_up);
    let end = plan.length.seconds.map_or(NEVER, |seconds| counts_from + nanoseconds(seconds));
    Span { phase, counts_from, end, operations: u64::MAX }
}

/// A worker's share of the number of requests.
fn operations(plan: &Plan, worker: u32) -> u64 {
    match (plan.length.operations, &plan.workload) {
        (Some(all), Workload::Drawn(_)) => {
            let threads = u64::from(plan.threads);
            all / threads + u64::from(u64::from(worker) < all % threads)
        }
        // Of a trace, the first ones: its reader stops there.
        (_, Workload::Trace(..)) | (None, _) => u64::MAX,
    }
}

/// Each worker's source of requests, and the reader of a trace.
fn sources(plan: &Plan, phase: Phase) -> (Option<(Passing, &TraceFile)>, Vec<Source>) {
    let workers = 0..u64::from(plan.threads);
    let drawn = match &plan.workload {
        Workload::Drawn(drawn) => drawn,
        Workload::Trace(file) => {
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
