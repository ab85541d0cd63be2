//! The state of a simulated machine over time: its pages, load, waiting acts and sensors.
//!
//! An epoch carries out acts (`carry.rs`), ends copies of written pages, and solves the machine's steady state again
//! if anything has changed. Every few epochs the controller gets readings (`sense.rs`) and queues acts; invalid ones
//! are dropped.

use std::collections::VecDeque;

use super::sense::{self, Readings, Sense};
use super::{Act, Controller, Failed, Settings, carry};
use crate::flow::{self, Flow, Move};
use crate::machine::Machine;
use crate::metrics::{Figures, figures};
use crate::pages::Pages;
use crate::rng::Rng;
use crate::workload::Workload;

/// Largest share of time that CPUs lose to flushes.
const FLUSHED_MOST: f64 = 0.5;

/// Results of an epoch.
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
    /// Bytes that the rate has allowed and no act has used.
    pub(super) allowed: f64,
    /// Random numbers for refusals and writes, separate from those of the sensors.
    pub(super) rng: Rng,
    epoch: u64,
    sense: Sense,
    /// Lines of each page since the beginning; empty unless the controller scans.
    accesses: Vec<f64>,
    /// The steady state, until something changes.
    steady: Option<Steady>,
}

#[derive(Debug)]
struct Steady {
    flow: Flow,
    shares: Vec<Vec<f64>>,
    /// Moves, and the share of time lost to flushes, in that state.
    under: (Vec<Move>, f64),
    /// The share of time that CPUs spend in translation.
    walks: f64,
}

impl<'a> World<'a> {
    /// A machine with these pages, in place.
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
            accesses: Vec::new(),
            sense: Sense::new(workload, &pages, Rng::new(settings.seed)),
            steady: None,
            settings,
            pages,
        }
    }

    /// Sets the contention: outstanding lines of each antagonist.
    pub fn contend(&mut self, lines: f64) {
        for antagonist in &mut self.workload.antagonists {
            if antagonist.lines.to_bits() != lines.to_bits() {
                (antagonist.lines, self.steady) = (lines, None);
            }
        }
    }

    /// Sets the workload's demand: outstanding lines of each worker.
    pub fn work(&mut self, lines: f64) {
        for worker in &mut self.workload.workers {
            worker.lines = lines;
        }
        self.steady = None;
    }

    /// Moves the heat of pages elsewhere ([`Pages::rotate`]).
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

    /// The pages, with their nodes.
    #[must_use]
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Advances by one epoch.
    ///
    /// # Errors
    /// [`Failed`] if the controller can't work on this machine or with these readings.
    pub fn step(&mut self, controller: &mut dyn Controller) -> Result<Epoch, Failed> {
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
        if controller.scans() {
            self.count_accesses(&steady);
        }
        if self.epoch.is_multiple_of(u64::from(self.settings.tick_epochs.max(1))) {
            self.tick(controller, &steady);
            if let Some(failed) = controller.failed() {
                return Err(failed);
            }
        }
        let figures = figures(self.machine, &self.workload, &steady.shares, &steady.flow);
        self.steady = Some(steady);
        Ok(Epoch { figures, moved_bytes: done.bytes, refused: done.refused })
    }

    fn solve(&self, under: (Vec<Move>, f64)) -> Steady {
        let mut demands = self.pages.demands(&self.workload, self.machine);
        let workers = self.workload.workers.len();
        for demand in demands.iter_mut().take(workers) {
            // A CPU that flushes requests nothing.
            demand.lines *= 1.0 - under.1;
        }
        demands.extend(sense::probes(self.machine, &self.workload));
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

    /// Counts an epoch's lines page by page.
    fn count_accesses(&mut self, steady: &Steady) {
        let ns = f64::from(self.settings.epoch_ms) * 1e6;
        let mut lines = vec![0.0; self.workload.regions.len()];
        for (worker, served) in self.workload.workers.iter().zip(&steady.flow.served) {
            for (lines, uses) in lines.iter_mut().zip(&worker.uses) {
                *lines += served.per_ns * ns * uses;
            }
        }
        self.accesses.resize(self.pages.count(), 0.0);
        let pages = self.pages.heat.iter().zip(&self.pages.region);
        for (sum, (heat, region)) in self.accesses.iter_mut().zip(pages) {
            *sum += lines[usize::from(*region)] * heat;
        }
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

    /// Gives up all copies of a page.
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
        let load = (&steady.flow, steady.shares.as_slice());
        let Some(seen) = self.sense.look(&sensors, load, (self.machine, &self.workload)) else {
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
            counters: self.settings.sensors.counters,
            accesses: &self.accesses,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Still;
    use crate::live::testkit::{pages, tiers};
    use crate::machine::LINE;
    use crate::workload::{Region, Worker};

    /// Two regions of two small pages each; of the worker's lines, 3 of 4 go to the first.
    fn workload(lines: f64) -> Workload {
        let region = |name: &str| Region {
            name: name.into(),
            pages: 2,
            hot_pages: 0,
            hot_share: 0.0,
            touched_by: vec![1.0],
            reads: 1.0,
        };
        Workload {
            name: "timed".into(),
            about: String::new(),
            page_bytes: 4096,
            regions: vec![region("one"), region("other")],
            workers: vec![Worker { row: 0, lines, think_ns: 40.0, uses: vec![0.75, 0.25] }],
            antagonists: Vec::new(),
            huge: false,
            stripe: 0,
            walk_ns: 10.0,
        }
    }

    fn placed() -> Pages {
        let of = pages(&[0; 4], 4096);
        Pages { heat: vec![0.5; 4], region: vec![0, 0, 1, 1], ..of }
    }

    /// Records one thing at each tick, and asks for this part of the samples.
    struct Record<T, F>(Vec<T>, F, f64);

    impl<T, F: FnMut(&Readings<'_>) -> T> Controller for Record<T, F> {
        fn tick(&mut self, readings: &Readings<'_>) -> Vec<Act> {
            self.0.push((self.1)(readings));
            Vec::new()
        }

        fn sampling(&self) -> f64 {
            self.2
        }

        fn scans(&self) -> bool {
            true
        }
    }

    fn settings() -> Settings {
        let sensors =
            super::super::Sensors { delay_ticks: 0, samples: 1_000, ..Default::default() };
        Settings { tick_epochs: 1, sensors, ..Settings::default() }
    }

    #[test]
    fn counted_accesses_are_the_served_lines_by_region_and_heat() {
        let machine = tiers(&[1 << 20, 1 << 20]);
        let mut world = World::new(&machine, &workload(8.0), placed(), settings());
        let mut record = Record(Vec::new(), |of: &Readings<'_>| of.accesses.to_vec(), 0.0);
        let gbps: Vec<f64> =
            (0..3).map(|_| world.step(&mut record).unwrap().figures.gbps).collect();
        for (at, accesses) in record.0.iter().enumerate() {
            // An epoch is 10^7 ns.
            let served: f64 = gbps[..=at].iter().map(|gbps| gbps / LINE * 1e7).sum();
            for (found, share) in accesses.iter().zip([0.375, 0.375, 0.125, 0.125]) {
                assert!((found / (served * share) - 1.0).abs() < 1e-9, "{found} of {served}");
            }
        }
    }

    #[test]
    fn the_walk_share_is_page_walk_time_over_the_total_time_of_a_line() {
        let machine = tiers(&[1 << 20, 1 << 20]);
        // Next to no line: 10 ns of 40 to think, 10 for the walk and 100 in memory.
        let mut world = World::new(&machine, &workload(1e-6), placed(), settings());
        let mut record = Record(Vec::new(), |of: &Readings<'_>| of.walks, 0.0);
        world.step(&mut record).unwrap();
        assert!((record.0[0] - 10.0 / 150.0).abs() < 1e-6, "{:?}", record.0);
    }

    #[test]
    fn a_controller_gets_the_part_of_the_samples_that_it_asks_for() {
        let machine = tiers(&[1 << 20, 1 << 20]);
        for (part, wanted) in [(0.0, 0), (0.25, 250), (1.0, 1_000), (7.0, 1_000), (-1.0, 0)] {
            let mut world = World::new(&machine, &workload(8.0), placed(), settings());
            let mut record = Record(Vec::new(), |of: &Readings<'_>| of.samples.len(), part);
            world.step(&mut record).unwrap();
            assert_eq!(record.0, [wanted], "{part}");
        }
    }

    #[test]
    fn flushes_take_at_most_half_of_the_time_of_cpus() {
        let machine = tiers(&[1 << 20, 1 << 20]);
        // Few lines do not wait for each other, so throughput is as the time that is left.
        let gbps = |flush_ns: f64, moving: bool| {
            let settings = Settings { flush_ns, ..settings() };
            let mut world = World::new(&machine, &workload(1e-6), placed(), settings);
            world.waiting.extend(moving.then_some(Act::Split { page: 0 }));
            world.waiting.extend(moving.then_some(Act::Copy { page: 0, to: 1 }));
            world.step(&mut Still).unwrap().figures.gbps
        };
        let off = gbps(0.0, false);
        // One flush: 10^6 of 10^7 ns.
        assert!((gbps(1e6, true) / off - 0.9).abs() < 1e-3, "{} {off}", gbps(1e6, true));
        assert!((gbps(1e9, true) / off - 0.5).abs() < 1e-3, "{} {off}", gbps(1e9, true));
        assert!((gbps(1e9, false) / off - 1.0).abs() < 1e-9, "nothing moves");
    }
}
