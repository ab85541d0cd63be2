//! A report for tests of other crates: two tiers of a fictitious machine.

use nearfar_topology::{BasisPoints, Bytes, BytesPerSecond, CpuId, Mix, NodeId};

use crate::report::{
    Bandwidth, Latency, LoadedCurve, LoadedPoint, Machine, Method, Pair, ProbeReport, SCHEMA,
    Skipped, Source,
};
use crate::stats::Spread;

/// A report of CPU node 0 with memory nodes 0 and 1: 55 and 27 GB/s of reads, 116 and 250 ns.
#[must_use]
pub fn report() -> ProbeReport {
    ProbeReport {
        schema: SCHEMA.into(),
        source: Source::Measured,
        machine: Machine { fingerprint: "f00d".into(), kernel: "6.12.0".into(), lab: None },
        taken_unix_s: 1_700_000_000,
        method: Method {
            quick: true,
            line_bytes: 64,
            llc_bytes: Bytes(32 << 20),
            pages: "huge".into(),
            tlb: "made up".into(),
            loops: "made up".into(),
        },
        pairs: vec![pair(0, [55_000_000_000, 50_000_000_000, 46_000_000_000], 116.0), {
            pair(1, [27_000_000_000, 36_000_000_000, 44_000_000_000], 250.0)
        }],
        skipped: vec![Skipped {
            cpu_node: NodeId(0),
            memory_node: NodeId(2),
            reason: "made up".into(),
        }],
        warnings: Vec::new(),
    }
}

fn pair(memory_node: u16, rates: [u64; 3], latency_ns: f64) -> Pair {
    let same = |rate| Spread { median: rate, min: rate, max: rate, relative: BasisPoints(0) };
    let mixes = [Mix::READS, Mix::TWO_TO_ONE, Mix::ONE_TO_ONE];
    let point = |tenths: u64| LoadedPoint {
        offered_bytes_per_second: (tenths < 10).then_some(BytesPerSecond(rates[0] / 10 * tenths)),
        achieved_bytes_per_second: BytesPerSecond(rates[0] / 10 * tenths),
        latency_ns: latency_ns * (1.0 + f64::from(u8::from(tenths == 10))),
    };
    Pair {
        cpu_node: NodeId(0),
        memory_node: NodeId(memory_node),
        cpus: vec![CpuId(0), CpuId(1)],
        idle_latency: Latency {
            median_ns: latency_ns,
            min_ns: latency_ns,
            max_ns: latency_ns,
            spread_bp: BasisPoints(0),
        },
        bandwidth: mixes
            .into_iter()
            .zip(rates)
            .map(|(mix, rate)| Bandwidth::new(mix, same(rate)))
            .collect(),
        loaded: LoadedCurve { points: (0..=10).map(point).collect(), not_measured: None },
    }
}
