//! Balance: memory where a line more costs the same everywhere, as far as getting there repays.
//!
//! # The loop
//! 1. *Sense*, at each step: latencies as they are felt become use of queues by the curve backwards, and, less own traffic, lines
//!    that others have outstanding (`sense.rs`). Loads that change are noticed.
//! 2. *Predict*, every half second, less often while nothing is to gain: the best placement for these loads, by
//!    [`place`](super::place)'s law, which is the optimum and not the point where latencies are equal. Loads that come and go
//!    faster than memory can follow are not followed (`outlook.rs`).
//! 3. *Decide*: a gain of 1.5 % starts moving, what is left of 0.75 % ends it; both are half of that once loads have been the
//!    same for ten seconds. As much of the gain as can be believed must repay the traffic of moving twice over while loads last,
//!    and memory stays as hot as it is (`drift.rs`). A direction is reversed after two confirmations.
//! 4. *Limit*: a tenth of a region's accesses in a decision, times confidence, up to four tenths while what was predicted
//!    comes or very much is to gain; the rate that was set, and of that only what the queues can spare, unless much is to gain.
//! 5. *Check* (`judge.rs`): what came of what was predicted. Three misses halve confidence, five undo what was done, and
//!    nothing is done until loads change.
//!
//! Predictions start from inferred loads, not from gaps between latencies: the steepness of `1 / (1 - u)` makes steps on
//! noisy gaps swing, and predictions not. Where own traffic is not known, latencies are equalised instead
//! ([`colloid`]). Which pages go is [`Pages`]'s choice: hottest for their size, not those that moved of late.
//!
//! Weights for new memory ([`Decision::weights`]) and costs for promotion ([`Decision::costs`], [`super::place::promotion`])
//! are of the same prices. Whoever acts does not know whether the machine is real.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Bytes, Nanoseconds};

use super::colloid::{self, Colloid, Wish};
use super::model::{LINE, Loops, Machine};
use super::number::{basis_points, count, real, share};
use super::place::{Placement, Problem, Spot, apportion};

mod drift;
#[cfg(test)]
mod four_nodes;
mod judge;
mod outlook;
mod pages;
mod reading;
mod sense;
mod terms;
#[cfg(test)]
mod tests;

use drift::{Drift, Served};
use judge::{Judge, Judgement};
use outlook::{Goal, apart, goal, way_ns};
pub use pages::{Candidate, Pages};
use sense::Senses;
pub use terms::{Config, Decision, Law, Observation, Region, Shift, Verdict};

/// Of what queues can spare, moving takes this part.
const SPARE_PART: f64 = 0.25;
/// A gain like this is worth the whole rate.
const GAIN_URGENT: f64 = 0.1;
/// The least part of the rate.
const RATE_LEAST: f64 = 0.1;
/// A node's CPUs are waited for if they ask for at least this part of what all do on average.
const BUSY: f64 = 0.5;
/// A gain must be so many times what moving costs.
const REPAYS: f64 = 2.0;
/// Less than this share of a region is not moved.
const SHARE_LEAST: f64 = 0.002;
/// While there is nothing to gain and loads stay the same, it is predicted half as often each time, down to this part.
const RARER_MOST: u32 = 3;

/// The controller.
#[derive(Clone, Debug)]
pub struct Balance {
    config: Config,
    machine: Machine,
    senses: Senses,
    judge: Judge,
    drift: Drift,
    /// Whether loads were found to have changed just now.
    changed: bool,
    /// Time since the last decision.
    since_ns: u64,
    /// How often in a row there was nothing to gain.
    settled: u32,
    /// Whether it is on its way.
    moving: bool,
    /// Region and nodes of the last move.
    direction: Option<(usize, usize, usize)>,
    /// Decisions in a row that wished to reverse it.
    wished: u32,
    /// It is off, and this is where all goes back to.
    off: Option<Placement>,
    colloids: BTreeMap<(usize, usize, usize), Colloid>,
}

/// All that a decision is made with.
struct View<'a> {
    seen: &'a Observation,
    elapsed_ns: u64,
    at: Placement,
    spots: Vec<Spot>,
    loops: Loops,
}

impl Balance {
    /// A controller for this machine, that has seen nothing.
    #[must_use]
    pub fn new(config: Config, machine: Machine) -> Self {
        Self {
            config,
            machine,
            senses: Senses::default(),
            judge: Judge::new(),
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

    /// Takes in what is seen, and decides when it is time.
    pub fn step(&mut self, seen: &Observation) -> Decision {
        if !self.fits(seen) {
            return self.say(Verdict::Mismatch);
        }
        // What has changed is decided on at the next reading: who asks has not looked where memory is.
        let is_due = self.is_due(seen.elapsed);
        // What is counted is never old.
        let is_counted = reading::Reading::of(&self.machine, seen).is_counted(&self.machine);
        let is_new = seen.age <= self.config.age_most || is_counted;
        self.changed = is_new && self.senses.take_in(&self.machine, seen);
        if self.changed {
            self.judge.forget();
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
        if let Judgement::Undo(back) = self.judge.judge(self.senses.rate()) {
            self.off = Some(back);
        }
        let decision = match self.off.clone() {
            Some(back) => self.undo(&view, &back),
            None => self.plan(&view),
        };
        let is_settled = matches!(decision.verdict, Verdict::Settled { .. });
        self.settled = if is_settled { self.settled.saturating_add(1) } else { 0 };
        decision
    }

    /// Whether the last step found that loads have changed, so that who used which memory before tells nothing of what comes.
    #[must_use]
    pub const fn loads_changed(&self) -> bool {
        self.changed
    }

    /// Whether there has been nothing to gain for a while: then little is learned from samples, and few are enough.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.settled >= RARER_MOST
    }

    /// Whether a step after so much more time decides; else it is not asked where memory is.
    #[must_use]
    pub fn is_due(&self, elapsed: Nanoseconds) -> bool {
        let wait = self.config.period.0.saturating_mul(1 << self.settled.min(RARER_MOST));
        self.since_ns.saturating_add(elapsed.0) >= wait
    }

    /// Whether all that is seen is of this machine.
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
            // What is nowhere is taken to be everywhere.
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

    /// Marginal costs: predicts and decides.
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
            decision.shifts = self.shifts(view, &goal.to, (part, self.judge.step(gain)));
            let now = after(&view.at, &decision.shifts);
            let predicted = problem.value(&now) / problem.value(&view.at).max(1e-12);
            self.judge.moved(&view.at, self.senses.rate(), predicted);
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
        // A byte moved is read and written: so many lines of ours are not, at worst.
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

    /// The part of the rate that is used: what the fullest queue in use can spare, or all if much is to gain.
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

    /// What to move now on the way to `to`: within the rate, what a step may be, and what there is room for.
    fn shifts(&self, view: &View<'_>, to: &Placement, (rate_part, step): (f64, f64)) -> Vec<Shift> {
        let (bytes, largest) = apart(view.seen, (&view.at, to));
        // A long wait is no reason for a long step.
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

    /// Moves back what was moved.
    fn undo(&self, view: &View<'_>, back: &Placement) -> Decision {
        let fitted: Option<Placement> = if back.len() == view.spots.len() {
            view.spots.iter().zip(back).map(|(spot, at)| spot.fit(at)).collect()
        } else {
            None
        };
        let shifts = match fitted {
            Some(back) if apart(view.seen, (&view.at, &back)).1 >= SHARE_LEAST => {
                self.shifts(view, &back, (1.0, self.judge.step(0.0)))
            }
            _ => Vec::new(),
        };
        let verdict = if shifts.is_empty() { Verdict::Off } else { Verdict::Undoing };
        Decision { shifts, ..self.say(verdict) }
    }

    /// Equal latencies: for each region, between the nodes in reach that are slowest and fastest now.
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
        let shifts = self.shifts(view, &to, (1.0, self.judge.step(0.0)));
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
            confidence: basis_points(self.judge.confidence),
        }
    }
}

/// The nodes with the most to give and to get, if there is any.
fn widest(apart: &[f64]) -> Option<(usize, usize)> {
    let by = |a: &usize, b: &usize| apart[*a].total_cmp(&apart[*b]);
    let (from, to) = ((0..apart.len()).min_by(by)?, (0..apart.len()).max_by(by)?);
    (apart[from] < -1e-6 && apart[to] > 1e-6).then_some((from, to))
}

/// The region and the nodes between which most goes.
fn main_shift(at: &Placement, to: &Placement) -> Option<(usize, usize, usize)> {
    let wide = |(region, (at, to)): (usize, (&Vec<f64>, &Vec<f64>))| {
        let apart: Vec<f64> = at.iter().zip(to).map(|(at, to)| to - at).collect();
        widest(&apart).map(|(from, to)| (apart[to], (region, from, to)))
    };
    let all = at.iter().zip(to).enumerate().filter_map(wide);
    all.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, direction)| direction)
}

/// What is gained where CPUs wait for each other, and so for the one that gains most: the gain of all would be no more than that times
/// the nodes that have CPUs.
fn waited_for((now, then): (&[f64], &[f64]), gain: f64) -> f64 {
    let mean = now.iter().sum::<f64>() / real(now.len().max(1) as u64);
    let busy = now.iter().zip(then).filter(|(now, _)| **now > mean * BUSY);
    let most = busy.map(|(now, then)| then / now - 1.0).fold(gain, f64::max);
    most.min(gain.max(0.0) * real(now.len() as u64)).max(gain)
}

/// Where all is after these moves.
fn after(at: &Placement, shifts: &[Shift]) -> Placement {
    let mut at = at.clone();
    for shift in shifts {
        at[shift.region][shift.from] -= share(shift.share);
        at[shift.region][shift.to] += share(shift.share);
    }
    at
}
