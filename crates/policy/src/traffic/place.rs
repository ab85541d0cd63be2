//! Where memory is best, by the model's prices: the one law behind weights, promotion and the moving of pages.
//!
//! # The law
//! A region is memory that is used alike. On each node its lines cost idle latency and the price of every queue on their
//! way ([`model`](super::model)). A placement is best where that cost is the same on all nodes in use, and no less on
//! others. All else is a case of it:
//! - nothing is loaded: prices are nothing, and all is nearest;
//! - one region, used from everywhere, nodes alike: even;
//! - saturation: shares as bandwidths, whatever latencies are;
//! - used by one node's CPUs: there, until that node is so loaded that others are nearer;
//! - pages of different heat and little near memory: the hottest near, as long as near costs less than far ([`promotion`]).
//!
//! # The search
//! Between two nodes throughput is predicted along the whole line, in 18 places and then closer around the best: with
//! closed loops it may have two tops. Among more, the best of a few simple placements is improved step by step: prices name
//! the region and the two nodes with the most to gain, the prediction how much goes. A step that gains nothing ends it.
//!
//! # What comes of it
//! [`weights`] for new memory: [`PARTS`] in all, always, as pages are placed by their address modulo that sum, and another
//! sum would move nearly all. They know the mix of reads and writes, as queues do that carry one of them; and on an idle
//! machine they are all the nearest node's. [`promotion`] is the heat from which on a page is worth promoting, by the same
//! prices, so that tiers, weights and moving never work against each other.

use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Bytes, Nanoseconds};

use super::model::{Loops, Machine};
use super::number::{count, real, share};

/// Weights add up to this.
pub const PARTS: u8 = 64;
/// Places on the line between two nodes.
const GRID: u32 = 18;
/// A step must gain so much,
const STEP_GAINS: f64 = 1e-5;
/// and all steps together so much over where they began.
const PLAIN_LOSES: f64 = 0.002;
/// A simple placement is as good as another that gains no more than this over it.
const AS_GOOD: f64 = 0.01;
/// What one node has more than this share of is its own.
const ONES: f64 = 0.9;
/// Parts of what could go that are tried in a step.
const STEPS: [f64; 7] = [1.0, 0.5, 0.25, 0.125, 0.0625, 0.03, 0.01];

/// A placement: for each region, the share of its accesses that each node serves.
pub(super) type Placement = Vec<Vec<f64>>;

/// Uses of queues by scene, as solved last.
type Near = Vec<Vec<f64>>;

/// A region, to the search.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spot {
    /// What share of each CPU node's accesses goes to it.
    pub(super) by: Vec<f64>,
    /// The least and the most that each node may serve.
    pub(super) least: Vec<f64>,
    pub(super) most: Vec<f64>,
}

/// What others do, and how much that counts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scene {
    /// Lines outstanding by queue.
    pub(super) foreign: Vec<f64>,
    pub(super) weight: f64,
}

/// What is to be placed, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem<'a> {
    pub(super) machine: &'a Machine,
    pub(super) loops: &'a Loops,
    pub(super) spots: &'a [Spot],
    pub(super) scenes: &'a [Scene],
}

impl Spot {
    /// The nearest to `wish` that is within bounds, if any is.
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
    /// Where each CPU node's lines go.
    fn shares(&self, placement: &Placement) -> Vec<Vec<f64>> {
        let to = |cpu: usize, node: usize| {
            let spots = self.spots.iter().zip(placement);
            spots.map(|(spot, at)| spot.by[cpu] * at[node]).sum()
        };
        let nodes = self.machine.nodes();
        (0..self.machine.cpus()).map(|cpu| (0..nodes).map(|node| to(cpu, node)).collect()).collect()
    }

    /// What each row of CPUs gets, in lines a nanosecond, on average over scenes.
    pub(super) fn rates(&self, placement: &Placement) -> Vec<f64> {
        self.rates_from(placement, &mut Vec::new())
    }

    /// The same, solved from a placement near by, which this one then is to the next.
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

    /// Lines in a nanosecond, over all scenes.
    pub(super) fn value(&self, placement: &Placement) -> f64 {
        self.value_from(placement, &mut Vec::new())
    }

    /// The same, solved from a placement near by, which this one then is to the next.
    fn value_from(&self, placement: &Placement, near: &mut Near) -> f64 {
        self.rates_from(placement, near).iter().sum()
    }

    /// Use of queues, in the first scene.
    pub(super) fn used(&self, placement: &Placement) -> Vec<f64> {
        let foreign = self.scenes.first().map(|scene| scene.foreign.as_slice()).unwrap_or_default();
        self.machine.solve(self.loops, &self.shares(placement), foreign).used
    }

    /// What a line more of each region costs on each node, and how many there are.
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

    /// The best placement that is found, and what it comes to.
    pub(super) fn best(&self, from: &Placement) -> (Placement, f64) {
        if let ([spot], 2) = (self.spots, self.machine.nodes()) {
            return self.along(spot, from);
        }
        let mut near = Near::new();
        let mut best = (from.clone(), self.value_from(from, &mut near));
        for start in self.simple() {
            let value = self.value_from(&start, &mut near);
            // What is there already need not be moved.
            if value > best.1 * (1.0 + STEP_GAINS) {
                best = (start, value);
            }
        }
        let plain = best.clone();
        for _ in 0..12 * self.machine.nodes() {
            let Some(better) = self.step(&best, &mut near) else { break };
            best = better;
        }
        // What is gained by so little is of noise in what was seen, and another place next time.
        if best.1 < plain.1 * (1.0 + PLAIN_LOSES) { plain } else { best }
    }

    /// Between two nodes: a grid, then closer around the best.
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

    /// Placements to begin with: all nearest, even, by bandwidth; what one node uses nearest and the rest even.
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

    /// A simple placement that is as good as this one, if any is: what differs is of noise, and pages in plain turns have
    /// threads that pass over them side by side meet nowhere.
    pub(super) fn plain(&self, at: &Placement) -> Option<Placement> {
        let mut near = Near::new();
        let least = self.value_from(at, &mut near) * (1.0 - AS_GOOD);
        // In their order: which of those as good is better by the model is of noise, too.
        self.simple().into_iter().find(|one| self.value_from(one, &mut near) >= least)
    }

    /// One step to a better placement, if there is one.
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
                    // Less than before, and that was a gain: less still would gain less.
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

/// What is asked of memory: loops of CPU nodes, and those of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Lines that each CPU node has outstanding: what it gets in a second times what one takes.
    pub lines: Vec<u32>,
    /// What passes between a line and the next request.
    pub think: Nanoseconds,
    /// The share of reads.
    pub reads: BasisPoints,
    /// Lines of others outstanding, by queue.
    pub foreign: Vec<u32>,
}

impl Demand {
    /// As many loops as the machine has CPU nodes; one who asks for nothing asks for next to nothing.
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

/// Weights for new memory of which all is used alike: [`PARTS`] over the nodes, in their order; none for a node is none.
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
    // What is as good as a whole part is one.
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

/// What a line more costs on each node, by prices, where `at` is the share of each: idle latency, waiting, and what it makes
/// others of its kind wait.
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

/// Pages alike in heat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heat {
    /// Accesses to memory in a second, for each MiB.
    pub per_mib: u64,
    /// How much there is, near and far together.
    pub bytes: Bytes,
}

/// What promoting is weighed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What a line more costs in near memory, by [`costs`],
    pub near: Nanoseconds,
    /// and in far memory.
    pub far: Nanoseconds,
    /// What moving a MiB costs.
    pub move_mib: Nanoseconds,
    /// How long a page stays as hot as it is.
    pub horizon: Nanoseconds,
    /// How much near memory is there for it.
    pub room: Bytes,
}

/// Which pages are worth promoting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// Those at least so hot, in accesses a second for each MiB.
    AtLeast(u64),
    /// None: near memory costs as much as far memory.
    None,
    /// Less than none: near memory costs more, and hot pages are better off far.
    Reverse,
}

/// The heat from which on pages are worth promoting: they fit near memory, hottest first, and each repays its move twice.
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
    for class in heat {
        let Some(less) = left.checked_sub(class.bytes.0) else { break };
        (left, fits) = (less, class.per_mib);
    }
    // Accesses a second x gain x seconds: nanoseconds saved.
    let saved = u128::from(gain) * u128::from(terms.horizon.0);
    let repays = (2 * u128::from(terms.move_mib.0) * 1_000_000_000).div_ceil(saved.max(1));
    Promotion::AtLeast(fits.max(u64::try_from(repays).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests;
