//! Prints machines: as a table for people, and as JSON of the schema `nearfar.machines/1` for programs. Values are the
//! machine's own, without the slow-motion factor.

use std::fmt::Write as _;

use serde::Serialize;

use super::Machine;

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    machines: Vec<MachineRow>,
}

#[derive(Serialize)]
struct MachineRow {
    name: String,
    description: String,
    sources: Vec<String>,
    slow_motion: f64,
    translations_ms: u32,
    cpus: u32,
    nodes: Vec<NodeRow>,
    latency_ns: Vec<Vec<f64>>,
}

#[derive(Serialize)]
struct NodeRow {
    id: u16,
    kind: &'static str,
    cpus: u32,
    size_bytes: u64,
    latency_ns: f64,
    read_gbps: f64,
    write_gbps: f64,
    duplex: bool,
    /// Whether loaded latency is as measured, by share of reads.
    measured_curves: bool,
}

/// JSON, ending in a newline.
#[must_use]
pub fn json(machines: &[Machine]) -> String {
    let report =
        Report { schema: "nearfar.machines/1", machines: machines.iter().map(row).collect() };
    // Strings and finite numbers always become JSON.
    let mut text = serde_json::to_string_pretty(&report).unwrap_or_default();
    text.push('\n');
    text
}

fn row(machine: &Machine) -> MachineRow {
    let nodes = (0u16..).zip(&machine.nodes).map(|(id, node)| NodeRow {
        id,
        kind: node.kind.word(),
        cpus: node.cpus,
        size_bytes: node.size.0,
        latency_ns: machine.latency_nearest(id),
        read_gbps: node.read_gbps,
        write_gbps: node.write_gbps,
        duplex: node.duplex,
        measured_curves: node.curves.is_some(),
    });
    MachineRow {
        name: machine.name.clone(),
        description: machine.description.clone(),
        sources: machine.sources.clone(),
        slow_motion: machine.slow_motion,
        translations_ms: machine.translations_ms,
        cpus: machine.cpus(),
        nodes: nodes.collect(),
        latency_ns: machine.latency_ns.clone(),
    }
}

/// A table for people.
#[must_use]
pub fn table(machines: &[Machine]) -> String {
    let mut out = String::new();
    for (index, machine) in machines.iter().enumerate() {
        let gap = if index == 0 { "" } else { "\n" };
        let _ = writeln!(out, "{gap}{}: {}", machine.name, machine.description);
        let _ = writeln!(out, "  node  kind  cpus     size  latency  read/write GB/s");
        for (id, node) in (0u16..).zip(&machine.nodes) {
            let shared = match node.duplex {
                _ if node.curves.is_some() => "by curve",
                true => "each way",
                false => "shared",
            };
            let device = match &node.cxl_device {
                None => "",
                Some(device) if device.idle => ", in no region",
                Some(_) => ", by its driver",
            };
            let _ = writeln!(
                out,
                "  {id:>4}  {:<4}  {:>4}  {:>7}  {:>4} ns  {}/{} {shared}{device}",
                node.kind.word(),
                node.cpus,
                node.size.to_string(),
                machine.latency_nearest(id),
                node.read_gbps,
                node.write_gbps,
            );
        }
        if machine.latency_ns.len() > 1 {
            for (from, row) in machine.cpu_nodes().zip(&machine.latency_ns) {
                let figures: Vec<String> = row.iter().map(f64::to_string).collect();
                let _ = writeln!(out, "  latency from node {from}: {} ns", figures.join(" "));
            }
        }
    }
    out
}
