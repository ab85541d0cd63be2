//! Balance: a placement with equal marginal cost of a cache line on all nodes, as far as the gain repays the migration.
//!
//! # The loop
//! 1. *Sense*, at each step: measured latencies give the utilisation of queues by the inverse of the waiting curve,
//!    and, less own traffic, the outstanding lines of others (`sense.rs`). Changed loads are detected.
//! 2. *Predict*, every half second, less often while there is nothing to gain: the best placement for these loads by
//!    [`place`](super::place)'s law, which is the optimum and not the point of equal latencies. Loads that fluctuate
//!    faster than memory can follow are not followed (`outlook.rs`).
//! 3. *Decide*: a gain of 1.5 % starts migration, a remaining gain below 0.75 % ends it; both halve once loads have
//!    been stable for ten seconds. The credible part of the gain must repay the migration traffic twice over while
//!    loads last and memory stays as hot as it is (`drift.rs`). A direction is reversed after two confirmations.
//! 4. *Limit*: a tenth of a region's accesses per decision, times confidence, up to four tenths while predictions hold
//!    or the gain is large; within the configured rate, and of that only the bandwidth that the queues can spare,
//!    unless the gain is large.
//! 5. *Verify* (`feedback.rs`): measured against predicted gain. Three misses halve confidence, five undo the migration,
//!    and balancing is off until loads change.
//!
//! Predictions start from inferred loads, not from latency differences: `1 / (1 - u)` is so steep that steps based on
//! noisy differences oscillate. If own traffic is unknown, latencies are equalised instead ([`colloid`]). [`Pages`]
//! selects the pages to migrate: hottest for their size, and not recently migrated.
//!
//! Weights for new memory ([`Decision::weights`]) and costs for promotion ([`Decision::costs`],
//! [`super::place::promotion`]) follow from the same prices. The controller cannot tell a real machine from a simulated
//! one.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Bytes, Nanoseconds};

use super::colloid::{self, Colloid, Wish};
use super::model::{LINE, Loops, Machine};
use super::number::{basis_points, count, real, share};
use super::place::{Placement, Problem, Spot, apportion};

mod drift;
mod feedback;
#[cfg(test)]
mod four_nodes;
#[cfg(test)]
mod laws;
mod outlook;
mod pages;
mod reading;
mod sense;
mod terms;
#[cfg(test)]
mod tests;

use drift::{Drift, Served};
use feedback::{Feedback, Outcome};
use outlook::{Goal, apart, goal, way_ns};
pub use pages::{Candidate, Pages};
use sense::Senses;
pub use terms::{Config, Decision, Law, Observation, Region, Shift, Verdict};

/// Migration may use this part of the spare bandwidth of queues.
const SPARE_PART: f64 = 0.25;
/// A gain of this or more justifies the whole rate.
const GAIN_URGENT: f64 = 0.1;
/// The least part of the rate.
const RATE_LEAST: f64 = 0.1;
/// A CPU node counts as waited for if its demand is at least this part of the average.
const BUSY: f64 = 0.5;
/// The credible gain must be this many times the cost of migration.
const REPAYS: f64 = 2.0;
/// Smaller shares of a region are not migrated.
const SHARE_LEAST: f64 = 0.002;
/// While there is nothing to gain and loads are stable, the interval of predictions doubles, up to this many times.
const RARER_MOST: u32 = 3;

/// The controller.
#[derive(Clone, Debug)]
pub struct Balance {
    config: Config,
    machine: Machine,
    senses: Senses,
    feedback: Feedback,
    drift: Drift,
    /// Whether the last step detected changed loads.
    changed: bool,
    /// Time since the last decision.
    since_ns: u64,
    /// Consecutive decisions with nothing to gain.
    settled: u32,
    /// Whether migration is in progress.
    moving: bool,
    /// Region and nodes of the last move.
    direction: Option<(usize, usize, usize)>,
    /// Consecutive decisions that asked to reverse it.
    wished: u32,
    /// Set while balancing is off.
    off: Option<Off>,
    colloids: BTreeMap<(usize, usize, usize), Colloid>,
}

/// Balancing is off, until loads change.
#[derive(Clone, Debug, Default)]
struct Off {
    /// The placement to restore; empty once this is done.
    back: Placement,
    /// Regions and nodes of the shifts so far. None is reversed: what differs then is sampling noise.
    done: BTreeSet<(usize, usize, usize)>,
}

/// Input of a decision.
struct View<'a> {
    seen: &'a Observation,
    elapsed_ns: u64,
    at: Placement,
    spots: Vec<Spot>,
    loops: Loops,
}

impl Balance {
    /// A controller for this machine, without observations.
    #[must_use]
    pub fn new(config: Config, machine: Machine) -> Self {
        Self {
            config,
            machine,
            senses: Senses::default(),
            feedback: Feedback::new(),
            drift: Drift::default(),
            changed: false,
            since_ns: 0,
            settled: 0,
            moving: false,
            direction: None,
            wished: 0,
            off: None,
            colloids: BTreeMap::new(),
        }
    }

    /// Records an observation, and decides if a decision is due.
    pub fn step(&mut self, seen: &Observation) -> Decision {
        if !self.fits(seen) {
            return self.say(Verdict::Mismatch);
        }
        // A change is decided on at the next due step: this observation may lack the placement of memory.
        let is_due = self.is_due(seen.elapsed);
        // Counters are never stale.
        let is_counted = reading::Reading::of(&self.machine, seen).is_counted(&self.machine);
        let is_new = seen.age <= self.config.age_most || is_counted;
        self.changed = is_new && self.senses.take_in(&self.machine, seen);
        if self.changed {
            self.feedback.forget();
            (self.direction, self.wished, self.off) = (None, 0, None);
            self.settled = 0;
        }
        self.since_ns = self.since_ns.saturating_add(seen.elapsed.0);
        if !is_due {
            return self.say(Verdict::Sensing);
        }
        let elapsed_ns = core::mem::take(&mut self.since_ns);
        if !is_new || self.senses.is_blind(&self.machine) {
            return self.say(Verdict::Stale);
        }
        let view = self.view(seen, elapsed_ns);
        if self.config.law == Law::Average || seen.own.is_none() {
            return self.equalise(&view);
        }
        if self.senses.rate() * LINE * 1e9 < real(self.config.traffic_least.0) {
            return self.say(Verdict::Quiet);
        }
        if let Outcome::Undo(back) = self.feedback.verify(self.senses.rate()) {
            self.off = Some(Off { back, done: BTreeSet::new() });
        }
        let decision = match self.off.take() {
            Some(off) => {
                let (decision, off) = self.undo(&view, off);
                self.off = Some(off);
                decision
            }
            None => self.plan(&view),
        };
        let is_settled = matches!(decision.verdict, Verdict::Settled { .. });
        self.settled = if is_settled { self.settled.saturating_add(1) } else { 0 };
        decision
    }

    /// Whether the last step detected changed loads, so that earlier samples of page use are obsolete.
    #[must_use]
    pub const fn loads_changed(&self) -> bool {
        self.changed
    }

    /// Whether there has been nothing to gain for a while: samples then have little use, and few suffice.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.settled >= RARER_MOST
    }

    /// Whether a step after `elapsed` more time decides; if not, the placement of memory is not needed.
    #[must_use]
    pub fn is_due(&self, elapsed: Nanoseconds) -> bool {
        let wait = self.config.period.0.saturating_mul(1 << self.settled.min(RARER_MOST));
        self.since_ns.saturating_add(elapsed.0) >= wait
    }

    /// Whether all dimensions of the observation match the machine.
    fn fits(&self, seen: &Observation) -> bool {
        let (nodes, cpus) = (self.machine.nodes(), self.machine.cpus());
        let fits = |region: &Region| {
            region.by.len() == cpus
                && [&region.at, &region.least, &region.most].iter().all(|all| all.len() == nodes)
        };
        let table = |lengths: &mut dyn Iterator<Item = usize>| {
            let lengths: Vec<usize> = lengths.collect();
            lengths.len() == cpus && lengths.iter().all(|length| *length == nodes)
        };
        seen.regions.iter().all(fits)
            && seen.room.len() == nodes
            && table(&mut seen.latency.iter().map(Vec::len))
            && seen.own.as_ref().is_none_or(|own| table(&mut own.iter().map(Vec::len)))
    }

    fn view<'a>(&self, seen: &'a Observation, elapsed_ns: u64) -> View<'a> {
        let nodes = self.machine.nodes();
        let numbers = |all: &[BasisPoints]| all.iter().map(|one| share(*one)).collect::<Vec<f64>>();
        let at = |region: &Region| -> Vec<f64> {
            let at = numbers(&region.at);
            let all: f64 = at.iter().sum();
            // A region without known placement counts as spread evenly.
            if all > 0.0 {
                at.iter().map(|at| at / all).collect()
            } else {
                vec![1.0 / real(nodes as u64); nodes]
            }
        };
        let at: Placement = seen.regions.iter().map(at).collect();
        let spot = |(region, at): (&Region, &Vec<f64>)| {
            let room =
                |node: usize| at[node] + real(seen.room[node].0) / real(region.bytes.0.max(1));
            let most = numbers(&region.most);
            Spot {
                by: numbers(&region.by),
                least: numbers(&region.least),
                most: (0..nodes).map(|node| most[node].min(room(node))).collect(),
            }
        };
        let spots = seen.regions.iter().zip(&at).map(spot).collect();
        let think = vec![real(self.config.think.0); self.machine.cpus()];
        let loops = Loops { lines: self.senses.own(), think, reads: share(seen.reads) };
        View { seen, elapsed_ns, at, spots, loops }
    }

    /// Decides by marginal cost: predicts, and plans migration.
    fn plan(&mut self, view: &View<'_>) -> Decision {
        let served = Served::of(view.seen, &view.at);
        self.drift.see(&served, &view.spots, view.elapsed_ns);
        let machine = self.machine.clone();
        let scenes = self.senses.scenes();
        let problem =
            Problem { machine: &machine, loops: &view.loops, spots: &view.spots, scenes: &scenes };
        let goal = goal(problem, (&self.config, &self.senses), view.seen, &view.at);
        let over = Problem { scenes: &goal.scenes, ..problem };
        let (now, then) = (over.rates(&view.at), over.rates(&goal.to));
        let here: f64 = now.iter().sum();
        let gain = then.iter().sum::<f64>() / here.max(1e-12) - 1.0;
        let waited = waited_for((&now, &then), gain);
        let verdict = self.verdict(view, &goal, (here, gain, waited));
        let mut decision = self.say(verdict);
        let nanoseconds = |(_, costs): &(f64, Vec<f64>)| {
            costs.iter().map(|cost| Nanoseconds(count(*cost))).collect()
        };
        decision.costs = problem.costs(&view.at).iter().map(nanoseconds).collect();
        let plain = matches!(verdict, Verdict::Settled { .. }).then(|| over.plain(&goal.to));
        let to = plain.flatten();
        decision.weights = to.as_ref().unwrap_or(&goal.to).iter().map(|at| apportion(at)).collect();
        if matches!(verdict, Verdict::Moving { .. }) {
            let part = self.rate_part(view, &problem.used(&view.at), gain);
            decision.shifts = self.shifts(view, &goal.to, (part, self.feedback.step(gain)));
            let now = after(&view.at, &decision.shifts);
            let predicted = problem.value(&now) / problem.value(&view.at).max(1e-12);
            self.feedback.moved(&view.at, self.senses.rate(), predicted);
        }
        self.drift.expect(served, &view.spots, &decision.shifts);
        decision
    }

    fn verdict(
        &mut self,
        view: &View<'_>,
        goal: &Goal,
        (here, gain, waited): (f64, f64, f64),
    ) -> Verdict {
        let config = &self.config;
        let least = if self.moving { config.gain_stop } else { config.gain_start };
        let calm = self.senses.age_ns >= config.calm.0;
        let least = share(least) * if calm { 0.5 } else { 1.0 };
        let (bytes, largest) = apart(view.seen, (&view.at, &goal.to));
        let says = basis_points(waited);
        if waited <= least || largest < SHARE_LEAST {
            (self.moving, self.wished) = (false, 0);
            return Verdict::Settled { gain: says };
        }
        // A moved byte is read and written: at worst that many lines of own traffic are lost.
        let lost = 2.0 * bytes / LINE;
        let hot_ns = self.drift.hot_ns();
        let lasts_ns = goal.lasts_ns.min(hot_ns);
        let late = way_ns(config, view.seen, (&view.at, &goal.to)) > hot_ns;
        let believed = self.drift.believed(gain, (&view.at, &goal.to), &view.spots);
        if late || believed * here * lasts_ns <= REPAYS * lost {
            self.moving = false;
            return Verdict::NotRepaid { gain: says, bytes: Bytes(count(bytes)) };
        }
        let direction = main_shift(&view.at, &goal.to);
        let reverses = direction
            .zip(self.direction)
            .is_some_and(|(new, old)| new.0 == old.0 && (new.1 == old.2 || new.2 == old.1));
        if reverses && self.wished < config.confirmations {
            self.wished += 1;
            return Verdict::Reversing { wished: self.wished };
        }
        (self.moving, self.direction, self.wished) = (true, direction, 0);
        Verdict::Moving { gain: says }
    }

    /// The part of the rate to use: the spare bandwidth of the fullest queue in use, or more if the gain is large.
    fn rate_part(&self, view: &View<'_>, used: &[f64], gain: f64) -> f64 {
        let last = |node: usize| self.machine.through(0, node).last().copied();
        let spare =
            |(queue, used): (usize, f64)| (1.0 - used) * self.machine.capacity(queue) * LINE * 1e9;
        let in_use =
            (0..self.machine.nodes()).filter(|node| view.at.iter().any(|at| at[*node] > 0.01));
        let tightest = in_use
            .filter_map(|node| last(node).map(|queue| spare((queue, used[queue]))))
            .fold(f64::MAX, f64::min);
        let spared = SPARE_PART * tightest / real(self.config.rate.0.max(1));
        spared.max(gain / GAIN_URGENT).clamp(RATE_LEAST, 1.0)
    }

    /// Migrations of this decision on the way to `to`, within the rate, the step limit and free memory.
    fn shifts(&self, view: &View<'_>, to: &Placement, (rate_part, step): (f64, f64)) -> Vec<Shift> {
        let (bytes, largest) = apart(view.seen, (&view.at, to));
        // A long wait does not justify a long step.
        let time = view.elapsed_ns.min(self.config.period.0);
        let may = real(self.config.rate.0) * rate_part * real(time) / 1e9;
        let trust = share(self.config.trust) * step;
        let part = (may / bytes.max(1.0)).min(trust / largest.max(1e-9)).min(1.0);
        let mut room: Vec<u64> = view.seen.room.iter().map(|bytes| bytes.0).collect();
        let mut left = count(may);
        let mut shifts = Vec::new();
        for (region, (at, to)) in view.at.iter().zip(to).enumerate() {
            let size = view.seen.regions[region].bytes.0;
            let mut apart: Vec<f64> = at.iter().zip(to).map(|(at, to)| (to - at) * part).collect();
            while let Some((from, to)) = widest(&apart) {
                let moves = apart[to].min(-apart[from]);
                let bytes = count(moves * real(size)).min(room[to]).min(left);
                let moved = real(bytes) / real(size.max(1));
                (apart[from], apart[to]) = (apart[from] + moves, apart[to] - moves);
                if bytes > 0 {
                    (room[to], left) = (room[to] - bytes, left - bytes);
                    let (share, bytes) = (basis_points(moved), Bytes(bytes));
                    shifts.push(Shift { region, from, to, share, bytes });
                }
            }
        }
        shifts
    }

    /// Migrates back to the placement before the first miss.
    fn undo(&self, view: &View<'_>, mut off: Off) -> (Decision, Off) {
        let fitted: Option<Placement> = if off.back.len() == view.spots.len() {
            view.spots.iter().zip(&off.back).map(|(spot, at)| spot.fit(at)).collect()
        } else {
            None
        };
        let mut shifts = match fitted {
            Some(back) if apart(view.seen, (&view.at, &back)).1 >= SHARE_LEAST => {
                self.shifts(view, &back, (1.0, self.feedback.step(0.0)))
            }
            _ => Vec::new(),
        };
        shifts.retain(|shift| !off.done.contains(&(shift.region, shift.to, shift.from)));
        off.done.extend(shifts.iter().map(|shift| (shift.region, shift.from, shift.to)));
        if shifts.is_empty() {
            return (self.say(Verdict::Off), Off::default());
        }
        (Decision { shifts, ..self.say(Verdict::Undoing) }, off)
    }

    /// Equalises latencies: for each region, between its slowest and its fastest usable node.
    fn equalise(&mut self, view: &View<'_>) -> Decision {
        let mut to = view.at.clone();
        for (region, spot) in view.spots.iter().enumerate() {
            let latency = |node: usize| {
                let cpus = 0..self.machine.cpus();
                let seen =
                    cpus.filter_map(|cpu| Some((spot.by[cpu], self.senses.latency(cpu, node)?)));
                let (sum, by) =
                    seen.fold((0.0, 0.0), |(sum, by), (part, ns)| (sum + part * ns, by + part));
                (by > 0.0).then(|| sum / by)
            };
            let at = &view.at[region];
            let known: Vec<(usize, f64)> =
                (0..at.len()).filter_map(|node| Some((node, latency(node)?))).collect();
            let fast = known.iter().filter(|(node, _)| at[*node] < spot.most[*node]);
            let slow = known.iter().filter(|(node, _)| at[*node] > spot.least[*node]);
            let (Some(fast), Some(slow)) =
                (fast.min_by(|a, b| a.1.total_cmp(&b.1)), slow.max_by(|a, b| a.1.total_cmp(&b.1)))
            else {
                continue;
            };
            let (near, far) = if fast.0 < slow.0 { (fast, slow) } else { (slow, fast) };
            if near.0 == far.0 {
                continue;
            }
            let both = at[near.0] + at[far.0];
            // Latencies are smoothed already.
            let config = colloid::Config { reading: BasisPoints(10_000), ..Default::default() };
            let search =
                self.colloids.entry((region, near.0, far.0)).or_insert(Colloid::new(config));
            let ns = |latency: f64| Nanoseconds(count(latency));
            let by = match search.step(ns(near.1), ns(far.1), basis_points(at[near.0] / both)) {
                Wish::Stay => 0.0,
                Wish::Near(by) => share(by) * both,
                Wish::Far(by) => -share(by) * both,
            };
            let low = (spot.least[near.0] - at[near.0]).max(at[far.0] - spot.most[far.0]).min(0.0);
            let high = (spot.most[near.0] - at[near.0]).min(at[far.0] - spot.least[far.0]).max(0.0);
            let by = by.max(low).min(high);
            (to[region][near.0], to[region][far.0]) = (at[near.0] + by, at[far.0] - by);
        }
        let shifts = self.shifts(view, &to, (1.0, self.feedback.step(0.0)));
        let settled = Verdict::Settled { gain: BasisPoints(0) };
        let verdict = if shifts.is_empty() { settled } else { Verdict::Average };
        let weights = to.iter().map(|at| apportion(at)).collect();
        Decision { shifts, weights, ..self.say(verdict) }
    }

    fn say(&self, verdict: Verdict) -> Decision {
        let lines = |lines: &f64| u32::try_from(count(*lines)).unwrap_or(u32::MAX);
        Decision {
            verdict,
            shifts: Vec::new(),
            weights: Vec::new(),
            costs: Vec::new(),
            foreign: self.senses.foreign().iter().map(lines).collect(),
            confidence: basis_points(self.feedback.confidence),
        }
    }
}

/// The nodes with the most to give and to receive; `None` if there is no difference.
fn widest(apart: &[f64]) -> Option<(usize, usize)> {
    let by = |a: &usize, b: &usize| apart[*a].total_cmp(&apart[*b]);
    let (from, to) = ((0..apart.len()).min_by(by)?, (0..apart.len()).max_by(by)?);
    (apart[from] < -1e-6 && apart[to] > 1e-6).then_some((from, to))
}

/// The region and the nodes with the largest shift.
fn main_shift(at: &Placement, to: &Placement) -> Option<(usize, usize, usize)> {
    let wide = |(region, (at, to)): (usize, (&Vec<f64>, &Vec<f64>))| {
        let apart: Vec<f64> = at.iter().zip(to).map(|(at, to)| to - at).collect();
        widest(&apart).map(|(from, to)| (apart[to], (region, from, to)))
    };
    let all = at.iter().zip(to).enumerate().filter_map(wide);
    all.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, direction)| direction)
}

/// The gain of the CPU node that gains most, as CPUs may wait for each other; at most the average gain times the number
/// of CPU nodes.
fn waited_for((now, then): (&[f64], &[f64]), gain: f64) -> f64 {
    let mean = now.iter().sum::<f64>() / real(now.len().max(1) as u64);
    let busy = now.iter().zip(then).filter(|(now, _)| **now > mean * BUSY);
    let most = busy.map(|(now, then)| then / now - 1.0).fold(gain, f64::max);
    most.min(gain.max(0.0) * real(now.len() as u64)).max(gain)
}

/// The placement after these shifts.
fn after(at: &Placement, shifts: &[Shift]) -> Placement {
    let mut at = at.clone();
    for shift in shifts {
        at[shift.region][shift.from] -= share(shift.share);
        at[shift.region][shift.to] += share(shift.share);
    }
    at
}
