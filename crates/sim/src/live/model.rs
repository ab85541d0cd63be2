//! The balance policy's model of a simulated machine: the figures that a probe of the machine would find.
//!
//! Idle latencies, and queues with their capacities: a controller each (of a full-duplex node one for writes and one for
//! reads), then links. Coherence probes and the simulator's way to solve the network are not in it.

use nearfar_policy::traffic::model::{Carries, Machine, Path, Queue, Unmodelled, Waits};
use nearfar_topology::{BytesPerSecond, Nanoseconds};

use super::number::whole;
use crate::machine::{self, LINE, Waiting};

/// Queues of nodes, in their order (of a full-duplex one: writes, then reads), then links.
fn queues(machine: &machine::Machine) -> (Vec<Queue>, Vec<Vec<usize>>) {
    let queue = |gbps: f64, waiting: &Waiting, carries: Carries| {
        // A line in a queue waits a service for each before it: u / (1 - u) of them.
        let (factor_ns, power) = match waiting {
            Waiting::Queue => (LINE / gbps, 1.0),
            Waiting::Curve { factor_ns, power } => (*factor_ns, *power),
            // A probe measures loaded latency beside reads.
            Waiting::Points(curves) => return Queue { carries, ..Queue::measured(curves, 1.0) },
        };
        let number = |figure: f64| u32::try_from(whole(figure)).unwrap_or(u32::MAX);
        Queue {
            capacity: BytesPerSecond(whole(gbps * 1e9)),
            waits: Waits::Formula {
                ps: number(factor_ns * 1e3),
                power_percent: number(power * 1e2),
            },
            carries,
        }
    };
    let (mut queues, mut of_node) = (Vec::new(), Vec::new());
    for node in &machine.nodes {
        let first = queues.len();
        if node.duplex {
            queues.push(queue(node.write_gbps, &node.waiting, Carries::Writes));
            queues.push(queue(node.read_gbps, &node.waiting, Carries::Reads));
        } else {
            queues.push(queue(node.read_gbps, &node.waiting, Carries::All));
        }
        of_node.push((first..queues.len()).collect());
    }
    for link in &machine.links {
        queues.push(queue(link.gbps, &Waiting::Queue, Carries::All));
    }
    (queues, of_node)
}

/// The policy's model, and how it numbers queues.
pub(super) struct Model {
    pub(super) machine: Machine,
    /// For each node its first queue, and whether it is the node's only one.
    pub(super) controllers: Vec<(usize, bool)>,
    /// Number of queues.
    pub(super) queues: usize,
}

/// The model of a simulated machine.
///
/// # Errors
/// The policy can't model it.
pub(super) fn of(machine: &machine::Machine) -> Result<Model, Unmodelled> {
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
    let controllers = of_node.iter().map(|own| (own[0], own.len() == 1)).collect();
    let machine = Machine::new(&queues, &paths)?;
    Ok(Model { machine, controllers, queues: queues.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::testkit::node;
    use crate::machine::{Builder, Link, Node};

    /// A half-duplex node, and a full-duplex one behind a link.
    fn machine() -> machine::Machine {
        let curve = Waiting::Curve { factor_ns: 2.66, power: 2.45 };
        let full = Node {
            read_gbps: 32.0,
            write_gbps: 16.0,
            duplex: true,
            waiting: curve,
            ..node(1 << 30)
        };
        let mut builder = Builder::tiers("model", 2.0, vec![(80.0, node(1 << 30)), (240.4, full)]);
        builder.links = vec![Link { name: "1>0".into(), gbps: 8.0 }];
        builder.routes[0][1].read_links = vec![0];
        builder.concurrent_ns = 20.3;
        builder.build().unwrap()
    }

    fn queue(gbps: u64, ps: u32, power_percent: u32, carries: Carries) -> Queue {
        let capacity = BytesPerSecond(gbps * 1_000_000_000);
        Queue { capacity, waits: Waits::Formula { ps, power_percent }, carries }
    }

    /// A line of 64 bytes takes 1 ns at 64 GB/s and 8 ns on the link.
    fn expected() -> [Queue; 4] {
        [
            queue(64, 1_000, 100, Carries::All),
            queue(16, 2_660, 245, Carries::Writes),
            queue(32, 2_660, 245, Carries::Reads),
            queue(8, 8_000, 100, Carries::All),
        ]
    }

    #[test]
    fn a_full_duplex_node_has_a_queue_for_each_direction_and_links_come_last() {
        let (found, of_node) = queues(&machine());
        assert_eq!(found, expected());
        assert_eq!(of_node, [vec![0], vec![1, 2]]);
    }

    #[test]
    fn a_path_is_the_idle_latency_in_whole_nanoseconds_and_the_links_before_the_controller() {
        let found = of(&machine()).unwrap();
        let path =
            |idle, through: &[usize]| Path { idle: Nanoseconds(idle), through: through.to_vec() };
        // 80 + 20.3 and 240.4 + 20.3.
        let paths = [vec![path(100, &[0]), path(261, &[3, 1, 2])]];
        assert_eq!(found.machine, Machine::new(&expected(), &paths).unwrap());
    }

    #[test]
    fn only_a_node_with_a_single_queue_has_a_combined_counter() {
        let found = of(&machine()).unwrap();
        assert_eq!(found.controllers, [(0, true), (1, false)]);
        assert_eq!(found.queues, 4);
    }
}
