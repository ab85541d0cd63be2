//! The text of `nearfar topo`: tiers with their nodes, distances, CXL, notes; as wide as the terminal.
//!
//! Parts without content are left out: CXL without devices, distances of a single node. Not here: the JSON (`json.rs`).

use std::fmt::Write as _;

use nearfar_topology::{
    Bytes, CpuList, CxlDevice, CxlRegion, Dax, Finding, Initiator, KnownBy, Measured, MemoryKind,
    Node, NodeId, NodeSet, SideCache, Tier, Topology, View,
};

use nearfar_kernel::smbios::{Module, Modules};

use crate::machine;
use crate::output::{tied, wrapped};
use crate::terminal;

/// The whole text.
#[must_use]
pub fn of(
    machine: &Topology,
    lab: Option<&serde_json::Value>,
    findings: &[Finding],
    modules: &Modules,
) -> String {
    let mut out = String::new();
    head(&mut out, machine);
    self::modules(&mut out, modules);
    errors(&mut out, machine);
    if let Some(lab) = lab {
        machine::emulated(&mut out, lab);
    }
    for (rank, tier) in machine.tiers.iter().enumerate() {
        self::tier(&mut out, machine, rank, tier);
    }
    apart(&mut out, machine);
    without_memory(&mut out, machine);
    near_and_far(&mut out, machine);
    distances(&mut out, machine);
    cxl(&mut out, machine);
    notes(&mut out, machine, findings);
    out
}

fn head(out: &mut String, machine: &Topology) {
    let product = machine.product.as_deref().unwrap_or("Unnamed machine");
    let kernel = machine.kernel.as_deref().unwrap_or("of unknown release");
    let total = machine.nodes.values().map(|node| node.size.0).fold(0, u64::saturating_add);
    let nodes = match machine.nodes.len() {
        1 => "1 node".to_string(),
        count => format!("{count} nodes"),
    };
    wrapped(out, "", &format!("{product}, Linux {kernel}: {nodes}, {}", Bytes(total)), 2);
}

/// `Memory modules: 16 of 32 GiB, DDR5 at 4800 MT/s (made for 5600)`
fn modules(out: &mut String, modules: &Modules) {
    let shown = |(module, count): (&Module, &usize)| {
        let mut text = format!("{count} of {}", module.size);
        if let Some(kind) = module.kind {
            let _ = write!(text, ", {kind}");
        }
        match (module.configured.or(module.speed), module.speed) {
            (Some(now), Some(most)) if now != most => {
                let _ = write!(text, " at {now} MT/s (made for {most})");
            }
            (Some(now), _) => {
                let _ = write!(text, " at {now} MT/s");
            }
            _ => {}
        }
        text
    };
    let all: Vec<String> = modules.iter().map(shown).collect();
    if !all.is_empty() {
        wrapped(out, "", &format!("Memory modules: {}", all.join("; ")), 2);
    }
}

/// Memory controllers with errors.
fn errors(out: &mut String, machine: &Topology) {
    let bad = machine.controllers.iter().filter(|one| one.corrected > 0 || one.uncorrected > 0);
    bad.for_each(|one| wrapped(out, "", &format!("Memory controller {one}"), 2));
}

fn tier(out: &mut String, machine: &Topology, rank: usize, tier: &Tier) {
    let place = if rank == 0 { "near" } else { "far" };
    let kernel = match (tier.kernel_id, tier.known_by) {
        (Some(id), KnownBy::MemoryTier) => format!("the kernel's memory_tier{id}"),
        (Some(id), by) => format!("ranked by {}; memory_tier{id} to the kernel", evidence(by)),
        (None, by) => format!("ranked by {}; the kernel reports no tiers", evidence(by)),
    };
    out.push('\n');
    wrapped(out, "", &format!("tier:{rank}  {place}  ({kernel})"), 2);
    for id in tier.nodes.iter() {
        if let Some(node) = machine.nodes.get(&id) {
            self::node(out, machine, id, node);
        }
    }
}

/// The evidence, to follow "known by" or "by".
fn evidence(known_by: KnownBy) -> &'static str {
    match known_by {
        KnownBy::User => "--kind",
        KnownBy::CxlRegion => "CXL region",
        KnownBy::NdRegion => "persistent-memory region",
        KnownBy::Driver => "its driver",
        KnownBy::Hmat => "firmware's figures",
        KnownBy::CpuModel => "the CPU's model",
        KnownBy::MemoryTier => "the kernel's tier",
        KnownBy::Probe => "a saved probe",
        KnownBy::Cpus => "its CPUs",
        KnownBy::Distance => "distance",
        KnownBy::Nothing => "no evidence",
    }
}

fn node(out: &mut String, machine: &Topology, id: NodeId, node: &Node) {
    let known = match node.known_by {
        KnownBy::CxlRegion => {
            let regions = machine.cxl_regions.iter();
            let own = regions.filter(|region| region.target_node == Some(id));
            let names: Vec<&str> = own.map(|region| region.name.as_str()).collect();
            format!("known by CXL {}", names.join(", "))
        }
        KnownBy::Nothing => String::from("its kind is unknown: set it with --kind\u{a0}NODE=KIND"),
        by => format!("known by {}", evidence(by)),
    };
    let line = format!("{:<7}  {}, {} free; {known}", node.kind, node.size, node.free);
    let first = format!("  node {id:<4} ");
    let indent = first.len();
    wrapped(out, &first, &line, indent);
    let margin = " ".repeat(indent);
    if !node.cpus.is_empty() {
        cpus(out, &margin, node);
    }
    for cache in &node.caches {
        wrapped(out, &margin, &side_cache(cache), indent + 2);
    }
    if let Some(Measured { latency, read_bandwidth }) = node.measured {
        wrapped(out, &margin, &format!("measured: {latency}, reads {read_bandwidth}"), indent + 10);
    }
    if let Some(failures) = node.failures.filter(|failures| failures.total > 0) {
        wrapped(out, &margin, &failures.to_string(), indent + 2);
    }
    let (any, cpu) = (node.access0.as_ref(), node.access1.as_ref());
    if let Some(access) = cpu.or(any) {
        wrapped(out, &margin, &format!("firmware: {}", figures(access)), indent + 10);
    }
    if let (Some(any), Some(cpu)) = (any, cpu)
        && any != cpu
    {
        let text = format!("firmware, best initiator of any kind: {}", figures(any));
        wrapped(out, &margin, &text, indent + 10);
    }
}

/// `behind a memory-side cache of 96 GiB (level 1, direct-mapped, write-back, lines of 64 B)`
fn side_cache(cache: &SideCache) -> String {
    let mut parts = vec![format!("level {}", cache.level)];
    parts.extend(cache.associativity.clone());
    parts.extend(cache.write.clone());
    parts.extend(cache.line.filter(|line| *line > Bytes(0)).map(|line| format!("lines of {line}")));
    let size = size(cache.size.filter(|size| *size > Bytes(0)));
    format!("behind a memory-side cache of {size} ({})", parts.join(", "))
}

fn cpus(out: &mut String, margin: &str, node: &Node) {
    let ranges = CpuList(&node.cpus).to_string().replace(',', ", ");
    let text = match node.cpus.len() {
        1 => format!("CPU {ranges}"),
        count => format!("{count} CPUs: {ranges}"),
    };
    wrapped(out, margin, &text, margin.len() + 2);
}

/// `100 ns, reads 40.0 GB/s, writes 40.0 GB/s from node 0`
fn figures(access: &Initiator) -> String {
    let figures = access.attributes;
    let mut parts = Vec::new();
    match (figures.read_latency, figures.write_latency) {
        (Some(read), Some(write)) if read == write => parts.push(read.to_string()),
        (read, write) => {
            parts.extend(read.map(|read| format!("reads {read}")));
            parts.extend(write.map(|write| format!("writes {write}")));
        }
    }
    match (figures.read_bandwidth, figures.write_bandwidth) {
        (Some(read), Some(write)) if read == write => {
            parts.push(format!("{read} reads or writes"));
        }
        (read, write) => {
            parts.extend(read.map(|read| format!("reads {read}")));
            parts.extend(write.map(|write| format!("writes {write}")));
        }
    }
    if parts.is_empty() {
        parts.push(String::from("no figures"));
    }
    let from = if access.nodes.is_empty() {
        String::new()
    } else {
        format!(", from node {}", access.nodes)
    };
    parts.join(", ") + &from
}

/// Nodes with memory that is in no tier: of GPUs, or private to a driver.
fn apart(out: &mut String, machine: &Topology) {
    let gpus = machine.of_kind(MemoryKind::Gpu);
    let private = machine.nodes.iter().filter(|(_, node)| node.private).map(|(id, _)| *id);
    for (heading, indent, nodes) in [
        (
            "gpu  memory of GPUs, for their programs: not in near, far or all; named by gpu or by number",
            5,
            gpus,
        ),
        (
            "private  memory that its driver keeps from programs: in no set of nodes, and can't be named",
            9,
            private.collect(),
        ),
    ] {
        if !nodes.is_empty() {
            out.push('\n');
            wrapped(out, "", heading, indent);
        }
        for (id, node) in nodes.iter().filter_map(|id| Some((id, machine.nodes.get(&id)?))) {
            self::node(out, machine, id, node);
        }
    }
}

/// Nodes without memory, and nodes that are not online.
fn without_memory(out: &mut String, machine: &Topology) {
    let empty: Vec<_> = machine.nodes.iter().filter(|(_, node)| node.size == Bytes(0)).collect();
    if !empty.is_empty() {
        out.push_str("\nwithout memory\n");
        for (id, node) in empty {
            let first = format!("  node {id:<4} ");
            if node.cpus.is_empty() {
                let _ = writeln!(out, "{first}no CPUs either");
            } else {
                cpus(out, &first, node);
            }
        }
    }
    if !machine.offline.is_empty() {
        out.push('\n');
        let text = format!("{}: possible, not online", comma_spaced(&machine.offline));
        let nodes = if machine.offline.iter().nth(1).is_none() { "node" } else { "nodes" };
        wrapped(out, &format!("offline {nodes} "), &text, 4);
    }
}

/// On several sockets, the memory that is near to each, and the rest.
fn near_and_far(out: &mut String, machine: &Topology) {
    let cpu_nodes = machine.cpu_nodes();
    if cpu_nodes.len() < 2 || machine.near().len() < 2 {
        return;
    }
    out.push_str("\nnear and far memory, from the CPUs of\n");
    let text = |nodes: &NodeSet| match nodes.is_empty() {
        true => String::from("nothing"),
        false => nodes.to_string(),
    };
    for view in machine.views() {
        let far = machine.others(&view).into_iter().collect();
        let View { cpu_node, near, .. } = view;
        let _ = writeln!(out, "  node {cpu_node:<4} near {}, far {}", text(&near), text(&far));
    }
}

/// The distance matrix, if there are at least two nodes and it fits.
fn distances(out: &mut String, machine: &Topology) {
    let ids: Vec<NodeId> = machine.nodes.keys().copied().collect();
    if ids.len() < 2 || machine.distances.is_empty() {
        return;
    }
    let width = 6;
    if (ids.len() + 2) * width > terminal::get().columns {
        out.push_str("\ndistances: too many nodes for a table; see --json\n");
        return;
    }
    let _ = write!(out, "\ndistances\n  from\\to ");
    for to in &ids {
        let _ = write!(out, "{:>width$}", to.0);
    }
    out.push('\n');
    for from in &ids {
        let _ = write!(out, "  {:<8}", from.0);
        for to in &ids {
            match machine.distance(*from, *to) {
                Some(distance) => write!(out, "{distance:>width$}"),
                None => write!(out, "{:>width$}", "?"),
            }
            .unwrap_or_default();
        }
        out.push('\n');
    }
}

fn cxl(out: &mut String, machine: &Topology) {
    let mut used = Vec::new();
    if !machine.cxl_regions.is_empty() || !machine.cxl_devices.is_empty() {
        out.push_str("\nCXL\n");
    }
    for region in &machine.cxl_regions {
        self::region(out, machine, region);
        for device in machine.cxl_devices.iter().filter(|d| region.devices.contains(&d.name)) {
            self::device(out, device, "    ");
            used.push(&device.name);
        }
        for dax in machine.dax.iter().filter(|dax| dax.region.as_ref() == Some(&region.name)) {
            self::dax(out, dax, "    ");
        }
    }
    for device in machine.cxl_devices.iter().filter(|device| !used.contains(&&device.name)) {
        self::device(out, device, "  ");
    }
    let regions: Vec<_> = machine.cxl_regions.iter().map(|region| Some(&region.name)).collect();
    let mut others =
        machine.dax.iter().filter(|dax| !regions.contains(&dax.region.as_ref())).peekable();
    if others.peek().is_some() {
        out.push_str("\ndax\n");
        others.for_each(|dax| self::dax(out, dax, "  "));
    }
}

fn size(bytes: Option<Bytes>) -> String {
    bytes.map_or_else(|| String::from("size unknown"), |bytes| bytes.to_string())
}

fn region(out: &mut String, machine: &Topology, region: &CxlRegion) {
    let mut text = format!("{}  {}", region.name, size(region.size));
    if let Some(mode) = &region.mode {
        let _ = write!(text, " {mode}");
    }
    if let Some(ways) = region.interleave_ways.filter(|ways| *ways > 1) {
        let _ = write!(text, ", {ways} ways");
        if let Some(granularity) = region.interleave_granularity {
            let _ = write!(text, " by {granularity}");
        }
    }
    text.push_str(if region.committed { ", committed" } else { ", not committed" });
    match region.target_node {
        Some(node) if machine.nodes.contains_key(&node) => {
            let _ = write!(text, ", memory of node {node}");
        }
        Some(node) => {
            let _ = write!(text, ", for node {node}, which is not online");
        }
        None => text.push_str(", on no node"),
    }
    wrapped(out, "  ", &text, 6);
}

fn device(out: &mut String, device: &CxlDevice, margin: &str) {
    let mut parts = Vec::new();
    parts.extend(device.ram_size.map(|size| tied(format_args!("{size} volatile"))));
    parts.extend(device.pmem_size.map(|size| tied(format_args!("{size} persistent"))));
    parts.extend(device.serial.map(|serial| tied(format_args!("serial {serial:#x}"))));
    parts.extend(device.firmware.as_ref().map(|version| tied(format_args!("firmware {version}"))));
    parts.extend(device.pci.as_ref().map(|address| tied(format_args!("PCI {address}"))));
    parts.extend(device.numa_node.map(|node| tied(format_args!("at node {node}"))));
    wrapped(out, margin, &format!("{}  {}", device.name, parts.join(", ")), margin.len() + 4);
}

fn dax(out: &mut String, dax: &Dax, margin: &str) {
    let mut text = format!("{}  {}", dax.name, size(dax.size));
    if dax.persistent {
        text.push_str(", persistent");
    }
    text.push_str(match dax.driver.as_deref() {
        Some("kmem") => ", system memory (kmem)",
        Some("device_dax") => ", a character device (device_dax), no system memory",
        Some(_) => ", another driver",
        None => ", no driver",
    });
    if let Some(node) = dax.target_node {
        let _ = write!(text, ", node {node}");
    }
    wrapped(out, margin, &text, margin.len() + 4);
}

fn notes(out: &mut String, machine: &Topology, findings: &[Finding]) {
    let notes = super::notes::of(machine, findings);
    if !notes.is_empty() {
        out.push_str("\nnotes\n");
        for note in notes {
            wrapped(out, "  ", &note, 4);
        }
    }
}

/// A node list with a space after each comma, so that it can be wrapped.
fn comma_spaced(nodes: &NodeSet) -> String {
    nodes.to_string().replace(',', ", ")
}
