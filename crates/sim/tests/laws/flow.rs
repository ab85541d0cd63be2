//! Flow: lines are neither made nor lost, nobody is served faster than idle memory, and more load never helps others.

use nearfar_sim::flow::{Demand, Move, solve};
use nearfar_sim::machine::{LINE, Machine, Node, Waiting};
use proptest::prelude::*;

use crate::machines::{CURVE, any_traffic, builder, close};

/// The machine with its nodes in another order; the CPUs' rows keep theirs.
fn renumbered(machine: &Machine, order: &[usize]) -> Machine {
    let mut builder = (**machine).clone();
    builder.nodes = order.iter().map(|at| machine.nodes[*at].clone()).collect();
    let place = |node: usize| order.iter().position(|at| *at == node).unwrap();
    builder.cpu_nodes = machine.cpu_nodes.iter().map(|node| place(*node)).collect();
    builder.latency_ns =
        machine.latency_ns.iter().map(|row| order.iter().map(|at| row[*at]).collect()).collect();
    builder.routes = machine
        .routes
        .iter()
        .map(|row| order.iter().map(|at| row[*at].clone()).collect())
        .collect();
    builder.build().unwrap()
}

fn is_all_curves(machine: &Machine) -> bool {
    machine.links.is_empty() && machine.nodes.iter().all(|node| node.waiting != Waiting::Queue)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn controllers_serve_the_lines_that_are_asked_for((machine, demands) in any_traffic()) {
        let flow = solve(&machine, &demands, &[]);
        let asked: f64 = flow.served.iter().map(|served| served.per_ns).sum();
        prop_assert!(close(flow.controllers.iter().sum(), asked, 1e-9));
        for node in 0..machine.nodes.len() {
            let here: f64 = flow.served.iter().zip(&demands).map(|(served, demand)| served.per_ns * demand.shares[node]).sum();
            prop_assert!(close(flow.controllers[node], here, 1e-9));
        }
    }

    #[test]
    fn each_demand_keeps_its_lines_outstanding((machine, demands) in any_traffic()) {
        let flow = solve(&machine, &demands, &[]);
        prop_assert!(flow.settled);
        for (served, demand) in flow.served.iter().zip(&demands) {
            let under_way = served.per_ns * (demand.think_ns + served.latency_ns);
            prop_assert!(close(under_way, demand.lines, 1e-6), "Little's law: {under_way} of {}", demand.lines);
        }
    }

    #[test]
    fn no_demand_is_served_below_idle_latency((machine, demands) in any_traffic()) {
        let flow = solve(&machine, &demands, &[]);
        for (served, demand) in flow.served.iter().zip(&demands) {
            for (node, loaded) in served.loaded_ns.iter().enumerate() {
                prop_assert!(*loaded >= machine.latency_ns[demand.row][node] + machine.concurrent_ns - 1e-9);
            }
            let least = served.loaded_ns.len();
            let idle = (0..least).map(|node| machine.latency_ns[demand.row][node]).fold(f64::INFINITY, f64::min);
            prop_assert!(served.latency_ns >= idle - 1e-9);
        }
    }

    #[test]
    fn half_duplex_utilisation_is_the_traffic_over_the_bandwidth((machine, demands) in any_traffic()) {
        let flow = solve(&machine, &demands, &[]);
        for (node, of) in machine.nodes.iter().enumerate().filter(|(_, of)| !of.duplex) {
            let busy = flow.controllers[node] * LINE / of.read_gbps;
            prop_assert!(close(flow.controllers_busy[node], busy, 1e-6));
        }
    }

    #[test]
    fn no_controller_or_link_exceeds_its_capacity((machine, demands) in any_traffic()) {
        let flow = solve(&machine, &demands, &[]);
        let curves = machine.nodes.iter().zip(&flow.controllers_busy).filter(|(of, _)| of.waiting != Waiting::Queue);
        for (_, busy) in curves {
            prop_assert!((0.0..=1.0 + 1e-6).contains(busy), "{busy}");
        }
        // Queues are approximate where probes pass that nobody waits for.
        prop_assert!(flow.links_busy.iter().all(|busy| (0.0..=1.1).contains(busy)), "{:?}", flow.links_busy);
    }

    #[test]
    fn a_full_duplex_controller_is_never_slower_than_a_half_duplex_one((machine, demands) in any_traffic()) {
        let mut half = (*machine).clone();
        half.nodes.iter_mut().for_each(|node| (node.write_gbps, node.duplex) = (node.read_gbps, false));
        let mut full = half.clone();
        full.nodes.iter_mut().for_each(|node| node.duplex = true);
        let total = |machine: &Machine| solve(machine, &demands[..1], &[]).served[0].per_ns;
        prop_assert!(total(&full.build().unwrap()) >= total(&half.build().unwrap()) * (1.0 - 1e-6));
    }

    #[test]
    fn renumbering_the_nodes_changes_nothing((machine, demands) in any_traffic(), turn in 0usize..4) {
        let nodes = machine.nodes.len();
        let order: Vec<usize> = (0..nodes).map(|at| (at + turn) % nodes).collect();
        let turned: Vec<Demand> = demands
            .iter()
            .map(|demand| Demand { shares: order.iter().map(|at| demand.shares[*at]).collect(), ..demand.clone() })
            .collect();
        let (one, other) = (solve(&machine, &demands, &[]), solve(&renumbered(&machine, &order), &turned, &[]));
        for (one, other) in one.served.iter().zip(&other.served) {
            prop_assert!(close(one.per_ns, other.per_ns, 1e-6), "{} {}", one.per_ns, other.per_ns);
        }
        for (at, node) in order.iter().enumerate() {
            prop_assert!(close(one.controllers[*node], other.controllers[at], 1e-6));
        }
    }

    #[test]
    fn the_order_of_demands_does_not_matter((machine, demands) in any_traffic()) {
        let reversed: Vec<Demand> = demands.iter().rev().cloned().collect();
        let (one, other) = (solve(&machine, &demands, &[]), solve(&machine, &reversed, &[]));
        for (one, other) in one.served.iter().zip(other.served.iter().rev()) {
            prop_assert!(close(one.per_ns, other.per_ns, 1e-6));
        }
    }

    #[test]
    fn more_outstanding_lines_never_lower_throughput((machine, demands) in any_traffic(), more in 1.0f64..4.0) {
        let alone = &demands[..1];
        let larger = [Demand { lines: alone[0].lines * more, ..alone[0].clone() }];
        let (one, other) = (solve(&machine, alone, &[]), solve(&machine, &larger, &[]));
        prop_assert!(other.served[0].per_ns >= one.served[0].per_ns * (1.0 - 1e-6));
        prop_assert!(other.served[0].per_ns <= one.served[0].per_ns * more * (1.0 + 1e-6), "nobody gains more than was added");
    }

    // At two stations (reads and writes) they may: classes that wait longer for reads leave write capacity to others.
    #[test]
    fn more_lines_of_one_demand_never_speed_up_others_at_one_station((machine, demands) in any_traffic(), more in 1.0f64..4.0) {
        let node = Node { duplex: false, waiting: CURVE, ..machine.nodes[0].clone() };
        let machine = builder(vec![node]).build().unwrap();
        let demands: Vec<Demand> =
            demands.into_iter().map(|demand| Demand { row: 0, shares: vec![1.0], ..demand }).collect();
        let mut larger = demands.clone();
        larger[0].lines *= more;
        let (one, other) = (solve(&machine, &demands, &[]), solve(&machine, &larger, &[]));
        for (one, other) in one.served.iter().zip(&other.served).skip(1) {
            prop_assert!(other.per_ns <= one.per_ns * (1.0 + 1e-6));
        }
    }

    #[test]
    fn two_halves_of_a_demand_get_the_throughput_of_the_whole((machine, demands) in any_traffic()) {
        prop_assume!(is_all_curves(&machine));
        let whole = &demands[..1];
        let half = Demand { lines: whole[0].lines / 2.0, ..whole[0].clone() };
        let (one, two) = (solve(&machine, whole, &[]), solve(&machine, &[half.clone(), half], &[]));
        let sum: f64 = two.served.iter().map(|served| served.per_ns).sum();
        prop_assert!(close(one.served[0].per_ns, sum, 1e-6), "{} {sum}", one.served[0].per_ns);
    }

    #[test]
    fn longer_think_time_never_raises_throughput((machine, demands) in any_traffic(), longer in 0.0f64..500.0) {
        let slow = [Demand { think_ns: demands[0].think_ns + longer, ..demands[0].clone() }];
        let (one, other) = (solve(&machine, &demands[..1], &[]), solve(&machine, &slow, &[]));
        prop_assert!(other.served[0].per_ns <= one.served[0].per_ns * (1.0 + 1e-6));
        prop_assert!(other.served[0].latency_ns <= one.served[0].latency_ns * (1.0 + 1e-6), "and waits no longer");
    }

    #[test]
    fn slowing_every_component_slows_throughput_by_the_same_factor((machine, demands) in any_traffic(), by in 1.5f64..4.0) {
        let mut slow = (*machine).clone();
        for node in &mut slow.nodes {
            (node.read_gbps, node.write_gbps) = (node.read_gbps / by, node.write_gbps / by);
            if let Waiting::Curve { factor_ns, .. } = &mut node.waiting {
                *factor_ns *= by;
            }
        }
        slow.links.iter_mut().for_each(|link| link.gbps /= by);
        slow.latency_ns.iter_mut().flatten().for_each(|ns| *ns *= by);
        slow.concurrent_ns *= by;
        let lazy: Vec<Demand> = demands.iter().map(|one| Demand { think_ns: one.think_ns * by, ..one.clone() }).collect();
        let (one, other) = (solve(&machine, &demands, &[]), solve(&slow.build().unwrap(), &lazy, &[]));
        for (one, other) in one.served.iter().zip(&other.served) {
            prop_assert!(close(one.per_ns, other.per_ns * by, 1e-6));
            prop_assert!(close(one.latency_ns * by, other.latency_ns, 1e-6));
        }
    }

    #[test]
    fn migration_traffic_never_speeds_up_a_demand((machine, demands) in any_traffic(), gbps in 0.0f64..1.0) {
        let nodes = machine.nodes.len();
        let moves = [Move { from: 0, to: nodes - 1, gbps }];
        let (still, moving) = (solve(&machine, &demands[..1], &[]), solve(&machine, &demands[..1], &moves));
        prop_assert!(moving.served[0].per_ns <= still.served[0].per_ns * (1.0 + 1e-6));
        prop_assert!(moving.controllers_busy[0] >= still.controllers_busy[0] * (1.0 - 0.5));
    }

    #[test]
    fn minimal_demand_sees_idle_latency((machine, demands) in any_traffic()) {
        let one = Demand { lines: 1e-6, ..demands[0].clone() };
        let flow = solve(&machine, std::slice::from_ref(&one), &[]);
        let idle: f64 = machine.latency_ns[one.row].iter().zip(&one.shares).map(|(ns, share)| ns * share).sum();
        prop_assert!(close(flow.served[0].latency_ns, idle + machine.concurrent_ns, 1e-3));
    }
}

#[test]
fn a_machine_without_demands_is_idle() {
    let machine = crate::machines::alike(3, 1_000);
    let flow = solve(&machine, &[], &[]);
    assert!(flow.settled && flow.served.is_empty());
    assert_eq!(flow.controllers_busy, [0.0; 3]);
}
