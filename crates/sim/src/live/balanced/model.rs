//! The policy's model of a simulated machine: what a probe of it would find, and what counters say.

use nearfar_policy::traffic::model::{Carries, Machine, Path, Queue};
use nearfar_topology::{BytesPerSecond, Nanoseconds};

use super::super::Readings;
use super::{LINE, whole};
use crate::machine::{self, Waiting};

/// Queues of nodes, in their order (of a full-duplex one: reads, then writes), then links.
fn queues(machine: &machine::Machine) -> (Vec<Queue>, Vec<Vec<usize>>) {
    let queue = |gbps: f64, waiting: Waiting, carries: Carries| {
        // A line in a queue waits a service for each before it: u / (1 - u) of them.
        let (factor_ns, power) = match waiting {
            Waiting::Queue => (LINE / gbps, 1.0),
            Waiting::Curve { factor_ns, power } => (factor_ns, power),
        };
        let number = |figure: f64| u32::try_from(whole(figure)).unwrap_or(u32::MAX);
        Queue {
            capacity: BytesPerSecond(whole(gbps * 1e9)),
            wait_ps: number(factor_ns * 1e3),
            power_percent: number(power * 1e2),
            carries,
        }
    };
    let (mut queues, mut of_node) = (Vec::new(), Vec::new());
    for node in &machine.nodes {
        let first = queues.len();
        if node.duplex {
            queues.push(queue(node.write_gbps, node.waiting, Carries::Writes));
            queues.push(queue(node.read_gbps, node.waiting, Carries::Reads));
        } else {
            queues.push(queue(node.read_gbps, node.waiting, Carries::All));
        }
        of_node.push((first..queues.len()).collect());
    }
    for link in &machine.links {
        queues.push(queue(link.gbps, Waiting::Queue, Carries::All));
    }
    (queues, of_node)
}

/// The model; none of a machine that can't be modelled.
pub(super) fn of(machine: &machine::Machine) -> Option<Machine> {
    let (queues, of_node) = queues(machine);
    let links = queues.len() - machine.links.len();
    let path = |row: usize, node: usize| {
        let crossed = machine.routes[row][node].read_links.iter().map(|link| links + link);
        Path {
            idle: Nanoseconds(whole(machine.latency_ns[row][node] + machine.concurrent_ns)),
            through: crossed.chain(of_node[node].iter().copied()).collect(),
        }
    };
    let paths: Vec<Vec<Path>> = (0..machine.cpu_nodes.len())
        .map(|row| (0..machine.nodes.len()).map(|node| path(row, node)).collect())
        .collect();
    Machine::new(&queues, &paths).ok()
}

/// What counters say that queues carry; of a full-duplex node nothing, as they don't tell reads from writes.
pub(super) fn used(readings: &Readings<'_>) -> Vec<Option<BytesPerSecond>> {
    let (queues, of_node) = queues(readings.machine);
    let mut used = vec![None; queues.len()];
    for (own, per_us) in of_node.iter().zip(&readings.controllers_per_us) {
        if let ([queue], Some(per_us)) = (own.as_slice(), per_us) {
            used[*queue] = Some(BytesPerSecond(whole(per_us * LINE * 1e6)));
        }
    }
    used
}
