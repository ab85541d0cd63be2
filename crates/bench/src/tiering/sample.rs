//! A small comparison for tests: two phases of ten seconds, with an interval per second.

use serde_json::json;

use super::loads::Loads;
use super::results::{Compared, Found, Ran, SCHEMA};
use super::rows::Row;
use crate::workload::effort::Effort;
use crate::workload::results::{Interval, Look, Run};
use nearfar_report::model::{Emulation, Machine, Node, Resident};

/// A machine with a near and a far node.
pub(super) fn machine() -> Machine {
    let node = |id, near| Node { id, kind: "dram".into(), size_bytes: 1 << 28, cpus: 2, near };
    Machine {
        emulation: Some(Emulation {
            machine: "cxl-2tier-small".into(),
            clock: "virtual".into(),
            slow_motion: 1.0,
        }),
        kernel: "6.12.1".into(),
        cpus: 2,
        nodes: vec![node(0, true), node(1, false)],
    }
}

/// A row with a throughput and a share of the hot set near in each phase.
pub(crate) fn ran(row: Row, rates: [f64; 2], near: [f64; 2]) -> Ran {
    let interval = |second: u32| {
        let phase = usize::from(second > 10);
        let (rate, near) = (rates[phase], near[phase] * 100.0);
        let more = json!({ "moves": phase, "hot_pages_by_node": { "0": near, "1": 100.0 - near } });
        Interval {
            end_s: f64::from(second),
            operations: 100,
            operations_per_s: rate,
            more: more.as_object().cloned().unwrap_or_default(),
        }
    };
    let effort = Effort { moved_pages: 512, daemon_cpu_ns: 50_000_000, ..Effort::default() };
    let nodes = vec![Resident { node: 0, bytes: 3 << 20 }, Resident { node: 1, bytes: 1 << 20 }];
    let run = Run {
        placement: row.placement().name().into(),
        filler_bytes: 0,
        began_s: 3.0,
        cpu: Some(1),
        operations_per_s: rates[0],
        steady_operations_per_s: rates[1],
        intervals: (1..=20).map(interval).collect(),
        residency: [1.0, 9.0, 19.0]
            .map(|at_s| Look { at_s, nodes: nodes.clone(), effort: effort.clone() })
            .into(),
        effort,
        said: json!({ "done": true }),
        said_before: "<started>".into(),
        said_after: String::new(),
        commands: vec!["gups mb=4".into()],
    };
    let read = |second: u32| Loads {
        at_s: f64::from(second),
        near: u64::from(second) * 3000,
        far: u64::from(second) * 1000,
    };
    Ran {
        machine: Some(machine()),
        set_bytes: 4 << 20,
        loads: (1..=20).map(read).collect(),
        run: Some(run),
        ..Ran::of(row)
    }
}

/// All rows but memtierd's.
pub(crate) fn found() -> Found {
    let why = "no binary was named; say --memtierd PATH".into();
    let absent = Ran { absent: Some(why), ..Ran::of(Row::Memtierd) };
    Found {
        schema: SCHEMA.into(),
        nearfar: "0.1.0".into(),
        phase_s: 10,
        warm_up_s: 4,
        switch_ms: 10,
        smoke: false,
        workloads: vec![Compared {
            workload: "gups-moving".into(),
            description: "random <updates>".into(),
            tiering_helps: true,
            busy_percent: 20,
            rows: vec![
                ran(Row::Dram, [200.0, 200.0], [1.0, 1.0]),
                ran(Row::Far, [90.0, 90.0], [0.0, 0.0]),
                ran(Row::None, [100.0, 100.0], [0.0, 0.1]),
                ran(Row::Balancing, [120.0, 120.0], [0.3, 0.2]),
                absent,
                ran(Row::Nearfar, [190.0, 190.0], [0.95, 0.5]),
            ],
        }],
    }
}
