//! Parses machine files: TOML in; out either a [`Machine`] in which every value is valid, or one error with the file,
//! the key, the value and the allowed values. A file is accepted completely or not at all.
//!
//! The format, with every key, is in `docs/machine-file.md`.

use std::fmt;

use nearfar_timing::config::{CPUS_MAX, Processor, tlb_size_is_possible};
use nearfar_topology::{Bytes, Curves, MemoryKind};
use serde::Deserialize;

use super::{CxlDevice, Link, Machine, Node, Path, Traffic};

/// An error in a machine file: a key with its value, and the allowed values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}{}: {allowed}", shown(value))]
pub struct Refusal {
    /// The key, with the table it stands in.
    pub key: String,
    /// The value in the file; empty if the key or a part of it is missing.
    pub value: String,
    /// The allowed values.
    pub allowed: String,
}

/// The first 80 characters of a value, if there is one.
fn shown(value: &str) -> String {
    match value.char_indices().nth(80) {
        _ if value.is_empty() => String::new(),
        Some((end, _)) => format!(" = {}...", &value[..end]),
        None => format!(" = {value}"),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    description: String,
    sources: Vec<String>,
    slow_motion: f64,
    #[serde(default = "translations_ms")]
    translations_ms: u32,
    processor: Processor,
    #[serde(default)]
    node: Vec<NodeTable>,
    latency_ns: Option<Vec<Vec<f64>>>,
    #[serde(default)]
    link: Vec<LinkTable>,
    #[serde(default)]
    path: Vec<PathTable>,
    traffic: Option<Traffic>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeTable {
    id: u16,
    kind: MemoryKind,
    cpus: u32,
    size: String,
    latency_ns: Option<f64>,
    read_gbps: Option<f64>,
    write_gbps: Option<f64>,
    duplex: Option<bool>,
    curve: Option<CurveTable>,
    cxl_device: Option<CxlTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CurveTable {
    file: String,
    #[serde(default = "whole")]
    scale: f64,
}

/// The default scale: the memory as measured.
fn whole() -> f64 {
    1.0
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CxlTable {
    serial: u64,
    granularity: u32,
    #[serde(default)]
    idle: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTable {
    name: String,
    gbps: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathTable {
    from: u16,
    to: u16,
    gbps_max: Option<f64>,
    curve: Option<CurveTable>,
    #[serde(default)]
    read_links: Vec<String>,
    #[serde(default)]
    write_links: Vec<String>,
}

/// The default: about the time within which a program that keeps using its translations would see a real CPU replace
/// them.
fn translations_ms() -> u32 {
    10
}

/// Memory comes in blocks of this size, which nodes can't share.
const BLOCK: u64 = 128 << 20;
/// A kernel and its boot need this much on the first node: 6.12 and 7.2 leave 182 and 170 MB of it free.
const FIRST_MIN: u64 = 256 << 20;
const RAM_MAX: u64 = 1 << 40;
const NODES_MAX: usize = 16;

/// Returns the text of a curve file by its name in a machine file, or the reason why there is none.
pub type CurveText<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// Parses a machine file's text; curve files that it names are read by `curve`.
///
/// # Errors
/// The first error in it, or in a curve file.
pub fn parse(text: &str, curve: CurveText<'_>) -> Result<Machine, Refusal> {
    let file: File = toml::from_str(text).map_err(|error| syntax(text, &error))?;
    let nodes = nodes(&file, curve)?;
    let latency_ns = latencies(&file, &nodes)?;
    let links: Vec<Link> = links(&file)?;
    let paths = paths(&file, &links, curve)?;
    words(&file)?;
    within("slow_motion", file.slow_motion, 1.0, 100_000.0)?;
    within("translations_ms", file.translations_ms.into(), 0.0, 10_000.0)?;
    processor(&file.processor)?;
    file.traffic.as_ref().map_or(Ok(()), traffic)?;
    Ok(Machine {
        name: file.name,
        description: file.description,
        sources: file.sources,
        slow_motion: file.slow_motion,
        translations_ms: file.translations_ms,
        nodes,
        latency_ns,
        links,
        paths,
        processor: file.processor,
        traffic: file.traffic,
    })
}

/// Parses a size in `MiB` or `GiB`.
fn size(text: &str) -> Option<Bytes> {
    let has_unit = text.ends_with("MiB") || text.ends_with("GiB");
    has_unit.then(|| text.parse().ok()).flatten()
}

fn refuse<T>(key: &str, value: impl fmt::Display, allowed: &str) -> Result<T, Refusal> {
    Err(Refusal { key: key.to_owned(), value: value.to_string(), allowed: allowed.to_owned() })
}

fn within(key: &str, value: f64, least: f64, most: f64) -> Result<(), Refusal> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        refuse(key, value, &format!("allowed is {least} to {most}"))
    }
}

/// Describes a value of the wrong type, or a missing or unknown key: the line with it, and the expectation of the
/// parser.
fn syntax(text: &str, error: &toml::de::Error) -> Refusal {
    let allowed = error.message().replace('\n', "; ");
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    let number = text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
    let line = text.lines().nth(number - 1).unwrap_or_default().trim();
    if allowed.starts_with("missing field") {
        // Of a table it is at its name, of the file at any line.
        let table = if line.starts_with('[') { line } else { "before the first table" };
        let allowed = format!("{allowed}; nearfar-machine(5) has every key, and an example");
        return Refusal { key: table.to_owned(), value: String::new(), allowed };
    }
    let (key, value) = line.split_once('=').unwrap_or((line, ""));
    Refusal {
        key: format!("line {number}: {}", key.trim()),
        value: value.trim().to_owned(),
        allowed,
    }
}

fn words(file: &File) -> Result<(), Refusal> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.' || c == '_';
    if file.name.is_empty() || file.name.len() > 64 || !file.name.chars().all(plain) {
        return refuse("name", &file.name, "1 to 64 letters, digits, dashes, dots, underscores");
    }
    if file.description.trim().is_empty() {
        return refuse("description", "\"\"", "a sentence");
    }
    if file.sources.is_empty() {
        return refuse("sources", "[]", "where the figures come from, at least one line");
    }
    Ok(())
}

fn nodes(file: &File, curve: CurveText<'_>) -> Result<Vec<Node>, Refusal> {
    if file.node.is_empty() || file.node.len() > NODES_MAX {
        return refuse("node", format!("{} tables", file.node.len()), "1 to 16 [[node]] tables");
    }
    let nodes: Vec<Node> = (0u16..)
        .zip(&file.node)
        .map(|(id, table)| node(id, table, curve))
        .collect::<Result<_, _>>()?;
    let cpus: u32 = nodes.iter().map(|node| node.cpus).sum();
    if cpus == 0 || usize::try_from(cpus).is_ok_and(|cpus| cpus > CPUS_MAX) {
        return refuse("cpus of all nodes", cpus, &format!("allowed is 1 to {CPUS_MAX} in all"));
    }
    if nodes[0].size < Bytes(FIRST_MIN) || nodes[0].cxl_device.is_some() {
        return refuse(
            "node 0: size",
            &file.node[0].size,
            "the first node holds the kernel: at least 256 MiB, and no cxl_device",
        );
    }
    let total = nodes.iter().try_fold(0u64, |sum, node| sum.checked_add(node.size.0));
    if total.is_none_or(|total| total > RAM_MAX) {
        return refuse("size of all nodes", "more", "allowed is 1024 GiB in all");
    }
    let first_device = nodes.iter().position(|node| node.cxl_device.is_some());
    if let Some(first) = first_device
        && first + 1 != nodes.len()
    {
        return refuse(
            &format!("node {first}: cxl_device"),
            "a table",
            "allowed on the last node alone: its id is given when its driver brings it up",
        );
    }
    Ok(nodes)
}

fn node(id: u16, table: &NodeTable, curve: CurveText<'_>) -> Result<Node, Refusal> {
    let key = |key: &str| format!("node {id}: {key}");
    if table.id != id {
        return refuse(&key("id"), table.id, &format!("ids count from 0 in order; this is {id}"));
    }
    let Some(size) = size(&table.size)
        .filter(|size| size.0 >= BLOCK && size.0 <= RAM_MAX && size.0.is_multiple_of(BLOCK))
    else {
        let allowed = "a multiple of 128 MiB up to 1024 GiB, such as \"2 GiB\" or \"512 MiB\"";
        return refuse(&key("size"), format!("{:?}", table.size), allowed);
    };
    if table.kind == MemoryKind::Unknown {
        return refuse(&key("kind"), "\"unknown\"", "allowed are dram, cxl, hbm and pmem");
    }
    let capacity = capacity(id, table, curve)?;
    let cxl_device = match &table.cxl_device {
        None => None,
        Some(_) if table.cpus > 0 => {
            return refuse(&key("cpus"), table.cpus, "a cxl_device has none");
        }
        Some(device)
            if ![256, 512, 1024, 2048, 4096, 8192, 16384].contains(&device.granularity) =>
        {
            let allowed = "a power of two from 256 to 16384 bytes";
            return refuse(&key("cxl_device.granularity"), device.granularity, allowed);
        }
        // The driver refuses a region that is no multiple of 256 MiB.
        Some(_) if !size.0.is_multiple_of(2 * BLOCK) => {
            return refuse(&key("size"), size, "a cxl_device has a multiple of 256 MiB");
        }
        Some(device) => Some(CxlDevice {
            serial: device.serial,
            granularity: device.granularity,
            idle: device.idle,
        }),
    };
    Ok(Node {
        kind: table.kind,
        cpus: table.cpus,
        size,
        read_gbps: capacity.read_gbps,
        write_gbps: capacity.write_gbps,
        duplex: capacity.duplex,
        curves: capacity.curves,
        cxl_device,
    })
}

struct Capacity {
    read_gbps: f64,
    write_gbps: f64,
    duplex: bool,
    curves: Option<Curves>,
}

/// Capacity from a node's three keys, or from measured curves.
fn capacity(id: u16, table: &NodeTable, curve: CurveText<'_>) -> Result<Capacity, Refusal> {
    let key = |key: &str| format!("node {id}: {key}");
    let figure = |name: &str, value: Option<f64>| match value {
        Some(value) => within(&key(name), value, 0.01, 10_000.0).map(|()| value),
        None => refuse(&key(name), "nothing", "10^9 bytes per second, or a [node.curve] table"),
    };
    let Some(named) = &table.curve else {
        let (read_gbps, write_gbps) =
            (figure("read_gbps", table.read_gbps)?, figure("write_gbps", table.write_gbps)?);
        return match table.duplex {
            Some(duplex) => Ok(Capacity { read_gbps, write_gbps, duplex, curves: None }),
            None => refuse(&key("duplex"), "nothing", "true or false, or a [node.curve] table"),
        };
    };
    let doubled = [
        ("read_gbps", table.read_gbps.is_some()),
        ("write_gbps", table.write_gbps.is_some()),
        ("duplex", table.duplex.is_some()),
    ];
    if let Some((name, _)) = doubled.iter().find(|(_, given)| *given) {
        return refuse(&key(name), "a value", "left out where the node has a [node.curve] table");
    }
    let curves = measured(&key, named, curve)?;
    let (read_gbps, write_gbps) = (curves.peak_gbps(1.0), curves.peak_gbps(0.0));
    Ok(Capacity { read_gbps, write_gbps, duplex: false, curves: Some(curves) })
}

/// The curves of a file, at its scale.
fn measured(
    key: &dyn Fn(&str) -> String,
    named: &CurveTable,
    curve: CurveText<'_>,
) -> Result<Curves, Refusal> {
    within(&key("curve.scale"), named.scale, 0.001, 1000.0)?;
    let of_file = |reason: String| Refusal {
        key: key("curve.file"),
        value: format!("{:?}", named.file),
        allowed: reason,
    };
    let text = curve(&named.file).map_err(of_file)?;
    let curves = Curves::parse(&text)
        .and_then(|curves| curves.scaled(named.scale))
        .map_err(|error| of_file(error.to_string()))?;
    for curve in curves.curves() {
        let peak = curves.peak_gbps(curve.read_share);
        within(&key("curve: peak bandwidth"), peak, 0.01, 10_000.0)?;
    }
    Ok(curves)
}

/// Latencies from each node's own key or curve (one CPU node), or from a matrix of all.
fn latencies(file: &File, nodes: &[Node]) -> Result<Vec<Vec<f64>>, Refusal> {
    let rows: Vec<&NodeTable> = file.node.iter().filter(|node| node.cpus > 0).collect();
    let matrix = match (&file.latency_ns, rows.len()) {
        (Some(matrix), _) => {
            if let Some(node) = file.node.iter().find(|node| node.latency_ns.is_some()) {
                let key = format!("node {}: latency_ns", node.id);
                let value = node.latency_ns.unwrap_or_default();
                return refuse(&key, value, "left out where the machine has latency_ns rows");
            }
            matrix.clone()
        }
        (None, 1) => {
            let missing = |node: &NodeTable| Refusal {
                key: format!("node {}: latency_ns", node.id),
                value: "nothing".to_owned(),
                allowed: "the latency from the machine's CPUs, or latency_ns rows for all"
                    .to_owned(),
            };
            let idle = |node: &Node| node.curves.as_ref().map(Curves::idle_ns);
            let row: Result<_, _> = file
                .node
                .iter()
                .zip(nodes)
                .map(|(table, node)| {
                    table.latency_ns.or_else(|| idle(node)).ok_or_else(|| missing(table))
                })
                .collect();
            vec![row?]
        }
        (None, nodes) => {
            let allowed = format!("one row for each of the {nodes} nodes with CPUs");
            return refuse("latency_ns", "nothing", &allowed);
        }
    };
    if matrix.len() != rows.len() || matrix.iter().any(|row| row.len() != file.node.len()) {
        let allowed = format!("{} rows of {} figures", rows.len(), file.node.len());
        return refuse("latency_ns", format!("{matrix:?}"), &allowed);
    }
    for (row, from) in matrix.iter().zip(rows) {
        for (to, figure) in row.iter().enumerate() {
            within(&format!("latency_ns from {} to {to}", from.id), *figure, 1.0, 100_000.0)?;
        }
    }
    Ok(matrix)
}

fn links(file: &File) -> Result<Vec<Link>, Refusal> {
    for (index, link) in file.link.iter().enumerate() {
        let twice = file.link[..index].iter().any(|other| other.name == link.name);
        if link.name.is_empty() || twice {
            return refuse("link: name", format!("{:?}", link.name), "a name of its own");
        }
        within(&format!("link {}: gbps", link.name), link.gbps, 0.01, 10_000.0)?;
    }
    Ok(file.link.iter().map(|l| Link { name: l.name.clone(), gbps: l.gbps }).collect())
}

fn paths(file: &File, links: &[Link], curve: CurveText<'_>) -> Result<Vec<Path>, Refusal> {
    let mut paths: Vec<Path> = Vec::new();
    for table in &file.path {
        let key = |key: &str| format!("path from {} to {}: {key}", table.from, table.to);
        if !file.node.iter().any(|node| node.id == table.from && node.cpus > 0) {
            return refuse(&key("from"), table.from, "a node with CPUs");
        }
        if !file.node.iter().any(|node| node.id == table.to) {
            return refuse(&key("to"), table.to, "a node of this machine");
        }
        if paths.iter().any(|other| (other.from, other.to) == (table.from, table.to)) {
            return refuse(&key("from"), table.from, "one path for each pair");
        }
        if let Some(gbps) = table.gbps_max {
            within(&key("gbps_max"), gbps, 0.01, 10_000.0)?;
            if table.curve.is_some() {
                return refuse(&key("gbps_max"), gbps, "left out where the path has a curve");
            }
        }
        let curves = table.curve.as_ref().map(|named| measured(&key, named, curve)).transpose()?;
        let route = |field: &str, names: &[String]| {
            names
                .iter()
                .map(|name| {
                    let index = links.iter().position(|link| link.name == *name);
                    match index.and_then(|index| u16::try_from(index).ok()) {
                        Some(index) => Ok(index),
                        None => refuse(&key(field), format!("{name:?}"), "the name of a [[link]]"),
                    }
                })
                .collect::<Result<Vec<u16>, _>>()
        };
        paths.push(Path {
            from: table.from,
            to: table.to,
            gbps_max: table.gbps_max,
            curves,
            read_links: route("read_links", &table.read_links)?,
            write_links: route("write_links", &table.write_links)?,
        });
    }
    Ok(paths)
}

fn processor(processor: &Processor) -> Result<(), Refusal> {
    for (name, kib, most) in
        [("l1_kib", processor.l1_kib, 4096), ("llc_kib", processor.llc_kib, 1 << 21)]
    {
        if !kib.is_power_of_two() || !(16..=most).contains(&kib) {
            let allowed = format!("a power of two from 16 to {most}");
            return refuse(&format!("processor.{name}"), kib, &allowed);
        }
    }
    if processor.instruction_ps > 1_000_000 {
        return refuse("processor.instruction_ps", processor.instruction_ps, "0 to 1000000");
    }
    if !tlb_size_is_possible(processor.tlb_entries) {
        let allowed = "0, or a power of two from 16 to 65536";
        return refuse("processor.tlb_entries", processor.tlb_entries, allowed);
    }
    let lines = f64::from(processor.lines_in_flight);
    within("processor.lines_in_flight", lines, 1.0, 1024.0)?;
    let loads = f64::from(processor.loads_in_flight);
    within("processor.loads_in_flight", loads, 1.0, 1024.0)?;
    let reordered = f64::from(processor.reorder_buffer);
    within("processor.reorder_buffer", reordered, 0.0, 10_000.0)?;
    within("processor.llc_latency_ns", processor.llc_latency_ns, 0.0, 1e6)?;
    within("processor.load_factor", processor.load_factor, 0.0, 1e3)?;
    within("processor.load_power", processor.load_power, 0.0, 1e3)?;
    within("processor.load_limit", processor.load_limit, 1.0, 1e3)
}

fn traffic(traffic: &Traffic) -> Result<(), Refusal> {
    within("traffic.clock_ghz", traffic.clock_ghz, 0.1, 10.0)?;
    within("traffic.concurrent_ns", traffic.concurrent_ns, 0.0, 10_000.0)?;
    within("traffic.coherence_lines", traffic.coherence_lines, 0.0, 16.0)
}

#[cfg(test)]
mod tests;
