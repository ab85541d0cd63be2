//! Loads from readings: own lines, others' lines, and how long loads have been stable.
//!
//! Latency above idle latency is waiting; the inverse of the waiting curve gives utilisation; utilisation less own
//! traffic is others' traffic; expressed as outstanding lines (traffic times latency) it is invariant when own memory
//! migrates. Single readings are noisy, and the inverse curve amplifies noise at low waiting: so readings are averaged
//! first and converted to lines afterwards. Five consecutive readings that deviate by more than a third, and by more
//! than noise, are a change: a new average starts with them. Loads that change faster show as a large variance of
//! readings; they are modelled as two scenes instead of one.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::Observation;
use super::reading::{Lines, Reading};
use crate::traffic::model::Machine;
use crate::traffic::number::real;
use crate::traffic::place::Scene;

/// Weight of a reading in an average, after the first few,
const COUNTS: f64 = 0.07;
/// and its weight in the variance.
const SPREAD_COUNTS: f64 = 0.05;
/// Readings that deviate by this share are off, unless latencies that deviate by `NOISE` explain it.
const OFF: f64 = 0.35;
const NOISE: f64 = 0.08;
/// This many consecutive ones are a change.
const OFF_MOST: usize = 5;
/// Readings from which scenes are derived.
const RECENT: usize = 40;
/// Phases remembered.
const PHASES_MAX: usize = 8;

/// Loads of others during one phase of stable loads.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    /// Outstanding lines by queue.
    pub(super) foreign: Vec<f64>,
    length_ns: u64,
    /// The phase began before the first observation.
    first: bool,
}

/// State of the load estimate.
#[derive(Clone, Debug, Default)]
pub(super) struct Senses {
    /// Average of the readings since loads changed.
    mean: Reading,
    readings: u32,
    /// Lines: others' by queue, from that average; ours by CPU node, averaged directly, as traffic and latency are
    /// anticorrelated.
    lines: Lines,
    /// Lines of single readings: average and variance.
    single: Lines,
    spread: Lines,
    /// Lines of the last readings.
    recent: VecDeque<Lines>,
    /// Deviation that noise can cause, down and up: by the inverse curve little waiting is much utilisation.
    noise: [Lines; 2],
    /// Consecutive readings that were off, not averaged yet.
    off: Vec<Reading>,
    /// Time since the last change of loads.
    pub(super) age_ns: u64,
    /// Previous phases with their lengths; the oldest first.
    phases: Vec<Phase>,
    queues: usize,
}

impl Senses {
    /// Records a reading; returns whether loads have changed.
    pub(super) fn take_in(&mut self, machine: &Machine, seen: &Observation) -> bool {
        self.queues = machine.queues();
        self.age_ns = self.age_ns.saturating_add(seen.elapsed.0);
        let mut reading = Reading::of(machine, seen);
        // Missing latencies are replaced by their average; without any there is no estimate.
        reading.fill(&self.mean);
        if reading.is_blind(machine) {
            return false;
        }
        let now = reading.lines(machine, 1.0);
        if self.readings == 0 || self.lines.len() != now.len() || !self.mean.is_like(&reading) {
            *self = Self { queues: self.queues, ..Self::default() };
            (self.mean, self.readings) = (reading, 1);
            (self.lines, self.spread) = (now.clone(), vec![0.0; now.len()]);
            self.single = now.clone();
            self.recent.push_back(now);
            self.noise = noise(machine, &self.mean);
            return true;
        }
        for ((spread, mean), now) in self.spread.iter_mut().zip(&mut self.single).zip(&now) {
            let apart = now - *mean;
            *mean += SPREAD_COUNTS * apart;
            *spread += SPREAD_COUNTS * (apart * apart - *spread);
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(now.clone());
        let is_off = self.is_off(&now);
        self.off.push(reading);
        if is_off && self.off.len() >= OFF_MOST && self.agree(machine) {
            return self.change(machine);
        }
        // A transient deviation counts like any reading; of those still off, the first may have been chance.
        let open = if is_off { OFF_MOST - 1 } else { 0 };
        let settled = self.off.len().saturating_sub(open);
        for reading in self.off.drain(..settled).collect::<Vec<_>>() {
            self.readings = self.readings.saturating_add(1);
            let counts = COUNTS.max(1.0 / f64::from(self.readings));
            self.mean.blend(&reading, counts);
            let own = reading.lines(machine, 1.0);
            for (mean, now) in self.lines.iter_mut().zip(own).skip(self.queues) {
                *mean += counts * (now - *mean);
            }
        }
        let foreign = self.mean.lines(machine, 1.0).into_iter().take(self.queues);
        self.lines.iter_mut().zip(foreign).for_each(|(mean, now)| *mean = now);
        self.noise = noise(machine, &self.mean);
        false
    }

    /// Own traffic in lines per nanosecond.
    pub(super) fn rate(&self) -> f64 {
        self.mean.rate()
    }

    /// Latency from a CPU node to a memory node.
    pub(super) fn latency(&self, cpu: usize, node: usize) -> Option<f64> {
        self.mean.latency(cpu, node)
    }

    /// Whether nothing is known about utilisation.
    pub(super) fn is_blind(&self, machine: &Machine) -> bool {
        self.readings == 0 || self.mean.is_blind(machine)
    }

    /// Outstanding lines of others, by queue.
    pub(super) fn foreign(&self) -> Vec<f64> {
        self.lines.iter().take(self.queues).map(|lines| lines.max(0.0)).collect()
    }

    /// Own outstanding lines, by CPU node.
    pub(super) fn own(&self) -> Vec<f64> {
        self.lines.iter().skip(self.queues).map(|lines| lines.max(1e-3)).collect()
    }

    /// Present loads of others: one scene, or two if they fluctuate.
    pub(super) fn scenes(&self) -> Vec<Scene> {
        let scatters =
            |queue: usize| root(self.spread[queue]) > self.allowed(queue, self.lines[queue], true);
        if !(0..self.queues).any(scatters) {
            return vec![Scene { foreign: self.foreign(), weight: 1.0 }];
        }
        // Split by the queue with the largest variance: averages of all queues while it was above its mean, and while
        // below.
        let by = (0..self.queues).max_by(|a, b| self.spread[*a].total_cmp(&self.spread[*b]));
        let by = by.unwrap_or(0);
        let mean =
            self.recent.iter().map(|lines| lines[by]).sum::<f64>() / real(self.recent.len() as u64);
        let scene = |fuller: bool| {
            let these = || self.recent.iter().filter(|lines| (lines[by] > mean) == fuller);
            let many = real(these().count() as u64);
            let of = |queue: usize| {
                let scattered = || these().map(|lines| lines[queue]).sum::<f64>() / many;
                let lines = if scatters(queue) { scattered() } else { self.lines[queue] };
                lines.max(0.0)
            };
            (many > 0.0)
                .then(|| Scene { foreign: (0..self.queues).map(of).collect(), weight: many })
        };
        [false, true].into_iter().filter_map(scene).collect()
    }

    /// Deviation from an average within which lines count as equal, down or up.
    fn allowed(&self, index: usize, mean: f64, up: bool) -> f64 {
        // Differences smaller than our own lines have little effect.
        let ours = self.lines.iter().skip(self.queues).sum::<f64>();
        OFF * mean.max(ours).max(1.0) + self.noise[usize::from(up)][index]
    }

    /// Whether two loads of others count as equal.
    fn alike(&self, these: &[f64], those: &[f64]) -> bool {
        let mut pairs = these.iter().zip(those).enumerate();
        pairs.all(|(index, (a, b))| (a - b).abs() <= self.allowed(index, a.max(*b), true))
    }

    /// The longest remembered phase that differs from the present one; a short one may be chance.
    pub(super) fn before(&self) -> Option<&Phase> {
        let foreign = self.foreign();
        let other = self.phases.iter().filter(|phase| !self.alike(&phase.foreign, &foreign));
        other.max_by_key(|phase| phase.length_ns)
    }

    /// Expected length of a phase: the average of similar ones, else of all, else `horizon`.
    pub(super) fn expected_ns(&self, foreign: &[f64], horizon: u64) -> f64 {
        // The start of the first phase is unknown.
        let known = || self.phases.iter().filter(|phase| !phase.first);
        let mean = |lengths: &mut dyn Iterator<Item = u64>| {
            let (sum, many) = lengths.fold((0.0, 0.0), |(s, n), ns| (s + real(ns), n + 1.0));
            (many > 0.0).then(|| sum / many)
        };
        mean(&mut known().filter(|phase| self.alike(&phase.foreign, foreign)).map(|p| p.length_ns))
            .or_else(|| mean(&mut known().map(|phase| phase.length_ns)))
            .unwrap_or(real(horizon))
    }

    /// Whether lines deviate too far in this direction.
    fn is_beyond(&self, lines: &Lines, index: usize, up: bool) -> bool {
        let mean = self.lines[index];
        let apart = lines[index] - mean;
        (apart > 0.0) == up && apart.abs() > self.allowed(index, mean, up)
    }

    /// Whether a reading deviates by more than noise.
    fn is_off(&self, now: &Lines) -> bool {
        (0..now.len())
            .any(|index| self.is_beyond(now, index, false) || self.is_beyond(now, index, true))
    }

    /// Whether all readings that are off lie on the same side of the average.
    fn agree(&self, machine: &Machine) -> bool {
        let lines: Vec<Lines> = self.off.iter().map(|one| one.lines(machine, 1.0)).collect();
        let all = |index, up| lines.iter().all(|lines| self.is_beyond(lines, index, up));
        (0..self.lines.len()).any(|index| all(index, false) || all(index, true))
    }

    /// Restarts the average with the readings that were off; returns whether loads of others have changed.
    fn change(&mut self, machine: &Machine) -> bool {
        let before = self.foreign();
        let mut off = core::mem::take(&mut self.off).into_iter();
        self.recent = off.as_slice().iter().map(|one| one.lines(machine, 1.0)).collect();
        let Some(first) = off.next() else { return false };
        (self.mean, self.readings) = (first, 1);
        for reading in off {
            self.readings += 1;
            self.mean.blend(&reading, 1.0 / f64::from(self.readings));
        }
        self.lines = self.mean.lines(machine, 1.0);
        self.noise = noise(machine, &self.mean);
        (self.single, self.spread) = (self.lines.clone(), vec![0.0; self.lines.len()]);
        if self.alike(&before, &self.foreign()) {
            return false;
        }
        if self.phases.len() == PHASES_MAX {
            self.phases.remove(0);
        }
        let first = self.phases.is_empty();
        self.phases.push(Phase { foreign: before, length_ns: self.age_ns, first });
        self.age_ns = 0;
        true
    }
}

/// Deviation of lines by noise of latencies, down and up.
fn noise(machine: &Machine, reading: &Reading) -> [Lines; 2] {
    let mean = reading.lines(machine, 1.0);
    [1.0 - NOISE, 1.0 + NOISE].map(|longer| {
        let lines = reading.lines(machine, longer);
        lines.iter().zip(&mean).map(|(lines, mean)| (lines - mean).abs()).collect()
    })
}

/// The square root, by Newton's method.
fn root(square: f64) -> f64 {
    if square <= 1e-12 {
        return 0.0;
    }
    (0..40).fold(square.max(1.0), |root, _| f64::midpoint(root, square / root))
}

#[cfg(test)]
mod tests;
