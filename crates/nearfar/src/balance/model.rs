//! What the machine is taken for: latencies between nodes, and memory controllers with what they carry and how lines wait there.
//!
//! From the saved probe of this machine, as weights are; else from firmware (HMAT, CDAT); what neither says is assumed, from
//! the kernel's distances, and said so. Links between nodes are not measured, so they are not in it: waiting in them is seen
//! with the controller behind.

use anyhow::Context as _;
use nearfar_control::balancing::Layout;
use nearfar_policy::traffic::model::{Carries, Machine, Path, Queue};
use nearfar_probe::ProbeReport;
use nearfar_probe::report::Pair;
use nearfar_topology::{BytesPerSecond, Nanoseconds, NodeId, Topology};

use crate::weighing::source;

/// Where nothing is known: a distance of 10 is so much, and a controller carries so much.
const ASSUMED_NS: u64 = 100;
const ASSUMED: BytesPerSecond = BytesPerSecond(10_000_000_000);
/// The power of the curve of waiting, and its factor as a share of the least idle latency there is, where no curve was measured:
/// a load of the nearest memory takes a third longer at four fifths of what a controller carries, and twice as long at nine
/// tenths, as is usual. One that is flatter would find nothing to gain until a controller is full. Lines wait at the memory and
/// not on the way to it, so a far one that is as busy has them wait as long, and no longer for being far.
const POWER_PERCENT: u32 = 245;
const FACTOR: f64 = 0.12;
/// Nearer to its end a curve tells more of the end than of waiting.
const USE_MOST: f64 = 0.95;
/// Capacity is taken for so much more than was seen: too little makes prices too steep.
const ABOVE: f64 = 1.02;

/// What it is taken for.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) layout: Layout,
    pub(super) machine: Machine,
    /// Where it is from: `probe`, `firmware`, `assumed`.
    pub(super) source: &'static str,
}

/// The nodes, and which have CPUs and which memory.
pub(super) fn layout(machine: &Topology) -> anyhow::Result<Layout> {
    let nodes: Vec<NodeId> = machine.nodes.keys().copied().collect();
    let places = |has: &dyn Fn(NodeId) -> bool| {
        let all = nodes.iter().enumerate().filter(|(_, node)| has(**node));
        all.map(|(place, _)| place).collect::<Vec<usize>>()
    };
    let (with_cpus, with_memory) = (machine.cpu_nodes(), machine.memory_nodes());
    let cpus = places(&|node| with_cpus.contains(node));
    let mems = places(&|node| with_memory.contains(node));
    anyhow::ensure!(
        mems.len() >= 2,
        "there is one node with memory here ({}), and nothing to balance; nearfar lab run -M numa-4node shows a machine with four",
        machine.inventory()
    );
    let queues = mems.len();
    Ok(Layout { nodes, cpus, controllers: (0..queues).collect(), mems, queues })
}

impl Model {
    /// Of this machine.
    ///
    /// # Errors
    /// A machine with one node; a saved probe that can't be read.
    pub(super) fn of(machine: &Topology) -> anyhow::Result<Self> {
        let layout = layout(machine)?;
        let probe = source::saved(machine)?;
        let known = Known::new(machine, probe.as_ref());
        let queue = |place: &usize| {
            let node = layout.nodes[*place];
            known.queue(node, known.capacity(node))
        };
        let queues: Vec<Queue> = layout.mems.iter().map(queue).collect();
        let path = |cpu: NodeId, (queue, place): (usize, &usize)| Path {
            idle: known.idle(cpu, layout.nodes[*place]),
            through: vec![queue],
        };
        let row = |cpu: &usize| {
            let mems = layout.mems.iter().enumerate();
            mems.map(|of| path(layout.nodes[*cpu], of)).collect::<Vec<Path>>()
        };
        let paths: Vec<Vec<Path>> = layout.cpus.iter().map(row).collect();
        let model = Machine::new(&queues, &paths).context("making a model of this machine")?;
        Ok(Self { source: known.source(), machine: model, layout })
    }
}

/// What is known of a machine, the best first.
struct Known<'a> {
    machine: &'a Topology,
    pairs: &'a [Pair],
    /// A report's figures are those of the machine that an emulated one stands for; clocks here show so many times more.
    slower: f64,
}

impl<'a> Known<'a> {
    fn new(machine: &'a Topology, probe: Option<&'a ProbeReport>) -> Self {
        let pairs = probe.map(|report| report.pairs.as_slice()).unwrap_or_default();
        let lab = probe.and_then(|report| report.machine.lab.as_ref());
        Self { machine, pairs, slower: lab.map_or(1.0, |lab| lab.slow_motion.max(1.0)) }
    }

    fn source(&self) -> &'static str {
        let firmware = |node: &nearfar_topology::Node| {
            node.access().is_some_and(|access| access.attributes.read_latency.is_some())
        };
        if !self.pairs.is_empty() {
            "probe"
        } else if self.machine.nodes.values().any(firmware) {
            "firmware"
        } else {
            "assumed"
        }
    }

    fn pairs_of(&self, node: NodeId) -> impl Iterator<Item = &Pair> {
        self.pairs.iter().filter(move |pair| pair.memory_node == node)
    }

    fn distance(&self, from: NodeId, to: NodeId) -> f64 {
        let usual = if from == to { 10 } else { 20 };
        f64::from(self.machine.distances.get(&(from, to)).copied().unwrap_or(usual).max(1))
    }

    fn idle(&self, cpu: NodeId, node: NodeId) -> Nanoseconds {
        let measured = self.pairs_of(node).find(|pair| pair.cpu_node == cpu);
        if let Some(pair) = measured {
            return Nanoseconds(whole(pair.idle_latency.median_ns * self.slower).max(1));
        }
        let access = self.machine.nodes.get(&node).and_then(nearfar_topology::Node::access);
        let said = access.and_then(|access| {
            let from = access.nodes.iter().min_by_key(|from| whole(self.distance(*from, node)))?;
            let latency = access.attributes.read_latency?;
            Some((real(latency.0), self.distance(from, node)))
        });
        let (latency, at) = said.unwrap_or((real(ASSUMED_NS), 10.0));
        Nanoseconds(whole(latency * self.distance(cpu, node) / at).max(1))
    }

    /// Of the nearest memory there is.
    fn least_idle(&self) -> f64 {
        let nodes = self.machine.memory_nodes();
        nodes.iter().map(|node| real(self.idle(node, node).0)).fold(f64::INFINITY, f64::min)
    }

    fn capacity(&self, node: NodeId) -> BytesPerSecond {
        let by_mix = self.pairs_of(node).flat_map(|pair| &pair.bandwidth);
        let by_mix = by_mix.map(|at| at.median_bytes_per_s.0);
        let points = self.pairs_of(node).flat_map(|pair| &pair.loaded.points);
        let measured = by_mix.chain(points.map(|point| point.achieved_bytes_per_s.0)).max();
        if let Some(most) = measured.filter(|most| *most > 0) {
            return BytesPerSecond(whole(real(most) * ABOVE / self.slower).max(1));
        }
        let access = self.machine.nodes.get(&node).and_then(nearfar_topology::Node::access);
        let said = access.and_then(|access| access.attributes.read_bandwidth);
        said.filter(|said| said.0 > 0).unwrap_or(ASSUMED)
    }

    fn queue(&self, node: NodeId, capacity: BytesPerSecond) -> Queue {
        // Least squares over points of all curves: waiting = a x, with x = u^k / (1 - u).
        let (mut xy, mut xx) = (0.0, 0.0);
        for pair in self.pairs_of(node) {
            for point in &pair.loaded.points {
                let used = real(point.achieved_bytes_per_s.0) / self.slower / real(capacity.0);
                if used > 0.0 && used < USE_MOST {
                    let waits = (point.latency_ns - pair.idle_latency.median_ns) * self.slower;
                    let x = used.powf(f64::from(POWER_PERCENT) / 100.0) / (1.0 - used);
                    (xy, xx) = (xy + x * waits, xx + x * x);
                }
            }
        }
        let fitted = if xx > 0.0 && xy > 0.0 { xy / xx } else { self.least_idle() * FACTOR };
        let wait_ps = u32::try_from(whole(fitted * 1e3)).unwrap_or(u32::MAX).max(1);
        Queue { capacity, wait_ps, power_percent: POWER_PERCENT, carries: Carries::All }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure, not a count")]
fn real(number: u64) -> f64 {
    number as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped first")]
fn whole(number: f64) -> u64 {
    number.clamp(0.0, 9e18) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::testkit::{machine, node};

    #[test]
    fn firmwares_figures_are_taken_and_what_it_leaves_open_follows_distances() {
        let mut two = machine([
            node(0).cpus(0..2).access(100, 60_000, 30_000),
            node(1).cpus(2..4).access(110, 50_000, 30_000),
        ]);
        two.distances = [((0, 0), 10), ((0, 1), 21), ((1, 0), 21), ((1, 1), 10)]
            .map(|((from, to), far)| ((NodeId(from), NodeId(to)), far))
            .into();
        let known = Known::new(&two, None);
        let idle = |from, to| known.idle(NodeId(from), NodeId(to)).0;
        // Which node reaches another best is what firmware has; the testkit says node 0.
        assert_eq!((idle(0, 0), known.source()), (100, "firmware"));
        assert_eq!(idle(1, 0), 210);
        assert_eq!(known.capacity(NodeId(1)), BytesPerSecond(50_000_000_000));
        let waits = |node| known.queue(NodeId(node), BytesPerSecond(1)).wait_ps;
        assert_eq!([waits(0), waits(1)], [12_000; 2], "lines wait at the memory, not on the way");
        let model = Model::of(&two).unwrap();
        assert_eq!((model.layout.cpus.len(), model.layout.mems.len()), (2, 2));
    }

    #[test]
    fn a_machine_with_one_node_has_nothing_to_balance() {
        let error = layout(&machine([node(0).cpus(0..2)])).unwrap_err().to_string();
        assert!(error.contains("one node") && error.contains("numa-4node"), "{error}");
    }

    #[test]
    fn a_curve_that_was_measured_gives_its_factor() {
        let one = machine([node(0).cpus(0..2), node(1)]);
        let mut report = nearfar_probe::testkit::report();
        let pair = &mut report.pairs[0];
        let (idle, most) = (pair.idle_latency.median_ns, 50e9);
        let waits = |used: f64| 7.0 * used.powf(2.45) / (1.0 - used);
        let point = |used: f64| nearfar_probe::report::LoadedPoint {
            offered_bytes_per_s: None,
            achieved_bytes_per_s: BytesPerSecond(whole(used * most)),
            latency_ns: idle + waits(used),
        };
        pair.loaded.points = [0.2, 0.5, 0.8].map(point).into();
        report.pairs.truncate(1);
        let known = Known::new(&one, Some(&report));
        let queue = known.queue(NodeId(0), BytesPerSecond(whole(most)));
        assert!((6_990..7_010).contains(&queue.wait_ps), "{queue:?}");
        assert_eq!(known.source(), "probe");
        // Of an emulated machine that is ten times slower clocks show ten times as much.
        let slower = Known { slower: 10.0, ..known };
        assert_eq!(slower.idle(NodeId(0), NodeId(0)).0, whole(idle * 10.0));
        assert!(slower.capacity(NodeId(0)).0 < known_capacity(&one, &report) / 9);
    }

    fn known_capacity(machine: &Topology, report: &ProbeReport) -> u64 {
        Known::new(machine, Some(report)).capacity(NodeId(0)).0
    }
}
