//! Machines and workloads for laws: drawn at random, or plain enough to be worked out by hand.

use nearfar_sim::flow::Demand;
use nearfar_sim::flow::network::Class;
use nearfar_sim::machine::{Builder, Link, Machine, Node, Route, Waiting};
use nearfar_sim::workload::{Antagonist, Region, Worker, Workload};
use nearfar_topology::Bytes;
use proptest::prelude::*;

/// A curve of waiting as probes measure it.
pub(crate) const CURVE: Waiting = Waiting::Curve { factor_ns: 2.66, power: 2.45 };

/// Requests that only read, without think time.
pub(crate) fn class(lines: f64, base_ns: f64, visits: &[f64]) -> Class {
    let writes = vec![0.0; visits.len()];
    Class { lines, think_ns: 0.0, base_ns, visits: visits.to_vec(), writes }
}

/// A node of half-duplex memory.
pub(crate) fn node(pages: u64, gbps: f64, waiting: Waiting) -> Node {
    Node { size: Bytes(pages * 4096), read_gbps: gbps, write_gbps: gbps, duplex: false, waiting }
}

/// Nodes with CPUs each, 100 ns to their own memory and 60 ns more to others', without links.
pub(crate) fn builder(nodes: Vec<Node>) -> Builder {
    let count = nodes.len();
    let latency =
        |cpu: usize| (0..count).map(|node| if cpu == node { 100.0 } else { 160.0 }).collect();
    Builder {
        name: "drawn".into(),
        clock_ghz: 2.0,
        nodes,
        links: Vec::new(),
        cpu_nodes: (0..count).collect(),
        latency_ns: (0..count).map(latency).collect(),
        routes: vec![vec![Route::default(); count]; count],
        concurrent_ns: 0.0,
        probe_lines: 0.0,
    }
}

/// Equal nodes, each with memory for this number of small pages.
pub(crate) fn alike(nodes: usize, pages: u64) -> Machine {
    builder(vec![node(pages, 20.0, CURVE); nodes]).build().unwrap()
}

/// CPUs on the first node alone, and a second of half the bandwidth, three times as far.
pub(crate) fn two_tiers(near_pages: u64, far_pages: u64) -> Machine {
    let mut builder = builder(vec![node(near_pages, 100.0, CURVE), node(far_pages, 50.0, CURVE)]);
    (builder.cpu_nodes, builder.latency_ns) = (vec![0], vec![vec![80.0, 240.0]]);
    builder.routes.truncate(1);
    builder.build().unwrap()
}

/// Any machine of one to four nodes; a link from each node to each other one if it has links.
pub(crate) fn any_machine() -> impl Strategy<Value = Machine> {
    let waiting = prop_oneof![Just(Waiting::Queue), Just(CURVE)];
    let node = (2.0f64..100.0, 2.0f64..100.0, any::<bool>(), waiting).prop_map(
        |(read, write, duplex, waiting)| Node {
            size: Bytes(1 << 30),
            read_gbps: read,
            write_gbps: write,
            duplex,
            waiting,
        },
    );
    let figures = (any::<bool>(), 0.0f64..1.0, 0.0f64..80.0, 5.0f64..50.0);
    (prop::collection::vec(node, 1..5), prop::collection::vec(50.0f64..400.0, 16), figures)
        .prop_map(|(nodes, latency, (linked, probes, concurrent, gbps))| {
            let count = nodes.len();
            let mut builder = builder(nodes);
            builder.latency_ns =
                (0..count).map(|cpu| latency[cpu * 4..cpu * 4 + count].to_vec()).collect();
            builder.concurrent_ns = concurrent;
            if linked && count > 1 {
                link(&mut builder, gbps);
                builder.probe_lines = probes;
            }
            builder.build().unwrap()
        })
}

fn link(builder: &mut Builder, gbps: f64) {
    let count = builder.nodes.len();
    let at = |from: usize, to: usize| from * count + to;
    builder.links = (0..count * count).map(|at| Link { name: at.to_string(), gbps }).collect();
    for (cpu, row) in builder.routes.iter_mut().enumerate() {
        for (node, route) in row.iter_mut().enumerate().filter(|(node, _)| *node != cpu) {
            *route = Route { read_links: vec![at(node, cpu)], write_links: vec![at(cpu, node)] };
        }
    }
}

/// Numbers as shares of their sum.
pub(crate) fn shares(numbers: &[f64]) -> Vec<f64> {
    let sum: f64 = numbers.iter().sum();
    numbers.iter().map(|number| number / sum).collect()
}

/// A machine, and the demands of its CPUs.
pub(crate) fn any_traffic() -> impl Strategy<Value = (Machine, Vec<Demand>)> {
    let demand = (
        0usize..4,
        0.5f64..60.0,
        0.0f64..300.0,
        0.0f64..=1.0,
        prop::collection::vec(0.01f64..1.0, 4),
    );
    (any_machine(), prop::collection::vec(demand, 1..4)).prop_map(|(machine, demands)| {
        let nodes = machine.nodes.len();
        let of = |(row, lines, think_ns, reads, to): (usize, f64, f64, f64, Vec<f64>)| Demand {
            row: row % nodes,
            lines,
            think_ns,
            reads,
            shares: shares(&to[..nodes]),
        };
        (machine, demands.into_iter().map(of).collect())
    })
}

/// A region of small pages that are first touched by row `row` of `rows`.
pub(crate) fn region(pages: u32, row: usize, rows: usize) -> Region {
    let mut touched_by = vec![0.0; rows];
    touched_by[row] = 1.0;
    Region { name: "part".into(), pages, hot_pages: 0, hot_share: 0.0, touched_by, reads: 1.0 }
}

/// Regions that every one of `rows` rows of CPUs uses evenly.
pub(crate) fn workload(regions: Vec<Region>, rows: usize) -> Workload {
    let uses = shares(&vec![1.0; regions.len()]);
    let worker = |row| Worker { row, lines: 8.0, think_ns: 20.0, uses: uses.clone() };
    Workload {
        name: "drawn".into(),
        about: String::new(),
        page_bytes: 4096,
        workers: (0..rows).map(worker).collect(),
        regions,
        antagonists: Vec::new(),
        huge: false,
        stripe: 0,
        walk_ns: 0.0,
    }
}

/// The same with someone else's traffic on a node, silent as yet.
pub(crate) fn with_antagonist(mut workload: Workload, node: usize) -> Workload {
    workload.antagonists.push(Antagonist { row: 0, node, lines: 0.0 });
    workload
}

/// Any workload for `rows` rows of CPUs.
pub(crate) fn any_workload(rows: usize) -> impl Strategy<Value = Workload> {
    let touched = prop::collection::vec(0.01f64..1.0, rows);
    let region = (1u32..1_500, 0u32..40, 0.0f64..1.0, touched, 0.0f64..=1.0);
    let about = (any::<bool>(), 0u32..700, 0.0f64..20.0);
    (prop::collection::vec(region, 1..4), about, prop::collection::vec(0.01f64..1.0, 3)).prop_map(
        move |(regions, (huge, stripe, walk_ns), uses)| {
            let of =
                |(pages, hot_pages, hot_share, touched, reads): (u32, u32, f64, Vec<f64>, f64)| {
                    Region {
                        name: "drawn".into(),
                        pages,
                        hot_pages,
                        hot_share,
                        touched_by: shares(&touched),
                        reads,
                    }
                };
            let mut found = workload(regions.into_iter().map(of).collect(), rows);
            let uses = shares(&uses[..found.regions.len()]);
            found.workers.iter_mut().for_each(|worker| worker.uses.clone_from(&uses));
            (found.huge, found.stripe, found.walk_ns) = (huge, stripe, walk_ns);
            found
        },
    )
}

/// Whether two numbers differ by at most this share of the larger.
pub(crate) fn close(a: f64, b: f64, within: f64) -> bool {
    (a - b).abs() <= within * a.abs().max(b.abs()).max(1e-12)
}

/// Nodes in a ring with the figures of the studies' machine, a link each way between neighbours; their bandwidths repeat
/// `gbps`.
pub(crate) fn ring(count: usize, gbps: &[f64]) -> Machine {
    let mut ring = builder(vec![node(1 << 18, 5.5, Waiting::Queue); count]);
    // Link 2 n leads from n to the next node, link 2 n + 1 back.
    let link = |at: usize| Link { name: at.to_string(), gbps: gbps[at % gbps.len()] };
    ring.links = (0..2 * count).map(link).collect();
    for cpu in 0..count {
        for memory in 0..count {
            let forward = (memory + count - cpu) % count;
            let hops = forward.min(count - forward);
            let nodes: Vec<usize> = if forward == hops {
                (0..hops).map(|hop| 2 * ((cpu + hop) % count)).collect()
            } else {
                (0..hops).map(|hop| 2 * ((cpu + count - 1 - hop) % count) + 1).collect()
            };
            let back = nodes.iter().rev().map(|link| link ^ 1).collect();
            ring.routes[cpu][memory] = Route { read_links: back, write_links: nodes };
            ring.latency_ns[cpu][memory] = 104.0 + 26.5 * f64::from(u32::try_from(hops).unwrap());
        }
    }
    (ring.concurrent_ns, ring.probe_lines) = (58.26, 0.8);
    ring.build().unwrap()
}
