//! A result for tests, in which every threshold is just reached.

use super::results::{Found, Outcome, Ran, SCHEMA, Tried, Window};
use super::rows::{Part, Row};
use nearfar_report::model::{Emulation, Machine, Node, Resident};

/// All parts with all rows.
pub(crate) fn found() -> Found {
    let node = |id, near| Node { id, kind: "dram".into(), size_bytes: 1 << 28, cpus: 4, near };
    let emulation =
        Emulation { machine: "cxl-2tier-narrow".into(), clock: "virtual".into(), slow_motion: 1.0 };
    let tried =
        |part: Part| Tried { part, rows: part.rows().iter().map(|row| ran(part, *row)).collect() };
    Found {
        schema: SCHEMA.into(),
        nearfar: "0.1.0".into(),
        smoke: false,
        machine: Machine {
            emulation: Some(emulation),
            kernel: "6.12.1".into(),
            cpus: 4,
            nodes: vec![node(0, true), node(1, false)],
        },
        near_free_bytes: 160 << 20,
        parts: Part::ALL.map(tried).into(),
    }
}

fn ran(part: Part, row: Row) -> Ran {
    let tokens_per_s = match (part, row) {
        (_, Row::Far) => 49.0,
        (Part::Saturating, row) if row.adapts() => 130.0,
        (Part::Lookups | Part::Light, row) if row.adapts() => 98.0,
        (_, Row::WeightsFar) => 150.0,
        _ => 100.0,
    };
    Ran {
        row,
        instances: 4,
        command: format!("nearfar-load inference <{}>", row.name()),
        outcome: Some(Outcome {
            tokens_per_s,
            read_bytes_per_second: tokens_per_s * 2e7,
            slowest_tokens_per_s: tokens_per_s / 4.0,
            windows: vec![Window { end_s: 0.1, tokens: 10 }],
        }),
        residency: vec![Resident { node: 0, bytes: 3 << 20 }, Resident { node: 1, bytes: 1 << 20 }],
        failed: None,
    }
}
