//! Machines for tests.

use crate::config::{Clock, Config, MemoryNode, Path, Processor, Range};

/// Node 0: 100 ns, 40 GB/s shared by reads and writes; node 1: 250 ns, 13 GB/s each way. Four vCPUs on node 0.
pub(crate) fn two_tiers() -> Config {
    let node = |id, gbps, duplex| MemoryNode {
        id,
        read_gbps: gbps,
        write_gbps: gbps,
        duplex,
        curves: None,
    };
    let path = |to, latency_ns| Path {
        from: 0,
        to,
        latency_ns,
        gbps_max: None,
        curves: None,
        read_links: Vec::new(),
        write_links: Vec::new(),
    };
    Config {
        clock: Clock::Auto { fallback_slow_motion: 10.0 },
        cpu_nodes: vec![0; 4],
        nodes: vec![node(0, 40.0, false), node(1, 13.0, true)],
        ranges: vec![
            Range { start: 0, end: 1 << 30, node: 0 },
            Range { start: 1 << 30, end: 2 << 30, node: 1 },
        ],
        paths: vec![path(0, 100.0), path(1, 250.0)],
        links: Vec::new(),
        processor: Processor {
            instruction_ps: 125,
            l1_kib: 64,
            llc_kib: 4096,
            llc_latency_ns: 12.0,
            lines_in_flight: 64,
            loads_in_flight: 10,
            reorder_buffer: 512,
            tlb_entries: 0,
            coherence: false,
            load_factor: 0.02,
            load_power: 4.0,
            load_limit: 3.0,
        },
        stats: None,
        stats_every_ms: None,
        pmu: None,
        begins: None,
    }
}
