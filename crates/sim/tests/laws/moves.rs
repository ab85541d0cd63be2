//! Migration and loaded latencies: copied pages load the path of the target's CPUs, and every class sees the same machine.

use nearfar_sim::flow::{Demand, Flow, Move, solve};
use nearfar_sim::machine::{LINE, Link, Machine, Node, Route, Waiting};
use proptest::prelude::*;

use crate::machines::{CURVE, any_traffic, builder, close, node};

/// Three nodes of 40 GB/s, of which the last has no CPUs; links of 8 GB/s between the first two, and from the last to the
/// second.
fn linked() -> Machine {
    let mut of = builder(vec![node(1_000, 40.0, Waiting::Queue); 3]);
    of.links = ["0>1", "1>0", "2>1"].map(|name| Link { name: name.into(), gbps: 8.0 }).to_vec();
    of.routes[0][1] = Route { read_links: vec![1], write_links: vec![0] };
    of.routes[1][0] = Route { read_links: vec![0], write_links: vec![1] };
    of.routes[1][2] = Route { read_links: vec![2], write_links: vec![] };
    of.cpu_nodes.truncate(2);
    of.latency_ns.truncate(2);
    of.routes.truncate(2);
    of.build().unwrap()
}

fn moved(from: usize, to: usize) -> Flow {
    solve(&linked(), &[], &[Move { from, to, gbps: 2.0 }])
}

#[test]
fn a_move_loads_the_links_over_which_the_cpus_of_the_target_read() {
    for (from, to, links) in
        [(0, 1, [0.25, 0.0, 0.0]), (1, 0, [0.0, 0.25, 0.0]), (2, 1, [0.0, 0.0, 0.25])]
    {
        let flow = moved(from, to);
        assert!(flow.links_busy.iter().zip(links).all(|(a, b)| (a - b).abs() < 1e-12), "{flow:?}");
        // Both controllers have 40 GB/s.
        for at in 0..3 {
            let busy = if at == from || at == to { 0.05 } else { 0.0 };
            assert!((flow.controllers_busy[at] - busy).abs() < 1e-12, "{flow:?}");
        }
        assert!(flow.controllers.iter().all(|lines| *lines <= 0.0), "only demands count there");
    }
}

#[test]
fn a_move_to_a_node_without_cpus_loads_no_link() {
    let flow = moved(0, 2);
    assert!(flow.links_busy.iter().all(|busy| *busy <= 0.0), "{flow:?}");
    assert!((flow.controllers_busy[2] - 0.05).abs() < 1e-12);
}

#[test]
fn a_move_within_a_full_duplex_node_loads_each_direction_once() {
    let both = Node { duplex: true, write_gbps: 10.0, ..node(1_000, 20.0, CURVE) };
    let machine = builder(vec![both]).build().unwrap();
    let flow = solve(&machine, &[], &[Move { from: 0, to: 0, gbps: 2.0 }]);
    // 2 of 20 GB/s are read and 2 of 10 written: the busier direction is shown.
    assert!((flow.controllers_busy[0] - 0.2).abs() < 1e-12, "{flow:?}");
}

#[test]
fn remote_lines_wait_for_the_link_and_local_ones_do_not() {
    let flow = solve(
        &linked(),
        &[Demand { row: 0, lines: 50.0, think_ns: 0.0, reads: 1.0, shares: vec![0.0, 1.0, 0.0] }],
        &[],
    );
    // The link limits: 50 lines at 8 GB/s take 400 ns each.
    assert!(close(flow.served[0].latency_ns, 50.0 * LINE / 8.0, 0.02), "{flow:?}");
    let [own, remote] = [flow.served[0].loaded_ns[0], flow.served[0].loaded_ns[1]];
    assert!((own - 100.0).abs() < 1e-9 && close(remote, 400.0, 0.02), "{flow:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_move_in_two_parts_adds_the_load_of_the_whole((machine, demands) in any_traffic(), gbps in 0.0f64..1.0, part in 0.0f64..=1.0) {
        let to = machine.nodes.len() - 1;
        let of = |gbps| Move { from: 0, to, gbps };
        let whole = solve(&machine, &demands, &[of(gbps)]);
        let parts = solve(&machine, &demands, &[of(gbps * part), of(gbps * (1.0 - part))]);
        for (whole, parts) in whole.served.iter().zip(&parts.served) {
            prop_assert!(close(whole.per_ns, parts.per_ns, 1e-6));
        }
    }

    #[test]
    fn the_latency_of_reads_is_the_mean_of_the_loaded_latencies_of_nodes((machine, demands) in any_traffic()) {
        let reads: Vec<Demand> = demands.into_iter().map(|of| Demand { reads: 1.0, ..of }).collect();
        for (served, demand) in solve(&machine, &reads, &[]).served.iter().zip(&reads) {
            let mean: f64 = served.loaded_ns.iter().zip(&demand.shares).map(|(ns, share)| ns * share).sum();
            prop_assert!(close(served.latency_ns, mean, 1e-9), "{served:?}");
        }
    }

    #[test]
    fn a_demand_without_lines_sees_the_loaded_latency_and_adds_no_load((machine, demands) in any_traffic()) {
        let one = Demand { reads: 1.0, ..demands[0].clone() };
        let probe = Demand { lines: 0.0, ..one.clone() };
        let alone = solve(&machine, std::slice::from_ref(&one), &[]);
        let beside = solve(&machine, &[one, probe], &[]);
        prop_assert!(close(alone.served[0].per_ns, beside.served[0].per_ns, 1e-6));
        prop_assert!(beside.served[1].per_ns <= 0.0);
        // In a queue, lines of the demand itself do not wait for their own share of it.
        let both = beside.served[0].loaded_ns.iter().zip(&beside.served[1].loaded_ns).zip(&machine.nodes);
        for ((own, seen), node) in both {
            let is_curve = machine.links.is_empty() && node.waiting != Waiting::Queue;
            prop_assert!(*seen >= own - 1e-6 && (!is_curve || close(*own, *seen, 1e-6)), "{own} {seen}");
        }
    }

    #[test]
    fn a_nearer_or_faster_node_never_slows_a_demand_alone((machine, demands) in any_traffic(), at in 0usize..4, by in 1.0f64..5.0) {
        let at = at % machine.nodes.len();
        let mut nearer = (*machine).clone();
        nearer.latency_ns.iter_mut().for_each(|row| row[at] = (row[at] / by).max(1.0));
        let mut faster = (*machine).clone();
        (faster.nodes[at].read_gbps, faster.nodes[at].write_gbps) = (machine.nodes[at].read_gbps * by, machine.nodes[at].write_gbps * by);
        let per_ns = |machine: &Machine| solve(machine, &demands[..1], &[]).served[0].per_ns;
        let before = per_ns(&machine);
        for changed in [nearer, faster] {
            let after = per_ns(&changed.build().unwrap());
            prop_assert!(after >= before * (1.0 - 1e-6), "{before} to {after}");
        }
    }
}
