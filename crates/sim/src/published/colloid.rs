//! Colloid (Vuppalapati and Agarwal, 2024) on HeMem: two tiers, of which others contend for the near one.
//!
//! # The machine and the workload
//! Near memory 70 ns and 145 GB/s, far memory 70 GB/s behind 135 to 192 ns, loaded latency `L0 + a u^k / (1 - u)`. An application
//! of 15 cores with [`LINES`] lines under way takes 90 % of its accesses to 24 of its 72 GB; near memory has 32 GB. Filled
//! with the hottest pages first, near memory serves 0.917 of its accesses. Contention of 1, 2 and 3 is 5, 10 and 15 cores
//! that read near memory, with [`CONTENDING_LINES`] lines under way each time. Far memory holds all 72 GB, so any smaller
//! share can be had, down to none.
//!
//! # What is fitted
//! Near capacity, far capacity, a, k and both numbers of lines: six parameters, to the rows of 135 and 192 ns. The rows of
//! 148 and 168 ns are predicted. Sizes are recalled, not read.
//!
//! # What is compared
//! Published is Colloid's throughput over that of filling near memory first. The model's is the throughput where the tiers'
//! latencies are equal, or at the end of the range where they never are: where Colloid's search settles.

use nearfar_topology::Bytes;

use super::{How, Row, Unit};
use crate::flow::{self, Demand, Flow};
use crate::machine::{Builder, Machine, Node, Refusal, Route, Waiting};

/// Latencies of far memory in the study, ns.
pub const FAR_NS: [f64; 4] = [135.0, 148.0, 168.0, 192.0];
/// The application's lines under way.
pub const LINES: f64 = 128.0;
/// Lines under way of each unit of contention.
pub const CONTENDING_LINES: f64 = 222.0;
/// Share of accesses that near memory serves when it is filled with the hottest pages: 24 GB take 90 %, 8 of the other
/// 48 GB a sixth of the rest.
pub const NEAR_MOST: f64 = 0.9 + 0.1 * 8.0 / 48.0;

/// Published, by far latency and contention of 0 to 3.
const PUBLISHED: [[f64; 4]; 4] = [
    [1.01, 1.17, 1.65, 2.36],
    [1.00, 1.09, 1.54, 2.19],
    [0.99, 1.02, 1.37, 1.97],
    [0.99, 1.01, 1.25, 1.76],
];
const TOLERANCE: f64 = 0.05;
/// How lines wait, on both nodes.
pub const CURVE: Waiting = Waiting::Curve { factor_ns: 2.66, power: 2.45 };

/// The study's machine with far memory of this latency.
///
/// # Errors
/// A latency that makes no sense.
pub fn machine(far_ns: f64) -> Result<Machine, Refusal> {
    let node = |gib: u64, gbps: f64| Node {
        size: Bytes(gib << 30),
        read_gbps: gbps,
        write_gbps: gbps,
        duplex: false,
        waiting: CURVE,
    };
    let builder = Builder {
        name: format!("colloid-{far_ns}ns"),
        clock_ghz: 2.8,
        nodes: vec![node(32, 145.0), node(96, 70.0)],
        links: Vec::new(),
        cpu_nodes: vec![0],
        latency_ns: vec![vec![70.0, far_ns]],
        routes: vec![vec![Route::default(); 2]],
        concurrent_ns: 0.0,
        probe_lines: 0.0,
    };
    builder.build()
}

/// What the application asks for when near memory serves the share `near` of its accesses, and what contends with it.
#[must_use]
pub fn demands(contention: f64, near: f64) -> [Demand; 2] {
    let demand = |lines: f64, near: f64| Demand {
        row: 0,
        lines,
        think_ns: 0.0,
        reads: 1.0,
        shares: vec![near, 1.0 - near],
    };
    [demand(LINES, near), demand(CONTENDING_LINES * contention, 1.0)]
}

/// What then flows.
#[must_use]
pub fn flow(machine: &Machine, contention: f64, near: f64) -> Flow {
    flow::solve(machine, &demands(contention, near), &[])
}

/// The share at which both tiers' latencies are equal; the end of the range nearest to it where they never are.
#[must_use]
pub fn equal_latency(machine: &Machine, contention: f64) -> f64 {
    let near_slower = |near: f64| {
        let loaded = &flow(machine, contention, near).served[0].loaded_ns;
        loaded[0] > loaded[1]
    };
    let (mut low, mut high) = (0.0, NEAR_MOST);
    if !near_slower(high) {
        return high;
    }
    for _ in 0..24 {
        let middle = 0.5 * (low + high);
        if near_slower(middle) { high = middle } else { low = middle }
    }
    low
}

/// All 16 ratios.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (far_ns, published) in FAR_NS.into_iter().zip(PUBLISHED) {
        let Ok(machine) = machine(far_ns) else { continue };
        let how =
            if far_ns == FAR_NS[0] || far_ns == FAR_NS[3] { How::Fitted } else { How::Predicted };
        for (contention, paper) in [0.0, 1.0, 2.0, 3.0].into_iter().zip(published) {
            let per_ns = |near| flow(&machine, contention, near).served[0].per_ns;
            rows.push(Row {
                table: "Colloid on HeMem",
                what: format!("far memory of {far_ns} ns, contention {contention}"),
                unit: Unit::Ratio,
                paper,
                model: per_ns(equal_latency(&machine, contention)) / per_ns(NEAR_MOST),
                tolerance: TOLERANCE,
                how,
            });
        }
    }
    rows
}
