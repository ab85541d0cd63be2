//! Carries out a plan: for each memory node its buffers, for each CPU node latency, bandwidth and the loaded-latency
//! curve.
//!
//! A failure affects only its own pair, which is then listed as skipped, with the reason.

use nearfar_topology::{Mix, NodeId};

use crate::clock::unix_s;
use crate::gauge::{Gauge, GaugeError, Known};
use crate::loops::{Chase, LINE, Line, Region};
use crate::plan::{Plan, Target, View};
use crate::report::{LoadedCurve, Machine, Method, Pair, ProbeReport, SCHEMA, Skipped, Source};
use crate::warnings;

/// A segment of the chase in huge pages: eight of them, fewer than any first-level TLB holds.
const SEGMENT_HUGE: usize = 16 << 20;
/// A segment in small pages: 32 of them.
const SEGMENT_SMALL: usize = 128 << 10;
/// Arbitrary but fixed, so that the order is the same every time.
const SEED: u64 = 0x6e65_6172_6661_7200;

/// The machine that the results belong to.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The topology's fingerprint.
    pub fingerprint: String,
    /// The kernel's release.
    pub kernel: String,
}

/// Progress of a probe.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Steps done, of [`Plan::steps`].
    pub done: usize,
    /// The pair being measured.
    pub cpu_node: NodeId,
    /// The pair being measured.
    pub memory_node: NodeId,
    /// The current measurement of the pair.
    pub what: &'a str,
}

/// Carries out `plan`; calls `progress` before each step.
pub fn measure(
    plan: &Plan,
    machine: Identity,
    progress: &mut dyn FnMut(Progress<'_>),
) -> ProbeReport {
    let slow_motion = plan.lab.as_ref().map_or(1.0, |lab| lab.slow_motion);
    let mut run = Run {
        plan,
        gauge: Gauge::new(plan.budget, plan.llc, slow_motion),
        progress,
        done: 0,
        pages: Pages::default(),
        pairs: Vec::new(),
        skipped: plan.skipped.clone(),
        warnings: plan.warnings.clone(),
    };
    for target in &plan.targets {
        run.target(target);
    }
    run.pairs.sort_by_key(|pair| (pair.cpu_node, pair.memory_node));
    let Identity { fingerprint, kernel } = machine;
    let mut report = ProbeReport {
        schema: SCHEMA.into(),
        source: if plan.lab.is_some() { Source::Emulated } else { Source::Measured },
        machine: Machine { fingerprint, kernel, lab: plan.lab.clone() },
        taken_unix_s: unix_s(),
        method: method(plan, run.pages),
        pairs: run.pairs,
        skipped: run.skipped,
        warnings: run.warnings,
    };
    report.warnings.extend(warnings::of(&report));
    report
}

/// A plan being carried out.
struct Run<'a> {
    plan: &'a Plan,
    gauge: Gauge,
    progress: &'a mut dyn FnMut(Progress<'_>),
    done: usize,
    pages: Pages,
    pairs: Vec<Pair>,
    skipped: Vec<Skipped>,
    warnings: Vec<String>,
}

impl Run<'_> {
    /// Measures all pairs of one memory node.
    fn target(&mut self, target: &Target) {
        let bytes = usize::try_from(target.sizes.sum().0).unwrap_or(usize::MAX / 2);
        let mut region = match Region::on_node(bytes, target.node, target.only_node) {
            Ok(region) => region,
            Err(error) => {
                for view in &target.views {
                    self.skip(target, view, error.to_string());
                }
                return;
            }
        };
        let pages = page_size(&region);
        self.pages.add(pages);
        let segment = if pages == HUGE { SEGMENT_HUGE } else { SEGMENT_SMALL };
        for view in &target.views {
            match self.pair(target, view, region.lines(), segment) {
                Ok(pair) => self.pairs.push(pair),
                Err(error) => self.skip(target, view, error.to_string()),
            }
            let disturbed = self.gauge.take_disturbed();
            if disturbed > 0 {
                let (who, quiet) = match self.plan.lab {
                    None => ("other programs", "when the machine is quiet"),
                    Some(_) => {
                        ("the guest's kernel", "with fewer programs in the guest and on its host")
                    }
                };
                self.warnings.push(format!(
                    "CPU node {}, memory node {}: {who} kept taking the CPUs (measurements disturbed: {disturbed}), so \
                     these figures are rough; measure again {quiet}",
                    view.node, target.node
                ));
            }
        }
    }

    fn pair(
        &mut self,
        target: &Target,
        view: &View,
        lines: &mut [Line],
        segment: usize,
    ) -> Result<Pair, GaugeError> {
        let chase_lines = usize::try_from(target.sizes.chase.0).unwrap_or(usize::MAX) / LINE;
        let (chased, streamed) = lines.split_at_mut(chase_lines.min(lines.len()));
        let chase = Chase::new(chased, segment / LINE, SEED);
        // Sizes are at least megabytes.
        let mut chase = chase.ok_or(GaugeError::Starved)?;
        self.step(target, view, "idle latency");
        let idle_latency = self.gauge.idle_latency(view, &mut chase, streamed)?;
        let mut bandwidth = Vec::new();
        for mix in &self.plan.mixes {
            self.step(target, view, &format!("bandwidth at {mix}"));
            bandwidth.push(self.gauge.bandwidth(view, streamed, *mix)?);
        }
        let loaded = if view.loaders.is_empty() {
            LoadedCurve { points: Vec::new(), not_measured: Some(ONE_CPU.into()) }
        } else {
            self.step(target, view, "loaded latency");
            let read = bandwidth.iter().find(|at| at.mix == Mix::READS);
            let read = read.map(|at| at.median_bytes_per_second);
            let known = Known { idle: idle_latency, read };
            let points = self.gauge.loaded(view, &mut chase, streamed, known)?;
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

    fn skip(&mut self, target: &Target, view: &View, reason: String) {
        let (cpu_node, memory_node) = (view.node, target.node);
        self.skipped.push(Skipped { cpu_node, memory_node, reason });
    }
}

const ONE_CPU: &str = "this CPU node has one CPU for us; it takes one to measure and another to load memory meanwhile";

const HUGE: &str = "huge";
const SMALL: &str = "small";
const MIXED: &str = "mixed";

/// Type of the pages of the buffers so far.
#[derive(Clone, Copy, Debug, Default)]
struct Pages(Option<&'static str>);

impl Pages {
    fn add(&mut self, these: &'static str) {
        self.0 = Some(if self.0.is_none_or(|others| others == these) { these } else { MIXED });
    }
}

fn page_size(region: &Region) -> &'static str {
    match region.huge_bytes() {
        0 => SMALL,
        huge if huge < region.bytes() => MIXED,
        _ => HUGE,
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
