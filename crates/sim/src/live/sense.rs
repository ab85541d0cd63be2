//! Sensors of the simulated machine: loaded latencies as probes measure them, counters, and sampled accesses.
//!
//! Latencies have noise and bias, any value can be lost, and all arrive late, as [`Sensors`] specifies; counters are
//! exact. Samples are drawn by worker, region and heat. The true heat of pages is not part of [`Readings`].

use std::collections::VecDeque;

use crate::alias::Alias;
use crate::flow::{Demand, Flow};
use crate::machine::Machine;
use crate::pages::Pages;
use crate::rng::Rng;
use crate::workload::Workload;

/// Properties of sensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensors {
    /// Noise of a latency: relative standard deviation.
    pub noise: f64,
    /// Relative error of all latencies: 0.2 is 20 % too high.
    pub bias: f64,
    /// Share of readings and of samples that is lost.
    pub loss: f64,
    /// Ticks until a reading arrives.
    pub delay_ticks: usize,
    /// Accesses sampled each tick.
    pub samples: u32,
    /// Available counters.
    pub counters: Counters,
}

/// Counted quantities; counts are exact, but a reading may be lost like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counters {
    /// None.
    None,
    /// The workload's own accesses, by row of CPUs and node.
    Own,
    /// These, and the traffic of each memory controller, for all requesters.
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

/// A sampled access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The page's index.
    pub page: u32,
    /// The row of the requesting CPUs.
    pub row: u16,
    /// Whether it was a write.
    pub write: bool,
}

/// The inputs of a controller.
#[derive(Debug)]
pub struct Readings<'a> {
    /// The present time; readings are as old as the sensors' delay.
    pub now_ms: u64,
    /// Time from tick to tick.
    pub tick_ms: u32,
    /// Latency of a line from each node (column) for each row of CPUs; `None` if the reading was lost.
    pub loaded_ns: Vec<Vec<Option<f64>>>,
    /// Sampled accesses of the workload.
    pub samples: Vec<Sample>,
    /// Cache lines per microsecond at each node's controller, for all requesters; `None` if there is no counter or its
    /// reading was lost.
    pub controllers_per_us: Vec<Option<f64>>,
    /// The workload's own lines per microsecond, by row of CPUs and node; likewise.
    pub own_per_us: Vec<Vec<Option<f64>>>,
    /// The share of the workload's time that is spent in translation beyond what huge pages would cost.
    pub walks: f64,
    /// Available counters.
    pub counters: Counters,
    /// Lines of each page since the beginning, if [`Controller::scans`](super::Controller::scans): an accessed bit is set
    /// where they have grown. Empty otherwise.
    pub accesses: &'a [f64],
    /// Nodes of the pages; their heat is not for controllers.
    pub(super) pages: &'a Pages,
    /// Bytes free on each node.
    pub free: Vec<u64>,
    /// The machine, without its load.
    pub machine: &'a Machine,
    /// Number of acts that wait.
    pub waiting: usize,
    /// Highest migration rate, 10^9 bytes per second.
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

/// Readings of a tick.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) loaded_ns: Vec<Vec<Option<f64>>>,
    pub(super) samples: Vec<Sample>,
    pub(super) controllers_per_us: Vec<Option<f64>>,
    pub(super) own_per_us: Vec<Vec<Option<f64>>>,
}

/// The sensors' state.
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

    /// Adopts the present heat of pages.
    pub(super) fn learn(&mut self, workload: &Workload, pages: &Pages) {
        let mut of: Vec<(Vec<u32>, Vec<f64>)> = vec![Default::default(); workload.regions.len()];
        for (page, (region, heat)) in (0u32..).zip(pages.region.iter().zip(&pages.heat)) {
            let (numbers, heats) = &mut of[usize::from(*region)];
            numbers.push(page);
            heats.push(*heat);
        }
        self.regions = of.into_iter().map(|(pages, heats)| (pages, Alias::of(&heats))).collect();
    }

    /// Measures now, and returns the readings of `delay_ticks` ago; `None` until the first ones arrive.
    pub(super) fn look(
        &mut self,
        sensors: &Sensors,
        (flow, shares): (&Flow, &[Vec<f64>]),
        (machine, workload): (&Machine, &Workload),
    ) -> Option<Seen> {
        let seen = Seen {
            loaded_ns: self.latencies(sensors, &loaded(flow, machine, workload)),
            samples: self.samples(sensors, flow, workload),
            controllers_per_us: self
                .counted((sensors, sensors.counters == Counters::All), &flow.controllers),
            own_per_us: own((flow, shares), machine, workload)
                .iter()
                .map(|row| self.counted((sensors, sensors.counters != Counters::None), row))
                .collect(),
        };
        self.on_the_way.push_back(seen);
        if self.on_the_way.len() > sensors.delay_ticks { self.on_the_way.pop_front() } else { None }
    }

    /// Counter readings in lines per microsecond, from lines per nanosecond.
    fn counted(&mut self, (sensors, there): (&Sensors, bool), per_ns: &[f64]) -> Vec<Option<f64>> {
        let mut count = |lines: &f64| {
            let lost = self.rng.unit() < sensors.loss;
            (there && !lost).then_some(lines * 1000.0)
        };
        per_ns.iter().map(&mut count).collect()
    }

    fn latencies(&mut self, sensors: &Sensors, loaded: &[Vec<f64>]) -> Vec<Vec<Option<f64>>> {
        let mut seen = |ns: f64| {
            let lost = self.rng.unit() < sensors.loss;
            let noise = 1.0 + sensors.bias + sensors.noise * self.rng.normal();
            (!lost).then_some((ns * noise).max(1.0))
        };
        loaded.iter().map(|row| row.iter().map(|ns| seen(*ns)).collect()).collect()
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

/// Demands without lines, for loaded latencies of rows without a worker: they follow the workload's and its antagonists'
/// demands, by row.
pub(super) fn probes(machine: &Machine, workload: &Workload) -> Vec<Demand> {
    let is_idle = |row: &usize| workload.workers.iter().all(|worker| worker.row != *row);
    let probe = |row: usize| {
        let mut shares = vec![0.0; machine.nodes.len()];
        shares[machine.cpu_nodes[row]] = 1.0;
        Demand { row, lines: 0.0, think_ns: 0.0, reads: 1.0, shares }
    };
    (0..machine.cpu_nodes.len()).filter(is_idle).map(probe).collect()
}

/// Loaded latencies, by row of CPUs and node: of several workers in a row the mean, weighted by their lines.
fn loaded(flow: &Flow, machine: &Machine, workload: &Workload) -> Vec<Vec<f64>> {
    let nodes = machine.nodes.len();
    let mut probes = flow.served.iter().skip(workload.workers.len() + workload.antagonists.len());
    let row = |row: usize| {
        let of_row = || {
            let workers = flow.served.iter().zip(&workload.workers);
            workers.filter(move |(_, worker)| worker.row == row).map(|(served, _)| served)
        };
        let lines: f64 = of_row().map(|served| served.per_ns).sum();
        if lines > 0.0 {
            let mean = |node: usize| {
                of_row().map(|of| of.per_ns * of.loaded_ns[node]).sum::<f64>() / lines
            };
            return (0..nodes).map(mean).collect();
        }
        let first = of_row().next().or_else(|| probes.next());
        first.map(|of| of.loaded_ns.clone()).unwrap_or_default()
    };
    (0..machine.cpu_nodes.len()).map(row).collect()
}

/// The workload's lines per nanosecond, by row of CPUs and node.
fn own(
    (flow, shares): (&Flow, &[Vec<f64>]),
    machine: &Machine,
    workload: &Workload,
) -> Vec<Vec<f64>> {
    let mut own = vec![vec![0.0; machine.nodes.len()]; machine.cpu_nodes.len()];
    for ((served, shares), worker) in flow.served.iter().zip(shares).zip(&workload.workers) {
        for (lines, share) in own[worker.row].iter_mut().zip(shares) {
            *lines += served.per_ns * share;
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Served;
    use crate::live::testkit::{node, pages};
    use crate::machine::{Builder, Route};
    use crate::workload::{Region, Worker};

    /// Three nodes, of which the first two have CPUs.
    fn machine() -> Machine {
        let mut of = Builder::tiers("sensed", 2.0, vec![(100.0, node(1 << 30)); 3]);
        (of.cpu_nodes, of.routes) = (vec![0, 1], vec![vec![Route::default(); 3]; 2]);
        of.latency_ns.push(vec![100.0; 3]);
        of.build().unwrap()
    }

    /// Two workers on row 0, each of which uses a region alone: the first is written, the second read.
    fn workload() -> Workload {
        let region = |reads| Region {
            name: "part".into(),
            pages: 2,
            hot_pages: 0,
            hot_share: 0.0,
            touched_by: vec![1.0, 0.0],
            reads,
        };
        let worker =
            |uses: [f64; 2]| Worker { row: 0, lines: 8.0, think_ns: 0.0, uses: uses.to_vec() };
        Workload {
            name: "sensed".into(),
            about: String::new(),
            page_bytes: 4096,
            regions: vec![region(0.0), region(1.0)],
            workers: vec![worker([1.0, 0.0]), worker([0.0, 1.0])],
            antagonists: Vec::new(),
            huge: false,
            stripe: 0,
            walk_ns: 0.0,
        }
    }

    /// Four pages, two of each region; the first of each has all of its heat.
    fn half_used() -> Pages {
        let of = pages(&[0; 4], 4096);
        Pages { heat: vec![1.0, 0.0, 1.0, 0.0], region: vec![0, 0, 1, 1], ..of }
    }

    fn served(per_ns: f64, loaded_ns: [f64; 3]) -> Served {
        Served { per_ns, latency_ns: 100.0, loaded_ns: loaded_ns.to_vec() }
    }

    /// One line per nanosecond for the first worker, three for the second, and a probe of row 1.
    fn flow() -> Flow {
        Flow {
            served: vec![
                served(1.0, [100.0, 200.0, 300.0]),
                served(3.0, [140.0, 240.0, 340.0]),
                served(0.0, [500.0, 600.0, 700.0]),
            ],
            controllers: vec![4.5, 1.0, 0.5],
            links: Vec::new(),
            controllers_busy: vec![0.0; 3],
            links_busy: Vec::new(),
            settled: true,
        }
    }

    const SHARES: [[f64; 3]; 2] = [[1.0, 0.0, 0.0], [0.5, 0.25, 0.25]];

    fn exact() -> Sensors {
        Sensors { noise: 0.0, delay_ticks: 0, samples: 4_000, ..Sensors::default() }
    }

    fn look(sense: &mut Sense, sensors: &Sensors, flow: &Flow) -> Option<Seen> {
        let shares = SHARES.map(|row| row.to_vec());
        sense.look(sensors, (flow, &shares), (&machine(), &workload()))
    }

    fn sense() -> Sense {
        Sense::new(&workload(), &half_used(), Rng::new(7))
    }

    #[test]
    fn a_latency_is_the_mean_over_workers_weighted_by_lines_or_a_probe() {
        let found = look(&mut sense(), &exact(), &flow()).unwrap().loaded_ns;
        // (1 x 100 + 3 x 140) / 4 in the first column.
        let expected = [[130.0, 230.0, 330.0], [500.0, 600.0, 700.0]];
        for (found, expected) in found.iter().zip(expected) {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found.unwrap() - expected).abs() < 1e-9, "{found:?} {expected}");
            }
        }
    }

    #[test]
    fn a_bias_raises_every_latency_by_its_share_and_no_counter() {
        let sensors = Sensors { bias: 0.2, ..exact() };
        let [plain, biased] =
            [exact(), sensors].map(|of| look(&mut sense(), &of, &flow()).unwrap());
        for (plain, biased) in
            plain.loaded_ns.iter().flatten().zip(biased.loaded_ns.iter().flatten())
        {
            assert!((biased.unwrap() / plain.unwrap() - 1.2).abs() < 1e-9);
        }
        assert_eq!(plain.controllers_per_us, biased.controllers_per_us);
    }

    #[test]
    fn own_lines_are_counted_by_row_and_node_if_counters_are_available() {
        let of = |counters| look(&mut sense(), &Sensors { counters, ..exact() }, &flow()).unwrap();
        let all = of(Counters::All);
        // In lines per microsecond: 1 + 3 x 0.5 on node 0, 3 x 0.25 on the others.
        let own = [[Some(2_500.0), Some(750.0), Some(750.0)], [Some(0.0); 3]];
        assert_eq!(all.own_per_us, own);
        assert_eq!(all.controllers_per_us, [Some(4_500.0), Some(1_000.0), Some(500.0)]);
        let only_own = of(Counters::Own);
        assert_eq!(
            (only_own.own_per_us, only_own.controllers_per_us),
            (all.own_per_us, vec![None; 3])
        );
        let none = of(Counters::None);
        assert!(
            none.own_per_us.iter().flatten().chain(&none.controllers_per_us).all(Option::is_none)
        );
    }

    #[test]
    fn readings_arrive_in_order_after_their_delay() {
        let (mut sense, sensors) = (sense(), Sensors { delay_ticks: 2, ..exact() });
        let arrived: Vec<Option<f64>> = [1.0, 2.0, 3.0, 4.0]
            .map(|lines| Flow { controllers: vec![lines, 0.0, 0.0], ..flow() })
            .iter()
            .map(|flow| {
                look(&mut sense, &sensors, flow).and_then(|seen| seen.controllers_per_us[0])
            })
            .collect();
        assert_eq!(arrived, [None, None, Some(1_000.0), Some(2_000.0)]);
    }

    #[test]
    fn sensors_with_total_loss_return_no_readings() {
        let seen = look(&mut sense(), &Sensors { loss: 1.0, ..exact() }, &flow()).unwrap();
        assert!(seen.samples.is_empty());
        let readings = seen.loaded_ns.iter().chain(&seen.own_per_us).flatten();
        assert!(readings.chain(&seen.controllers_per_us).all(Option::is_none));
    }

    #[test]
    fn samples_follow_throughput_regions_and_heat() {
        let mut sense = sense();
        let samples = look(&mut sense, &exact(), &flow()).unwrap().samples;
        assert_eq!(samples.len(), 4_000);
        assert!(samples.iter().all(|of| of.row == 0 && of.write == (of.page == 0)));
        assert!(samples.iter().all(|of| [0, 2].contains(&of.page)), "the others have no heat");
        let first = samples.iter().filter(|of| of.page == 0).count();
        // A quarter of the lines: 1000, with a standard deviation of 27.
        assert!(first.abs_diff(1_000) < 140, "{first}");
        sense.learn(&workload(), &Pages { heat: vec![0.0, 1.0, 0.0, 1.0], ..half_used() });
        let samples = look(&mut sense, &exact(), &flow()).unwrap().samples;
        assert!(samples.iter().all(|of| [1, 3].contains(&of.page)), "heat has moved");
    }

    #[test]
    fn a_row_without_a_worker_has_a_probe_of_its_own_memory() {
        let found = probes(&machine(), &workload());
        let shares = vec![0.0, 1.0, 0.0];
        assert_eq!(found, [Demand { row: 1, lines: 0.0, think_ns: 0.0, reads: 1.0, shares }]);
    }
}
