//! The machine, its pages and the time.

use std::collections::VecDeque;

use super::sense::{Readings, Sense};
use super::{Act, Controller, Settings, carry};
use crate::flow::{self, Flow, Move};
use crate::machine::Machine;
use crate::metrics::{Figures, figures};
use crate::pages::Pages;
use crate::rng::Rng;
use crate::workload::Workload;

/// The most of their time that CPUs lose to flushes.
const FLUSHED_MOST: f64 = 0.5;

/// What happened in an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    /// The workload's figures.
    pub figures: Figures,
    /// Bytes moved and copied.
    pub moved_bytes: u64,
    /// Moves refused because the node was full or by chance; they are dropped, as the kernel drops them.
    pub refused: u32,
}

/// A machine, its pages and the time.
#[derive(Debug)]
pub struct World<'a> {
    pub(super) machine: &'a Machine,
    workload: Workload,
    pub(super) settings: Settings,
    pub(super) pages: Pages,
    pub(super) free: Vec<i128>,
    pub(super) waiting: VecDeque<Act>,
    /// Bytes that the rate has allowed and nobody has used.
    pub(super) allowed: f64,
    /// What chance refuses and writes, apart from what sensors see.
    pub(super) rng: Rng,
    epoch: u64,
    sense: Sense,
    /// What flows while nothing changes.
    steady: Option<Steady>,
}

#[derive(Debug)]
struct Steady {
    flow: Flow,
    shares: Vec<Vec<f64>>,
    /// What moved and the share of time that flushes took meanwhile.
    under: (Vec<Move>, f64),
    /// The share of time that CPUs spend in translation.
    walks: f64,
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
        Self {
            machine,
            workload: workload.clone(),
            free: free.collect(),
            waiting: VecDeque::new(),
            allowed: 0.0,
            rng: Rng::new(settings.seed.wrapping_add(0x5eed)),
            epoch: 0,
            sense: Sense::new(workload, &pages, Rng::new(settings.seed)),
            steady: None,
            settings,
            pages,
        }
    }

    /// Contention from now on: lines under way of each antagonist, in their order.
    pub fn contend(&mut self, lines: f64) {
        for antagonist in &mut self.workload.antagonists {
            if antagonist.lines.to_bits() != lines.to_bits() {
                (antagonist.lines, self.steady) = (lines, None);
            }
        }
    }

    /// How much the workload asks for from now on: lines under way of each of its workers.
    pub fn work(&mut self, lines: f64) {
        for worker in &mut self.workload.workers {
            worker.lines = lines;
        }
        self.steady = None;
    }

    /// What is hot is elsewhere from now on ([`Pages::rotate`]).
    pub fn rotate(&mut self, by: usize) {
        self.pages.rotate(by);
        self.sense.learn(&self.workload, &self.pages);
        self.steady = None;
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
        let done = carry::out(self);
        self.collapse();
        let seconds = f64::from(self.settings.epoch_ms.max(1)) / 1000.0;
        let flushed = (done.flushes * self.settings.flush_ns / (seconds * 1e9)).min(FLUSHED_MOST);
        let under = (done.moves, flushed);
        let changed = done.changed || self.steady.as_ref().is_none_or(|of| of.under != under);
        let steady = match self.steady.take() {
            Some(steady) if !changed => steady,
            _ => self.solve(under),
        };
        self.epoch += 1;
        if self.epoch.is_multiple_of(u64::from(self.settings.tick_epochs.max(1))) {
            self.tick(controller, &steady);
        }
        let figures = figures(self.machine, &self.workload, &steady.shares, &steady.flow);
        self.steady = Some(steady);
        Epoch { figures, moved_bytes: done.bytes, refused: done.refused }
    }

    fn solve(&self, under: (Vec<Move>, f64)) -> Steady {
        let mut demands = self.pages.demands(&self.workload, self.machine);
        let workers = self.workload.workers.len();
        for demand in demands.iter_mut().take(workers) {
            // A CPU that flushes asks for nothing.
            demand.lines *= 1.0 - under.1;
        }
        let flow = flow::solve(self.machine, &demands, &under.0);
        let (mut walked, mut all) = (0.0, 0.0);
        for ((demand, served), worker) in
            demands.iter().zip(&flow.served).zip(&self.workload.workers)
        {
            walked += served.per_ns * (demand.think_ns - worker.think_ns);
            all += served.per_ns * (demand.think_ns + served.latency_ns);
        }
        let walks = if all > 0.0 { walked / all } else { 0.0 };
        let shares = demands.into_iter().map(|demand| demand.shares).collect();
        Steady { flow, shares, under, walks }
    }

    /// Ends copies of pages that were written to.
    fn collapse(&mut self) {
        let Some(steady) = &self.steady else { return };
        let mut written = vec![0.0; self.workload.regions.len()];
        let ns = f64::from(self.settings.epoch_ms) * 1e6;
        for (worker, served) in self.workload.workers.iter().zip(&steady.flow.served) {
            for ((lines, uses), region) in
                written.iter_mut().zip(&worker.uses).zip(&self.workload.regions)
            {
                *lines += served.per_ns * ns * uses * (1.0 - region.reads);
            }
        }
        if written.iter().all(|lines| *lines <= 0.0) {
            return;
        }
        for page in
            (0..self.pages.count()).filter(|page| self.pages.copies[*page] != 0).collect::<Vec<_>>()
        {
            let lines = written[usize::from(self.pages.region[page])] * self.pages.heat[page];
            if self.rng.unit() < 1.0 - (-lines).exp() {
                self.give_up_copies(page);
            }
        }
    }

    /// A page has no copies from now on.
    pub(super) fn give_up_copies(&mut self, page: usize) {
        let copies = std::mem::take(&mut self.pages.copies[page]);
        for (node, free) in self.free.iter_mut().enumerate() {
            if copies >> node & 1 == 1 {
                *free += i128::from(self.pages.page_bytes);
            }
        }
        if copies != 0 {
            self.steady = None;
        }
    }

    fn tick(&mut self, controller: &mut dyn Controller, steady: &Steady) {
        let tick_ms = self.settings.epoch_ms * self.settings.tick_epochs.max(1);
        let mut sensors = self.settings.sensors.clone();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of a count"
        )]
        let wanted =
            (f64::from(sensors.samples) * controller.sampling().clamp(0.0, 1.0)).round() as u32;
        sensors.samples = wanted;
        let Some(seen) = self.sense.look(&sensors, (&steady.flow, &steady.shares), &self.workload)
        else {
            return;
        };
        let readings = Readings {
            now_ms: self.epoch * u64::from(self.settings.epoch_ms),
            tick_ms,
            loaded_ns: seen.loaded_ns,
            samples: seen.samples,
            controllers_per_us: seen.controllers_per_us,
            own_per_us: seen.own_per_us,
            walks: steady.walks,
            pages: &self.pages,
            free: self.free.iter().map(|free| u64::try_from(*free).unwrap_or(0)).collect(),
            machine: self.machine,
            waiting: self.waiting.len(),
            rate_gbps: self.settings.rate_gbps,
        };
        let acts = controller.tick(&readings);
        let (pages, nodes) = (self.pages.count(), self.machine.nodes.len());
        let known = |act: &Act| {
            let (Act::Move { to, .. } | Act::Copy { to, .. }) = *act else {
                return (act.page() as usize) < pages;
            };
            (act.page() as usize) < pages && usize::from(to) < nodes
        };
        self.waiting.extend(acts.into_iter().filter(known));
    }
}
