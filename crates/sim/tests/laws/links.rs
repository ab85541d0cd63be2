//! Links: they carry all remote traffic, and no CPU gains by a longer path.

use nearfar_sim::flow::{Demand, solve};
use nearfar_sim::machine::{LINE, Link, Machine, Route, Waiting};
use proptest::prelude::*;

use crate::machines::{builder, close, node, shares};

/// Nodes in a row, with a link each way between neighbours; traffic to nodes farther away crosses several.
fn chain(nodes: usize, gbps: f64) -> Machine {
    let mut of = builder(vec![node(1_000, 40.0, Waiting::Queue); nodes]);
    // Link 2 n goes from n to n + 1, link 2 n + 1 back.
    of.links = (0..2 * (nodes - 1)).map(|at| Link { name: at.to_string(), gbps }).collect();
    let way = |from: usize, to: usize| -> Vec<usize> {
        match from < to {
            true => (from..to).map(|at| 2 * at).collect(),
            false => (to..from).rev().map(|at| 2 * at + 1).collect(),
        }
    };
    for (cpu, row) in of.routes.iter_mut().enumerate() {
        for (node, route) in row.iter_mut().enumerate() {
            *route = Route { read_links: way(node, cpu), write_links: way(cpu, node) };
        }
    }
    of.build().unwrap()
}

fn demand(row: usize, lines: f64, reads: f64, shares: &[f64]) -> Demand {
    Demand { row, lines, think_ns: 10.0, reads, shares: shares.to_vec() }
}

fn any_shares(nodes: usize) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.01f64..1.0, nodes).prop_map(|numbers| shares(&numbers))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn each_link_carries_the_lines_of_the_nodes_beyond_it(to in any_shares(4), row in 0usize..4, lines in 1.0f64..60.0) {
        let machine = chain(4, 8.0);
        let flow = solve(&machine, &[demand(row, lines, 1.0, &to)], &[]);
        let per_ns = flow.served[0].per_ns;
        for at in 0..3 {
            // Reads come towards the CPUs: forward from nodes at or below the link, back from those above.
            let below: f64 = to[..=at].iter().sum();
            let (forward, back) = if row > at { (below, 0.0) } else { (0.0, 1.0 - below) };
            prop_assert!((flow.links[2 * at] - per_ns * forward).abs() < 1e-9);
            prop_assert!((flow.links[2 * at + 1] - per_ns * back).abs() < 1e-9);
        }
    }

    #[test]
    fn writes_cross_the_same_links_the_other_way(to in any_shares(3), row in 0usize..3, lines in 1.0f64..60.0) {
        let machine = chain(3, 8.0);
        let [reads, writes] = [1.0, 0.0].map(|reads| solve(&machine, &[demand(row, lines, reads, &to)], &[]));
        for at in 0..2 {
            prop_assert!(close(reads.links[2 * at], writes.links[2 * at + 1], 1e-6));
            prop_assert!(close(reads.links[2 * at + 1], writes.links[2 * at], 1e-6));
        }
        prop_assert!(close(reads.served[0].per_ns, writes.served[0].per_ns, 1e-6));
    }

    #[test]
    fn the_utilisation_of_a_link_is_its_traffic_over_its_bandwidth(to in any_shares(4), row in 0usize..4, lines in 1.0f64..60.0, gbps in 1.0f64..30.0) {
        let machine = chain(4, gbps);
        let flow = solve(&machine, &[demand(row, lines, 0.7, &to)], &[]);
        for (lines, busy) in flow.links.iter().zip(&flow.links_busy) {
            prop_assert!((busy - lines * LINE / gbps).abs() < 1e-6);
        }
    }

    #[test]
    fn wider_links_never_slow_a_demand_down(to in any_shares(4), row in 0usize..4, lines in 1.0f64..60.0, gbps in 1.0f64..30.0, more in 0.0f64..30.0) {
        let per_ns = |gbps| solve(&chain(4, gbps), &[demand(row, lines, 0.7, &to)], &[]).served[0].per_ns;
        prop_assert!(per_ns(gbps + more) >= per_ns(gbps) * (1.0 - 1e-6));
    }

    #[test]
    fn a_mirrored_machine_serves_the_mirrored_demand_equally(to in any_shares(4), row in 0usize..4, lines in 1.0f64..60.0) {
        let machine = chain(4, 6.0);
        let mirrored: Vec<f64> = to.iter().rev().copied().collect();
        let one = solve(&machine, &[demand(row, lines, 0.6, &to)], &[]);
        let other = solve(&machine, &[demand(3 - row, lines, 0.6, &mirrored)], &[]);
        prop_assert!(close(one.served[0].per_ns, other.served[0].per_ns, 1e-6));
        prop_assert!(one.controllers.iter().zip(other.controllers.iter().rev()).all(|(a, b)| close(*a, *b, 1e-6)));
    }

    #[test]
    fn local_lines_are_not_delayed_by_saturated_links(lines in 1.0f64..30.0, others in 0.0f64..200.0) {
        let machine = chain(3, 2.0);
        let local = demand(0, lines, 1.0, &[1.0, 0.0, 0.0]);
        let remote = demand(2, others, 1.0, &[0.0, 1.0, 0.0]);
        let alone = solve(&machine, std::slice::from_ref(&local), &[]).served[0].per_ns;
        let beside = solve(&machine, &[local, remote], &[]).served[0].per_ns;
        prop_assert!(close(alone, beside, 1e-6));
    }

    #[test]
    fn traffic_on_a_shared_link_slows_demands_that_cross_it(lines in 5.0f64..60.0, others in 50.0f64..200.0) {
        let machine = chain(3, 2.0);
        let crossing = demand(0, lines, 1.0, &[0.0, 0.0, 1.0]);
        let between = demand(0, others, 1.0, &[0.0, 1.0, 0.0]);
        let alone = solve(&machine, std::slice::from_ref(&crossing), &[]).served[0].per_ns;
        let beside = solve(&machine, &[crossing, between], &[]).served[0].per_ns;
        prop_assert!(beside < alone * 0.95, "{beside} {alone}");
    }

    #[test]
    fn probes_add_the_same_to_every_link(to in any_shares(3), lines in 1.0f64..20.0, probes in 0.0f64..0.5) {
        let mut probing = (*chain(3, 20.0)).clone();
        probing.probe_lines = probes;
        let flow = solve(&probing.build().unwrap(), &[demand(1, lines, 1.0, &to)], &[]);
        let per_ns = flow.served[0].per_ns;
        let each = per_ns * probes / 4.0;
        prop_assert!((flow.links[0] - each - per_ns * to[0]).abs() < 1e-9);
        prop_assert!((flow.links[1] - each).abs() < 1e-9, "nothing is read back over it");
        prop_assert!((flow.links[3] - each - per_ns * to[2]).abs() < 1e-9);
    }
}
