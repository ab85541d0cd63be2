//! Machines for tests.

use nearfar_topology::Bytes;

use crate::machine::{Builder, Link, Machine, Node, Route, Waiting};

/// Four nodes in a ring of links, with the figures of the studies' machine: 0 and 2 communicate through 1, 1 and 3
/// through 2.
pub(crate) fn ring() -> Machine {
    let node = Node {
        size: Bytes(1 << 30),
        read_gbps: 5.5,
        write_gbps: 5.5,
        duplex: false,
        waiting: Waiting::Queue,
    };
    // Link 2 n leads from n to the next node, link 2 n + 1 back.
    let link = |from: usize, to: usize| if to == (from + 1) % 4 { 2 * from } else { 2 * to + 1 };
    let way = |from: usize, to: usize| match (from, to) {
        (from, to) if from == to => vec![],
        (0, 2) | (2, 0) => vec![from, 1, to],
        (1, 3) | (3, 1) => vec![from, 2, to],
        _ => vec![from, to],
    };
    let links = |from, to| way(from, to).windows(2).map(|step| link(step[0], step[1])).collect();
    let route = |cpu, node| Route { read_links: links(node, cpu), write_links: links(cpu, node) };
    let latency = |cpu, node| [104.0, 104.0, 130.0, 157.0][way(cpu, node).len()];
    let builder = Builder {
        name: "ring".into(),
        clock_ghz: 2.3,
        nodes: vec![node; 4],
        links: (0..8).map(|at| Link { name: format!("{at}"), gbps: 8.0 }).collect(),
        cpu_nodes: (0..4).collect(),
        latency_ns: (0..4).map(|cpu| (0..4).map(|node| latency(cpu, node)).collect()).collect(),
        routes: (0..4).map(|cpu| (0..4).map(|node| route(cpu, node)).collect()).collect(),
        concurrent_ns: 58.26,
        probe_lines: 0.8,
    };
    builder.build().unwrap()
}
