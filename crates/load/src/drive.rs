//! The two phases: loading records, and running operations with time measurement.
//!
//! Requests are sent several at once (`pipeline`), and the time until all are answered is the latency of each: with a
//! pipeline above one, latencies are of pipelines. A window ends with the first pipeline that ends after its time. A
//! run may be limited to a duty cycle: then throughput is relative to the time at work, while windows are of wall-clock
//! time.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::popularity::Popularity;
use crate::random::Random;
use crate::records::{Pool, Shape, key};
use crate::report::{KindReport, Latency, Report, Window};
use crate::store::{Request, Store, StoreError};
use crate::workload::{KINDS, Kind, Mix, Operation, Operations};
use nearfar_kernel::clock::{Stopwatch, sleep};

/// Parameters of both phases.
#[derive(Clone, Copy, Debug)]
pub struct Common {
    /// Number of records, existing or to be written.
    pub records: u64,
    /// Composition of a record.
    pub shape: Shape,
    /// Requests sent at once, at least one.
    pub pipeline: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Length of a window, in seconds.
    pub window_s: f64,
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The operations.
    pub mix: Mix,
    /// Distribution of the records.
    pub popularity: Popularity,
    /// Ends after this many operations.
    pub operations: Option<u64>,
    /// Ends after this many seconds.
    pub seconds: Option<f64>,
    /// When the hot set moves.
    pub moves: Moves,
    /// Duty cycle: per cent of every [`SLICE`] at work, the rest asleep; 1 to 100.
    pub busy_percent: u32,
}

/// Period of the duty cycle.
pub const SLICE: Duration = Duration::from_millis(10);

/// When the hot set moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moves {
    /// Not at all.
    Never,
    /// After this many operations each time.
    Operations(u64),
    /// After this many seconds each time.
    Seconds(f64),
}

/// Writes all records, in order; calls `each` with every window as it ends.
///
/// # Errors
/// Those of the store.
pub fn load(
    store: &mut dyn Store,
    common: &Common,
    each: &mut dyn FnMut(&Window),
) -> Result<Report, StoreError> {
    let mut random = Random::new(common.seed);
    let pool = Pool::new(common.shape.pieces().1, &mut random);
    let mut tally = Tally::new(common);
    let mut record = 0;
    while record < common.records {
        let until = (record + common.pipeline).min(common.records);
        let insert = |record| Operation { kind: Kind::Insert, record, length: 1 };
        let operations: Vec<_> = (record..until).map(insert).collect();
        let requests = requests(&operations, common.shape, &pool, &mut random);
        tally.send(store, &operations, &requests, each)?;
        record = until;
    }
    Ok(tally.report("load", common, each))
}

/// Runs a workload; calls `each` with every window as it ends.
///
/// # Errors
/// Those of the store.
pub fn run(
    store: &mut dyn Store,
    common: &Common,
    run: &Run,
    each: &mut dyn FnMut(&Window),
) -> Result<Report, StoreError> {
    let mut random = Random::new(common.seed ^ 0x7075_6c6c);
    let pool = Pool::new(common.shape.pieces().1, &mut random);
    let expected = run.operations.unwrap_or(1 << 20);
    let mut source =
        Operations::new(run.mix, run.popularity, common.records, expected, common.seed);
    let mut tally = Tally::new(common);
    let mut moved_s = 0.0;
    loop {
        let left = run.operations.map_or(u64::MAX, |all| all.saturating_sub(tally.operations));
        if left == 0 || run.seconds.is_some_and(|seconds| tally.now_s >= seconds) {
            break;
        }
        match run.moves {
            Moves::Operations(every) if tally.operations / every > source.moves() => {
                source.move_hot_set();
            }
            Moves::Seconds(every) if tally.now_s - moved_s >= every => {
                source.move_hot_set();
                moved_s = tally.now_s;
            }
            Moves::Never | Moves::Operations(_) | Moves::Seconds(_) => {}
        }
        tally.moves = source.moves();
        let operations: Vec<_> = (0..common.pipeline.min(left)).map(|_| source.draw()).collect();
        let requests = requests(&operations, common.shape, &pool, &mut random);
        tally.send(store, &operations, &requests, each)?;
        tally.rest(run.busy_percent);
    }
    let mut report = tally.report("run", common, each);
    report.workload = Some(run.mix.letter);
    report.popularity = Some(run.popularity.to_string());
    Ok(report)
}

/// The requests of operations.
fn requests<'a>(
    operations: &[Operation],
    shape: Shape,
    pool: &'a Pool,
    random: &mut Random,
) -> Vec<Request<'a>> {
    let (count, bytes) = shape.pieces();
    let mut requests = Vec::with_capacity(operations.len());
    for operation in operations {
        let key = key(operation.record);
        let mut one_piece = || {
            let which = u32::try_from(random.below(u64::from(count))).unwrap_or(0);
            vec![(which, pool.value(bytes, random))]
        };
        match operation.kind {
            Kind::Read => requests.push(Request::Read { key }),
            Kind::Update => {
                requests.push(Request::Write { key, pieces: one_piece(), new: false });
            }
            Kind::ReadModifyWrite => {
                requests.push(Request::Read { key: key.clone() });
                requests.push(Request::Write { key, pieces: one_piece(), new: false });
            }
            Kind::Insert => {
                let pieces = (0..count).map(|piece| (piece, pool.value(bytes, random))).collect();
                requests.push(Request::Write { key, pieces, new: true });
            }
            Kind::Scan => requests.push(Request::Scan { key, records: operation.length }),
        }
    }
    requests
}

/// Counts so far.
struct Tally {
    watch: Stopwatch,
    window_s: f64,
    now_s: f64,
    operations: u64,
    missed: u64,
    moves: u64,
    by_kind: Vec<Histogram<u64>>,
    window_began_s: f64,
    in_window: Histogram<u64>,
    windows: Vec<Window>,
    slice_began_s: f64,
    rested_s: f64,
    rested_in_window_s: f64,
}

/// A histogram of latencies in nanoseconds, two digits, up to an hour; longer ones are clamped.
fn histogram() -> Histogram<u64> {
    const HOUR_NS: u64 = 3_600_000_000_000;
    Histogram::new_with_bounds(1, HOUR_NS, 2)
        .unwrap_or_else(|_| unreachable!("two digits and an hour are within its bounds"))
}

impl Tally {
    fn new(common: &Common) -> Self {
        Self {
            watch: Stopwatch::start(),
            window_s: common.window_s,
            now_s: 0.0,
            operations: 0,
            missed: 0,
            moves: 0,
            by_kind: KINDS.iter().map(|_| histogram()).collect(),
            window_began_s: 0.0,
            in_window: histogram(),
            windows: Vec::new(),
            slice_began_s: 0.0,
            rested_s: 0.0,
            rested_in_window_s: 0.0,
        }
    }

    fn send(
        &mut self,
        store: &mut dyn Store,
        operations: &[Operation],
        requests: &[Request<'_>],
        each: &mut dyn FnMut(&Window),
    ) -> Result<(), StoreError> {
        let began = self.watch.elapsed();
        self.missed += store.send(requests)?;
        let ended = self.watch.elapsed();
        let latency = u64::try_from((ended - began).as_nanos()).unwrap_or(u64::MAX);
        for operation in operations {
            let kinds = KINDS.iter().zip(&mut self.by_kind);
            for (_, histogram) in kinds.filter(|(kind, _)| **kind == operation.kind) {
                histogram.saturating_record(latency);
            }
            self.in_window.saturating_record(latency);
        }
        self.operations += u64::try_from(operations.len()).unwrap_or(u64::MAX);
        self.now_s = ended.as_secs_f64();
        if self.now_s - self.window_began_s >= self.window_s {
            self.end_window(each);
        }
        Ok(())
    }

    fn end_window(&mut self, each: &mut dyn FnMut(&Window)) {
        let operations = self.in_window.len();
        let busy_s = self.now_s - self.window_began_s - self.rested_in_window_s;
        let latency = Latency::of(&self.in_window);
        let window = Window {
            end_s: self.now_s,
            operations,
            busy_s,
            operations_per_s: per_second(operations, busy_s),
            p50_us: latency.p50_us,
            p99_us: latency.p99_us,
            moves: self.moves,
        };
        each(&window);
        self.windows.push(window);
        self.window_began_s = self.now_s;
        self.in_window.reset();
        self.rested_in_window_s = 0.0;
    }

    /// Sleeps until the end of the slice, if its share of work is done.
    fn rest(&mut self, busy_percent: u32) {
        let slice_s = SLICE.as_secs_f64();
        let worked_s = self.now_s - self.slice_began_s;
        if busy_percent >= 100 || worked_s < slice_s * f64::from(busy_percent) / 100.0 {
            return;
        }
        sleep(Duration::from_secs_f64((slice_s - worked_s).max(0.0)));
        let now_s = self.watch.elapsed().as_secs_f64();
        self.rested_s += now_s - self.now_s;
        self.rested_in_window_s += now_s - self.now_s;
        (self.now_s, self.slice_began_s) = (now_s, now_s);
    }

    fn report(mut self, phase: &str, common: &Common, each: &mut dyn FnMut(&Window)) -> Report {
        if !self.in_window.is_empty() {
            self.end_window(each);
        }
        let kinds = KINDS.iter().zip(&self.by_kind).filter(|(_, histogram)| !histogram.is_empty());
        Report {
            schema: crate::report::SCHEMA.into(),
            phase: phase.into(),
            store: String::new(),
            workload: None,
            popularity: None,
            records: common.records,
            record_bytes: common.shape.bytes(),
            pipeline: common.pipeline,
            seed: common.seed,
            operations: self.operations,
            seconds: self.now_s,
            busy_s: self.now_s - self.rested_s,
            operations_per_s: per_second(self.operations, self.now_s - self.rested_s),
            missed: self.missed,
            moves: self.moves,
            kinds: kinds
                .map(|(kind, histogram)| KindReport {
                    kind: *kind,
                    operations: histogram.len(),
                    latency: Latency::of(histogram),
                })
                .collect(),
            windows: self.windows,
        }
    }
}

fn per_second(operations: u64, seconds: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "numbers of operations are far below 2^53")]
    let operations = operations as f64;
    if seconds > 0.0 { operations / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// A store that records which keys it has.
    #[derive(Default)]
    struct Remembers {
        keys: BTreeSet<String>,
        sent: Vec<usize>,
        written: BTreeMap<u32, usize>,
    }

    impl Store for Remembers {
        fn send(&mut self, requests: &[Request<'_>]) -> Result<u64, StoreError> {
            self.sent.push(requests.len());
            let mut missed = 0;
            for request in requests {
                match request {
                    Request::Write { key, pieces, .. } => {
                        self.keys.insert(key.clone());
                        for (piece, bytes) in pieces {
                            self.written.insert(*piece, bytes.len());
                        }
                    }
                    Request::Read { key } => missed += u64::from(!self.keys.contains(key)),
                    Request::Scan { .. } => return Err(StoreError::NoScans { store: "this" }),
                }
            }
            Ok(missed)
        }
    }

    const COMMON: Common =
        Common { records: 100, shape: Shape::YCSB, pipeline: 16, seed: 9, window_s: 0.0 };

    fn of(letter: &str, operations: u64) -> Run {
        let mix: Mix = letter.parse().unwrap();
        let popularity = mix.popularity;
        Run {
            mix,
            popularity,
            operations: Some(operations),
            seconds: None,
            moves: Moves::Operations(100),
            busy_percent: 100,
        }
    }

    #[test]
    fn every_record_is_loaded_with_all_its_fields_and_then_found() {
        let mut store = Remembers::default();
        let report = load(&mut store, &COMMON, &mut |_| {}).unwrap();
        assert_eq!((report.operations, store.keys.len(), store.sent.len()), (100, 100, 7));
        assert_eq!(store.written, (0..10).map(|field| (field, 100)).collect());
        for letter in ["a", "b", "c", "d", "f"] {
            let report = run(&mut store, &COMMON, &of(letter, 1000), &mut |_| {}).unwrap();
            assert_eq!((report.operations, report.missed), (1000, 0), "{letter}");
        }
    }

    #[test]
    fn missing_records_are_counted_as_misses() {
        let report = run(&mut Remembers::default(), &COMMON, &of("c", 50), &mut |_| {}).unwrap();
        assert_eq!((report.operations, report.missed), (50, 50));
    }

    #[test]
    fn windows_sum_to_the_total_and_the_hot_set_moves_at_the_given_interval() {
        let mut store = Remembers::default();
        let mut seen = 0;
        let report = run(&mut store, &COMMON, &of("a", 1000), &mut |_| seen += 1).unwrap();
        assert_eq!(report.windows.len(), seen);
        assert_eq!(report.windows.iter().map(|window| window.operations).sum::<u64>(), 1000);
        assert_eq!(report.moves, 9);
        assert_eq!(report.kinds.iter().map(|kind| kind.operations).sum::<u64>(), 1000);
    }

    #[test]
    fn a_run_with_pauses_counts_only_the_time_at_work() {
        let mut resting = of("c", 2000);
        resting.busy_percent = 1;
        let report = run(&mut Remembers::default(), &COMMON, &resting, &mut |_| {}).unwrap();
        let working: f64 = report.windows.iter().map(|window| window.busy_s).sum();
        assert_eq!(report.operations, 2000);
        assert!(report.busy_s <= report.seconds && (working - report.busy_s).abs() < 1e-6);
    }

    #[test]
    fn a_refused_store_ends_the_run() {
        let refused = run(&mut Remembers::default(), &COMMON, &of("e", 10), &mut |_| {});
        assert!(refused.unwrap_err().to_string().contains("no scans"));
    }
}
