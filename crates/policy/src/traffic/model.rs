//! Throughput of a placement of memory: a model of closed loops and queues.
//!
//! # The model
//! The CPUs of a node have a fixed number of outstanding lines: each line that arrives is followed by a request for the
//! next, after some think time. So slow memory lowers its own demand, and `N` outstanding lines with latency `L` and
//! think time `Z` give `N / (Z + L)` lines per unit of time. A line from a CPU node to a memory node waits in the
//! queues of its path: memory controllers, directions of links, ports that carry reads or writes alone. Each has a
//! [`Queue::capacity`] and a waiting curve `W(u)`, where `u` is the utilisation of its capacity: `a u^k / (1 - u)`, or
//! measured points ([`Waits`]). The latency of a path is its idle latency plus the waiting in all its queues. Traffic of others is also a loop, one for
//! each queue.
//!
//! # The solution
//! Loads and waiting depend on each other; one queue after the other is solved with the rest fixed (its load falls as
//! waiting rises, so there is one solution; Newton's method, kept in a bracket), until the result is stable.
//!
//! # Prices
//! One more line in a queue waits itself, and delays our other lines: its price is `W(u) + own load x dW/dload`. If
//! that is equal on all paths in use, and no less elsewhere, no placement has less total waiting. Equal *waiting* would
//! be the equilibrium of selfish traffic. Others' loops yield: in a queue filled by others our additional line causes
//! less than one line of additional load, and its price rises less.
//!
//! Real numbers are needed here; they stay internal, and are bit-exact on all machines (see `number.rs`). Inputs and
//! outputs are whole numbers. If a capacity is uncertain, err on the high side: prices are steep near saturation.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use nearfar_topology::{BytesPerSecond, Curves, Nanoseconds};

use super::number::{count, real};
use super::waits::Shape;
pub use super::waits::{POINTS, WaitPoint, Waits};

/// Bytes per line.
pub(super) const LINE: f64 = 64.0;
/// Upper limit of utilisation.
const USE_MOST: f64 = 0.999_9;
/// The solution is stable once utilisations change by less.
const SETTLED: f64 = 1e-8;

/// Kind of traffic that a queue carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carries {
    /// All lines: memory on a bus that reads and writes share.
    #[default]
    All,
    /// Lines read: one direction of a link or port.
    Reads,
    /// Lines written: the other.
    Writes,
}

/// A memory controller, a direction of a link, a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its maximal bandwidth.
    pub capacity: BytesPerSecond,
    /// Its waiting curve.
    pub waits: Waits,
    /// Kind of traffic.
    pub carries: Carries,
}

impl Queue {
    /// A queue for all traffic of this share of reads, as measured.
    #[must_use]
    pub fn measured(curves: &Curves, read_share: f64) -> Self {
        let capacity = count(curves.peak_gbps(read_share) * Curves::BEYOND_PEAK * 1e9);
        let waits = Waits::measured(curves, read_share);
        Self { capacity: BytesPerSecond(capacity), waits, carries: Carries::All }
    }
}

/// The path of a line from a CPU node to a memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Idle latency.
    pub idle: Nanoseconds,
    /// Indices of its queues in order; the memory controller comes last.
    pub through: Vec<usize>,
}

/// A machine: queues, and paths by CPU node and memory node.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    queues: Vec<Curve>,
    paths: Vec<Vec<Way>>,
    nodes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Curve {
    /// Lines per nanosecond.
    capacity: f64,
    shape: Shape,
    carries: Carries,
    /// The shortest idle latency of all paths through this queue: the latency of others' lines.
    idle: f64,
}

#[derive(Clone, Debug, PartialEq)]
struct Way {
    idle: f64,
    through: Vec<usize>,
}

/// Reason why a machine cannot be modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmodelled {
    /// There are no paths.
    NoPaths,
    /// CPU nodes have different numbers of paths.
    Ragged,
    /// A path without idle latency or without queues.
    EmptyPath,
    /// A path with a queue index out of range.
    NoQueue(usize),
    /// A queue without capacity.
    NoCapacity(usize),
    /// A queue whose measured points do not rise.
    Points(usize),
}

impl fmt::Display for Unmodelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPaths => f.write_str("no paths to memory; give one for each node"),
            Self::Ragged => {
                f.write_str("paths to some nodes are missing; give one for each CPU node and node")
            }
            Self::EmptyPath => f.write_str("a path without latency or queue; give both"),
            Self::NoQueue(queue) => {
                write!(f, "a path goes through queue {queue}, which is not there")
            }
            Self::NoCapacity(queue) => write!(f, "queue {queue} has no capacity; measure it"),
            Self::Points(queue) => {
                write!(f, "the measured points of queue {queue} do not rise; measure it again")
            }
        }
    }
}

impl core::error::Error for Unmodelled {}

impl Machine {
    /// A machine with these queues and paths, the paths by CPU node and memory node.
    ///
    /// # Errors
    /// [`Unmodelled`].
    pub fn new(queues: &[Queue], paths: &[Vec<Path>]) -> Result<Self, Unmodelled> {
        let nodes = paths.first().map(Vec::len).filter(|n| *n > 0).ok_or(Unmodelled::NoPaths)?;
        let mut curves = Vec::new();
        for (index, queue) in queues.iter().enumerate() {
            if queue.capacity.0 == 0 {
                return Err(Unmodelled::NoCapacity(index));
            }
            curves.push(Curve {
                capacity: real(queue.capacity.0) / 1e9 / LINE,
                shape: Shape::of(&queue.waits).ok_or(Unmodelled::Points(index))?,
                carries: queue.carries,
                idle: f64::MAX,
            });
        }
        for path in paths.iter().flatten() {
            if path.idle.0 == 0 || path.through.is_empty() {
                return Err(Unmodelled::EmptyPath);
            }
            for queue in &path.through {
                let curve = curves.get_mut(*queue).ok_or(Unmodelled::NoQueue(*queue))?;
                curve.idle = curve.idle.min(real(path.idle.0));
            }
        }
        if paths.iter().any(|row| row.len() != nodes) {
            return Err(Unmodelled::Ragged);
        }
        let way = |path: &Path| Way { idle: real(path.idle.0), through: path.through.clone() };
        let paths = paths.iter().map(|row| row.iter().map(way).collect()).collect();
        Ok(Self { queues: curves, paths, nodes })
    }

    /// One CPU node with several memory nodes, each behind its own queue, nearest first.
    ///
    /// # Errors
    /// [`Unmodelled`].
    pub fn tiers(tiers: &[(Nanoseconds, Queue)]) -> Result<Self, Unmodelled> {
        let path = |(queue, (idle, _)): (usize, &(Nanoseconds, Queue))| Path {
            idle: *idle,
            through: vec![queue],
        };
        let queues: Vec<Queue> = tiers.iter().map(|(_, queue)| *queue).collect();
        Self::new(&queues, &[tiers.iter().enumerate().map(path).collect()])
    }

    /// Number of nodes with memory.
    #[must_use]
    pub const fn nodes(&self) -> usize {
        self.nodes
    }

    /// Number of nodes with CPUs.
    #[must_use]
    pub const fn cpus(&self) -> usize {
        self.paths.len()
    }

    /// Number of queues.
    #[must_use]
    pub const fn queues(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn idle(&self, cpu: usize, node: usize) -> f64 {
        self.paths[cpu][node].idle
    }

    pub(super) fn through(&self, cpu: usize, node: usize) -> &[usize] {
        &self.paths[cpu][node].through
    }

    /// Latency of others' lines through a queue with this waiting.
    pub(super) fn foreign_latency(&self, queue: usize, wait: f64) -> f64 {
        self.queues[queue].idle.min(1e9) + wait
    }

    /// Capacity of a queue in lines per nanosecond.
    pub(super) fn capacity(&self, queue: usize) -> f64 {
        self.queues[queue].capacity
    }

    /// The share of the lines on a path that a queue on it carries, where `reads` is the share of reads.
    pub(super) fn carried(&self, queue: usize, reads: f64) -> f64 {
        match self.queues[queue].carries {
            Carries::All => 1.0,
            Carries::Reads => reads,
            Carries::Writes => 1.0 - reads,
        }
    }

    /// Utilisation for a given waiting: the inverse of the waiting curve.
    pub(super) fn in_use(&self, queue: usize, wait: f64) -> f64 {
        let curve = &self.queues[queue];
        let (mut low, mut high) = (0.0, USE_MOST);
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if curve.wait(middle) < wait { low = middle } else { high = middle }
        }
        if wait <= 0.0 { 0.0 } else { (low + high) / 2.0 }
    }

    /// Waiting of lines in a queue at this utilisation.
    pub(super) fn wait(&self, queue: usize, used: f64) -> f64 {
        self.queues[queue].wait_and_slope(used).0
    }

    /// Latency of a path, with `of` as the waiting or the price of each queue.
    pub(super) fn latency(&self, path: (usize, usize), reads: f64, of: &[f64]) -> f64 {
        let way = &self.paths[path.0][path.1];
        let waits = way.through.iter().map(|queue| of[*queue] * self.carried(*queue, reads));
        way.idle + waits.sum::<f64>()
    }
}

impl Curve {
    fn wait(&self, u: f64) -> f64 {
        self.shape.wait(u)
    }

    fn wait_and_slope(&self, u: f64) -> (f64, f64) {
        self.shape.wait_and_slope(u.clamp(1e-9, USE_MOST))
    }
}

/// Closed loops: demand of each CPU node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Loops {
    /// Outstanding lines by CPU node,
    pub(super) lines: Vec<f64>,
    /// and think time, in nanoseconds.
    pub(super) think: Vec<f64>,
    /// The share of reads.
    pub(super) reads: f64,
}

/// Solution of the model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Flow {
    /// Lines per nanosecond by CPU node.
    pub(super) rate: Vec<f64>,
    /// Utilisation of queues.
    pub(super) used: Vec<f64>,
    /// Waiting in queues.
    pub(super) wait: Vec<f64>,
    /// Own lines per nanosecond by queue.
    pub(super) own: Vec<f64>,
}

impl Machine {
    /// Solves the model: `shares` are the shares of each CPU node's lines by node, `foreign` the outstanding lines of
    /// others by queue.
    pub(super) fn solve(&self, loops: &Loops, shares: &[Vec<f64>], foreign: &[f64]) -> Flow {
        self.solve_from(loops, shares, foreign, &[])
    }

    /// Like `solve`, starting from the utilisations of a similar case.
    pub(super) fn solve_from(
        &self,
        loops: &Loops,
        shares: &[Vec<f64>],
        foreign: &[f64],
        near: &[f64],
    ) -> Flow {
        let (cpus, queues) = (self.cpus(), self.queues.len());
        // Round trip of a CPU node's line: `base` plus `coef` times the waiting of each queue.
        let mut base = loops.think.clone();
        let mut coef = vec![vec![0.0; queues]; cpus];
        for cpu in 0..cpus {
            for (node, way) in self.paths[cpu].iter().enumerate() {
                base[cpu] += shares[cpu][node] * way.idle;
                for queue in &way.through {
                    coef[cpu][*queue] += shares[cpu][node] * self.carried(*queue, loops.reads);
                }
            }
        }
        let mut used = if near.len() == queues { near.to_vec() } else { vec![0.5; queues] };
        let mut wait: Vec<f64> =
            self.queues.iter().zip(&used).map(|(curve, used)| curve.wait(*used)).collect();
        let mut takes: Vec<f64> = (0..cpus)
            .map(|cpu| base[cpu] + (0..queues).map(|q| coef[cpu][q] * wait[q]).sum::<f64>())
            .collect();
        for _ in 0..60 {
            let mut change = 0.0_f64;
            for queue in 0..queues {
                let own: Vec<Share> = (0..cpus)
                    .filter(|cpu| coef[*cpu][queue] > 0.0)
                    .map(|cpu| Share {
                        lines: loops.lines[cpu],
                        rest: takes[cpu] - coef[cpu][queue] * wait[queue],
                        part: coef[cpu][queue],
                    })
                    .chain([Share {
                        lines: foreign[queue],
                        rest: self.foreign_latency(queue, 0.0),
                        part: 1.0,
                    }])
                    .collect();
                let u = self.queues[queue].settle(&own, used[queue]);
                change = change.max((u - used[queue]).abs());
                let now = self.queues[queue].wait(u);
                for cpu in 0..cpus {
                    takes[cpu] += coef[cpu][queue] * (now - wait[queue]);
                }
                (used[queue], wait[queue]) = (u, now);
            }
            if change < SETTLED {
                break;
            }
        }
        let rate: Vec<f64> = (0..cpus).map(|cpu| loops.lines[cpu] / takes[cpu].max(1e-3)).collect();
        let own =
            (0..queues).map(|q| (0..cpus).map(|cpu| rate[cpu] * coef[cpu][q]).sum()).collect();
        Flow { rate, used, wait, own }
    }

    /// Marginal cost of a line in each queue: its waiting, and the delay of our other lines. Others' lines yield to it.
    pub(super) fn prices(&self, flow: &Flow, foreign: &[f64]) -> Vec<f64> {
        let price = |queue: usize| {
            let curve = &self.queues[queue];
            let (wait, slope) = curve.wait_and_slope(flow.used[queue]);
            let takes = self.foreign_latency(queue, wait);
            let yields = foreign[queue] / (takes * takes) * slope;
            wait + flow.own[queue] * slope / (curve.capacity + yields)
        };
        (0..self.queues.len()).map(price).collect()
    }
}

/// A loop as seen by one queue: `lines / (rest + part x waiting)` round trips, `part` of each through the queue.
struct Share {
    lines: f64,
    rest: f64,
    part: f64,
}

impl Curve {
    /// The utilisation at which load and waiting agree: Newton's method in a bracket, from a guess.
    fn settle(&self, loops: &[Share], guess: f64) -> f64 {
        let (mut low, mut high, mut u) = (0.0, USE_MOST, guess.clamp(1e-6, USE_MOST));
        for _ in 0..50 {
            let (wait, slope) = self.wait_and_slope(u);
            let (mut over, mut grows) = (u * self.capacity, self.capacity);
            for one in loops {
                let takes = (one.rest + one.part * wait).max(1e-3);
                over -= one.lines * one.part / takes;
                grows += one.lines * one.part * one.part * slope / (takes * takes);
            }
            if over > 0.0 {
                high = u
            } else {
                low = u
            }
            let newton = u - over / grows;
            let next = if newton > low && newton < high { newton } else { (low + high) / 2.0 };
            if (next - u).abs() < SETTLED / 10.0 {
                return next;
            }
            u = next;
        }
        u
    }
}

#[cfg(test)]
mod laws;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::testkit::{far_tier, near_tier, two_tiers};

    fn throughput(far_ns: u64, near_share: f64, foreign: f64) -> f64 {
        let machine = two_tiers(far_ns);
        let loops = Loops { lines: vec![128.0], think: vec![0.0], reads: 1.0 };
        let shares = vec![vec![near_share, 1.0 - near_share]];
        machine.solve(&loops, &shares, &[foreign, 0.0]).rate[0]
    }

    #[test]
    fn two_tiers_under_contention_reproduce_the_calibrated_throughput() {
        // Lines per nanosecond, from an independent bisection with forty sweeps.
        for (far, near, foreign, right) in [
            (135, 0.917, 0.0, 1.640),
            (135, 0.917, 666.0, 0.383),
            (135, 0.067, 666.0, 0.850),
            (192, 0.917, 222.0, 0.818),
        ] {
            let found = throughput(far, near, foreign);
            assert!((found - right).abs() < 0.001, "{far} ns, {foreign} lines: {found}");
        }
    }

    #[test]
    fn the_inverse_of_queueing_delay_is_utilisation() {
        let machine = two_tiers(135);
        for used in [0.2, 0.5, 0.9, 0.99] {
            let wait = machine.queues[0].wait(used);
            assert!((machine.in_use(0, wait) - used).abs() < 1e-6);
        }
        assert!(machine.in_use(0, -5.0) <= 0.0);
    }

    #[test]
    fn a_closed_loop_keeps_its_lines_outstanding() {
        let machine = two_tiers(135);
        let loops = Loops { lines: vec![128.0], think: vec![30.0], reads: 1.0 };
        let flow = machine.solve(&loops, &[vec![0.5, 0.5]], &[222.0, 50.0]);
        let latency = |node| machine.latency((0, node), 1.0, &flow.wait);
        let outstanding = flow.rate[0] * (30.0 + (latency(0) + latency(1)) / 2.0);
        assert!((outstanding - 128.0).abs() < 1e-3, "{outstanding}");
        for queue in 0..2 {
            let others = [222.0, 50.0][queue] / machine.foreign_latency(queue, flow.wait[queue]);
            let carried = flow.used[queue] * machine.capacity(queue);
            assert!((flow.own[queue] + others - carried).abs() < 1e-4);
        }
    }

    #[test]
    fn a_port_with_a_lane_each_way_carries_more_where_both_are_used() {
        let lane = |carries| Queue { carries, ..far_tier() };
        let queues = [lane(Carries::Reads), lane(Carries::Writes)];
        let path = Path { idle: Nanoseconds(200), through: vec![0, 1] };
        let duplex = Machine::new(&queues, &[vec![path]]).unwrap();
        let rate = |reads| {
            let loops = Loops { lines: vec![500.0], think: vec![0.0], reads };
            duplex.solve(&loops, &[vec![1.0]], &[0.0, 0.0]).rate[0] * LINE
        };
        assert!(rate(1.0) < 70.0 && rate(0.5) > 100.0, "{} {}", rate(1.0), rate(0.5));
    }

    #[test]
    fn inconsistent_machine_models_are_rejected() {
        let path = |through: &[usize]| Path { idle: Nanoseconds(70), through: through.to_vec() };
        let machine =
            |queues: &[Queue], paths: &[Vec<Path>]| Machine::new(queues, paths).unwrap_err();
        let near = near_tier();
        assert_eq!(machine(&[near], &[]), Unmodelled::NoPaths);
        assert_eq!(machine(&[near], &[vec![path(&[0])], vec![]]), Unmodelled::Ragged);
        assert_eq!(machine(&[near], &[vec![path(&[])]]), Unmodelled::EmptyPath);
        assert_eq!(machine(&[near], &[vec![path(&[1])]]), Unmodelled::NoQueue(1));
        let nothing = Queue { capacity: BytesPerSecond(0), ..near };
        assert_eq!(machine(&[nothing], &[vec![path(&[0])]]), Unmodelled::NoCapacity(0));
    }
}
