//! A result for tests, in which every threshold is just reached.

use super::results::{Balancing, Found, Ran, Run, SCHEMA, Traffic, Tried, Window};
use super::rows::{FULL, Kind, Program, Row, rows};
use nearfar_report::model::{Emulation, Machine, Node};

/// All programs for four nodes with all their rows, each run once.
pub(crate) fn found() -> Found {
    found_of(&Program::ALL)
}

/// These programs with all their rows, each run once.
pub(crate) fn found_of(programs: &[Program]) -> Found {
    let all = rows(&Kind::ALL, &[FULL.into()]).unwrap();
    let node = |id| Node { id, kind: "dram".into(), size_bytes: 1 << 30, cpus: 1, near: true };
    let tried = |program: &Program| Tried {
        program: *program,
        rows: program.rows(&all).iter().map(|row| ran(*program, row)).collect(),
    };
    Found {
        schema: SCHEMA.into(),
        nearfar: "0.1.0".into(),
        smoke: false,
        machine: Machine {
            emulation: Some(Emulation {
                machine: "numa-4node".into(),
                clock: "virtual".into(),
                slow_motion: 1.0,
            }),
            kernel: "6.12.1".into(),
            cpus: 4,
            nodes: (0..4).map(node).collect(),
        },
        node_of_cpu: vec![0, 1, 2, 3],
        seconds: 8,
        settle_s: 4,
        huge: false,
        times: 1,
        programs: programs.iter().map(tried).collect(),
        done_s: None,
    }
}

fn ran(program: Program, row: &Row) -> Ran {
    let rate = match (program, row.kind) {
        (Program::Settled, Kind::FirstTouch) => 100.0,
        (Program::Settled, _) => 99.0,
        (_, Kind::Interleave) => 200.0,
        (Program::Kmeans | Program::Jacobi | Program::Redis, Kind::Local) => 200.0,
        (Program::Streamcluster, Kind::NumaBalancing) => 90.0,
        (_, kind) if kind.policy().is_some() => 195.0,
        _ => 100.0,
    };
    // One of five is ahead of interleaving, so that the mean can be.
    let rate = match (program, row.kind) {
        (Program::Pca, kind) if kind.policy().is_some() => 230.0,
        _ => rate,
    };
    let balancing = row.kind.policy().map(|_| Balancing {
        sensors: vec!["lab".into()],
        cpu_ms: 80,
        running_s: 8,
        cpu_share: Some(0.01),
        decision: "nothing_to_move".into(),
        moved: 3000,
    });
    Ran {
        row: row.clone(),
        command: format!("{} <{}>", program.name(), row.name()),
        runs: vec![Run {
            operations_per_s: rate,
            began_s: 1.0,
            ended_s: 8.0,
            windows: vec![Window { end_s: 8.0, busy_s: 4.0, operations: rate * 4.0 }],
            moved_pages: if balancing.is_some() { 3000 } else { 0 },
            balancing,
            traffic: Some(Traffic {
                local: 0.25,
                imbalance: 1.92,
                shares: vec![0.97, 0.01, 0.01, 0.01],
                lines_per_us: 86.0,
            }),
        }],
        failed: None,
    }
}

/// Changes the throughput of a row.
pub(crate) fn set(found: &mut Found, program: Program, kind: Kind, rate: f64) {
    let tried = found.programs.iter_mut().find(|tried| tried.program == program).unwrap();
    let ran = tried.rows.iter_mut().find(|ran| ran.row.kind == kind).unwrap();
    ran.runs[0].operations_per_s = rate;
}
