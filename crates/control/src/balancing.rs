//! The balancing loop: reads sensors, asks a policy, and migrates pages within the migration rate.
//!
//! Every step of [`SENSE`] the loop reads the sensors and adds the readings to its sums (`seen.rs`). At each decision
//! time the policy decides: Carrefour on a round of counters and sampled pages
//! ([`nearfar_policy::traffic::carrefour`]), the law of marginal costs, or equal latencies, on regions of memory with
//! the same use ([`balance`]; `regions.rs` builds regions from samples). The loop queues the decided moves at the
//! machine, which migrates pages in batches at its own rate and reports each result. The scope (the observed
//! processes) may change at any time; the loop passes the new one to the sensors.
//!
//! A sensor that fails is marked as failed, left out, and started again later. Without a working sensor there is no
//! decision.

use std::collections::BTreeMap;

use nearfar_policy::ports::{
    Cost, Counts, PageMover, Placed, Reading, Scope, Sensor, Targets, Unusable,
};
use nearfar_policy::traffic::balance;
use nearfar_policy::traffic::carrefour::{Executed, Sampling};
use nearfar_policy::traffic::{Memory, Metrics};
use nearfar_topology::Nanoseconds;

mod blocks;
mod effect;
mod law;
mod owners;
mod part;
mod regions;
mod seen;
#[cfg(test)]
mod tests;
mod tidy;
mod turns;

pub use effect::Effect;
pub use law::{Balanced, Decided, Law, Wanted};
pub use regions::Regions;
pub use seen::Layout;

/// Interval between readings.
pub const SENSE: Nanoseconds = Nanoseconds(250_000_000);
/// Nanoseconds between queries of the scope.
const LOOK: u64 = 1_000_000_000;
/// Nanoseconds between queries of the nodes' memory while nothing is decided.
const MEMORY: u64 = 5_000_000_000;
/// Nanoseconds until a failed sensor is started again.
const AGAIN: u64 = 10_000_000_000;

/// A sensor and its state.
#[derive(Debug)]
pub struct Watch<S> {
    /// The sensor.
    pub sensor: S,
    /// Counts of its samples so far.
    pub counts: Counts,
    /// Reason and time of its failure; `None` while it works.
    pub failed: Option<(Unusable, Nanoseconds)>,
}

/// The round of the last decision, for reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// Its metrics.
    pub metrics: Option<Metrics>,
    /// Whether accesses are counted. Otherwise they are sampled: shares are valid, sums are not.
    pub counted: bool,
    /// Accesses: a row for each requesting node, with a column for each serving node.
    pub accesses: Vec<Vec<u64>>,
    /// Load latencies, in the same order.
    pub latency: Vec<Vec<Option<Nanoseconds>>>,
    /// Memory of the nodes.
    pub nodes: Vec<Memory>,
}

/// The loop.
#[derive(Debug)]
pub struct Loop<S> {
    layout: Layout,
    law: Law,
    watches: Vec<Watch<S>>,
    targets: Option<Targets>,
    seen: seen::Seen,
    regions: Regions,
    /// Due times of the next reading, the next query of the scope, and the next decision.
    sense_at: Nanoseconds,
    look_at: Nanoseconds,
    decide_at: Nanoseconds,
    read_at: Nanoseconds,
    memory_at: Nanoseconds,
    sampling: Sampling,
    moved: u64,
    round: Round,
    decided: Option<Decided>,
    effect: Effect,
}

impl<S: Sensor> Loop<S> {
    /// A loop over sensors that have been checked; its first tick starts them.
    #[must_use]
    pub fn new(layout: Layout, law: Law, sensors: Vec<S>) -> Self {
        let watch = |sensor| Watch { sensor, counts: Counts::default(), failed: None };
        let zero = Nanoseconds(0);
        Self {
            seen: seen::Seen::new(layout.nodes.len()),
            regions: Regions::new(layout.nodes.len()),
            layout,
            law,
            watches: sensors.into_iter().map(watch).collect(),
            targets: None,
            sense_at: zero,
            look_at: zero,
            decide_at: zero,
            read_at: zero,
            memory_at: zero,
            sampling: Sampling::Dense,
            moved: 0,
            round: Round::default(),
            decided: None,
            effect: Effect::default(),
        }
    }

    /// The last decision, with its reason.
    #[must_use]
    pub const fn decided(&self) -> Option<&Decided> {
        self.decided.as_ref()
    }

    /// The last round.
    #[must_use]
    pub const fn round(&self) -> &Round {
        &self.round
    }

    /// Effect of the last moves.
    #[must_use]
    pub const fn effect(&self) -> &Effect {
        &self.effect
    }

    /// The sensors.
    #[must_use]
    pub fn watches(&self) -> &[Watch<S>] {
        &self.watches
    }

    /// The sampled pages from which regions are built.
    #[must_use]
    pub const fn regions(&self) -> &Regions {
        &self.regions
    }

    /// The present sampling density.
    #[must_use]
    pub const fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Cost of the sensors so far.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.watches.iter().map(|watch| watch.sensor.cost()).fold(Cost::default(), |sum, one| {
            Cost {
                cpu: Nanoseconds(sum.cpu.0.saturating_add(one.cpu.0)),
                interruptions: sum.interruptions.saturating_add(one.interruptions),
            }
        })
    }

    /// Stops all sensors.
    ///
    /// # Errors
    /// The first error of a sensor that could not restore its settings; all others have stopped.
    pub fn stop(&mut self) -> Result<(), Unusable> {
        let stopped = self.watches.iter_mut().map(|watch| watch.sensor.stop());
        stopped.fold(Ok(()), Result::and)
    }

    /// Runs all steps that are due at `now`. Returns the delay until the next one.
    ///
    /// # Errors
    /// Errors of the machine.
    pub fn tick<P: PageMover>(
        &mut self,
        now: Nanoseconds,
        pages: &mut P,
    ) -> Result<Nanoseconds, P::Error> {
        // Sensors first: timed loads should meet the usual traffic, before this loop's work keeps a thread off its
        // CPU.
        let is_time = self.targets.is_some() && now >= self.sense_at;
        let elapsed = Nanoseconds(now.0.saturating_sub(self.read_at.0));
        let reading = is_time.then(|| self.read(now));
        if now >= self.look_at {
            self.look(now, pages.targets()?);
            self.look_at = Nanoseconds(now.0.saturating_add(LOOK));
        }
        for placed in pages.work(now) {
            self.moved += u64::from(placed.moved);
            self.regions.placed(&placed);
            self.seen.placed(&placed);
        }
        if let Some(reading) = reading {
            (self.read_at, self.sense_at) = (now, Nanoseconds(now.0.saturating_add(SENSE.0)));
            if let Some(reading) = reading {
                let memory = self.memory((now, elapsed), pages)?;
                self.sense(reading, memory, elapsed, pages);
                if now >= self.decide_at {
                    self.decide(now, pages);
                }
            }
        }
        let until = self.sense_at.0.saturating_sub(now.0);
        Ok(Nanoseconds(pages.next().map_or(until, |next| next.0.min(until))))
    }

    /// Memory of the nodes: read before each decision and every few seconds, otherwise the last value.
    fn memory<P: PageMover>(
        &mut self,
        (now, elapsed): (Nanoseconds, Nanoseconds),
        pages: &mut P,
    ) -> Result<Vec<Memory>, P::Error> {
        let known = self.seen.nodes();
        let decides = match &self.law {
            Law::Carrefour(_) => now >= self.decide_at,
            Law::Balance(one) => one.policy.is_due(elapsed),
        };
        if !known.is_empty() && now < self.memory_at && !decides {
            return Ok(known.to_vec());
        }
        self.memory_at = Nanoseconds(now.0.saturating_add(MEMORY));
        pages.memory()
    }

    /// Passes a changed scope to the sensors, and starts those again that failed a while ago.
    fn look(&mut self, now: Nanoseconds, targets: Targets) {
        if self.targets.is_none() {
            // The first reading covers a full interval, and the first decision a second.
            self.read_at = now;
            self.sense_at = Nanoseconds(now.0.saturating_add(SENSE.0));
            self.decide_at = Nanoseconds(now.0.saturating_add(LOOK));
        }
        let changed = self.targets.as_ref() != Some(&targets);
        if changed && let Targets::Processes(these) = &targets {
            self.regions.keep(|process| these.contains(&process));
        }
        for watch in &mut self.watches {
            let again = watch.failed.as_ref().map(|(_, since)| now.0 >= since.0 + AGAIN);
            if again.unwrap_or(changed) {
                let started = watch.sensor.start(&targets, now);
                watch.failed = started.err().map(|why| (why, now));
            }
        }
        self.targets = Some(targets);
    }

    /// Joins the readings of all working sensors; `None` if none works. Sensors that time loads are read first. If two
    /// sensors measure the same quantity, the one configured first takes precedence.
    fn read(&mut self, now: Nanoseconds) -> Option<Reading> {
        let mut all = BTreeMap::new();
        for times in [true, false] {
            let watches = self.watches.iter_mut().enumerate();
            for (place, watch) in watches.filter(|(_, watch)| watch.failed.is_none()) {
                if watch.sensor.sees().latency != times {
                    continue;
                }
                match watch.sensor.read(now) {
                    Ok(reading) => {
                        watch.counts = sum(watch.counts, reading.counts);
                        all.insert(place, reading);
                    }
                    Err(why) => watch.failed = Some((why, now)),
                }
            }
        }
        all.into_values().reduce(|mut first, reading| {
            first.join(reading);
            first
        })
    }

    fn sense<P: PageMover>(
        &mut self,
        mut reading: Reading,
        memory: Vec<Memory>,
        elapsed: Nanoseconds,
        pages: &P,
    ) {
        let targets = self.targets.clone().unwrap_or_default();
        reading.samples.retain(|sample| {
            targets.has(sample.page.process) && !pages.leaves_alone(sample.page.process)
        });
        self.seen.add(&reading, memory);
        if let Law::Balance(balance) = &mut self.law {
            self.regions.add(reading.samples.clone());
            let everyone = self.watches.iter().any(|watch| {
                let sees = watch.sensor.sees();
                watch.failed.is_none() && sees.traffic && sees.scope == Scope::Machine
            });
            let counted = law::Counted { reading: &reading, elapsed, targets: &targets, everyone };
            let parts = balance.policy.is_due(elapsed).then(|| self.regions.parts());
            let observation = self.seen.observation(&self.layout, parts.as_deref(), &counted);
            let decision = balance.policy.step(&observation);
            if balance.policy.loads_changed() {
                self.regions.begin_anew();
                balance.pages.loads_changed();
            }
            if decision.verdict != balance::Verdict::Sensing {
                balance.last = Some((decision, parts.unwrap_or_default()));
            }
        }
    }

    fn decide<P: PageMover>(&mut self, now: Nanoseconds, pages: &mut P) {
        if matches!(&self.law, Law::Balance(one) if one.last.is_none()) {
            return;
        }
        let round = self.seen.round();
        self.round = Round {
            metrics: Metrics::of(&round),
            counted: self.seen.counts_lines(),
            accesses: round.accesses.clone(),
            latency: self.seen.latency().to_vec(),
            nodes: round.nodes.clone(),
        };
        let moved = std::mem::take(&mut self.moved);
        let period = match &mut self.law {
            Law::Carrefour(carrefour) => {
                if self.decided.as_ref().is_some_and(Decided::acted) {
                    carrefour.executed(Executed { moves: moved, replicas: 0 });
                }
                let decision = carrefour.step(&round, self.seen.table());
                self.effect.of_round(&self.round, moved, None);
                let wanted = law::carry_out(&decision, self.seen.table(), pages);
                self.seen.clear(self.law.pages_max());
                let period = decision.period;
                self.decided = Some(Decided::Carrefour { decision: Box::new(decision), wanted });
                period
            }
            Law::Balance(one) => {
                let Some((decision, parts)) = one.last.take() else { return };
                self.effect.of_round(&self.round, moved, Some(decision.verdict));
                let wanted = law::shift(&decision, one, &self.layout, &parts, pages);
                self.regions.age();
                self.seen.clear(self.law.pages_max());
                self.decided = Some(Decided::Balance { decision: Box::new(decision), wanted });
                SENSE
            }
        };
        self.set_sampling();
        self.decide_at = Nanoseconds(now.0.saturating_add(period.0));
    }

    /// Sets the sampling density that the policy requests.
    fn set_sampling(&mut self) {
        let wanted = self.law.sampling();
        if wanted == self.sampling {
            return;
        }
        self.sampling = wanted;
        for watch in self.watches.iter_mut().filter(|watch| watch.failed.is_none()) {
            // A sensor that can't change it continues as before.
            let _ = watch.sensor.set_sampling(wanted);
        }
    }
}

fn sum(a: Counts, b: Counts) -> Counts {
    Counts {
        seen: a.seen.saturating_add(b.seen),
        lost: a.lost.saturating_add(b.lost),
        throttled: a.throttled.saturating_add(b.throttled),
        unplaced: a.unplaced.saturating_add(b.unplaced),
    }
}
