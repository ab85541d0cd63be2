//! The three measurements: idle latency, bandwidth at a mix, latency under load.
//!
//! A measurement finds the caches full of what the one before left there, and if that was written to, every line that
//! comes in pushes a write-back out: a read stream would show half its bandwidth. So first the caches are turned over.
//!
//! Figures taken in the lab are brought back to the modelled machine here, once: latencies divided by its slow motion,
//! bandwidths multiplied.

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

/// Disturbed measurements that are tried again in one probe.
const RETRIES: u32 = 5;

/// Works and the CPUs they belong on.
type Works<'w> = Vec<(CpuId, &'w mut dyn Work)>;

/// Why a figure can't be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GaugeError {
    /// The threads could not work.
    #[error(transparent)]
    Team(#[from] team::TeamError),
    /// A thread never ran.
    #[error("a thread got no time on its CPU; the machine is too busy to measure")]
    Starved,
    /// The buffers are too small for so many streams.
    #[error("{lines} lines of memory are too few for {streams} streams at {mix}")]
    TooFewLines {
        /// Lines there are.
        lines: usize,
        /// Streams that were to share them.
        streams: usize,
        /// The mix.
        mix: Mix,
    },
}

/// Measures, and remembers what was disturbed.
#[derive(Debug)]
pub(crate) struct Gauge {
    clock: Clock,
    budget: Budget,
    /// The last-level caches of a CPU node together.
    llc: Bytes,
    slow_motion: f64,
    /// Disturbed measurements that may still be tried again; a bound, since a busy machine disturbs them all.
    retries: u32,
    /// How many measurements since [`Gauge::take_disturbed`] had too few windows in which all threads ran.
    disturbed: u32,
}

impl Gauge {
    pub(crate) fn new(budget: Budget, llc: Bytes, slow_motion: f64) -> Self {
        Self { clock: Clock::start(), budget, llc, slow_motion, retries: RETRIES, disturbed: 0 }
    }

    /// How many measurements were disturbed since this was last asked.
    pub(crate) fn take_disturbed(&mut self) -> u32 {
        std::mem::take(&mut self.disturbed)
    }

    /// Latency of a dependent load while nothing else of ours runs. `lines` are read first, to turn the cache over.
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

    /// Bandwidth of all CPUs of `view` together.
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

    /// The loaded curve: from idle through shares of what the loaders read flat out, up to that.
    pub(crate) fn loaded(
        &mut self,
        view: &View,
        chase: &mut Chase<'_>,
        lines: &mut [Line],
        known: Known,
    ) -> Result<Vec<LoadedPoint>, GaugeError> {
        let idle_ns = known.idle.median_ns;
        // First, since the other points are shares of it, and since the mixes before may have left the caches dirty.
        self.wash(&view.loaders, lines)?;
        let flat_out = self.loaded_point(view, chase, lines, None)?;
        // All CPUs but one read at least their part of what all read, however disturbed this one measurement was.
        let (loaders, all) = (view.loaders.len() as u64, view.cpus.len() as u64);
        let part = known.read.map_or(0, |read| read.0 / all.max(1) * loaders);
        let most = flat_out.loaders.max(BytesPerSecond(part));
        let alone = LoadedPoint {
            offered_bytes_per_s: Some(BytesPerSecond(0)),
            achieved_bytes_per_s: whole(LINE_BYTES * 1e9 / idle_ns),
            latency_ns: idle_ns,
        };
        let mut points = vec![alone];
        for percent in self.budget.loads_percent {
            let offered = Offered { rate: BytesPerSecond(most.0 / 100 * percent), most };
            let loaded = self.loaded_point(view, chase, lines, Some(offered))?;
            // Load and latency of different moments say nothing of one another.
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
            offered_bytes_per_s: offered.map(|offered| offered.rate),
            achieved_bytes_per_s: BytesPerSecond(
                loaders.0 + whole(LINE_BYTES * 1e9 / latency_ns).0,
            ),
            latency_ns,
        };
        Ok(Loaded { point, loaders, rough })
    }

    /// Lets the works work and counts them. Once more if others took the CPUs in most windows; after that what there
    /// is must do, and is remembered as disturbed.
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

    /// Turns the caches of `cpus` over by reading.
    fn wash(&self, cpus: &[CpuId], lines: &mut [Line]) -> Result<(), GaugeError> {
        let mut streams = streams(lines, cpus.len(), Mix::READS, &Pacer::FLAT_OUT)?;
        let warm_up_units = self.turn_over(cpus.len());
        let only = Windows { warm_up_units, warm_up_ns: 0, window_ns: 1, count: 0 };
        team::run(self.clock, only, &mut on(cpus, &mut streams))?;
        Ok(())
    }

    /// Lines that each of `count` streams must read for the caches to hold nothing of before.
    fn turn_over(&self, count: usize) -> u64 {
        2 * self.llc.0 / LINE as u64 / count.max(1) as u64
    }

    /// Holds each of `count` streams to its part of what is offered.
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

    /// Latency of the machine, modelled or real, from dependent loads a second; to a hundredth.
    fn latency(&self, per_s: f64) -> f64 {
        (1e9 / per_s / self.slow_motion * 100.0).round() / 100.0
    }

    /// Bandwidth of the machine, modelled or real, from lines a second.
    fn bytes(&self, lines_per_s: f64) -> BytesPerSecond {
        whole(lines_per_s * LINE_BYTES * self.slow_motion)
    }
}

/// What is known of a pair before its curve is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) idle: Latency,
    /// What all CPUs of the pair read, if that was measured.
    pub(crate) read: Option<BytesPerSecond>,
}

/// What a team was counted at.
struct Counted {
    /// Units a second of each work, for each window that counts.
    rates: Vec<Vec<f64>>,
    /// No window did, and the rates are of the whole time of each work.
    rough: bool,
}

/// A load to be held, and the most the loaders could do.
#[derive(Clone, Copy)]
struct Offered {
    rate: BytesPerSecond,
    most: BytesPerSecond,
}

/// A point, and the loaders' part of its bandwidth.
struct Loaded {
    point: LoadedPoint,
    loaders: BytesPerSecond,
    rough: bool,
}

/// `count` streams that share `lines`.
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
fn whole(bytes_per_s: f64) -> BytesPerSecond {
    BytesPerSecond(bytes_per_s.round() as u64)
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
        // Several threads on one CPU measure nothing, but all the same they must come to an end.
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
    fn a_curve_goes_from_idle_to_flat_out_by_rising_offers() {
        let mut gauge = gauge(1.0);
        let (mut chased, mut streamed) = (vec![Line::default(); 4096], vec![Line::default(); 4096]);
        let mut chase = Chase::new(&mut chased, 512, 1).unwrap();
        let idle = gauge.idle_latency(&view(1), &mut chase, &mut streamed).unwrap();
        assert!(idle.min_ns > 0.0);
        let known = Known { idle, read: Some(BytesPerSecond(1_000_000_000)) };
        let points = gauge.loaded(&view(1), &mut chase, &mut streamed, known).unwrap();
        let offers: Vec<_> = points.iter().map(|point| point.offered_bytes_per_s).collect();
        assert_eq!(offers.first(), Some(&Some(BytesPerSecond(0))));
        assert_eq!(offers.last(), Some(&None));
        assert!(offers[..offers.len() - 1].is_sorted());
    }

    #[test]
    fn too_little_memory_for_the_streams_is_said_and_not_measured() {
        let mut lines = vec![Line::default(); 7];
        let error = gauge(1.0).bandwidth(&view(1), &mut lines, Mix::READS).unwrap_err();
        assert!(error.to_string().contains("7 lines"), "{error}");
    }
}
