//! Carrefour: the published system that manages memory traffic page by page.
//!
//! # The system
//! Once a second counters enable or disable three mechanisms for the whole machine; then each sampled page is decided
//! on independently, in this order:
//! 1. read by several nodes and, in samples, written by none, with replication on: **replicate**;
//! 2. else accessed by several nodes, with interleaving on: **interleave**. With a probability equal to the share of
//!    all accesses that its node serves, the page moves to a node drawn with weight 100 % less that node's share. Its
//!    own node may be drawn;
//! 3. else accessed by one node, and on another: **relocate** it there, if relocation is on and it was sampled at least
//!    twice; with interleaving on, one sample is enough;
//! 4. else leave it.
//!
//! | mechanism | condition |
//! |---|---|
//! | any | at least 50 memory accesses per microsecond; below, nothing is done and gates keep their state |
//! | replication | at least 95 % reads, with at most 25 % of memory in use |
//! | relocation | less than 80 % of accesses local |
//! | interleaving | imbalance of controllers above 35 %, unless all accesses are local |
//!
//! The first replica needs 500 pages worth replicating. With per-thread counters ([`ByProcess`]) congestion is still
//! judged for the machine, and replication per process: none of its threads may have more than 5 % modified fills.
//! Fewer than 10 pages moved or replicated in a round make sampling sparse ([`Carrefour::executed`]).
//!
//! # Huge pages
//! See `huge.rs` beside this file. Without the extension ([`Config::huge`]) decisions are made on 4 KiB pieces, and a
//! huge page is split before one of its pieces moves.
//!
//! # Differences from the publication
//! - Destinations are a function of the page, not random ([`Draw::ByPage`]): the shares are the same, and pages do not
//!   thrash while the gate stays open. [`Draw::Anew`] draws at random.
//! - Probabilities are exact, not one of 101 values; replicas and moves are counted separately; standard deviations are
//!   sample standard deviations throughout; shared pages of several applications are spread over all nodes, not the
//!   other of two.
//! - A page does not move to a node without free memory.
//!
//! Source: Dashti et al., Traffic Management (ASPLOS 2013), its runtime and module; Gaud et al., Large Pages May Be
//! Harmful on NUMA Systems (USENIX ATC 2014).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use nearfar_topology::{BasisPoints, Nanoseconds};

use super::{Metrics, Page, Process, Reads, Round, Table};

mod huge;
mod pages;
mod terms;
#[cfg(test)]
mod tests;

use huge::Splitter;
use pages::Pages;
pub use terms::{
    Action, Busy, ByProcess, Config, Decision, Draw, Effect, Executed, Gates, Hold, Huge, Left,
    Locality, Sampling, Translation, Why,
};

const WHOLE: u64 = 10_000;

/// The controller.
#[derive(Clone, Debug)]
pub struct Carrefour {
    config: Config,
    gates: Gates,
    sampling: Sampling,
    /// Rounds decided so far.
    rounds: u64,
    /// Whether any replica has been made.
    replicated: bool,
    /// Moves of each page, if limited.
    moved: BTreeMap<Page, u32>,
    splitter: Splitter,
}

impl Carrefour {
    /// A controller with all gates closed, sampling densely.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self {
            config,
            gates: Gates { replicate: false, interleave: false, relocate: false },
            sampling: Sampling::Dense,
            rounds: 0,
            replicated: false,
            moved: BTreeMap::new(),
            splitter: Splitter::new(),
        }
    }

    /// The current sampling rate.
    #[must_use]
    pub const fn sampling(&self) -> Sampling {
        self.sampling
    }

    /// Capacity of the page table for the next round.
    #[must_use]
    pub const fn pages_max(&self) -> usize {
        match self.sampling {
            Sampling::Dense => self.config.pages_max.0,
            Sampling::Sparse => self.config.pages_max.1,
        }
    }

    /// Decides on a round.
    pub fn step(&mut self, round: &Round, table: &Table) -> Decision {
        self.step_with(round, table, Translation::default())
    }

    /// Like [`Carrefour::step`], with the cost of address translation, by which the extension for huge pages joins them
    /// again.
    pub fn step_with(&mut self, round: &Round, table: &Table, lost: Translation) -> Decision {
        self.rounds += 1;
        let metrics = Metrics::of(round);
        let mut decision = Decision {
            metrics,
            gates: self.gates,
            hold: None,
            actions: Vec::new(),
            left: Vec::new(),
            lost: table.lost(),
            effect: None,
            locality: None,
            join: false,
            period: self.config.period,
        };
        let allowed = self.allowed(round);
        let hold = match metrics {
            None => Some(Hold::NoReading),
            Some(metrics) => self.open(round, metrics, allowed.as_ref()),
        };
        decision.gates = self.gates;
        decision.hold = hold;
        if let (Some(huge), Some(metrics)) = (self.config.huge, metrics) {
            self.splitter.judge(&huge, metrics, &mut decision);
            decision.join = lost.walks > huge.walks_above || lost.faults >= huge.faults_least;
        }
        if decision.hold.is_some() {
            // Few samples suffice to see that all gates stay closed.
            self.sampling = Sampling::Sparse;
            return decision;
        }
        self.decide(round, table, allowed, &mut decision);
        if let (Some(_), Some(metrics)) = (self.config.huge, metrics) {
            self.splitter.acted(metrics, !decision.actions.is_empty());
        }
        decision
    }

    /// Records the actions that were carried out.
    pub fn executed(&mut self, done: Executed) {
        self.replicated |= done.replicas > 0;
        let few = done.moves.saturating_add(done.replicas) < self.config.executed_few;
        self.sampling = if few { Sampling::Sparse } else { Sampling::Dense };
    }

    /// Updates the gates; returns the reason if nothing is to be done.
    fn open(
        &mut self,
        round: &Round,
        metrics: Metrics,
        allowed: Option<&BTreeSet<Process>>,
    ) -> Option<Hold> {
        let config = &self.config;
        if config.by_process.is_some_and(|by| round.coverage < by.coverage_least) {
            return Some(Hold::Coverage(round.coverage));
        }
        let busy = match config.busy {
            Busy::Machine(least) => least,
            Busy::Node(least) => {
                least.saturating_mul(u64::try_from(round.nodes.len()).unwrap_or(1))
            }
        };
        if metrics.per_ms < busy {
            return Some(Hold::NotBusy);
        }
        let least = match round.reads {
            Reads::Lines { .. } => config.reads_of_lines,
            Reads::Fills { .. } | Reads::Unknown => config.reads_of_fills,
        };
        let read = match allowed {
            Some(allowed) => !allowed.is_empty(),
            None => metrics.reads.is_some_and(|reads| reads >= least),
        };
        self.gates = Gates {
            replicate: read && metrics.in_use <= config.in_use_most,
            interleave: metrics.imbalance > config.imbalance_above
                && metrics.local < BasisPoints(10_000),
            relocate: metrics.local < config.local_below,
        };
        (!self.gates.any()).then_some(Hold::NothingOn)
    }

    /// Processes that may be replicated; `None` without a per-process rule. A process without threads may not.
    fn allowed(&self, round: &Round) -> Option<BTreeSet<Process>> {
        let by = self.config.by_process?;
        let seen = || round.threads.iter().filter(|thread| thread.cpu >= by.cpu_least);
        let mut allowed: BTreeSet<Process> = seen().map(|thread| thread.process).collect();
        for thread in seen() {
            let most = u128::from(thread.fills) * u128::from(by.modified_most.0);
            if u128::from(thread.modified) * u128::from(WHOLE) > most {
                allowed.remove(&thread.process);
            }
        }
        Some(allowed)
    }

    fn decide(
        &mut self,
        round: &Round,
        table: &Table,
        allowed: Option<BTreeSet<Process>>,
        decision: &mut Decision,
    ) {
        let mut pages = Pages::new(&self.config, round, self.gates, self.rounds);
        let candidates;
        let sampled = match self.config.huge {
            None => table.pages(),
            Some(huge) => {
                candidates = self.splitter.split(&huge, table, &mut pages, decision);
                &candidates
            }
        };
        pages.allowed = allowed;
        let worth = sampled.iter().filter(|(page, one)| pages.replicates(**page, one)).count();
        pages.replicas = self.replicated || worth >= self.config.replicas_first.max(1);
        for (page, one) in sampled {
            if self.has_moved_often(*page) || (one.huge && self.splitter.has_moved(*page)) {
                pages.leave(Left::MovedOften);
            } else {
                pages.decide(*page, one);
            }
        }
        for (action, _) in &pages.actions {
            if let Action::Move { page, .. } = action {
                if self.config.moves_per_page > 0 {
                    *self.moved.entry(*page).or_default() += 1;
                }
                if sampled.get(page).is_some_and(|one| one.huge) {
                    self.splitter.moved(*page);
                }
            }
        }
        decision.actions.append(&mut pages.actions);
        decision.left = pages.left.into_iter().collect();
    }

    fn has_moved_often(&self, page: Page) -> bool {
        let most = self.config.moves_per_page;
        most > 0 && self.moved.get(&page).is_some_and(|moves| *moves >= most)
    }
}

/// `part` over `whole`.
fn share(part: u64, whole: u64) -> BasisPoints {
    let share = u128::from(part.min(whole)) * u128::from(WHOLE) / u128::from(whole.max(1));
    BasisPoints(u32::try_from(share).unwrap_or(0))
}

/// The duration of a share of `whole`, in nanoseconds.
const fn part_of(whole: Nanoseconds, share: BasisPoints) -> u64 {
    whole.0 / WHOLE * share.0 as u64
}
