//! A device and the CPU on one batch at once: the device has the large items, the CPU the small ones and its share.
//!
//! [`split`](mod@super::split) says who copies what, by the rates of [`tuner`]. While the device works, the CPU
//! copies its part and looks at the device between items, so that it knows about when that was done. If the device can't be
//! used, the CPU copies all.

use super::clock::Clock;
use super::cpu::Cpu;
use super::job::{Job, Place};
use super::split::{self, Plan, Rates, SplitConfig, split};
use super::tuner::{self, Decision, Tuner};
use super::{Copier, Failure, Outcome, Overlap, Ran};

/// What went which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HybridCounts {
    /// Batches.
    pub batches: u64,
    /// Batches that were timed and counted towards the device's rate.
    pub sampled: u64,
    /// Batches left out of the tuning, as the device met page faults or left something to the CPU.
    pub left_out: u64,
    /// Bytes that were the device's share.
    pub device_bytes: u64,
    /// Bytes that were the CPU's share.
    pub cpu_bytes: u64,
}

/// A device and the CPU.
#[derive(Debug)]
pub struct Hybrid<D, C> {
    device: D,
    cpu: Cpu,
    clock: C,
    config: SplitConfig,
    tuner: Tuner,
    counts: HybridCounts,
    plan: Plan,
    lengths: Vec<usize>,
    parts: Vec<Job>,
    outcomes: Vec<Outcome>,
}

/// When what was done, on the clock.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    device_began: u64,
    device_ended: u64,
    cpu_began: u64,
    cpu_ended: u64,
}

impl<D: Overlap, C: Clock> Hybrid<D, C> {
    /// Splits batches between `device` and `cpu`.
    #[must_use]
    pub fn new(device: D, cpu: Cpu, clock: C, config: SplitConfig, tuner: Tuner) -> Self {
        Self {
            device,
            cpu,
            clock,
            config,
            tuner,
            counts: HybridCounts::default(),
            plan: Plan::default(),
            lengths: Vec::new(),
            parts: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    /// What went which way.
    #[must_use]
    pub fn counts(&self) -> HybridCounts {
        self.counts
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What it knows of rates.
    #[must_use]
    pub fn tuner(&self) -> &Tuner {
        &self.tuner
    }

    fn now(&self, decision: &Decision) -> u64 {
        if decision.is_sampled { self.clock.now_ns() } else { 0 }
    }

    /// Both do their part of the plan; what the device did, and when.
    fn run(&mut self, jobs: &[Job], decision: &Decision) -> (Ran, Times) {
        let mut times = Times { device_began: self.now(decision), ..Times::default() };
        let part = |part: &split::Part| jobs[part.item].part(part.from, part.length);
        self.parts.clear();
        self.parts.extend(self.plan.device.iter().map(part));
        let has_device = !self.parts.is_empty();
        if has_device {
            self.device.start(&self.parts);
        }
        times.cpu_began = self.now(decision);
        let mut is_over = !has_device;
        for at in 0..self.plan.cpu.len() {
            self.cpu.one(&part(&self.plan.cpu[at]));
            if !is_over && self.device.poll() {
                is_over = true;
                times.device_ended = self.now(decision);
            }
        }
        self.cpu.fence();
        times.cpu_ended = self.now(decision);
        if !has_device {
            return (Ran::default(), times);
        }
        let ran = self.device.finish(&mut self.outcomes);
        if !is_over {
            times.device_ended = self.now(decision);
        }
        self.parts.clear();
        (ran, times)
    }

    /// Learns from a batch.
    fn learn(&mut self, decision: &Decision, ran: Ran, times: Times) {
        let bytes = |parts: &[split::Part]| parts.iter().map(|part| part.length as u64).sum();
        let (device, cpu) = (bytes(&self.plan.device), bytes(&self.plan.cpu));
        let is_plain = ran.faults == 0 && ran.cpu_bytes == 0 && ran.device_bytes == device;
        let counts = &mut self.counts;
        counts.batches += 1;
        counts.device_bytes += device;
        counts.cpu_bytes += cpu;
        counts.left_out += u64::from(!is_plain);
        let is_timed = decision.is_sampled && is_plain;
        counts.sampled += u64::from(is_timed && device > 0);
        let time = |began: u64, ended: u64| is_timed.then(|| ended.saturating_sub(began));
        self.tuner.note(
            decision,
            tuner::Part { bytes: device, ns: time(times.device_began, times.device_ended) },
            tuner::Part { bytes: cpu, ns: time(times.cpu_began, times.cpu_ended) },
        );
    }
}

impl<D: Overlap, C: Clock> Copier for Hybrid<D, C> {
    fn copy(&mut self, jobs: &[Job], outcomes: &mut Vec<Outcome>) {
        let begin = |job: &Job| match job.overlaps() {
            true => Outcome::Failed(Failure::Overlap),
            false => Outcome::Done,
        };
        outcomes.clear();
        outcomes.extend(jobs.iter().map(begin));
        self.lengths.clear();
        self.lengths.extend(jobs.iter().map(|job| if job.overlaps() { 0 } else { job.length() }));
        let total = self.lengths.iter().map(|length| *length as u64).sum();
        let is_usable = self.device.is_usable();
        let decision = self.tuner.decide(total);
        let rates = if is_usable { decision.rates } else { Rates::CPU_ALONE };
        split(&self.lengths, rates, self.config, &mut self.plan);
        let (ran, times) = self.run(jobs, &decision);
        for (part, outcome) in self.plan.device.iter().zip(&self.outcomes) {
            if let Outcome::Failed(_) = outcome {
                outcomes[part.item] = *outcome;
            }
        }
        if is_usable {
            self.learn(&decision, ran, times);
        }
    }

    fn settled(&mut self, places: &mut Vec<Place>) {
        self.device.settled(places);
    }
}

#[cfg(test)]
mod tests;
