//! What is made of readings: own lines, others' lines, and for how long loads have been as they are.
//!
//! A latency above the idle one is waiting; by the curve backwards, waiting is use; use less own traffic is others' traffic;
//! and as lines outstanding (traffic times latency) it stays the same when our own memory moves. One reading is off by its
//! noise, and the curve backwards makes much of little noise where little waits: so readings are averaged first and turned
//! into lines then. Five in a row that are off by more than a third, and more than noise can be, are a change: a new average
//! begins with them. Loads that change faster than that show in how far readings scatter; then there are two scenes instead
//! of one.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::Observation;
use super::reading::{Lines, Reading};
use crate::traffic::model::Machine;
use crate::traffic::number::real;
use crate::traffic::place::Scene;

/// What a reading counts in an average, once there have been a few,
const COUNTS: f64 = 0.07;
/// and in how far readings scatter.
const SPREAD_COUNTS: f64 = 0.05;
/// Readings off by this share are off, unless latencies that are off by that share may do it.
const OFF: f64 = 0.35;
const NOISE: f64 = 0.08;
/// So many in a row are a change.
const OFF_MOST: usize = 5;
/// Readings of which scenes are made.
const RECENT: usize = 40;
/// Phases that are remembered.
const PHASES_MAX: usize = 8;

/// What others did while loads were the same.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    /// Lines outstanding by queue.
    pub(super) foreign: Vec<f64>,
    length_ns: u64,
    /// It was there before we were.
    first: bool,
}

/// What is known of loads.
#[derive(Clone, Debug, Default)]
pub(super) struct Senses {
    /// Readings since loads changed, averaged.
    mean: Reading,
    readings: u32,
    /// Lines: others' by queue, by that; ours by CPU node, averaged themselves, as traffic and latency go against each other.
    lines: Lines,
    /// Lines of single readings, averaged, and how far they scatter, squared.
    single: Lines,
    spread: Lines,
    /// Lines of the last readings.
    recent: VecDeque<Lines>,
    /// How far they may by noise, down and up: little waiting backwards is much use.
    noise: [Lines; 2],
    /// Readings in a row that were off, not averaged yet.
    off: Vec<Reading>,
    /// How long loads have been as they are.
    pub(super) age_ns: u64,
    /// How they were before, and for how long; the oldest first.
    phases: Vec<Phase>,
    queues: usize,
}

impl Senses {
    /// Takes in a reading; whether loads have changed.
    pub(super) fn take_in(&mut self, machine: &Machine, seen: &Observation) -> bool {
        self.queues = machine.queues();
        self.age_ns = self.age_ns.saturating_add(seen.elapsed.0);
        let mut reading = Reading::of(machine, seen);
        // What was lost is as it is on average; nothing can be said before there is any.
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
        // What came and went counts like any; of those that are off still, the first may have been off by chance.
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

    /// Own traffic in lines a nanosecond.
    pub(super) fn rate(&self) -> f64 {
        self.mean.rate()
    }

    /// What a load takes from a node's CPUs to a node's memory.
    pub(super) fn latency(&self, cpu: usize, node: usize) -> Option<f64> {
        self.mean.latency(cpu, node)
    }

    /// Whether nothing tells how busy memory is.
    pub(super) fn is_blind(&self, machine: &Machine) -> bool {
        self.readings == 0 || self.mean.is_blind(machine)
    }

    /// Lines of others, by queue.
    pub(super) fn foreign(&self) -> Vec<f64> {
        self.lines.iter().take(self.queues).map(|lines| lines.max(0.0)).collect()
    }

    /// Own lines, by CPU node.
    pub(super) fn own(&self) -> Vec<f64> {
        self.lines.iter().skip(self.queues).map(|lines| lines.max(1e-3)).collect()
    }

    /// What others do now: one scene, or two where it changes all the time.
    pub(super) fn scenes(&self) -> Vec<Scene> {
        let scatters =
            |queue: usize| root(self.spread[queue]) > self.allowed(queue, self.lines[queue], true);
        if !(0..self.queues).any(scatters) {
            return vec![Scene { foreign: self.foreign(), weight: 1.0 }];
        }
        // By the queue that scatters most: what all did when it was fuller than on average, and when it was not.
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

    /// How far lines may be from such an average and be alike, down or up.
    fn allowed(&self, index: usize, mean: f64, up: bool) -> f64 {
        // Fewer lines than ours make little difference.
        let ours = self.lines.iter().skip(self.queues).sum::<f64>();
        OFF * mean.max(ours).max(1.0) + self.noise[usize::from(up)][index]
    }

    /// Whether others do alike.
    fn alike(&self, these: &[f64], those: &[f64]) -> bool {
        let mut pairs = these.iter().zip(those).enumerate();
        pairs.all(|(index, (a, b))| (a - b).abs() <= self.allowed(index, a.max(*b), true))
    }

    /// What others did before that is not what they do now: of phases remembered, the longest, as a short one may be chance.
    pub(super) fn before(&self) -> Option<&Phase> {
        let foreign = self.foreign();
        let other = self.phases.iter().filter(|phase| !self.alike(&phase.foreign, &foreign));
        other.max_by_key(|phase| phase.length_ns)
    }

    /// How long loads are expected to be such: as long as before, on average; or as any others were; or as is thought, `horizon`.
    pub(super) fn expected_ns(&self, foreign: &[f64], horizon: u64) -> f64 {
        // When the first began is not known.
        let known = || self.phases.iter().filter(|phase| !phase.first);
        let mean = |lengths: &mut dyn Iterator<Item = u64>| {
            let (sum, many) = lengths.fold((0.0, 0.0), |(s, n), ns| (s + real(ns), n + 1.0));
            (many > 0.0).then(|| sum / many)
        };
        mean(&mut known().filter(|phase| self.alike(&phase.foreign, foreign)).map(|p| p.length_ns))
            .or_else(|| mean(&mut known().map(|phase| phase.length_ns)))
            .unwrap_or(real(horizon))
    }

    /// Whether lines are off, in this direction.
    fn is_beyond(&self, lines: &Lines, index: usize, up: bool) -> bool {
        let mean = self.lines[index];
        let apart = lines[index] - mean;
        (apart > 0.0) == up && apart.abs() > self.allowed(index, mean, up)
    }

    /// Whether a reading is off by more than noise may be.
    fn is_off(&self, now: &Lines) -> bool {
        (0..now.len())
            .any(|index| self.is_beyond(now, index, false) || self.is_beyond(now, index, true))
    }

    /// Whether readings that are off are off alike: all on the same side of the average.
    fn agree(&self, machine: &Machine) -> bool {
        let lines: Vec<Lines> = self.off.iter().map(|one| one.lines(machine, 1.0)).collect();
        let all = |index, up| lines.iter().all(|lines| self.is_beyond(lines, index, up));
        (0..self.lines.len()).any(|index| all(index, false) || all(index, true))
    }

    /// Begins anew with the readings that were off; whether others do something else since.
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

/// How far lines may be off by noise of latencies, down and up.
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
