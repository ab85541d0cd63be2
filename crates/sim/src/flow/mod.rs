//! From demands to traffic: throughput, latency, and the load of every controller and link.
//!
//! [`mod@network`] solves stations and classes; this module translates a [`Machine`] into stations and demands into
//! classes. A half-duplex node is one station, a full-duplex node two; links follow, in the machine's order.

use crate::machine::{LINE, Machine, Waiting};

pub mod exact;
pub mod network;

use network::{Class, Solved, Station};

/// Demand of the CPUs of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// The CPUs' row ([`Machine::row`]).
    pub row: usize,
    /// Outstanding lines, N.
    pub lines: f64,
    /// Think time between a line's arrival and the next request, Z.
    pub think_ns: f64,
    /// Share of lines that are read; the others are written.
    pub reads: f64,
    /// Share of the lines that goes to each node; sums to 1.
    pub shares: Vec<f64>,
}

/// Page migration, which loads its path without being waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    /// The node read.
    pub from: usize,
    /// The node written.
    pub to: usize,
    /// Rate in bytes per nanosecond, equal to 10^9 bytes/s.
    pub gbps: f64,
}

/// Result for one demand.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// Lines per nanosecond.
    pub per_ns: f64,
    /// Mean latency of a line.
    pub latency_ns: f64,
    /// Loaded latency of a read from each node.
    pub loaded_ns: Vec<f64>,
}

/// The steady state of a machine under demands.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// By demand.
    pub served: Vec<Served>,
    /// Lines per nanosecond at each node's controller from demands, without migration.
    pub controllers: Vec<f64>,
    /// Lines per nanosecond on each link, probes included.
    pub links: Vec<f64>,
    /// Utilisation of each node's controller; for full duplex, of the busier direction.
    pub controllers_busy: Vec<f64>,
    /// Utilisation of each link.
    pub links_busy: Vec<f64>,
    /// Whether the iteration converged to the steady state.
    pub settled: bool,
}

/// Solves `machine` under `demands` and `moves`.
#[must_use]
pub fn solve(machine: &Machine, demands: &[Demand], moves: &[Move]) -> Flow {
    let plan = Plan::of(machine);
    let mut stations = plan.stations(machine);
    for moving in moves {
        let lines = moving.gbps / LINE;
        stations[plan.read[moving.from]].background += lines;
        stations[plan.write[moving.to]].background += lines;
        // The CPUs of the target node copy; the traffic crosses the links of their reads from the source.
        if let Some(row) = machine.row(moving.to) {
            for link in &machine.routes[row][moving.from].read_links {
                stations[plan.links + link].background += lines;
            }
        }
    }
    let classes: Vec<Class> =
        demands.iter().map(|demand| plan.class(machine, demand, stations.len())).collect();
    let solved = network::solve(&stations, &classes);
    plan.flow(machine, demands, &classes, &solved)
}

/// Station indices: for reads and writes of each node, and the first link.
struct Plan {
    read: Vec<usize>,
    write: Vec<usize>,
    links: usize,
}

impl Plan {
    fn of(machine: &Machine) -> Self {
        let (mut read, mut write, mut next) = (Vec::new(), Vec::new(), 0);
        for node in &machine.nodes {
            read.push(next);
            next += usize::from(node.duplex);
            write.push(next);
            next += 1;
        }
        Self { read, write, links: next }
    }

    fn stations(&self, machine: &Machine) -> Vec<Station> {
        let station = |gbps: f64, waiting: Waiting| Station {
            service_ns: LINE / gbps,
            waiting,
            background: 0.0,
            with_access: 0.0,
        };
        let mut stations = Vec::new();
        for node in &machine.nodes {
            stations.push(station(node.read_gbps, node.waiting.clone()));
            if node.duplex {
                stations.push(station(node.write_gbps, node.waiting.clone()));
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let with_access = machine.probe_lines / machine.links.len().max(1) as f64;
        let links = machine.links.iter();
        stations.extend(
            links.map(|link| Station { with_access, ..station(link.gbps, Waiting::Queue) }),
        );
        stations
    }

    /// Stations on the path of a read from `node`.
    fn passed<'a>(
        &'a self,
        machine: &'a Machine,
        row: usize,
        node: usize,
    ) -> impl Iterator<Item = usize> + 'a {
        let links = machine.routes[row][node].read_links.iter();
        std::iter::once(self.read[node]).chain(links.map(|link| self.links + link))
    }

    fn class(&self, machine: &Machine, demand: &Demand, stations: usize) -> Class {
        let Demand { row, lines, think_ns, reads, ref shares } = *demand;
        let (mut visits, mut writes) = (vec![0.0; stations], vec![0.0; stations]);
        let mut base_ns = machine.concurrent_ns;
        for (node, share) in shares.iter().enumerate() {
            base_ns += share * machine.latency_ns[row][node];
            for station in self.passed(machine, row, node) {
                visits[station] += share * reads;
            }
            visits[self.write[node]] += share * (1.0 - reads);
            writes[self.write[node]] += share * (1.0 - reads);
            for link in &machine.routes[row][node].write_links {
                visits[self.links + link] += share * (1.0 - reads);
            }
        }
        Class { lines, think_ns, base_ns, visits, writes }
    }

    fn flow(
        &self,
        machine: &Machine,
        demands: &[Demand],
        classes: &[Class],
        solved: &Solved,
    ) -> Flow {
        let nodes = machine.nodes.len();
        let probes = solved.per_ns.iter().sum::<f64>() * machine.probe_lines;
        #[expect(clippy::cast_precision_loss, reason = "a small count")]
        let probes = probes / machine.links.len().max(1) as f64;
        let mut controllers = vec![0.0; nodes];
        let mut links = vec![probes; machine.links.len()];
        let mut served = Vec::new();
        for (at, (demand, class)) in demands.iter().zip(classes).enumerate() {
            let per_ns = solved.per_ns[at];
            for (node, share) in demand.shares.iter().enumerate() {
                controllers[node] += per_ns * share;
            }
            for (link, lines) in links.iter_mut().enumerate() {
                *lines += per_ns * class.visits[self.links + link];
            }
            let waits = &solved.wait_ns[at];
            let wait: f64 =
                class.visits.iter().zip(waits).map(|(visits, wait)| visits * wait).sum();
            let loaded = |node: usize| {
                let waiting: f64 =
                    self.passed(machine, demand.row, node).map(|station| waits[station]).sum();
                machine.latency_ns[demand.row][node] + machine.concurrent_ns + waiting
            };
            let loaded_ns = (0..nodes).map(loaded).collect();
            served.push(Served { per_ns, latency_ns: class.base_ns + wait, loaded_ns });
        }
        let busy = |node: usize| {
            solved.utilisation[self.read[node]].max(solved.utilisation[self.write[node]])
        };
        Flow {
            served,
            controllers,
            links,
            controllers_busy: (0..nodes).map(busy).collect(),
            links_busy: solved.utilisation[self.links..].to_vec(),
            settled: solved.settled,
        }
    }
}
