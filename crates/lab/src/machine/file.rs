//! Machine files: TOML in, a [`Machine`] whose every value makes sense out, or one error that names the file, the key,
//! the value and what is allowed. Nothing is half accepted.
//!
//! The format, with every key, is `lab/machines/README.md`.

use std::fmt;

use nearfar_timing::config::{CPUS_MAX, Processor};
use nearfar_topology::{Bytes, MemoryKind};
use serde::Deserialize;

use super::{CxlDevice, Link, Machine, Node, Path, Traffic};

/// What is wrong with a machine file: a key with its value, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {allowed}")]
pub struct Refusal {
    /// The key, with the table it stands in.
    pub key: String,
    /// What the file says.
    pub value: String,
    /// What it may say.
    pub allowed: String,
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
    read_gbps: f64,
    write_gbps: f64,
    duplex: bool,
    cxl_device: Option<CxlTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CxlTable {
    serial: u64,
    granularity: u32,
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
    #[serde(default)]
    read_links: Vec<String>,
    #[serde(default)]
    write_links: Vec<String>,
}

/// What a file says that does not say: a program that goes on using what a real CPU keeps would see it replaced within
/// some such time.
fn translations_ms() -> u32 {
    10
}

/// Memory comes in blocks of this size, and no two nodes may share one.
const BLOCK: u64 = 128 << 20;
/// A kernel and its start need this much on the first node: 6.12 and 7.2 leave 182 and 170 MB of it free.
const FIRST_MIN: u64 = 256 << 20;
const RAM_MAX: u64 = 1 << 40;
const NODES_MAX: usize = 16;

/// Reads a machine file's text.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn parse(text: &str) -> Result<Machine, Refusal> {
    let file: File = toml::from_str(text).map_err(|error| syntax(text, &error))?;
    let nodes = nodes(&file)?;
    let latency_ns = latencies(&file)?;
    let links: Vec<Link> = links(&file)?;
    let paths = paths(&file, &links)?;
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

/// A size as people write it: a whole number and `MiB` or `GiB`.
fn size(text: &str) -> Option<Bytes> {
    let (number, shift) = if let Some(number) = text.strip_suffix("GiB") {
        (number, 30)
    } else {
        (text.strip_suffix("MiB")?, 20)
    };
    let number: u64 = number.trim_end_matches(' ').parse().ok()?;
    number.checked_mul(1 << shift).map(Bytes)
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

/// A value of the wrong type, a missing or an unknown key: the line that has it, and what the parser expected.
fn syntax(text: &str, error: &toml::de::Error) -> Refusal {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    let number = text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
    let line = text.lines().nth(number - 1).unwrap_or_default().trim();
    let (key, value) = line.split_once('=').unwrap_or((line, ""));
    Refusal {
        key: format!("line {number}: {}", key.trim()),
        value: value.trim().to_owned(),
        allowed: error.message().replace('\n', "; "),
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

fn nodes(file: &File) -> Result<Vec<Node>, Refusal> {
    if file.node.is_empty() || file.node.len() > NODES_MAX {
        return refuse("node", format!("{} tables", file.node.len()), "1 to 16 [[node]] tables");
    }
    let nodes: Vec<Node> =
        (0u16..).zip(&file.node).map(|(id, table)| node(id, table)).collect::<Result<_, _>>()?;
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

fn node(id: u16, table: &NodeTable) -> Result<Node, Refusal> {
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
    within(&key("read_gbps"), table.read_gbps, 0.01, 10_000.0)?;
    within(&key("write_gbps"), table.write_gbps, 0.01, 10_000.0)?;
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
        Some(device) => Some(CxlDevice { serial: device.serial, granularity: device.granularity }),
    };
    Ok(Node {
        kind: table.kind,
        cpus: table.cpus,
        size,
        read_gbps: table.read_gbps,
        write_gbps: table.write_gbps,
        duplex: table.duplex,
        cxl_device,
    })
}

/// Either each node says its latency (one CPU node), or a matrix says all.
fn latencies(file: &File) -> Result<Vec<Vec<f64>>, Refusal> {
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
            let row: Result<_, _> =
                file.node.iter().map(|node| node.latency_ns.ok_or_else(|| missing(node))).collect();
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

fn paths(file: &File, links: &[Link]) -> Result<Vec<Path>, Refusal> {
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
        }
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
    let lines = f64::from(processor.lines_in_flight);
    within("processor.lines_in_flight", lines, 1.0, 1024.0)?;
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
