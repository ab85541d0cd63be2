//! A fictitious report with every part filled, for tests of the entry points.

use super::model::*;
use nearfar_topology::Mix;

/// Five placements, three mixes, two servers, on an emulated machine with two nodes.
pub fn report() -> Report {
    Report {
        schema: SCHEMA.into(),
        nearfar: "0.1.0".into(),
        machine: Machine {
            emulation: Some(Emulation {
                machine: "cxl-2tier".into(),
                clock: "virtual".into(),
                slow_motion: 1.0,
            }),
            kernel: "6.12.57+deb12-amd64".into(),
            cpus: 4,
            nodes: vec![
                Node { id: 0, kind: "dram".into(), size_bytes: 1 << 30, cpus: 4, near: true },
                Node { id: 1, kind: "cxl".into(), size_bytes: 1 << 30, cpus: 0, near: false },
            ],
        },
        placements: placements(),
        bandwidth: Some(bandwidth()),
        servers: vec![
            server("redis-server", "redis-benchmark", [38_835, 35_100, 38_790, 37_300, 38_020]),
            server("memcached", "memcaslap", [69_060, 61_400, 69_240, 65_800, 67_900]),
        ],
        left_out: vec![],
    }
}

fn placements() -> Vec<Placement> {
    [
        ("near", "near only", "nearfar run -m near --"),
        ("far", "far only", "nearfar run -m far --"),
        ("default", "kernel default", ""),
        ("interleave", "1:1 interleave", "nearfar run -i all --"),
        ("auto", "-w auto", "nearfar run -w auto --"),
    ]
    .into_iter()
    .map(|(id, name, prefix)| Placement {
        id: id.into(),
        name: name.into(),
        prefix: prefix.into(),
        unavailable: None,
    })
    .collect()
}

/// Percentage of pages on the near node per placement.
const NEAR: [u64; 5] = [100, 0, 100, 50, 75];

fn residency(at: usize, bytes: u64) -> Vec<Resident> {
    vec![
        Resident { node: 0, bytes: bytes * NEAR[at] / 100 },
        Resident { node: 1, bytes: bytes * (100 - NEAR[at]) / 100 },
    ]
}

fn bandwidth() -> Bandwidth {
    let tenths = [
        (Mix::READS, [384, 125, 384, 249, 508]),
        (Mix::TWO_TO_ONE, [361, 170, 360, 332, 521]),
        (Mix::ONE_TO_ONE, [343, 221, 344, 409, 552]),
    ];
    let mut runs = Vec::new();
    let mut peaks = Vec::new();
    for (mix, figures) in tenths {
        for (at, (placement, tenths)) in placements().iter().zip(figures).enumerate() {
            runs.push(BandwidthRun {
                placement: placement.id.clone(),
                mix,
                bytes_per_second: tenths * 100_000_000,
                spread_bp: 42,
                residency: residency(at, 128 << 20),
                command: format!("{} nearfar-bench stream --mix {mix}", placement.prefix),
            });
        }
        for (node, tenths) in (0u16..).zip(&figures[..2]) {
            peaks.push(Peak { node, mix, bytes_per_second: tenths * 100_000_000 });
        }
    }
    Bandwidth { threads: 4, buffer_bytes: 128 << 20, repeats: 3, runs, peaks }
}

fn server(program: &str, client: &str, rates: [u64; 5]) -> Server {
    let runs = placements()
        .iter()
        .zip(rates)
        .enumerate()
        .map(|(at, (placement, rate))| ServerRun {
            placement: placement.id.clone(),
            operations_per_second: rate,
            latency: Latency {
                p50_ns: Some(8_000_000_000 / rate),
                p99_ns: Some(19_000_000_000 / rate),
                p999_ns: Some(181_000_000_000 / rate),
            },
            residency: residency(at, 96 << 20),
            commands: vec![
                format!("{} {program} --port 41973", placement.prefix).trim_start().into(),
                format!("{client} -p 41973"),
            ],
        })
        .collect();
    Server {
        program: program.into(),
        version: "7.0.15".into(),
        client: client.into(),
        workload: "GET, 1 KiB values, 8 connections".into(),
        data_bytes: 64 << 20,
        operations: 20_000,
        latency_note: Some("the client's own histogram".into()),
        runs,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_json_of_a_report_stays_readable_by_the_next_version() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/demo/sample.json");
        let now = serde_json::to_string_pretty(&super::report()).unwrap() + "\n";
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &now).unwrap();
        }
        let then = std::fs::read_to_string(&path).unwrap();
        assert_eq!(then, now, "the schema changed: raise its number, or UPDATE=1 for an addition");
        let back: crate::model::Report = serde_json::from_str(&then).unwrap();
        assert_eq!(back, super::report());
    }
}
