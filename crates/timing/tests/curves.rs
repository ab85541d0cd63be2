//! Programs meet measured curves: one program follows a chain beside others that read and change lines at a fixed rate.
//! (`nearfar-lab accuracy --curves` checks all curves in guests.)
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use nearfar_timing::config::{Clock, Config, MemoryNode, Path, Processor, Range};
use nearfar_timing::{Access, Kind, Machine, Vcpu};
use nearfar_topology::Curves;

const GIB: u64 = 1 << 30;
/// Programs beside the chaser.
const OTHERS: usize = 7;
/// All curves are scaled to this peak of reads, which seven CPUs can draw.
const PEAK: f64 = 50.0;
/// Largest accepted difference from a curve.
const OFF_MAX: f64 = 0.10;

const FILES: [(&str, &str); 2] = [
    ("spr-ddr5", include_str!("../../../lab/curves/spr-ddr5.csv")),
    ("emr-cxl", include_str!("../../../lab/curves/emr-cxl.csv")),
];

fn machine(curves: Curves) -> Machine {
    let latency_ns = curves.idle_ns();
    let config = Config {
        clock: Clock::Virtual,
        cpu_nodes: vec![0; OTHERS + 1],
        nodes: vec![MemoryNode {
            id: 0,
            read_gbps: 1.0,
            write_gbps: 1.0,
            duplex: false,
            curves: Some(curves),
        }],
        ranges: vec![Range { start: 0, end: 16 * GIB, node: 0 }],
        paths: vec![Path {
            from: 0,
            to: 0,
            latency_ns,
            gbps_max: None,
            curves: None,
            read_links: Vec::new(),
            write_links: Vec::new(),
        }],
        links: Vec::new(),
        processor: Processor {
            instruction_ps: 125,
            l1_kib: 64,
            llc_kib: 1024,
            llc_latency_ns: 12.0,
            lines_in_flight: 256,
            loads_in_flight: 10,
            reorder_buffer: 512,
            load_factor: 0.0,
            load_power: 1.0,
            load_limit: 1.0,
            tlb_entries: 0,
            coherence: false,
        },
        stats: None,
        stats_every_ms: None,
        pmu: None,
        begins: None,
    };
    Machine::new(config).unwrap()
}

struct Cpu {
    vcpu: Vcpu,
    now_ps: u64,
    step: u64,
    /// Of 1,024 lines, those that are changed.
    changed: u64,
    /// Time from one line to the next, at least.
    every_ps: u64,
}

impl Cpu {
    fn access(&self, index: usize) -> Access {
        let address = if index == 0 {
            // Far apart and in no order: no stream.
            15 * GIB + self.step.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (GIB >> 6) * 64
        } else {
            index as u64 * 2 * GIB + self.step * 64 % (64 << 20)
        };
        let changes = index > 0 && self.step * 617 % 1024 < self.changed;
        Access {
            kind: if changes { Kind::Store } else { Kind::Load },
            virtual_address: address,
            physical_address: address,
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
fn whole(figure: f64) -> u64 {
    figure.round() as u64
}

/// Bandwidth in 10^9 bytes per second and the chaser's latency in nanoseconds, between 2 and 4 ms.
fn measured(curves: &Curves, read_share: f64, gbps: f64) -> (f64, f64) {
    let machine = machine(curves.clone());
    // A changed line is read and written back; so a share of reads r needs 1 / r - 1 changed lines for each line read.
    let lines = gbps * read_share / 64.0 / OTHERS as f64;
    let mut cpus: Vec<Cpu> = (0..=OTHERS)
        .map(|index| Cpu {
            vcpu: machine.vcpu(index).unwrap(),
            now_ps: index as u64 * 997,
            step: 0,
            changed: whole((1.0 / read_share - 1.0) * 1024.0),
            every_ps: if index == 0 { 0 } else { whole(1000.0 / lines) },
        })
        .collect();
    let bytes = || machine.stats("virtual", 1.0).nodes[0].bytes;
    let (mut from, mut loads, mut begun) = (0, 0, None);
    loop {
        let index = (0..cpus.len()).min_by_key(|index| cpus[*index].now_ps).unwrap();
        let cpu = &mut cpus[index];
        let access = cpu.access(index);
        let stall_ps = machine.access(&mut cpu.vcpu, cpu.now_ps, access, None);
        cpu.now_ps += if index == 0 { stall_ps } else { stall_ps.max(cpu.every_ps) };
        cpu.step += 1;
        let now = cpus[index].now_ps;
        if begun.is_none() && now > 2_000_000_000 {
            begun = Some((now, cpus[0].now_ps));
            (from, loads) = (bytes(), cpus[0].step);
        }
        if now > 4_000_000_000 {
            let (start, chaser) = begun.unwrap();
            let gbps = (bytes() - from) as f64 * 1000.0 / (now - start) as f64;
            let ns = (cpus[0].now_ps - chaser) as f64 / 1000.0 / (cpus[0].step - loads) as f64;
            return (gbps, ns);
        }
    }
}

#[test]
fn programs_match_the_curves_at_all_loads_and_three_read_shares() {
    let mut off = Vec::new();
    for (name, text) in FILES {
        let whole = Curves::parse(text).unwrap();
        let curves = whole.scaled(PEAK / whole.peak_gbps(1.0)).unwrap();
        let shares: Vec<f64> = curves.curves().iter().map(|curve| curve.read_share).collect();
        let shares = [shares[0], shares[shares.len() / 2], shares[shares.len() - 1]];
        for share in shares {
            let peak = curves.peak_gbps(share);
            for load in [0.05, 0.6, 0.9] {
                let (gbps, ns) = measured(&curves, share, load * peak);
                let expected = curves.latency_ns(share, gbps / peak);
                let row = format!(
                    "{name} {share:.2} reads, {load:.2} asked, {gbps:.2} GB/s ({:.3}): {ns:.1} ns, curve {expected:.1}",
                    gbps / peak
                );
                if (ns / expected - 1.0).abs() > OFF_MAX || gbps < load * peak * 0.9 {
                    off.push(row);
                }
            }
        }
    }
    assert!(off.is_empty(), "{}", off.join("\n"));
}
