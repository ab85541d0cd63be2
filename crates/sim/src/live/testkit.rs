//! Machines, pages and readings for tests of controllers: readings of an idle machine, which a test then changes.

use nearfar_topology::Bytes;

use super::{Counters, Readings};
use crate::machine::{Builder, Machine, Node, Waiting};
use crate::pages::{PIECES, Pages};

/// Half-duplex memory of this many bytes.
pub(super) fn node(bytes: u64) -> Node {
    Node {
        size: Bytes(bytes),
        read_gbps: 64.0,
        write_gbps: 64.0,
        duplex: false,
        waiting: Waiting::Queue,
    }
}

/// CPUs on node 0 alone, and nodes of these sizes at 100, 200, 300 ns.
pub(super) fn tiers(bytes: &[u64]) -> Machine {
    let latencies = (1u32..).map(|at| 100.0 * f64::from(at));
    let tiers = latencies.zip(bytes.iter().map(|bytes| node(*bytes))).collect();
    Builder::tiers("tiers", 2.0, tiers).build().unwrap()
}

/// Small pages of equal heat in one region, on these nodes.
pub(super) fn pages(on: &[u16], page_bytes: u64) -> Pages {
    let count = on.len();
    let heat = 1.0 / f64::from(u32::try_from(count).unwrap());
    Pages {
        heat: vec![heat; count],
        region: vec![0; count],
        node: on.to_vec(),
        copies: vec![0; count],
        huge: vec![false; count / PIECES],
        page_bytes,
    }
}

/// Readings of an idle machine: idle latencies, no traffic, no samples.
pub(super) fn readings<'a>(machine: &'a Machine, pages: &'a Pages) -> Readings<'a> {
    let (rows, nodes) = (machine.cpu_nodes.len(), machine.nodes.len());
    let used = pages.bytes(nodes);
    let idle = |row: &Vec<f64>| row.iter().map(|ns| Some(*ns)).collect();
    Readings {
        now_ms: 0,
        tick_ms: 10,
        loaded_ns: machine.latency_ns.iter().map(idle).collect(),
        samples: Vec::new(),
        controllers_per_us: vec![Some(0.0); nodes],
        own_per_us: vec![vec![Some(0.0); nodes]; rows],
        walks: 0.0,
        counters: Counters::All,
        accesses: &[],
        pages,
        free: machine.nodes.iter().zip(used).map(|(node, used)| node.size.0 - used).collect(),
        machine,
        waiting: 0,
        rate_gbps: 2.0,
    }
}
