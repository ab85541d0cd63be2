//! The model of this machine: latencies between nodes, and memory controllers with their capacity and waiting curve.
//!
//! Its source is the saved probe of this machine, as for weights; else firmware (HMAT, CDAT); missing figures are
//! assumed, from the kernel's distances, and reported as assumed. Links between nodes are not measured and not
//! modelled: waiting in them appears as waiting at the controller behind.

use anyhow::Context as _;
use nearfar_control::balancing::Layout;
use nearfar_policy::traffic::model::{Carries, Machine, Path, Queue, Waits};
use nearfar_probe::ProbeReport;
use nearfar_probe::report::{LoadedPoint, Pair};
use nearfar_topology::curve::{Curve, Curves, Point};
use nearfar_topology::{BytesPerSecond, Nanoseconds, NodeId, Topology};

use nearfar_command::weighing::source;

/// Assumed figures without any source: latency at distance 10, and capacity of a controller.
const ASSUMED_NS: u64 = 100;
const ASSUMED: BytesPerSecond = BytesPerSecond(10_000_000_000);
/// Exponent of the waiting curve, and its factor as a share of the least idle latency, if no curve was measured:
/// latency of the nearest memory rises by a third at 80 % of a controller's capacity, and doubles at 90 %, which is
/// typical. A flatter curve would show no gain until a controller is saturated. Lines wait at the memory and not on the
/// path, so at the same utilisation they wait equally long for far memory, and no longer for its distance.
const POWER_PERCENT: u32 = 245;
const FACTOR: f64 = 0.12;
/// Points above this utilisation determine the end of a curve rather than its factor.
const USE_MOST: f64 = 0.95;
/// Capacity over the highest measured bandwidth: too low a value makes prices too steep.
const ABOVE: f64 = 1.02;

/// The model of a machine.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) layout: Layout,
    pub(super) machine: Machine,
    /// Its source: `probe`, `firmware`, `assumed`.
    pub(super) source: &'static str,
}

/// All nodes, and the indices of those with CPUs and with memory.
///
/// # Errors
/// A machine with one memory node.
pub fn layout(machine: &Topology) -> anyhow::Result<Layout> {
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
    /// The model of this machine.
    ///
    /// # Errors
    /// A machine with one memory node; a saved probe that cannot be read.
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

/// Sources of figures, in order of preference.
struct Known<'a> {
    machine: &'a Topology,
    pairs: &'a [Pair],
    /// Slow motion of an emulated machine: its probe reports figures of the real one; clocks here show this multiple of
    /// them.
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
        f64::from(self.machine.distance(from, to).unwrap_or(usual).max(1))
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

    /// Idle latency of the nearest memory.
    fn least_idle(&self) -> f64 {
        let nodes = self.machine.memory_nodes();
        nodes.iter().map(|node| real(self.idle(node, node).0)).fold(f64::INFINITY, f64::min)
    }

    fn capacity(&self, node: NodeId) -> BytesPerSecond {
        let by_mix = self.pairs_of(node).flat_map(|pair| &pair.bandwidth);
        let by_mix = by_mix.map(|at| at.median_bytes_per_second.0);
        let points = self.pairs_of(node).flat_map(|pair| &pair.loaded.points);
        let measured = by_mix.chain(points.map(|point| point.achieved_bytes_per_second.0)).max();
        if let Some(most) = measured.filter(|most| *most > 0) {
            return BytesPerSecond(whole(real(most) * ABOVE / self.slower).max(1));
        }
        let access = self.machine.nodes.get(&node).and_then(nearfar_topology::Node::access);
        let said = access.and_then(|access| access.attributes.read_bandwidth);
        said.filter(|said| said.0 > 0).unwrap_or(ASSUMED)
    }

    /// The loaded latency of a node's memory as its nearest CPUs measured it, if the points make a curve.
    fn curves(&self, node: NodeId) -> Option<Curves> {
        let idle = |pair: &&Pair| whole(pair.idle_latency.median_ns * 1e3);
        let pair = self.pairs_of(node).min_by_key(idle)?;
        let mut measured: Vec<Point> =
            pair.loaded.points.iter().map(|point| self.point(point)).collect();
        measured.sort_by(|a, b| a.gbps.total_cmp(&b.gbps));
        let mut points: Vec<Point> = Vec::new();
        for point in measured {
            // A latency below that of less traffic, or two readings of one bandwidth, are noise.
            let most = points.last().copied().unwrap_or(Point { gbps: -1.0, ns: 0.0 });
            if point.gbps > most.gbps {
                points.push(Point { ns: point.ns.max(most.ns), ..point });
            }
        }
        Curves::new([Curve { read_share: 1.0, points }].into()).ok()
    }

    fn point(&self, point: &LoadedPoint) -> Point {
        Point {
            gbps: real(point.achieved_bytes_per_second.0) / 1e9 / self.slower,
            ns: point.latency_ns * self.slower,
        }
    }

    fn queue(&self, node: NodeId, capacity: BytesPerSecond) -> Queue {
        if let Some(curves) = self.curves(node) {
            let measured = Queue::measured(&curves, 1.0);
            return Queue {
                capacity: BytesPerSecond(capacity.0.max(measured.capacity.0)),
                ..measured
            };
        }
        // Too few points for a curve: least squares over all there are, waiting = a x, with x = u^k / (1 - u).
        let (mut xy, mut xx) = (0.0, 0.0);
        for pair in self.pairs_of(node) {
            for point in &pair.loaded.points {
                let used = real(point.achieved_bytes_per_second.0) / self.slower / real(capacity.0);
                if used > 0.0 && used < USE_MOST {
                    let waits = (point.latency_ns - pair.idle_latency.median_ns) * self.slower;
                    let x = used.powf(f64::from(POWER_PERCENT) / 100.0) / (1.0 - used);
                    (xy, xx) = (xy + x * waits, xx + x * x);
                }
            }
        }
        let fitted = if xx > 0.0 && xy > 0.0 { xy / xx } else { self.least_idle() * FACTOR };
        let ps = u32::try_from(whole(fitted * 1e3)).unwrap_or(u32::MAX).max(1);
        let waits = Waits::Formula { ps, power_percent: POWER_PERCENT };
        Queue { capacity, waits, carries: Carries::All }
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
    fn firmware_data_is_used_and_gaps_are_derived_from_distances() {
        let mut two = machine([
            node(0).cpus(0..2).access(100, 60_000, 30_000),
            node(1).cpus(2..4).access(110, 50_000, 30_000),
        ]);
        for (from, to) in [(0, 1), (1, 0)] {
            two.distances.entry(NodeId(from)).or_default().insert(NodeId(to), 21);
        }
        let known = Known::new(&two, None);
        let idle = |from, to| known.idle(NodeId(from), NodeId(to)).0;
        // Firmware determines the nearest CPU node of each memory node; the testkit has node 0.
        assert_eq!((idle(0, 0), known.source()), (100, "firmware"));
        assert_eq!(idle(1, 0), 210);
        assert_eq!(known.capacity(NodeId(1)), BytesPerSecond(50_000_000_000));
        let waits = |node| known.queue(NodeId(node), BytesPerSecond(1)).waits;
        let assumed = Waits::Formula { ps: 12_000, power_percent: POWER_PERCENT };
        assert_eq!([waits(0), waits(1)], [assumed; 2], "lines wait at the memory, not on the way");
        let model = Model::of(&two).unwrap();
        assert_eq!((model.layout.cpus.len(), model.layout.mems.len()), (2, 2));
    }

    #[test]
    fn a_machine_with_one_node_has_nothing_to_balance() {
        let error = layout(&machine([node(0).cpus(0..2)])).unwrap_err().to_string();
        assert!(error.contains("one node") && error.contains("numa-4node"), "{error}");
    }

    #[test]
    fn a_curve_with_too_few_points_is_fitted_by_a_factor() {
        let one = machine([node(0).cpus(0..2), node(1)]);
        let mut report = nearfar_probe::testkit::report();
        let pair = &mut report.pairs[0];
        let (idle, most) = (pair.idle_latency.median_ns, 50e9);
        let waits = |used: f64| 7.0 * used.powf(2.45) / (1.0 - used);
        let point = |used: f64| nearfar_probe::report::LoadedPoint {
            offered_bytes_per_second: None,
            achieved_bytes_per_second: BytesPerSecond(whole(used * most)),
            latency_ns: idle + waits(used),
        };
        pair.loaded.points = [0.2, 0.8].map(point).into();
        report.pairs.truncate(1);
        let known = Known::new(&one, Some(&report));
        let queue = known.queue(NodeId(0), BytesPerSecond(whole(most)));
        let Waits::Formula { ps, .. } = queue.waits else { panic!("{queue:?}") };
        assert!((6_990..7_010).contains(&ps), "{queue:?}");
        assert_eq!(known.source(), "probe");
        // On an emulated machine ten times slower, clocks show ten times the figures.
        let slower = Known { slower: 10.0, ..known };
        assert_eq!(slower.idle(NodeId(0), NodeId(0)).0, whole(idle * 10.0));
        assert!(slower.capacity(NodeId(0)).0 < known_capacity(&one, &report) / 9);
    }

    #[test]
    fn a_measured_latency_curve_is_made_monotonic() {
        let one = machine([node(0).cpus(0..2), node(1)]);
        let mut report = nearfar_probe::testkit::report();
        report.pairs.truncate(1);
        let point = |(gbps, latency_ns): (u64, f64)| LoadedPoint {
            offered_bytes_per_second: None,
            achieved_bytes_per_second: BytesPerSecond(gbps * 1_000_000_000),
            latency_ns,
        };
        let points = [(0, 100.0), (10, 110.0), (20, 109.0), (30, 130.0), (40, 200.0)];
        report.pairs[0].loaded.points = points.map(point).into();
        let known = Known::new(&one, Some(&report));
        let Waits::Points(points) = known.queue(NodeId(0), BytesPerSecond(1)).waits else {
            panic!("no points")
        };
        assert_eq!(points.last().map(|last| last.ps / 1000), Some(100), "{points:?}");
        assert!(points.windows(2).all(|two| two[0].ps <= two[1].ps), "{points:?}");
    }

    fn known_capacity(machine: &Topology, report: &ProbeReport) -> u64 {
        Known::new(machine, Some(report)).capacity(NodeId(0)).0
    }
}
