//! A machine in time: epochs of 10 ms, a controller that is told what sensors saw and moves pages, contention that comes
//! and goes.
//!
//! Each epoch: pages that wait to be moved are moved, as many as the rate allows, and load what they are read from and
//! written to; then the machine's steady state under all that is the epoch's. Every tick the controller gets [`Readings`],
//! which are noisy, late or missing as [`Sensors`] says, and answers with [`PageMove`]s. What it never gets is the
//! truth: heat, utilisation and other people's demand it has to infer, as on a machine.
//!
//! Not here: what controllers decide ([`mod@colloid`] and whoever else implements [`Controller`]).

use std::collections::VecDeque;

use crate::flow::{self, Flow, Move};
use crate::machine::Machine;
use crate::metrics::{Figures, figures};
use crate::pages::Pages;
use crate::rng::Rng;
use crate::workload::Workload;

pub mod colloid;
pub mod heat;
pub mod sense;
pub mod tiers;

pub use sense::{Readings, Sample, Sensors};

/// A page that is to be elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMove {
    /// Its index in [`Pages`].
    pub page: u32,
    /// The node it is to be on.
    pub to: u16,
}

/// Decides what moves.
pub trait Controller {
    /// Called every [`Settings::tick_epochs`]; pages move in the order given, after those still waiting.
    fn tick(&mut self, readings: &Readings<'_>) -> Vec<PageMove>;
}

/// Never moves anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Still;

impl Controller for Still {
    fn tick(&mut self, _: &Readings<'_>) -> Vec<PageMove> {
        Vec::new()
    }
}

/// How time runs and what moving costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Length of an epoch.
    pub epoch_ms: u32,
    /// Epochs from tick to tick.
    pub tick_epochs: u32,
    /// The most that is moved, 10^9 bytes a second.
    pub rate_gbps: f64,
    /// What is seen.
    pub sensors: Sensors,
    /// What chance decides.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { epoch_ms: 10, tick_epochs: 10, rate_gbps: 2.0, sensors: Sensors::default(), seed: 1 }
    }
}

/// What happened in an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    /// The workload's figures.
    pub figures: Figures,
    /// Bytes moved.
    pub moved_bytes: u64,
    /// Moves refused because the node was full; they are dropped, as the kernel drops them.
    pub refused: u32,
}

/// A machine, its pages and the time.
#[derive(Debug)]
pub struct World<'a> {
    machine: &'a Machine,
    workload: Workload,
    settings: Settings,
    pages: Pages,
    free: Vec<i128>,
    waiting: VecDeque<PageMove>,
    /// Bytes that the rate has allowed and nobody has used.
    allowed: f64,
    epoch: u64,
    sense: sense::Sense,
}

impl<'a> World<'a> {
    /// A machine on which pages are where they are.
    #[must_use]
    pub fn new(
        machine: &'a Machine,
        workload: &Workload,
        pages: Pages,
        settings: Settings,
    ) -> Self {
        let used = pages.bytes(machine.nodes.len());
        let free = machine
            .nodes
            .iter()
            .zip(used)
            .map(|(node, used)| i128::from(node.size.0) - i128::from(used));
        let sense = sense::Sense::new(workload, &pages, Rng::new(settings.seed));
        Self {
            machine,
            workload: workload.clone(),
            free: free.collect(),
            waiting: VecDeque::new(),
            allowed: 0.0,
            epoch: 0,
            sense,
            settings,
            pages,
        }
    }

    /// Contention from now on: lines under way of each antagonist, in their order.
    pub fn contend(&mut self, lines: f64) {
        for antagonist in &mut self.workload.antagonists {
            antagonist.lines = lines;
        }
    }

    /// Length of an epoch.
    #[must_use]
    pub fn epoch_ms(&self) -> u32 {
        self.settings.epoch_ms
    }

    /// Where pages are.
    #[must_use]
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Goes on by one epoch.
    pub fn step(&mut self, controller: &mut dyn Controller) -> Epoch {
        let (moves, moved_bytes, refused) = self.carry_out();
        let demands = self.pages.demands(&self.workload, self.machine);
        let flow = flow::solve(self.machine, &demands, &moves);
        let shares: Vec<Vec<f64>> = demands.into_iter().map(|demand| demand.shares).collect();
        self.epoch += 1;
        if self.epoch.is_multiple_of(u64::from(self.settings.tick_epochs.max(1))) {
            self.tick(controller, &flow, &shares);
        }
        let figures = figures(self.machine, &self.workload, &shares, &flow);
        Epoch { figures, moved_bytes, refused }
    }

    fn tick(&mut self, controller: &mut dyn Controller, flow: &Flow, shares: &[Vec<f64>]) {
        let now_ms = self.epoch * u64::from(self.settings.epoch_ms);
        let seen = self.sense.look(&self.settings.sensors, (flow, shares), &self.workload);
        let Some(seen) = seen else { return };
        let readings = Readings {
            now_ms,
            loaded_ns: seen.loaded_ns,
            samples: seen.samples,
            controllers_per_us: seen.controllers_per_us,
            own_per_us: seen.own_per_us,
            on: &self.pages.node,
            page_bytes: self.pages.page_bytes,
            machine: self.machine,
            waiting: self.waiting.len(),
        };
        let moves = controller.tick(&readings);
        let (pages, nodes) = (self.pages.count(), self.machine.nodes.len());
        let known = |of: &PageMove| (of.page as usize) < pages && usize::from(of.to) < nodes;
        self.waiting.extend(moves.into_iter().filter(known));
    }

    /// Moves what the rate allows.
    fn carry_out(&mut self) -> (Vec<Move>, u64, u32) {
        let seconds = f64::from(self.settings.epoch_ms) / 1000.0;
        let bytes = self.pages.page_bytes;
        #[expect(clippy::cast_precision_loss, reason = "bytes of a page")]
        let page = bytes as f64;
        let an_epoch = self.settings.rate_gbps * 1e9 * seconds;
        // What is not used now may be used later, up to an epoch or a page.
        self.allowed = (self.allowed + an_epoch).min(an_epoch + page);
        let (mut moves, mut moved, mut refused) = (Vec::<Move>::new(), 0, 0);
        while self.allowed >= page {
            let Some(PageMove { page: at, to }) = self.waiting.pop_front() else { break };
            let (from, to) = (usize::from(self.pages.node[at as usize]), usize::from(to));
            if from == to {
                continue;
            }
            if self.free[to] < i128::from(bytes) {
                refused += 1;
                continue;
            }
            self.free[to] -= i128::from(bytes);
            self.free[from] += i128::from(bytes);
            self.pages.put(at as usize, to);
            self.allowed -= page;
            moved += bytes;
            let gbps = page / (seconds * 1e9);
            match moves.iter_mut().find(|of| (of.from, of.to) == (from, to)) {
                Some(of) => of.gbps += gbps,
                None => moves.push(Move { from, to, gbps }),
            }
        }
        (moves, moved, refused)
    }
}
