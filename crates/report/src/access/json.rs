//! The reports as JSON: plain numbers, with the unit in the key. Schemas `nearfar.heatmap/2`, `nearfar.wss/2`,
//! `nearfar.temperature/2`, `nearfar.residency/1` and `nearfar.record-info/1`.

use nearfar_record::reduce::residency::residency;
use nearfar_record::reduce::temperature::temperature;
use nearfar_record::reduce::{hot, wss};
use nearfar_record::{Intervals, Operations, Resident, Target};
use serde_json::{Value, json};

use super::{Kind, Loaded, Options, views};

/// Default number of cells of a heatmap.
const CELLS: (usize, usize) = (120, 60);
/// Hundredths of a per cent in a thousandth, to which rates are rounded.
const BP: u32 = 10;

/// One report.
pub fn report(loaded: &Loaded, kind: Kind, options: Options) -> Value {
    let (schema, mut value) = match kind {
        Kind::Heatmap => ("nearfar.heatmap/2", heatmap(loaded, options)),
        Kind::Wss => ("nearfar.wss/2", working_set(loaded, options)),
        Kind::Temperature => ("nearfar.temperature/2", warmth(loaded)),
        Kind::Residency => ("nearfar.residency/1", places(loaded)),
    };
    value["schema"] = schema.into();
    value["record"] = about(loaded);
    value
}

/// Summary of a file.
pub fn info(loaded: &Loaded) -> Value {
    let record = &loaded.record;
    let notes = record.notes.iter().map(|note| json!({"at_ns": note.at_ns, "text": note.text}));
    json!({
        "schema": "nearfar.record-info/1",
        "record": about(loaded),
        "residency_snapshots": record.residency.len(),
        "migration_reports": record.moved.len(),
        "notes": notes.collect::<Vec<_>>(),
    })
}

fn about(loaded: &Loaded) -> Value {
    let record = &loaded.record;
    let header = &record.header;
    let target = match &header.target {
        Target::Machine => json!({"kind": "machine"}),
        Target::Cgroup(path) => json!({"kind": "cgroup", "path": path}),
        Target::Process { pid, command } => {
            json!({"kind": "process", "pid": pid, "command": command})
        }
        Target::Unknown => json!({"kind": "unknown"}),
    };
    let operations = match header.operations {
        Operations::Virtual => "virtual",
        Operations::FixedVirtual => "fixed_virtual",
        Operations::Physical => "physical",
        Operations::Unknown => "unknown",
    };
    let nodes = header.nodes.iter().map(|node| {
        let ranges = node.ranges.iter().map(|of| json!({"start": of.start, "end": of.end}));
        let ranges: Vec<Value> = ranges.collect();
        json!({"id": node.id.0, "kind": node.kind, "near": node.near, "ranges": ranges})
    });
    let processes = record.processes.iter().map(|of| {
        json!({"target": of.target, "pid": of.pid, "command": of.command, "from_ns": of.at_ns})
    });
    // The kernel may have tuned the intervals.
    let longest = |of: fn(Intervals) -> u64| {
        let found = record.accesses.iter().map(|access| of(access.intervals));
        found.max().unwrap_or(of(header.intervals))
    };
    let overhead = record
        .ending
        .map(|of| json!({"kernel_cpu_ns": of.kernel_cpu_ns, "own_cpu_ns": of.own_cpu_ns}));
    json!({
        "file": loaded.name,
        "findings": loaded.findings,
        "writer": header.writer,
        "machine": header.machine,
        "fingerprint": header.fingerprint,
        "kernel": header.kernel,
        "emulated": header.emulated,
        "started_unix_ns": header.started_unix_ns,
        "duration_ns": record.duration_ns(),
        "target": target,
        "processes": processes.collect::<Vec<_>>(),
        "operations": operations,
        "sample_interval_us": header.intervals.sample_us,
        "sample_interval_max_us": longest(|of| of.sample_us),
        "aggregation_interval_us": header.intervals.aggregation_us,
        "aggregation_interval_max_us": longest(|of| of.aggregation_us),
        "snapshots": record.accesses.len(),
        "nodes": nodes.collect::<Vec<_>>(),
        "overhead": overhead,
    })
}

fn heatmap(loaded: &Loaded, options: Options) -> Value {
    let Some(map) = views::heat(&loaded.record, options, CELLS) else {
        return json!({"rows": 0, "areas": [], "left_out_bytes": 0});
    };
    let areas = map.areas.iter().map(|column| {
        let in_bp = |cell: &Option<u16>| cell.map(|permille| u32::from(permille) * BP);
        let row = |row| column.row(row).iter().map(in_bp).collect();
        let rows: Vec<Vec<Option<u32>>> = (0..map.rows).map(row).collect();
        json!({
            "target": column.area.target,
            "start": column.area.range.start,
            "end": column.area.range.end,
            "columns": column.width,
            "rate_bp": rows,
        })
    });
    json!({
        "from_ns": map.from_ns,
        "to_ns": map.to_ns,
        "rows": map.rows,
        "areas": areas.collect::<Vec<_>>(),
        "left_out_bytes": map.left_out_bytes,
    })
}

fn working_set(loaded: &Loaded, options: Options) -> Value {
    let (sets, median) = hot::hot(&loaded.record);
    let hot_set = json!({
        "share_bp": hot::SHARE_PERMILLE * u64::from(BP),
        "median_bytes": median,
        "series": sets.iter().map(|set| json!({
            "at_ns": set.at_ns, "bytes": set.bytes, "nodes": residents(&set.nodes),
        })).collect::<Vec<_>>(),
    });
    let Some(found) = wss::wss(&loaded.record, options.threshold_permille) else {
        return json!({"percentiles": [], "series": [], "hot_set": hot_set});
    };
    let percentiles = found.percentiles.iter();
    let series = found.series.iter();
    json!({
        "threshold_bp": found.threshold_permille * u64::from(BP),
        "mean_bytes": found.mean_bytes,
        "monitored_bytes": found.monitored_bytes,
        "percentiles": percentiles
            .map(|(percent, bytes)| json!({"percent": percent, "bytes": bytes}))
            .collect::<Vec<_>>(),
        "series": series.map(|(at, bytes)| json!({"at_ns": at, "bytes": bytes})).collect::<Vec<_>>(),
        "hot_set": hot_set,
    })
}

fn warmth(loaded: &Loaded) -> Value {
    let Some(found) = temperature(&loaded.record) else {
        return json!({"by_rate": [], "by_age": []});
    };
    let by_rate = found.by_rate.iter().map(|of| {
        let [from, to] =
            [of.from_permille, of.to_permille].map(|permille| permille * u64::from(BP));
        json!({"from_bp": from, "to_bp": to, "bytes": of.bytes})
    });
    let by_age = found.by_age.iter().map(|of| {
        json!({
            "from_ns": of.from_ns,
            "to_ns": of.to_ns,
            "accessed_bytes": of.accessed_bytes,
            "idle_bytes": of.idle_bytes,
        })
    });
    json!({"by_rate": by_rate.collect::<Vec<_>>(), "by_age": by_age.collect::<Vec<_>>()})
}

fn places(loaded: &Loaded) -> Value {
    let over = residency(&loaded.record);
    let series = over.series.iter().map(|(at, bytes)| {
        let nodes = over
            .nodes
            .iter()
            .zip(bytes)
            .map(|(node, bytes)| Resident { node: *node, bytes: *bytes });
        json!({"at_ns": at, "nodes": residents(&nodes.collect::<Vec<_>>())})
    });
    let moved = over.moved.iter().map(|pair| {
        json!({
            "from": pair.from.0,
            "to": pair.to.0,
            "bytes": pair.bytes,
            "failed_bytes": pair.failed_bytes,
        })
    });
    json!({"series": series.collect::<Vec<_>>(), "moved": moved.collect::<Vec<_>>()})
}

fn residents(nodes: &[Resident]) -> Value {
    nodes.iter().map(|of| json!({"id": of.node.0, "bytes": of.bytes})).collect()
}
