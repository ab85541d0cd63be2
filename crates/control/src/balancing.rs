//! Balancing as a loop: sensors are read, a policy is asked, pages move as the rate allows.
//!
//! Every step of [`SENSE`] the sensors are read and what they saw is taken in (`seen.rs`); when it is time, the policy decides:
//! Carrefour on a round of counters and sampled pages ([`nearfar_policy::traffic::carrefour`]), the law of marginal costs, or
//! equal latencies, on regions of memory that is used alike ([`balance`]; `regions.rs` makes regions of samples). What was
//! decided is asked of the machine, which moves pages in its own time, batch by batch, and tells what became of each. Whose
//! memory it is about may change at any time; sensors are told.
//!
//! A sensor that fails is left out, said so, and started again later. With none at work nothing is decided.

use std::collections::BTreeMap;

use nearfar_policy::traffic::balance;
use nearfar_policy::traffic::carrefour::{Executed, Sampling};
use nearfar_policy::traffic::{Memory, Metrics, Page, Process};
use nearfar_topology::{Nanoseconds, NodeId};

use crate::sense::{Cost, Counts, Reading, Scope, Sees, Sensor, Unusable, Whose};

mod blocks;
mod effect;
mod law;
mod owners;
mod regions;
mod seen;
#[cfg(test)]
mod tests;
mod tidy;
mod turns;

pub use effect::Effect;
pub use law::{Balanced, Law, Said, Wanted};
pub use regions::Regions;
pub use seen::Layout;

/// From reading to reading.
pub const SENSE: Nanoseconds = Nanoseconds(250_000_000);
/// From looking whose memory it is to looking again.
const LOOK: u64 = 1_000_000_000;
/// From looking how nodes are to looking again, if nothing is decided.
const MEMORY: u64 = 5_000_000_000;
/// Until a sensor that failed is started again.
const AGAIN: u64 = 10_000_000_000;

/// A page that is to be on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The page; the first piece of a huge one.
    pub page: Page,
    /// Whether it is a huge one.
    pub huge: bool,
    /// It moves if it is there; `None`: wherever it is.
    pub from: Option<NodeId>,
    /// The node.
    pub to: NodeId,
}

/// A page of which it is known where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What was asked for.
    pub asked: Move,
    /// The node it is on now; `None` if that is not known, as where the page is gone.
    pub on: Option<NodeId>,
    /// Whether it was moved there.
    pub moved: bool,
}

/// What is asked of a machine.
pub trait Pages {
    /// Why something could not be done.
    type Error;

    /// Whose memory it is about now.
    ///
    /// # Errors
    /// The machine's; there is nothing left to balance.
    fn whose(&mut self) -> Result<Whose, Self::Error>;

    /// The nodes as they are now, in the order of the layout.
    ///
    /// # Errors
    /// The machine's.
    fn memory(&mut self) -> Result<Vec<Memory>, Self::Error>;

    /// Has pages moved, after those that wait.
    fn ask(&mut self, moves: Vec<Move>);

    /// Makes small pages of a huge one; whether that was done.
    fn split(&mut self, page: Page) -> bool;

    /// Moves what the rate allows now, a batch at most; what became of pages.
    fn work(&mut self, now: Nanoseconds) -> Vec<Placed>;

    /// When there is something to move again; `None` if nothing waits.
    fn next(&self) -> Option<Nanoseconds>;

    /// How many pages wait to be moved.
    fn waiting(&self) -> usize;

    /// Forgets what waits.
    fn forget(&mut self);

    /// Whether a process is not to be touched, as the one that asks.
    fn leaves_alone(&self, process: Process) -> bool;
}

/// A sensor and how it does.
#[derive(Debug)]
pub struct Watch<S> {
    /// The sensor.
    pub sensor: S,
    /// What became of its samples so far.
    pub counts: Counts,
    /// Why it is not at work, and since when.
    pub failed: Option<(Unusable, Nanoseconds)>,
}

/// What is known of a round, for whoever asks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// What it was like.
    pub metrics: Option<Metrics>,
    /// Whether accesses are counted, or only sampled, so that shares are true and sums are not.
    pub counted: bool,
    /// Accesses: a row for each node whose CPUs asked, in it a column for each that answered.
    pub accesses: Vec<Vec<u64>>,
    /// What a load takes, likewise.
    pub latency: Vec<Vec<Option<Nanoseconds>>>,
    /// Nodes.
    pub nodes: Vec<Memory>,
}

/// The loop.
#[derive(Debug)]
pub struct Loop<S> {
    layout: Layout,
    law: Law,
    watches: Vec<Watch<S>>,
    whose: Option<Whose>,
    seen: seen::Seen,
    regions: Regions,
    /// When the next reading is due, and the next look at whose memory it is, and the next decision.
    sense_at: Nanoseconds,
    look_at: Nanoseconds,
    decide_at: Nanoseconds,
    read_at: Nanoseconds,
    memory_at: Nanoseconds,
    sampling: Sampling,
    moved: u64,
    round: Round,
    said: Option<Said>,
    effect: Effect,
}

impl<S: Sensor> Loop<S> {
    /// A loop over sensors that have been checked; it starts them.
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
            whose: None,
            sense_at: zero,
            look_at: zero,
            decide_at: zero,
            read_at: zero,
            memory_at: zero,
            sampling: Sampling::Dense,
            moved: 0,
            round: Round::default(),
            said: None,
            effect: Effect::default(),
        }
    }

    /// What was decided last, and why.
    #[must_use]
    pub const fn said(&self) -> Option<&Said> {
        self.said.as_ref()
    }

    /// What the last round was like.
    #[must_use]
    pub const fn round(&self) -> &Round {
        &self.round
    }

    /// What came of what was done.
    #[must_use]
    pub const fn effect(&self) -> &Effect {
        &self.effect
    }

    /// The sensors.
    #[must_use]
    pub fn watches(&self) -> &[Watch<S>] {
        &self.watches
    }

    /// What pages are taken for.
    #[must_use]
    pub const fn regions(&self) -> &Regions {
        &self.regions
    }

    /// How many samples are taken now.
    #[must_use]
    pub const fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// What sensors have cost.
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
    /// The first that could not put back what it set; the others have stopped.
    pub fn stop(&mut self) -> Result<(), Unusable> {
        let stopped = self.watches.iter_mut().map(|watch| watch.sensor.stop());
        stopped.fold(Ok(()), Result::and)
    }

    /// Does what is due at `now`; gives how long after it the next thing is.
    ///
    /// # Errors
    /// The machine's.
    pub fn tick<P: Pages>(
        &mut self,
        now: Nanoseconds,
        pages: &mut P,
    ) -> Result<Nanoseconds, P::Error> {
        // Sensors first: a load that is timed is to meet what goes on, and not what waits for the thread whose CPU we are on.
        let is_time = self.whose.is_some() && now >= self.sense_at;
        let elapsed = Nanoseconds(now.0.saturating_sub(self.read_at.0));
        let reading = is_time.then(|| self.read(now));
        if now >= self.look_at {
            self.look(now, pages.whose()?);
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

    /// How nodes are: asked before each decision, and every few seconds.
    fn memory<P: Pages>(
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

    /// Tells sensors whom to look at, if that has changed, and starts those that failed a while ago.
    fn look(&mut self, now: Nanoseconds, whose: Whose) {
        if self.whose.is_none() {
            // The first reading is of some time, and the first decision of a second.
            self.read_at = now;
            self.sense_at = Nanoseconds(now.0.saturating_add(SENSE.0));
            self.decide_at = Nanoseconds(now.0.saturating_add(LOOK));
        }
        let changed = self.whose.as_ref() != Some(&whose);
        if changed && let Whose::Processes(these) = &whose {
            self.regions.keep(|process| these.contains(&process));
        }
        for watch in &mut self.watches {
            let again = watch.failed.as_ref().map(|(_, since)| now.0 >= since.0 + AGAIN);
            if again.unwrap_or(changed) {
                let started = watch.sensor.start(&whose, now);
                watch.failed = started.err().map(|why| (why, now));
            }
        }
        self.whose = Some(whose);
    }

    /// What all sensors that are at work have seen; `None` if none is. Those that time loads are read first; of what two see,
    /// the sensor that was named first is believed.
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

    fn sense<P: Pages>(
        &mut self,
        mut reading: Reading,
        memory: Vec<Memory>,
        elapsed: Nanoseconds,
        pages: &P,
    ) {
        let whose = self.whose.clone().unwrap_or_default();
        reading.samples.retain(|sample| {
            whose.has(sample.page.process) && !pages.leaves_alone(sample.page.process)
        });
        self.seen.add(&reading, memory);
        if let Law::Balance(balance) = &mut self.law {
            self.regions.add(reading.samples.clone());
            let everyone = self.watches.iter().any(|watch| {
                let sees = watch.sensor.sees();
                watch.failed.is_none() && sees.traffic && sees.scope == Scope::Machine
            });
            let counted = law::Counted { reading: &reading, elapsed, whose: &whose, everyone };
            let parts = balance.policy.is_due(elapsed).then(|| self.regions.parts());
            let observation = self.seen.observation(&self.layout, parts.as_deref(), &counted);
            let decision = balance.policy.step(&observation);
            if balance.policy.loads_changed() {
                self.regions.begin_anew();
            }
            if decision.verdict != balance::Verdict::Sensing {
                balance.last = Some((decision, parts.unwrap_or_default()));
            }
        }
    }

    fn decide<P: Pages>(&mut self, now: Nanoseconds, pages: &mut P) {
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
                if self.said.as_ref().is_some_and(Said::acted) {
                    carrefour.executed(Executed { moves: moved, replicas: 0 });
                }
                let decision = carrefour.step(&round, self.seen.table());
                self.effect.of_round(&self.round, moved, None);
                let wanted = law::carry_out(&decision, self.seen.table(), pages);
                self.seen.clear(self.law.pages_max());
                let period = decision.period;
                self.said = Some(Said::Carrefour { decision: Box::new(decision), wanted });
                period
            }
            Law::Balance(one) => {
                let Some((decision, parts)) = one.last.take() else { return };
                self.effect.of_round(&self.round, moved, Some(decision.verdict));
                let wanted = law::shift(&decision, one, &self.layout, &parts, pages);
                self.regions.age();
                self.seen.clear(self.law.pages_max());
                self.said = Some(Said::Balance { decision: Box::new(decision), wanted });
                SENSE
            }
        };
        self.set_sampling();
        self.decide_at = Nanoseconds(now.0.saturating_add(period.0));
    }

    /// As many samples as the policy wants.
    fn set_sampling(&mut self) {
        let wanted = self.law.sampling();
        if wanted == self.sampling {
            return;
        }
        self.sampling = wanted;
        for watch in self.watches.iter_mut().filter(|watch| watch.failed.is_none()) {
            // One that can't goes on as before.
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

impl<S: Sensor + ?Sized> Sensor for Box<S> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn sees(&self) -> Sees {
        (**self).sees()
    }

    fn check(&mut self) -> Result<(), Unusable> {
        (**self).check()
    }

    fn start(&mut self, whose: &Whose, now: Nanoseconds) -> Result<(), Unusable> {
        (**self).start(whose, now)
    }

    fn read(&mut self, now: Nanoseconds) -> Result<Reading, Unusable> {
        (**self).read(now)
    }

    fn set_sampling(&mut self, sampling: Sampling) -> Result<(), Unusable> {
        (**self).set_sampling(sampling)
    }

    fn cost(&self) -> Cost {
        (**self).cost()
    }

    fn stop(&mut self) -> Result<(), Unusable> {
        (**self).stop()
    }
}
