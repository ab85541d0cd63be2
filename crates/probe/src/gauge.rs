//! The three measurements: idle latency, bandwidth at a mix, latency under load.
//!
//! At its start the caches are full of lines of the previous measurement, and if those are dirty, every fill causes a
//! write-back: a read stream would show half its bandwidth. So each measurement first replaces the content of the
//! caches.
//!
//! Results from the lab are converted to the modelled machine here, in one place: latencies are divided by its slow
//! motion, bandwidths multiplied.

use nearfar_topology::{Bytes, BytesPerSecond, CpuId, Mix};

use crate::budget::Budget;
use crate::clock::Clock;
use crate::loops::{self, Chase, LINE, Line};
use crate::pacer::{Burst, Pacer};
use crate::plan::View;
use crate::report::{Bandwidth, Latency, LoadedPoint};
use crate::stats;
use crate::team::{self, Work};
use crate::windows::{Windows, rates, rough_rates};
use crate::work::{Stream, parts};

/// Bytes of a line, as a factor of rates.
const LINE_BYTES: f64 = LINE as f64;

/// The most disturbed measurements that are repeated in one probe.
const RETRIES: u32 = 5;

/// Works with the CPU of each.
type Works<'w> = Vec<(CpuId, &'w mut dyn Work)>;

/// Reasons for a missing result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GaugeError {
    /// The threads could not run.
    #[error(transparent)]
    Team(#[from] team::TeamError),
    /// A thread got no CPU time.
    #[error("a thread got no time on its CPU; the machine is too busy to measure")]
    Starved,
    /// The buffers are too small for this many streams.
    #[error("{lines} lines of memory are too few for {streams} streams at {mix}")]
    TooFewLines {
        /// Available lines.
        lines: usize,
        /// Number of streams.
        streams: usize,
        /// The mix.
        mix: Mix,
    },
}

/// Runs measurements, and counts the disturbed ones.
#[derive(Debug)]
pub(crate) struct Gauge {
    clock: Clock,
    budget: Budget,
    /// Sum of the last-level caches of a CPU node.
    llc: Bytes,
    slow_motion: f64,
    /// Number of disturbed measurements that may still be repeated; limited, because on a busy machine all are
    /// disturbed.
    retries: u32,
    /// Number of measurements since [`Gauge::take_disturbed`] with too few windows in which all threads ran.
    disturbed: u32,
}

impl Gauge {
    pub(crate) fn new(budget: Budget, llc: Bytes, slow_motion: f64) -> Self {
        Self { clock: Clock::start(), budget, llc, slow_motion, retries: RETRIES, disturbed: 0 }
    }

    /// Returns and resets the number of disturbed measurements.
    pub(crate) fn take_disturbed(&mut self) -> u32 {
        std::mem::take(&mut self.disturbed)
    }

    /// Latency of a dependent load while the probe causes no other traffic. First reads `lines`, to replace the caches'
    /// content.
    pub(crate) fn idle_latency(
        &mut self,
        view: &View,
        chase: &mut Chase<'_>,
        lines: &mut [Line],
    ) -> Result<Latency, GaugeError> {
        self.wash(&[view.chaser], lines)?;
        let counted = self.count(self.budget.latency, vec![(view.chaser, chase)])?.rates;
        let samples: Vec<f64> = counted.iter().map(|rates| self.latency(rates[0])).collect();
        stats::of_floats(&samples).map(Latency::from).ok_or(GaugeError::Starved)
    }

    /// Total bandwidth of all CPUs of `view`.
    pub(crate) fn bandwidth(
        &mut self,
        view: &View,
        lines: &mut [Line],
        mix: Mix,
    ) -> Result<Bandwidth, GaugeError> {
        let mut streams = streams(lines, view.cpus.len(), mix, &Pacer::FLAT_OUT)?;
        let warm_up_units = self.turn_over(view.cpus.len());
        let windows = Windows { warm_up_units, ..self.budget.bandwidth };
        let counted = self.count(windows, on(&view.cpus, &mut streams))?.rates;
        let samples: Vec<u64> =
            counted.iter().map(|rates| self.bytes(rates.iter().sum()).0).collect();
        stats::of_integers(&samples).map(|of| Bandwidth::new(mix, of)).ok_or(GaugeError::Starved)
    }

    /// The loaded-latency curve: from idle through fractions of the loaders' maximum read bandwidth, up to that.
    pub(crate) fn loaded(
        &mut self,
        view: &View,
        chase: &mut Chase<'_>,
        lines: &mut [Line],
        known: Known,
    ) -> Result<Vec<LoadedPoint>, GaugeError> {
        let idle_ns = known.idle.median_ns;
        // First, because the other points are fractions of it, and because the earlier mixes may have left dirty
        // caches.
        self.wash(&view.loaders, lines)?;
        let flat_out = self.loaded_point(view, chase, lines, None)?;
        // All CPUs but one read at least their share of the total, even if this one measurement was disturbed.
        let (loaders, all) = (view.loaders.len() as u64, view.cpus.len() as u64);
        let part = known.read.map_or(0, |read| read.0 / all.max(1) * loaders);
        let most = flat_out.loaders.max(BytesPerSecond(part));
        let alone = LoadedPoint {
            offered_bytes_per_second: Some(BytesPerSecond(0)),
            achieved_bytes_per_second: whole(LINE_BYTES * 1e9 / idle_ns),
            latency_ns: idle_ns,
        };
        let mut points = vec![alone];
        for percent in self.budget.loads_percent {
            let offered = Offered { rate: BytesPerSecond(most.0 / 100 * percent), most };
            let loaded = self.loaded_point(view, chase, lines, Some(offered))?;
            // Load and latency from different moments would not belong together.
            points.extend((!loaded.rough).then_some(loaded.point));
        }
        points.push(flat_out.point);
        Ok(points)
    }

    fn loaded_point(
        &mut self,
        view: &View,
        chase: &mut Chase<'_>,
        lines: &mut [Line],
        offered: Option<Offered>,
    ) -> Result<Loaded, GaugeError> {
        let count = view.loaders.len();
        let pacer = offered.map_or(Pacer::FLAT_OUT, |offered| self.pacer(offered, count));
        let mut streams = streams(lines, count, Mix::READS, &pacer)?;
        let mut works: Works<'_> = vec![(view.chaser, chase)];
        works.extend(on(&view.loaders, &mut streams));
        let Counted { rates: counted, rough } = self.count(self.budget.loaded, works)?;
        let latencies: Vec<f64> = counted.iter().map(|rates| self.latency(rates[0])).collect();
        let loads: Vec<u64> =
            counted.iter().map(|rates| self.bytes(rates[1..].iter().sum()).0).collect();
        let latency_ns = stats::of_floats(&latencies).ok_or(GaugeError::Starved)?.median;
        let loaders = BytesPerSecond(stats::of_integers(&loads).ok_or(GaugeError::Starved)?.median);
        let point = LoadedPoint {
            offered_bytes_per_second: offered.map(|offered| offered.rate),
            achieved_bytes_per_second: BytesPerSecond(
                loaders.0 + whole(LINE_BYTES * 1e9 / latency_ns).0,
            ),
            latency_ns,
        };
        Ok(Loaded { point, loaders, rough })
    }

    /// Runs the works and counts them. Repeats once if other processes took the CPUs in most windows; after that
    /// accepts the result and counts it as disturbed.
    fn count(&mut self, windows: Windows, mut works: Works<'_>) -> Result<Counted, GaugeError> {
        let enough = usize::try_from(windows.count / 2 + 1).unwrap_or(usize::MAX);
        let mut team = team::run(self.clock, windows, &mut works)?;
        let mut counted = rates(&team);
        if counted.len() < enough && self.retries > 0 {
            self.retries -= 1;
            team = team::run(self.clock, windows, &mut works)?;
            counted.extend(rates(&team));
        }
        if counted.len() < enough {
            self.disturbed += 1;
        }
        if !counted.is_empty() {
            return Ok(Counted { rates: counted, rough: false });
        }
        let whole = rough_rates(&team).ok_or(GaugeError::Starved)?;
        Ok(Counted { rates: vec![whole], rough: true })
    }

    /// Replaces the content of the caches of `cpus` by reading.
    fn wash(&self, cpus: &[CpuId], lines: &mut [Line]) -> Result<(), GaugeError> {
        let mut streams = streams(lines, cpus.len(), Mix::READS, &Pacer::FLAT_OUT)?;
        let warm_up_units = self.turn_over(cpus.len());
        let only = Windows { warm_up_units, warm_up_ns: 0, window_ns: 1, count: 0 };
        team::run(self.clock, only, &mut on(cpus, &mut streams))?;
        Ok(())
    }

    /// Lines that each of `count` streams must read to replace the caches' content.
    fn turn_over(&self, count: usize) -> u64 {
        2 * self.llc.0 / LINE as u64 / count.max(1) as u64
    }

    /// A pacer that limits each of `count` streams to its share of the offered load.
    fn pacer(&self, offered: Offered, count: usize) -> Pacer {
        const TURNS: u64 = 20_000;
        let before = self.clock.now_ns();
        loops::spin(TURNS);
        let turn_ps = (self.clock.now_ns() - before) * 1000 / TURNS;
        let each = |rate: BytesPerSecond| {
            #[expect(clippy::cast_precision_loss, reason = "rates far below 2^53, few streams")]
            let share = rate.0 as f64 / count as f64;
            whole(share / self.slow_motion).0
        };
        let bytes = Stream::burst_lines(Mix::READS) * LINE as u64;
        Pacer::at_rate(each(offered.rate), each(offered.most), Burst { bytes, turn_ps })
    }

    /// Latency of the machine, modelled or real, from dependent loads per second; rounded to a hundredth.
    fn latency(&self, per_s: f64) -> f64 {
        (1e9 / per_s / self.slow_motion * 100.0).round() / 100.0
    }

    /// Bandwidth of the machine, modelled or real, from lines per second.
    fn bytes(&self, lines_per_s: f64) -> BytesPerSecond {
        whole(lines_per_s * LINE_BYTES * self.slow_motion)
    }
}

/// Results of a pair that precede its curve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) idle: Latency,
    /// Read bandwidth of all CPUs of the pair, if measured.
    pub(crate) read: Option<BytesPerSecond>,
}

/// Rates of a team.
struct Counted {
    /// Units per second of each work, for each valid window.
    rates: Vec<Vec<f64>>,
    /// There was no valid window, and the rates are averages over each work's whole time.
    rough: bool,
}

/// The target load, and the loaders' maximum.
#[derive(Clone, Copy)]
struct Offered {
    rate: BytesPerSecond,
    most: BytesPerSecond,
}

/// A point, and the loaders' share of its bandwidth.
struct Loaded {
    point: LoadedPoint,
    loaders: BytesPerSecond,
    rough: bool,
}

/// `count` streams that divide `lines` among them.
fn streams<'l>(
    lines: &'l mut [Line],
    count: usize,
    mix: Mix,
    pacer: &Pacer,
) -> Result<Vec<Stream<'l>>, GaugeError> {
    let available = lines.len();
    let streams = parts(lines, count).map(|part| Stream::new(part, mix, pacer.clone()));
    let streams: Option<Vec<_>> = streams.collect();
    let streams = streams.filter(|streams| streams.len() == count);
    streams.ok_or(GaugeError::TooFewLines { lines: available, streams: count, mix })
}

fn on<'w>(cpus: &[CpuId], streams: &'w mut [Stream<'_>]) -> Works<'w> {
    let works = cpus.iter().zip(streams);
    works.map(|(cpu, stream)| (*cpu, stream as &'w mut dyn Work)).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "casts saturate, and rates are not negative"
)]
fn whole(bytes_per_second: f64) -> BytesPerSecond {
    BytesPerSecond(bytes_per_second.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Pace;
    use crate::cpus::Caches;
    use nearfar_topology::NodeId;

    fn gauge(slow_motion: f64) -> Gauge {
        Gauge::new(Budget::new(Pace::QuickModelled, 1, 1), Bytes(4096), slow_motion)
    }

    fn view(loaders: usize) -> View {
        // Several threads on one CPU give no valid measurement, but they must still terminate.
        let ours = nearfar_kernel::affinity::get().unwrap()[0];
        let (cpus, loaders) = (vec![ours; loaders + 1], vec![ours; loaders]);
        View { node: NodeId(0), cpus, chaser: ours, loaders, caches: Caches::default() }
    }

    #[test]
    fn slow_motion_divides_latencies_and_multiplies_bandwidths() {
        assert_eq!(gauge(40.0).latency(1e6), 25.0);
        assert_eq!(gauge(40.0).bytes(1e6), BytesPerSecond(64 * 40_000_000));
        assert_eq!(gauge(1.0).latency(1e7), 100.0);
    }

    #[test]
    fn a_latency_curve_rises_from_no_load_to_full_load() {
        let mut gauge = gauge(1.0);
        let (mut chased, mut streamed) = (vec![Line::default(); 4096], vec![Line::default(); 4096]);
        let mut chase = Chase::new(&mut chased, 512, 1).unwrap();
        let idle = gauge.idle_latency(&view(1), &mut chase, &mut streamed).unwrap();
        assert!(idle.min_ns > 0.0);
        let known = Known { idle, read: Some(BytesPerSecond(1_000_000_000)) };
        let points = gauge.loaded(&view(1), &mut chase, &mut streamed, known).unwrap();
        let offers: Vec<_> = points.iter().map(|point| point.offered_bytes_per_second).collect();
        assert_eq!(offers.first(), Some(&Some(BytesPerSecond(0))));
        assert_eq!(offers.last(), Some(&None));
        assert!(offers[..offers.len() - 1].is_sorted());
    }

    #[test]
    fn too_few_lines_for_the_streams_return_an_error() {
        let mut lines = vec![Line::default(); 7];
        let error = gauge(1.0).bandwidth(&view(1), &mut lines, Mix::READS).unwrap_err();
        assert!(error.to_string().contains("7 lines"), "{error}");
    }
}
