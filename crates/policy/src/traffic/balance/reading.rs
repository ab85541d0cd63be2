//! A reading of sensors, or an average of several: latencies, traffic, and the outstanding lines they imply.

use alloc::vec;
use alloc::vec::Vec;

use super::Observation;
use crate::traffic::model::{LINE, Machine};
use crate::traffic::number::{real, share};

/// Outstanding lines: others' by queue, then ours by CPU node.
pub(super) type Lines = Vec<f64>;

/// Latencies in nanoseconds, traffic in lines per nanosecond.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    latency: Vec<Vec<Option<Measured>>>,
    /// Empty if unknown.
    own: Vec<Vec<f64>>,
    used: Vec<Option<f64>>,
    reads: f64,
    /// Number of latencies over the number measured in this reading: each measured one is weighted by it.
    rarely: f64,
}

/// A latency, and the utilisation of the last queue of its path at that time, if counted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    ns: f64,
    busy: Option<f64>,
}

impl Measured {
    /// Blends in another measurement with the weight `counts`.
    fn blend(&mut self, other: Self, counts: f64) {
        let one = |mean: f64, now: f64| mean + counts * (now - mean);
        self.ns = one(self.ns, other.ns);
        self.busy = match (self.busy, other.busy) {
            (Some(mean), Some(now)) => Some(one(mean, now)),
            _ => other.busy,
        };
    }
}

/// This share of an average latency may be noise: it does not count as waiting, since little waiting implies much
/// utilisation.
const DOUBT: f64 = 0.015;

/// A measured latency is valid as long as waiting has changed by no more than this part of it, by counted utilisation.
const CHANGED: f64 = 0.2;

/// Lower bound of the true utilisation over the counted one, since capacities are not known exactly.
const SURE: f64 = 0.95;

/// Upper bound for the weight of one latency in its average.
const LATENCY_COUNTS_MOST: f64 = 0.5;

const fn lines_a_ns(bytes_a_second: u64) -> f64 {
    real(bytes_a_second) / 1e9 / LINE
}

impl Reading {
    pub(super) fn of(machine: &Machine, seen: &Observation) -> Self {
        let used = |queue: usize| Some(lines_a_ns(seen.used.get(queue).copied().flatten()?.0));
        let busy = |cpu: usize, node: usize| {
            let last = machine.through(cpu, node).last()?;
            Some(used(*last)? / machine.capacity(*last))
        };
        let latency = |(cpu, row): (usize, &Vec<Option<nearfar_topology::Nanoseconds>>)| {
            let measured = |(node, ns): (usize, &Option<nearfar_topology::Nanoseconds>)| {
                ns.map(|ns| Measured { ns: real(ns.0), busy: busy(cpu, node) })
            };
            row.iter().enumerate().map(measured).collect()
        };
        let own = seen.own.iter().flatten();
        Self {
            latency: seen.latency.iter().enumerate().map(latency).collect(),
            own: own.map(|row| row.iter().map(|b| lines_a_ns(b.0)).collect()).collect(),
            used: (0..machine.queues()).map(used).collect(),
            reads: share(seen.reads),
            rarely: {
                let cells = || seen.latency.iter().flatten();
                real(cells().count() as u64) / real(cells().flatten().count().max(1) as u64)
            },
        }
    }

    /// Whether both know or both lack own traffic.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.own.len() == other.own.len()
    }

    /// Takes missing latencies from `other`.
    pub(super) fn fill(&mut self, other: &Self) {
        for (row, known) in self.latency.iter_mut().zip(&other.latency) {
            row.iter_mut().zip(known).for_each(|(now, known)| *now = now.or(*known));
        }
    }

    /// Blends in another reading with the weight `counts`; values known only now are taken as they are. If few
    /// latencies are measured per reading, they have a greater weight.
    pub(super) fn blend(&mut self, other: &Self, counts: f64) {
        let one = |mean: &mut f64, now: f64| *mean += counts * (now - *mean);
        let maybe = |mean: &mut Option<f64>, now: &Option<f64>| match (mean.as_mut(), now) {
            (Some(mean), Some(now)) => one(mean, *now),
            (None, Some(_)) => *mean = *now,
            (_, None) => {}
        };
        let latency_counts = (counts * other.rarely).min(counts.max(LATENCY_COUNTS_MOST));
        for (row, now) in self.latency.iter_mut().zip(&other.latency) {
            for (mean, now) in row.iter_mut().zip(now) {
                match (mean.as_mut(), now) {
                    (Some(mean), Some(now)) => mean.blend(*now, latency_counts),
                    _ => *mean = mean.or(*now),
                }
            }
        }
        for (row, now) in self.own.iter_mut().zip(&other.own) {
            row.iter_mut().zip(now).for_each(|(mean, now)| one(mean, *now));
        }
        self.used.iter_mut().zip(&other.used).for_each(|(mean, now)| maybe(mean, now));
        one(&mut self.reads, other.reads);
    }

    pub(super) fn rate(&self) -> f64 {
        self.own.iter().flatten().sum()
    }

    pub(super) fn latency(&self, cpu: usize, node: usize) -> Option<f64> {
        Some(self.measured(cpu, node)?.ns)
    }

    fn measured(&self, cpu: usize, node: usize) -> Option<Measured> {
        self.latency.get(cpu)?.get(node).copied().flatten()
    }

    /// Whether the reading has neither latencies nor counted traffic of controllers.
    pub(super) fn is_blind(&self, machine: &Machine) -> bool {
        self.latency.iter().flatten().all(Option::is_none) && !self.is_counted(machine)
    }

    /// Whether the traffic of every node's memory is counted.
    pub(super) fn is_counted(&self, machine: &Machine) -> bool {
        let last = |node| machine.through(0, node).last().copied();
        let counted = |node| last(node).is_some_and(|queue| self.used[queue].is_some());
        machine.cpus() > 0 && (0..machine.nodes()).all(counted)
    }

    /// The outstanding lines, with latencies multiplied by `longer`. Empty if own traffic is unknown.
    pub(super) fn lines(&self, machine: &Machine, longer: f64) -> Lines {
        if self.own.is_empty() {
            return Vec::new();
        }
        let (mut own, mut lines) = (vec![0.0; machine.queues()], vec![0.0; machine.cpus()]);
        for (cpu, row) in self.own.iter().enumerate() {
            for (node, rate) in row.iter().enumerate() {
                for queue in machine.through(cpu, node) {
                    own[*queue] += rate * machine.carried(*queue, self.reads);
                }
            }
        }
        let used = self.in_use(machine, &own, longer);
        for (cpu, row) in self.own.iter().enumerate() {
            for (node, rate) in row.iter().enumerate() {
                let path = (cpu, node);
                let measured = self.measured(cpu, node);
                let latency = measured.filter(|one| self.still_holds(machine, &used, path, *one));
                let latency = latency.map(|one| one.ns * longer);
                let latency = latency.filter(|ns| *ns >= self.least(machine, &used, path));
                lines[cpu] += rate * latency.unwrap_or_else(|| self.modelled(machine, &used, path));
            }
        }
        let foreign = |queue: usize| {
            let takes = machine.foreign_latency(queue, machine.wait(queue, used[queue]));
            (used[queue] * machine.capacity(queue) - own[queue]) * takes
        };
        let mut all: Lines = (0..machine.queues()).map(foreign).collect();
        all.append(&mut lines);
        all
    }

    /// Whether waiting is similar to the time when the latency was measured. On machines with many paths each one is
    /// measured rarely, and a figure of an idle machine does not apply to a busy one.
    fn still_holds(
        &self,
        machine: &Machine,
        used: &[f64],
        (cpu, node): (usize, usize),
        then: Measured,
    ) -> bool {
        let (Some(busy), Some(last)) = (then.busy, machine.through(cpu, node).last()) else {
            return true;
        };
        let waits = |used: f64| self.waits(machine, *last, used);
        let (now, then) = (waits(used[*last]), waits(busy));
        (now - then).abs() <= CHANGED * (machine.idle(cpu, node) + now)
    }

    /// Lower bound of a latency by counted utilisation. A timed load may meet a momentarily idle machine: threads wait
    /// for the one whose CPU the timing occupies.
    fn least(&self, machine: &Machine, used: &[f64], (cpu, node): (usize, usize)) -> f64 {
        match machine.through(cpu, node).last().filter(|last| self.used[**last].is_some()) {
            Some(last) => machine.idle(cpu, node) + self.waits(machine, *last, used[*last] * SURE),
            None => 0.0,
        }
    }

    /// How long a line waits at a queue with this utilisation.
    fn waits(&self, machine: &Machine, queue: usize, used: f64) -> f64 {
        machine.wait(queue, used) * machine.carried(queue, self.reads)
    }

    /// Latency of a path by the utilisation of its queues, for paths without a measurement.
    fn modelled(&self, machine: &Machine, used: &[f64], (cpu, node): (usize, usize)) -> f64 {
        let waits = |queue: &usize| self.waits(machine, *queue, used[*queue]);
        machine.idle(cpu, node) + machine.through(cpu, node).iter().map(waits).sum::<f64>()
    }

    /// Utilisation of queues: as counted; else from the waiting that the other queues of a path do not explain; else
    /// own traffic.
    fn in_use(&self, machine: &Machine, own: &[f64], longer: f64) -> Vec<f64> {
        let use_of =
            |queue: usize| self.used[queue].unwrap_or(own[queue]) / machine.capacity(queue);
        let mut used: Vec<f64> = (0..machine.queues()).map(use_of).collect();
        for node in 0..machine.nodes() {
            let by_length = |cpu: &usize| machine.through(*cpu, node).len();
            let probed = |cpu: &usize| self.latency(*cpu, node).is_some();
            let Some(cpu) = (0..machine.cpus()).filter(probed).min_by_key(by_length) else {
                continue;
            };
            let Some((last, before)) = machine.through(cpu, node).split_last() else { continue };
            let part = machine.carried(*last, self.reads);
            if self.used[*last].is_some() || part <= 0.0 {
                continue;
            }
            let waits = |queue: &usize| self.waits(machine, *queue, used[*queue]);
            let latency = self.latency(cpu, node).unwrap_or(0.0) * longer;
            let explained = machine.idle(cpu, node) + before.iter().map(waits).sum::<f64>();
            let explained = explained + latency * DOUBT;
            used[*last] = machine.in_use(*last, (latency - explained) / part);
        }
        used
    }
}

#[cfg(test)]
mod tests;
