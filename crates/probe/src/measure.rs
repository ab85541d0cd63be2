//! Carries out a plan: for each memory node its buffers, for each CPU node latency, bandwidth and the loaded curve.
//!
//! What fails spoils its own pair only, which is then among the skipped, with the reason. Figures taken in the lab are
//! brought back to the modelled machine here, once: latencies divided by its slow motion, bandwidths multiplied.

use nearfar_topology::{BytesPerSecond, Mix, NodeId};

use crate::budget::LOADS_PERCENT;
use crate::clock::{Clock, unix_s};
use crate::loops::{self, Chase, LINE, Line, Region};
use crate::pacer::Pacer;
use crate::plan::{Plan, Target, View};
use crate::report::{
    Bandwidth, Latency, LoadedCurve, LoadedPoint, Machine, Method, Pair, ProbeReport, SCHEMA,
    Skipped, Source,
};
use crate::stats;
use crate::team::{self, Windows, Work};
use crate::warnings;
use crate::work::{Stream, parts};

/// A segment of the chase in huge pages: eight of them, fewer than any first-level TLB holds.
const SEGMENT_HUGE: usize = 16 << 20;
/// A segment in small pages: 32 of them.
const SEGMENT_SMALL: usize = 128 << 10;
/// Any will do; the same one makes the same order every time.
const SEED: u64 = 0x6e65_6172_6661_7200;

/// Which machine the figures belong to.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The topology's fingerprint.
    pub fingerprint: String,
    /// The kernel's release.
    pub kernel: String,
}

/// How far a probe is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Steps done, of [`Plan::steps`].
    pub done: usize,
    /// The pair being measured.
    pub cpu_node: NodeId,
    /// The pair being measured.
    pub memory_node: NodeId,
    /// What of it.
    pub what: &'a str,
}

/// Carries out `plan`, telling `progress` before each step.
pub fn measure(
    plan: &Plan,
    machine: Identity,
    progress: &mut dyn FnMut(Progress<'_>),
) -> ProbeReport {
    let mut probe = Probe {
        plan,
        clock: Clock::start(),
        slow_motion: plan.lab.as_ref().map_or(1.0, |lab| lab.slow_motion),
        done: 0,
        progress,
    };
    let (mut pairs, mut skipped, mut pages) = (Vec::new(), plan.skipped.clone(), Pages::default());
    for target in &plan.targets {
        let fail = |view: &View, reason: String| Skipped {
            cpu_node: view.node,
            memory_node: target.node,
            reason,
        };
        let bytes = usize::try_from(target.sizes.sum().0).unwrap_or(usize::MAX / 2);
        match Region::on_node(bytes, target.node, target.only_node) {
            Err(error) => {
                skipped.extend(target.views.iter().map(|view| fail(view, error.to_string())))
            }
            Ok(mut region) => {
                pages.add(&region);
                let segment = if pages.of(&region) == HUGE { SEGMENT_HUGE } else { SEGMENT_SMALL };
                for view in &target.views {
                    match probe.pair(target, view, region.lines(), segment) {
                        Ok(pair) => pairs.push(pair),
                        Err(reason) => skipped.push(fail(view, reason)),
                    }
                }
            }
        }
    }
    pairs.sort_by_key(|pair| (pair.cpu_node, pair.memory_node));
    let mut report = ProbeReport {
        schema: SCHEMA.into(),
        source: if plan.lab.is_some() { Source::Emulated } else { Source::Measured },
        machine: Machine {
            fingerprint: machine.fingerprint,
            kernel: machine.kernel,
            lab: plan.lab.clone(),
        },
        taken_unix_s: unix_s(),
        method: method(plan, pages),
        pairs,
        skipped,
        warnings: plan.warnings.clone(),
    };
    report.warnings.extend(warnings::of(&report));
    report
}

const HUGE: &str = "huge";
const SMALL: &str = "small";
const MIXED: &str = "mixed";

/// What pages the buffers so far are in.
#[derive(Clone, Copy, Debug, Default)]
struct Pages(Option<&'static str>);

impl Pages {
    fn of(self, region: &Region) -> &'static str {
        match region.huge_bytes() {
            0 => SMALL,
            huge if huge < region.bytes() => MIXED,
            _ => HUGE,
        }
    }

    fn add(&mut self, region: &Region) {
        let these = self.of(region);
        self.0 = Some(if self.0.is_none_or(|others| others == these) { these } else { MIXED });
    }
}

fn method(plan: &Plan, pages: Pages) -> Method {
    let pages = pages.0.unwrap_or(SMALL);
    let tlb = match pages {
        HUGE => "chased in segments of 8 huge pages, each finished before the next",
        MIXED => {
            "chased in segments of 8 huge pages where all pages are huge, else of 32 small ones"
        }
        _ => "chased in segments of 32 small pages, each finished before the next",
    };
    Method {
        quick: plan.quick,
        line_bytes: LINE as u64,
        llc_bytes: plan.llc,
        pages: pages.into(),
        tlb: tlb.into(),
        loops: "one 8-byte load a line; a written line is modified in place, one read and one write-back".into(),
    }
}

struct Probe<'a> {
    plan: &'a Plan,
    clock: Clock,
    slow_motion: f64,
    done: usize,
    progress: &'a mut dyn FnMut(Progress<'_>),
}

impl Probe<'_> {
    fn pair(
        &mut self,
        target: &Target,
        view: &View,
        lines: &mut [Line],
        segment: usize,
    ) -> Result<Pair, String> {
        let chase_lines = usize::try_from(target.sizes.chase.0).unwrap_or(usize::MAX) / LINE;
        let (chased, streamed) = lines.split_at_mut(chase_lines.min(lines.len()));
        let mut chase = Chase::new(chased, segment / LINE, SEED).ok_or("too few lines to chase")?;
        self.step(target, view, "idle latency");
        let idle_latency = self.idle_latency(view, &mut chase)?;
        let mut bandwidth = Vec::new();
        for mix in &self.plan.mixes {
            self.step(target, view, &format!("bandwidth at {mix}"));
            bandwidth.push(self.bandwidth(view, streamed, *mix)?);
        }
        let loaded = if view.loaders.is_empty() {
            LoadedCurve { points: Vec::new(), not_measured: Some(ONE_CPU.into()) }
        } else {
            self.step(target, view, "loaded latency");
            let points = self.loaded(view, &mut chase, streamed, idle_latency)?;
            LoadedCurve { points, not_measured: None }
        };
        let (cpu_node, memory_node) = (view.node, target.node);
        Ok(Pair { cpu_node, memory_node, cpus: view.cpus.clone(), idle_latency, bandwidth, loaded })
    }

    fn step(&mut self, target: &Target, view: &View, what: &str) {
        let (cpu_node, memory_node) = (view.node, target.node);
        (self.progress)(Progress { done: self.done, cpu_node, memory_node, what });
        self.done += 1;
    }

    fn idle_latency(&self, view: &View, chase: &mut Chase<'_>) -> Result<Latency, String> {
        let works: Works<'_> = vec![(view.chaser, chase)];
        let marks = team::run(self.clock, self.plan.budget.latency, works)
            .map_err(|error| error.to_string())?;
        let samples: Vec<f64> =
            team::rates(&marks).iter().map(|rate| self.latency(*rate)).collect();
        stats::of_floats(&samples).map(Latency::from).ok_or_else(|| STARVED.into())
    }

    fn bandwidth(&self, view: &View, lines: &mut [Line], mix: Mix) -> Result<Bandwidth, String> {
        let mut streams = self.streams(lines, view.cpus.len(), mix, &Pacer::FLAT_OUT)?;
        let works =
            view.cpus.iter().zip(&mut streams).map(|(cpu, stream)| (*cpu, stream as &mut dyn Work));
        let rates = self.rates(self.plan.budget.bandwidth, works.collect())?;
        let samples: Vec<u64> = rates.iter().map(|lines| self.rate(*lines).0).collect();
        stats::of_integers(&samples).map(|of| Bandwidth::new(mix, of)).ok_or_else(|| STARVED.into())
    }

    /// Flat out first, since that is what the shares of the other points are of; then from idle up.
    fn loaded(
        &self,
        view: &View,
        chase: &mut Chase<'_>,
        lines: &mut [Line],
        idle: Latency,
    ) -> Result<Vec<LoadedPoint>, String> {
        let flat_out = self.loaded_point(view, chase, lines, None)?;
        let line = LINE as f64 * 1e9;
        let alone = LoadedPoint {
            offered_bytes_per_s: Some(BytesPerSecond(0)),
            achieved_bytes_per_s: whole(line / idle.median_ns),
            latency_ns: idle.median_ns,
        };
        let most =
            flat_out.achieved_bytes_per_s.0.saturating_sub(whole(line / flat_out.latency_ns).0);
        let mut points = vec![alone];
        for percent in LOADS_PERCENT {
            let offered = BytesPerSecond(most / 100 * percent);
            points.push(self.loaded_point(view, chase, lines, Some(offered))?);
        }
        points.push(flat_out);
        Ok(points)
    }

    fn loaded_point(
        &self,
        view: &View,
        chase: &mut Chase<'_>,
        lines: &mut [Line],
        offered: Option<BytesPerSecond>,
    ) -> Result<LoadedPoint, String> {
        let count = view.loaders.len();
        let pacer = offered.map_or(Pacer::FLAT_OUT, |offered| self.pacer(offered, count));
        let mut streams = self.streams(lines, count, Mix::READS, &pacer)?;
        let mut works: Works<'_> = vec![(view.chaser, chase)];
        works.extend(
            view.loaders
                .iter()
                .zip(&mut streams)
                .map(|(cpu, stream)| (*cpu, stream as &mut dyn Work)),
        );
        let windows = self.plan.budget.loaded;
        let marks = team::run(self.clock, windows, works).map_err(|error| error.to_string())?;
        let (chaser, loaders) = marks.split_at(1);
        let hops = team::rates(chaser);
        let latencies: Vec<f64> = hops.iter().map(|rate| self.latency(*rate)).collect();
        let loads: Vec<f64> = team::rates(loaders);
        let loads = stats::of_floats(&loads).ok_or(STARVED)?;
        let latency = stats::of_floats(&latencies).ok_or(STARVED)?;
        let own = LINE as f64 * 1e9 / latency.median;
        let achieved = self.rate(loads.median).0 + whole(own).0;
        Ok(LoadedPoint {
            offered_bytes_per_s: offered,
            achieved_bytes_per_s: BytesPerSecond(achieved),
            latency_ns: latency.median,
        })
    }

    fn rates(&self, windows: Windows, works: Works<'_>) -> Result<Vec<f64>, String> {
        let marks = team::run(self.clock, windows, works).map_err(|error| error.to_string())?;
        Ok(team::rates(&marks))
    }

    fn streams<'l>(
        &self,
        lines: &'l mut [Line],
        count: usize,
        mix: Mix,
        pacer: &Pacer,
    ) -> Result<Vec<Stream<'l>>, String> {
        let streams: Option<Vec<_>> =
            parts(lines, count).map(|part| Stream::new(part, mix, pacer.clone())).collect();
        let streams = streams.filter(|streams| streams.len() == count);
        streams.ok_or_else(|| format!("too little memory for {count} streams at {mix}"))
    }

    /// Holds each of `count` streams to its part of `offered`, which is of the modelled machine in the lab.
    fn pacer(&self, offered: BytesPerSecond, count: usize) -> Pacer {
        const TURNS: u64 = 20_000;
        let before = self.clock.now_ns();
        loops::spin(TURNS);
        let turn_ps = (self.clock.now_ns() - before) * 1000 / TURNS;
        let each = offered.0 as f64 / self.slow_motion / count as f64;
        Pacer::at_rate(whole(each).0, Stream::burst_lines(Mix::READS) * LINE as u64, turn_ps)
    }

    /// Latency of the modelled or real machine from dependent loads a second.
    fn latency(&self, per_s: f64) -> f64 {
        (1e9 / per_s / self.slow_motion * 100.0).round() / 100.0
    }

    /// Bandwidth of the modelled or real machine from lines a second.
    fn rate(&self, lines_per_s: f64) -> BytesPerSecond {
        whole(lines_per_s * LINE as f64 * self.slow_motion)
    }
}

type Works<'w> = Vec<(nearfar_topology::CpuId, &'w mut dyn Work)>;

const ONE_CPU: &str = "this CPU node has one CPU for us; it takes one to measure and another to load memory meanwhile";
const STARVED: &str = "no thread got to run in any window; the machine is too busy to measure";

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates; figures are not negative"
)]
fn whole(bytes_per_s: f64) -> BytesPerSecond {
    BytesPerSecond(bytes_per_s.round() as u64)
}
