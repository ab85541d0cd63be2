//! Best placement of memory by the model's prices: the one law behind weights, promotion and migration.
//!
//! # The law
//! A region is memory with a uniform access pattern. On each node its lines cost idle latency plus the price of every
//! queue on their path ([`model`](super::model)). A placement is optimal if that cost is equal on all nodes in use, and
//! no less on the others. Special cases:
//! - no load: prices are zero, and all memory is on the nearest node;
//! - one region, used by all CPU nodes, on identical memory nodes: even;
//! - saturation: shares in proportion to bandwidth, whatever the latencies;
//! - used by one node's CPUs: on that node, until its load makes others cheaper;
//! - pages of different heat and little near memory: the hottest near, as long as near costs less than far
//!   ([`promotion`]).
//!
//! # The search
//! Between two nodes throughput is predicted along the whole line, at 18 points and then closer around the best: closed
//! loops may cause two maxima. For more nodes, the best of a few simple placements is improved step by step: prices
//! select the region and the pair of nodes with the most to gain, the prediction selects the share. A step without gain
//! ends the search.
//!
//! # Results
//! [`weights`] for new memory: always [`PARTS`] in all, as pages are placed by their address modulo that sum, and
//! another sum would move nearly all. They depend on the mix of reads and writes through queues that carry one of them;
//! on an idle machine all weight is on the nearest node. [`promotion`] is the least heat worth promoting, by the same
//! prices, so that tiers, weights and migration never conflict.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Bytes, Nanoseconds};

use super::model::{Loops, Machine};
use super::number::{count, real, share};

/// Sum of all weights.
pub const PARTS: u8 = 64;
/// Points on the line between two nodes.
const GRID: u32 = 18;
/// Least relative gain of a step,
const STEP_GAINS: f64 = 1e-5;
/// and least relative gain of all steps together over their start.
const PLAIN_LOSES: f64 = 0.002;
/// A simple placement is accepted if the best one gains no more than this over it.
const AS_GOOD: f64 = 0.01;
/// A region belongs to one node if that node makes more than this share of its accesses.
const ONES: f64 = 0.9;
/// Parts of the possible shift that are tried in a step.
const STEPS: [f64; 7] = [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03, 0.01];

/// A placement: for each region, the share of its accesses that each node serves.
pub(super) type Placement = Vec<Vec<f64>>;

/// Utilisation of queues by scene, from the last solution.
type Near = Vec<Vec<f64>>;

/// A region in the search.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spot {
    /// Share of each CPU node's accesses that goes to it.
    pub(super) by: Vec<f64>,
    /// The least and the largest share that each node may serve.
    pub(super) least: Vec<f64>,
    pub(super) most: Vec<f64>,
}

/// Loads of others, with a weight.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scene {
    /// Outstanding lines by queue.
    pub(super) foreign: Vec<f64>,
    pub(super) weight: f64,
}

/// The placement problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem<'a> {
    pub(super) machine: &'a Machine,
    pub(super) loops: &'a Loops,
    pub(super) spots: &'a [Spot],
    pub(super) scenes: &'a [Scene],
}

impl Spot {
    /// The placement nearest to `wish` within bounds; `None` if there is none.
    pub(super) fn fit(&self, wish: &[f64]) -> Option<Vec<f64>> {
        let bounds = || self.least.iter().zip(&self.most);
        let within = |(wish, (least, most)): (&f64, (&f64, &f64))| wish.max(*least).min(*most);
        let mut found: Vec<f64> = wish.iter().zip(bounds()).map(within).collect();
        let missing = 1.0 - found.iter().sum::<f64>();
        let slack = |(at, (least, most)): (&f64, (&f64, &f64))| {
            if missing > 0.0 { most - at } else { at - least }
        };
        let slack: Vec<f64> = found.iter().zip(bounds()).map(slack).collect();
        let all: f64 = slack.iter().sum();
        if all + 1e-9 < missing.abs() {
            return None;
        }
        for (at, slack) in found.iter_mut().zip(&slack) {
            *at += missing * slack / all.max(1e-12);
        }
        Some(found)
    }
}

impl Problem<'_> {
    /// Shares of each CPU node's lines by node.
    fn shares(&self, placement: &Placement) -> Vec<Vec<f64>> {
        let to = |cpu: usize, node: usize| {
            let spots = self.spots.iter().zip(placement);
            spots.map(|(spot, at)| spot.by[cpu] * at[node]).sum()
        };
        let nodes = self.machine.nodes();
        (0..self.machine.cpus()).map(|cpu| (0..nodes).map(|node| to(cpu, node)).collect()).collect()
    }

    /// Lines per nanosecond of each CPU node, averaged over scenes.
    pub(super) fn rates(&self, placement: &Placement) -> Vec<f64> {
        self.rates_from(placement, &mut Vec::new())
    }

    /// Like `rates`, starting from the solution of a similar placement, which is replaced by this one.
    fn rates_from(&self, placement: &Placement, near: &mut Near) -> Vec<f64> {
        let shares = self.shares(placement);
        let (mut rates, mut weights) = (vec![0.0; self.machine.cpus()], 0.0);
        near.resize(self.scenes.len(), Vec::new());
        for (scene, near) in self.scenes.iter().zip(near) {
            let flow = self.machine.solve_from(self.loops, &shares, &scene.foreign, near);
            rates.iter_mut().zip(&flow.rate).for_each(|(sum, rate)| *sum += scene.weight * rate);
            weights += scene.weight;
            *near = flow.used;
        }
        rates.iter_mut().for_each(|rate| *rate /= f64::max(weights, 1e-9));
        rates
    }

    /// Lines per nanosecond of all CPU nodes, averaged over scenes.
    pub(super) fn value(&self, placement: &Placement) -> f64 {
        self.value_from(placement, &mut Vec::new())
    }

    /// Like `value`, starting from the solution of a similar placement, which is replaced by this one.
    fn value_from(&self, placement: &Placement, near: &mut Near) -> f64 {
        self.rates_from(placement, near).iter().sum()
    }

    /// Utilisation of queues, in the first scene.
    pub(super) fn used(&self, placement: &Placement) -> Vec<f64> {
        let foreign = self.scenes.first().map(|scene| scene.foreign.as_slice()).unwrap_or_default();
        self.machine.solve(self.loops, &self.shares(placement), foreign).used
    }

    /// Lines per nanosecond of each region, and the marginal cost of a line on each node.
    pub(super) fn costs(&self, placement: &Placement) -> Vec<(f64, Vec<f64>)> {
        let shares = self.shares(placement);
        let nodes = self.machine.nodes();
        let mut costs = vec![(0.0, vec![0.0; nodes]); self.spots.len()];
        let weights: f64 = self.scenes.iter().map(|scene| scene.weight).sum();
        for scene in self.scenes {
            let flow = self.machine.solve(self.loops, &shares, &scene.foreign);
            let prices = self.machine.prices(&flow, &scene.foreign);
            for (spot, (lines, costs)) in self.spots.iter().zip(&mut costs) {
                for (cpu, rate) in flow.rate.iter().enumerate() {
                    let rate = rate * spot.by[cpu] * scene.weight / weights.max(1e-9);
                    *lines += rate;
                    for (node, cost) in costs.iter_mut().enumerate() {
                        let path = (cpu, node);
                        *cost += rate * self.machine.latency(path, self.loops.reads, &prices);
                    }
                }
            }
        }
        for (lines, costs) in &mut costs {
            costs.iter_mut().for_each(|cost| *cost /= lines.max(1e-12));
        }
        costs
    }

    /// The best placement found, and its throughput.
    pub(super) fn best(&self, from: &Placement) -> (Placement, f64) {
        if let ([spot], 2) = (self.spots, self.machine.nodes()) {
            return self.along(spot, from);
        }
        let mut near = Near::new();
        let mut best = (from.clone(), self.value_from(from, &mut near));
        for start in self.simple() {
            let value = self.value_from(&start, &mut near);
            // Equal placements do not justify a migration.
            if value > best.1 * (1.0 + STEP_GAINS) {
                best = (start, value);
            }
        }
        let plain = best.clone();
        for _ in 0..12 * self.machine.nodes() {
            let Some(better) = self.step(&best, &mut near) else { break };
            best = better;
        }
        // So small a gain is due to noise in the inputs, and would lead elsewhere next time.
        if best.1 < plain.1 * (1.0 + PLAIN_LOSES) { plain } else { best }
    }

    /// Search between two nodes: a grid, then closer around the best.
    fn along(&self, spot: &Spot, from: &Placement) -> (Placement, f64) {
        let (low, high) =
            (spot.least[0].max(1.0 - spot.most[1]), spot.most[0].min(1.0 - spot.least[1]));
        let at = |near: f64| vec![vec![near, 1.0 - near]];
        let mut last = Near::new();
        let mut best = (from.clone(), self.value_from(from, &mut last));
        let mut attempt = |near: f64, best: &mut (Placement, f64)| {
            let near = near.max(low).min(high);
            let value = self.value_from(&at(near), &mut last);
            if value > best.1 * (1.0 + STEP_GAINS) {
                *best = (at(near), value);
            }
        };
        let step = (high - low) / f64::from(GRID - 1);
        (0..GRID).for_each(|i| attempt(low + step * f64::from(i), &mut best));
        for closer in [step / 2.0, step / 4.0, step / 8.0] {
            let middle = best.0[0][0];
            attempt(middle - closer, &mut best);
            attempt(middle + closer, &mut best);
        }
        best
    }

    /// Starting placements: all nearest, even, by bandwidth; regions of one node nearest and the rest even.
    fn simple(&self) -> Vec<Placement> {
        let nodes = self.machine.nodes();
        let near = |spot: &Spot| -> Vec<f64> {
            let cost = |node: &usize| -> f64 {
                let cpus = 0..self.machine.cpus();
                let lines = |cpu: usize| spot.by[cpu] * self.loops.lines[cpu];
                cpus.map(|cpu| lines(cpu) * self.machine.idle(cpu, *node)).sum()
            };
            let nearest = (0..nodes).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0);
            (0..nodes).map(|node| if node == nearest { 1.0 } else { 0.0 }).collect()
        };
        let capacity = |node: usize| {
            self.machine.through(0, node).last().map_or(0.0, |queue| self.machine.capacity(*queue))
        };
        let all: f64 = (0..nodes).map(capacity).sum();
        let even = |_: &Spot| vec![1.0 / real(nodes as u64); nodes];
        let by_use = |spot: &Spot| {
            let lines = || spot.by.iter().zip(&self.loops.lines).map(|(by, lines)| by * lines);
            let is_ones = lines().fold(0.0, f64::max) > ONES * lines().sum::<f64>();
            if is_ones { near(spot) } else { even(spot) }
        };
        let wide = |_: &Spot| (0..nodes).map(|node| capacity(node) / all.max(1e-12)).collect();
        let fitted = |wish: &dyn Fn(&Spot) -> Vec<f64>| -> Option<Placement> {
            self.spots.iter().map(|spot| spot.fit(&wish(spot))).collect()
        };
        let found = [fitted(&near), fitted(&even), fitted(&wide), fitted(&by_use)];
        found.into_iter().flatten().collect()
    }

    /// A simple placement that is about as good as this one, if any: small differences are noise, and in plain
    /// interleaving threads that walk memory side by side do not collide.
    pub(super) fn plain(&self, at: &Placement) -> Option<Placement> {
        let mut near = Near::new();
        let least = self.value_from(at, &mut near) * (1.0 - AS_GOOD);
        // In this order, since their order by the model is noise as well.
        self.simple().into_iter().find(|one| self.value_from(one, &mut near) >= least)
    }

    /// One step to a better placement; `None` if there is none.
    fn step(&self, best: &(Placement, f64), near: &mut Near) -> Option<(Placement, f64)> {
        let mut pairs = Vec::new();
        for (region, (lines, costs)) in self.costs(&best.0).iter().enumerate() {
            let (spot, at) = (&self.spots[region], &best.0[region]);
            for from in (0..at.len()).filter(|node| at[*node] > spot.least[*node] + 1e-6) {
                for to in (0..at.len()).filter(|node| at[*node] + 1e-6 < spot.most[*node]) {
                    let gain = lines * (costs[from] - costs[to]);
                    if gain > 0.0 {
                        pairs.push((gain, region, from, to));
                    }
                }
            }
        }
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (_, region, from, to) in pairs.into_iter().take(4) {
            let (spot, at) = (&self.spots[region], &best.0[region]);
            let most = (at[from] - spot.least[from]).min(spot.most[to] - at[to]);
            let mut found: Option<(Placement, f64)> = None;
            for part in STEPS {
                let mut next = best.0.clone();
                next[region][from] -= most * part;
                next[region][to] += most * part;
                let value = self.value_from(&next, near);
                if found.as_ref().is_none_or(|(_, most)| value > *most) {
                    found = Some((next, value));
                } else if found.as_ref().is_some_and(|(_, most)| *most > best.1) {
                    // Below the previous part, which was a gain: smaller parts gain less still.
                    break;
                }
            }
            if let Some(found) = found.filter(|(_, value)| *value > best.1 * (1.0 + STEP_GAINS)) {
                return Some(found);
            }
        }
        None
    }
}

/// Demand on memory: loops of CPU nodes, and those of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Outstanding lines of each CPU node: its throughput times the latency.
    pub lines: Vec<u32>,
    /// Think time between a line and the next request.
    pub think: Nanoseconds,
    /// The share of reads.
    pub reads: BasisPoints,
    /// Outstanding lines of others, by queue.
    pub foreign: Vec<u32>,
}

impl Demand {
    /// Loops for all CPU nodes; a node without demand gets a negligible one.
    fn loops(&self, machine: &Machine) -> (Loops, Scene) {
        let number =
            |numbers: &[u32], index: usize| numbers.get(index).map_or(0.0, |n| f64::from(*n));
        let cpus = machine.cpus();
        let lines = (0..cpus).map(|cpu| number(&self.lines, cpu).max(1e-3)).collect();
        let loops =
            Loops { lines, think: vec![real(self.think.0); cpus], reads: share(self.reads) };
        let foreign = (0..machine.queues()).map(|queue| number(&self.foreign, queue)).collect();
        (loops, Scene { foreign, weight: 1.0 })
    }
}

/// Weights for new memory with a uniform access pattern: [`PARTS`] over the nodes, in their order; 0 means none there.
#[must_use]
pub fn weights(machine: &Machine, demand: &Demand) -> Vec<u8> {
    let (loops, scene) = demand.loops(machine);
    let nodes = machine.nodes();
    let spots =
        [Spot { by: vec![1.0; machine.cpus()], least: vec![0.0; nodes], most: vec![1.0; nodes] }];
    let problem = Problem { machine, loops: &loops, spots: &spots, scenes: &[scene] };
    let nearest = problem.simple().into_iter().next().unwrap_or_default();
    let (best, _) = problem.best(&nearest);
    best.first().map(|at| apportion(at)).unwrap_or_default()
}

/// Whole parts, [`PARTS`] in all: the largest remainders are rounded up, the first among equals.
pub(super) fn apportion(shares: &[f64]) -> Vec<u8> {
    let exact = |share: &f64| share.clamp(0.0, 1.0) * f64::from(PARTS);
    // Values within rounding error of a whole part count as whole.
    let floor = |share: &f64| u8::try_from(count(exact(share) - 0.499_999)).unwrap_or(PARTS);
    let mut parts: Vec<u8> = shares.iter().map(floor).collect();
    let given: u8 = parts.iter().fold(0_u8, |sum, part| sum.saturating_add(*part));
    let rest = |index: &usize| exact(&shares[*index]) - f64::from(parts[*index]);
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|a, b| rest(b).total_cmp(&rest(a)).then(a.cmp(b)));
    for index in order.into_iter().cycle().take(usize::from(PARTS.saturating_sub(given))) {
        parts[index] += 1;
    }
    parts
}

/// Marginal cost of a line on each node, for the present shares `at`: idle latency, waiting, and the delay of other own
/// lines.
#[must_use]
pub fn costs(machine: &Machine, demand: &Demand, at: &[BasisPoints]) -> Vec<Nanoseconds> {
    let (loops, scene) = demand.loops(machine);
    let nodes = machine.nodes();
    let spot =
        Spot { by: vec![1.0; machine.cpus()], least: vec![0.0; nodes], most: vec![1.0; nodes] };
    let wish: Vec<f64> = (0..nodes).map(|node| at.get(node).map_or(0.0, |at| share(*at))).collect();
    let Some(at) = spot.fit(&wish) else { return Vec::new() };
    let problem = Problem { machine, loops: &loops, spots: &[spot], scenes: &[scene] };
    let costs = problem.costs(&vec![at]).into_iter().next();
    costs.map_or(Vec::new(), |(_, costs)| {
        costs.into_iter().map(|ns| Nanoseconds(count(ns))).collect()
    })
}

/// A class of pages of equal heat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heat {
    /// Memory accesses per second and MiB.
    pub per_mib: u64,
    /// Its size, near and far together.
    pub bytes: Bytes,
}

/// Parameters of the promotion threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Marginal cost of a line in near memory, by [`costs`],
    pub near: Nanoseconds,
    /// and in far memory.
    pub far: Nanoseconds,
    /// Cost of migrating one MiB.
    pub move_mib: Nanoseconds,
    /// Time for which a page stays as hot as it is.
    pub horizon: Nanoseconds,
    /// Near memory available for promotion.
    pub room: Bytes,
}

/// Pages worth promoting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// Pages with at least this heat, in accesses per second and MiB.
    AtLeast(u64),
    /// None: near memory costs as much as far memory.
    None,
    /// None, and near memory costs more: hot pages are better placed far.
    Reverse,
}

/// The least heat worth promoting: hotter pages fit near memory, and each repays its migration twice.
#[must_use]
pub fn promotion(terms: &Terms, heat: &[Heat]) -> Promotion {
    let gain = terms.far.0.saturating_sub(terms.near.0);
    if gain == 0 {
        return if terms.near > terms.far { Promotion::Reverse } else { Promotion::None };
    }
    let mut heat: Vec<Heat> = heat.to_vec();
    heat.sort_by_key(|heat| core::cmp::Reverse(heat.per_mib));
    let mut left = terms.room.0;
    let mut fits = u64::MAX;
    // Pages of the same heat are promoted all or not at all.
    for alike in heat.chunk_by(|a, b| a.per_mib == b.per_mib) {
        let bytes = alike.iter().fold(0_u64, |sum, class| sum.saturating_add(class.bytes.0));
        let Some(less) = left.checked_sub(bytes) else { break };
        (left, fits) = (less, alike[0].per_mib);
    }
    // Accesses a second x gain x seconds: nanoseconds saved.
    let saved = u128::from(gain) * u128::from(terms.horizon.0);
    let repays = (2 * u128::from(terms.move_mib.0) * 1_000_000_000).div_ceil(saved.max(1));
    Promotion::AtLeast(fits.max(u64::try_from(repays).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
