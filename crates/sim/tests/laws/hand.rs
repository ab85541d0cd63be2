//! Machines worked out by hand: numbered, each with the figures that it must come to.

use nearfar_sim::flow::{Demand, Move, solve};
use nearfar_sim::machine::{Builder, LINE, Link, Machine, Route, Waiting};

use crate::machines::{CURVE, builder, close, node};

fn demand(row: usize, lines: f64, shares: &[f64]) -> Demand {
    Demand { row, lines, think_ns: 0.0, reads: 1.0, shares: shares.to_vec() }
}

fn queues(gbps: &[f64]) -> Builder {
    builder(gbps.iter().map(|gbps| node(1_000, *gbps, Waiting::Queue)).collect())
}

/// Two nodes of 64 GB/s and a link of 8 GB/s each way.
fn linked() -> Machine {
    let mut two = queues(&[64.0, 64.0]);
    two.links = ["0>1", "1>0"].map(|name| Link { name: name.into(), gbps: 8.0 }).to_vec();
    two.routes[0][1] = Route { read_links: vec![1], write_links: vec![0] };
    two.routes[1][0] = Route { read_links: vec![0], write_links: vec![1] };
    two.build().unwrap()
}

#[test]
fn machine_1_one_line_alone_takes_idle_latency() {
    let machine = queues(&[20.0, 20.0]).build().unwrap();
    let flow = solve(&machine, &[demand(0, 1.0, &[1.0, 0.0])], &[]);
    assert!(close(flow.served[0].latency_ns, 100.0, 1e-6));
    assert!(close(flow.served[0].per_ns, 0.01, 1e-6));
    assert!(close(flow.controllers_busy[0], 0.01 * LINE / 20.0, 1e-6));
}

#[test]
fn machine_2_a_line_split_over_two_nodes_takes_the_mean_latency() {
    let machine = queues(&[20.0, 20.0]).build().unwrap();
    let flow = solve(&machine, &[demand(1, 1.0, &[0.5, 0.5])], &[]);
    assert!(close(flow.served[0].latency_ns, 130.0, 1e-6));
    assert!(flow.served[0].loaded_ns[0] >= 160.0 && flow.served[0].loaded_ns[1] >= 100.0);
}

#[test]
fn machine_3_many_lines_saturate_the_controller() {
    for gbps in [5.0, 20.0, 80.0] {
        let machine = queues(&[gbps]).build().unwrap();
        let flow = solve(&machine, &[demand(0, 2_000.0, &[1.0])], &[]);
        assert!(close(flow.served[0].per_ns * LINE, gbps, 0.01), "{gbps}: {flow:?}");
        // All of them wait: 2000 lines at this rate.
        assert!(close(flow.served[0].latency_ns, 2_000.0 * LINE / gbps, 0.01));
    }
}

#[test]
fn machine_4_two_equally_used_controllers_double_the_bandwidth() {
    let machine = queues(&[20.0, 20.0]).build().unwrap();
    let gbps = |shares: &[f64]| {
        solve(&machine, &[demand(0, 2_000.0, shares)], &[]).served[0].per_ns * LINE
    };
    assert!(close(gbps(&[1.0, 0.0]), 20.0, 0.01));
    assert!(close(gbps(&[0.5, 0.5]), 40.0, 0.02));
    assert!(close(gbps(&[0.75, 0.25]), 20.0 / 0.75, 0.01), "the fuller one limits");
}

#[test]
fn machine_5_shares_proportional_to_bandwidths_use_all_bandwidth() {
    let machine = queues(&[60.0, 20.0]).build().unwrap();
    let gbps = |near: f64| {
        solve(&machine, &[demand(0, 4_000.0, &[near, 1.0 - near])], &[]).served[0].per_ns * LINE
    };
    assert!(close(gbps(0.75), 80.0, 0.02));
    assert!(gbps(0.65) < gbps(0.75) && gbps(0.85) < gbps(0.75));
}

#[test]
fn machine_6_remote_lines_are_limited_by_the_link() {
    let flow = solve(&linked(), &[demand(0, 1_000.0, &[0.0, 1.0])], &[]);
    assert!(close(flow.served[0].per_ns * LINE, 8.0, 0.01), "{flow:?}");
    assert!(flow.links_busy[1] > 0.98 && flow.links_busy[0].abs() < 1e-9, "reads cross one way");
    assert!(close(flow.links[1], flow.served[0].per_ns, 1e-9));
}

#[test]
fn machine_7_writes_cross_the_link_the_other_way() {
    let writes = Demand { reads: 0.0, ..demand(0, 1_000.0, &[0.0, 1.0]) };
    let flow = solve(&linked(), &[writes], &[]);
    assert!(flow.links_busy[0] > 0.98 && flow.links_busy[1].abs() < 1e-9, "{flow:?}");
    let mixed = Demand { reads: 0.5, ..demand(0, 1_000.0, &[0.0, 1.0]) };
    let both = solve(&linked(), &[mixed], &[]);
    assert!(close(both.served[0].per_ns * LINE, 16.0, 0.05), "both ways together: {both:?}");
}

#[test]
fn machine_8_probes_load_every_link_alike() {
    let mut probing = (*linked()).clone();
    probing.probe_lines = 0.5;
    let flow = solve(&probing.build().unwrap(), &[demand(0, 4.0, &[1.0, 0.0])], &[]);
    let each = flow.served[0].per_ns * 0.5 / 2.0;
    assert!(flow.links.iter().all(|lines| close(*lines, each, 1e-9)), "{flow:?}");
}

#[test]
fn machine_9_migration_loads_the_source_and_target_controllers() {
    let machine =
        builder(vec![node(1_000, 20.0, CURVE), node(1_000, 10.0, CURVE), node(1_000, 10.0, CURVE)]);
    let machine = machine.build().unwrap();
    let flow = solve(&machine, &[], &[Move { from: 0, to: 1, gbps: 2.0 }]);
    for (busy, wanted) in flow.controllers_busy.iter().zip([0.1, 0.2, 0.0]) {
        assert!((busy - wanted).abs() < 1e-9, "{flow:?}");
    }
}

#[test]
fn machine_10_a_duplex_node_reads_and_writes_at_once() {
    let mut half = queues(&[10.0]);
    half.nodes[0].write_gbps = 10.0;
    let mut full = half.clone();
    full.nodes[0].duplex = true;
    let gbps = |of: Builder, reads: f64| {
        let one = Demand { reads, ..demand(0, 2_000.0, &[1.0]) };
        solve(&of.build().unwrap(), &[one], &[]).served[0].per_ns * LINE
    };
    assert!(close(gbps(half.clone(), 0.5), 10.0, 0.01));
    assert!(close(gbps(full.clone(), 0.5), 20.0, 0.02));
    assert!(close(gbps(full, 1.0), gbps(half, 1.0), 0.01), "reads alone gain nothing");
}

#[test]
fn machine_11_two_equal_demands_share_a_controller_evenly() {
    for waiting in [Waiting::Queue, CURVE] {
        let machine = builder(vec![node(1_000, 20.0, waiting)]).build().unwrap();
        let one = demand(0, 50.0, &[1.0]);
        let flow =
            solve(&machine, &[one.clone(), one.clone(), Demand { lines: 100.0, ..one }], &[]);
        let [a, b, twice] = [0, 1, 2].map(|at| flow.served[at].per_ns);
        assert!(close(a, b, 1e-6));
        assert!(close(twice, 2.0 * a, 0.02), "as many lines get as much: {a} {twice}");
    }
}

#[test]
fn machine_12_think_time_of_one_demand_speeds_up_another() {
    let machine = builder(vec![node(1_000, 20.0, CURVE)]).build().unwrap();
    let busy = demand(0, 60.0, &[1.0]);
    let per_ns = |think_ns: f64| {
        let other = Demand { think_ns, ..busy.clone() };
        solve(&machine, &[busy.clone(), other], &[]).served[0].per_ns
    };
    let found = [0.0, 100.0, 1_000.0, 1e6].map(per_ns);
    assert!(found.is_sorted(), "{found:?}");
    let alone = solve(&machine, std::slice::from_ref(&busy), &[]).served[0].per_ns;
    assert!(close(found[3], alone, 0.01));
}
