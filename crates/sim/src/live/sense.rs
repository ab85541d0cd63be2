//! What a controller gets to see: loaded latencies as probes measure them, and a few accesses of all that happen.

use std::collections::VecDeque;

use crate::alias::Alias;
use crate::flow::Flow;
use crate::machine::Machine;
use crate::pages::Pages;
use crate::rng::Rng;
use crate::workload::Workload;

/// How well sensors see.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensors {
    /// Noise of a latency: relative standard deviation.
    pub noise: f64,
    /// By how much all latencies are wrong: 0.2 is 20 % too high.
    pub bias: f64,
    /// Share of readings and of samples that is lost.
    pub loss: f64,
    /// Ticks until a reading arrives.
    pub delay_ticks: usize,
    /// Accesses sampled each tick.
    pub samples: u32,
    /// Which counters there are.
    pub counters: Counters,
}

/// What is counted, exactly; a reading may be lost like any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counters {
    /// Nothing.
    None,
    /// The workload's own accesses, by row of CPUs and node.
    Own,
    /// These, and what each controller carries, whoever asked.
    All,
}

impl Default for Sensors {
    /// An active probe, repeatable to 2.5 %, and sampling of some thousand accesses a tick.
    fn default() -> Self {
        Self {
            noise: 0.025,
            bias: 0.0,
            loss: 0.0,
            delay_ticks: 1,
            samples: 2000,
            counters: Counters::All,
        }
    }
}

/// An access that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The page's index.
    pub page: u32,
    /// The row of the CPUs that asked.
    pub row: u16,
    /// Whether it was a write.
    pub write: bool,
}

/// What a controller is told.
#[derive(Debug)]
pub struct Readings<'a> {
    /// Now; readings are as old as the sensors' delay.
    pub now_ms: u64,
    /// Time from tick to tick.
    pub tick_ms: u32,
    /// Latency of a line from each node (column) for each row of CPUs; none where the reading was lost.
    pub loaded_ns: Vec<Vec<Option<f64>>>,
    /// Accesses of the workload that were seen.
    pub samples: Vec<Sample>,
    /// Cache lines a microsecond at each node's controller, whoever asked; none where there is no counter or its reading
    /// was lost.
    pub controllers_per_us: Vec<Option<f64>>,
    /// The workload's own lines a microsecond, by row of CPUs and node; as above.
    pub own_per_us: Vec<Vec<Option<f64>>>,
    /// The share of the workload's time that is spent in translation beyond what huge pages would cost.
    pub walks: f64,
    /// Where pages are; their heat is not for controllers.
    pub(super) pages: &'a Pages,
    /// Bytes free on each node.
    pub free: Vec<u64>,
    /// What is known of the machine without load.
    pub machine: &'a Machine,
    /// Acts asked for and not yet done.
    pub waiting: usize,
    /// The most that is moved, 10^9 bytes a second.
    pub rate_gbps: f64,
}

impl Readings<'_> {
    /// The node of each page.
    #[must_use]
    pub fn on(&self) -> &[u16] {
        &self.pages.node
    }

    /// Nodes that have copies of a page, a bit each.
    #[must_use]
    pub fn copies(&self, page: usize) -> u64 {
        self.pages.copies.get(page).copied().unwrap_or(0)
    }

    /// The pages that move with this one.
    #[must_use]
    pub fn whole(&self, page: usize) -> std::ops::Range<usize> {
        self.pages.whole(page)
    }

    /// Whether a page is part of a huge page.
    #[must_use]
    pub fn is_huge(&self, page: usize) -> bool {
        self.pages.is_huge(page)
    }

    /// Whether there are huge pages.
    #[must_use]
    pub fn has_huge(&self) -> bool {
        self.pages.huge.contains(&true)
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.pages.page_bytes
    }
}

/// What was seen at a tick.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) loaded_ns: Vec<Vec<Option<f64>>>,
    pub(super) samples: Vec<Sample>,
    pub(super) controllers_per_us: Vec<Option<f64>>,
    pub(super) own_per_us: Vec<Vec<Option<f64>>>,
}

/// The sensors at work.
#[derive(Debug)]
pub(super) struct Sense {
    rng: Rng,
    /// Pages of each region, to be drawn by heat.
    regions: Vec<(Vec<u32>, Option<Alias>)>,
    on_the_way: VecDeque<Seen>,
}

impl Sense {
    pub(super) fn new(workload: &Workload, pages: &Pages, rng: Rng) -> Self {
        let mut sense = Self { regions: Vec::new(), rng, on_the_way: VecDeque::new() };
        sense.learn(workload, pages);
        sense
    }

    /// Takes in which pages are hot.
    pub(super) fn learn(&mut self, workload: &Workload, pages: &Pages) {
        let mut of: Vec<(Vec<u32>, Vec<f64>)> = vec![Default::default(); workload.regions.len()];
        for (page, (region, heat)) in (0u32..).zip(pages.region.iter().zip(&pages.heat)) {
            let (numbers, heats) = &mut of[usize::from(*region)];
            numbers.push(page);
            heats.push(*heat);
        }
        self.regions = of.into_iter().map(|(pages, heats)| (pages, Alias::of(&heats))).collect();
    }

    /// Looks now, and gives what was seen `delay_ticks` ago; nothing while the first look is on its way.
    pub(super) fn look(
        &mut self,
        sensors: &Sensors,
        (flow, shares): (&Flow, &[Vec<f64>]),
        workload: &Workload,
    ) -> Option<Seen> {
        let seen = Seen {
            loaded_ns: self.latencies(sensors, flow, workload),
            samples: self.samples(sensors, flow, workload),
            controllers_per_us: self
                .counted((sensors, sensors.counters == Counters::All), &flow.controllers),
            own_per_us: own(flow, shares, workload)
                .iter()
                .map(|row| self.counted((sensors, sensors.counters != Counters::None), row))
                .collect(),
        };
        self.on_the_way.push_back(seen);
        if self.on_the_way.len() > sensors.delay_ticks { self.on_the_way.pop_front() } else { None }
    }

    /// Lines a nanosecond as counters have them, in microseconds.
    fn counted(&mut self, (sensors, there): (&Sensors, bool), per_ns: &[f64]) -> Vec<Option<f64>> {
        let mut count = |lines: &f64| {
            let lost = self.rng.unit() < sensors.loss;
            (there && !lost).then_some(lines * 1000.0)
        };
        per_ns.iter().map(&mut count).collect()
    }

    fn latencies(
        &mut self,
        sensors: &Sensors,
        flow: &Flow,
        workload: &Workload,
    ) -> Vec<Vec<Option<f64>>> {
        let served = flow.served.iter().take(workload.workers.len());
        let mut seen = |ns: f64| {
            let lost = self.rng.unit() < sensors.loss;
            let noise = 1.0 + sensors.bias + sensors.noise * self.rng.normal();
            (!lost).then_some((ns * noise).max(1.0))
        };
        served.map(|of| of.loaded_ns.iter().map(|ns| seen(*ns)).collect()).collect()
    }

    fn samples(&mut self, sensors: &Sensors, flow: &Flow, workload: &Workload) -> Vec<Sample> {
        let lines: Vec<f64> =
            flow.served.iter().take(workload.workers.len()).map(|of| of.per_ns).collect();
        let Some(workers) = Alias::of(&lines) else { return Vec::new() };
        let uses: Vec<Option<Alias>> =
            workload.workers.iter().map(|of| Alias::of(&of.uses)).collect();
        let mut samples = Vec::new();
        for _ in 0..sensors.samples {
            let who = workers.draw(&mut self.rng) as usize;
            let Some(region) = uses[who].as_ref().map(|uses| uses.draw(&mut self.rng)) else {
                continue;
            };
            let (pages, heat) = &self.regions[region as usize];
            let Some(page) = heat.as_ref().map(|heat| pages[heat.draw(&mut self.rng) as usize])
            else {
                continue;
            };
            let worker = &workload.workers[who];
            let write = self.rng.unit() >= workload.regions[region as usize].reads;
            if self.rng.unit() >= sensors.loss {
                samples.push(Sample {
                    page,
                    row: u16::try_from(worker.row).unwrap_or_default(),
                    write,
                });
            }
        }
        samples
    }
}

/// The workload's lines a nanosecond by row of CPUs and node.
fn own(flow: &Flow, shares: &[Vec<f64>], workload: &Workload) -> Vec<Vec<f64>> {
    let rows = workload.workers.iter().map(|worker| worker.row + 1).max().unwrap_or(0);
    let mut own = vec![vec![0.0; flow.controllers.len()]; rows];
    for ((served, shares), worker) in flow.served.iter().zip(shares).zip(&workload.workers) {
        for (lines, share) in own[worker.row].iter_mut().zip(shares) {
            *lines += served.per_ns * share;
        }
    }
    own
}
