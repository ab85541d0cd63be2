//! Reads a [`Tree`] into a [`Topology`]: reading can't fail, it returns a value and a list of findings.
//!
//! The order: nodes as sysfs lists them (here), CXL regions, devices and dax (`cxl.rs`), the kind of each node's memory
//! (`infer.rs`), and the tiers (`tiers.rs`). The user's statements about a node's kind ([`Overrides`]) come last and
//! override the rest. A saved probe (`measured.rs`) is evidence for tiers only.
//!
//! Formats, below `sys/devices/system/node`: `online` and `possible` are lists (`0-1,4`); `nodeN/meminfo` has lines
//! `Node N MemTotal: K kB`; `nodeN/distance` has one number per online node, in order of id; `nodeN/accessC/initiators`
//! has a link per best initiator, latencies in nanoseconds and bandwidths in 10^6 bytes per second (access class 0: any
//! initiator, 1: CPUs only); `nodeN/memory_failure` has counts of pages with memory errors. Sources: Linux,
//! Documentation/ABI/stable/sysfs-devices-node and Documentation/admin-guide/mm/numaperf.rst. Errors by memory controller:
//! `sys/devices/system/edac/mc/mcN/{mc_name,ce_count,ue_count}` (Documentation/admin-guide/RAS/main.rst).
//! `has_private_memory` lists nodes with memory that is private to their driver; no released kernel has it yet
//! (patches "N_MEMORY_PRIVATE", G. Price, February 2026).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::kind::{KnownBy, MemoryKind};
use crate::machine::{
    Attributes, Controller, Failures, Finding, Initiator, Node, SideCache, Topology,
};
use crate::reader::{NODES, Reader, brief};
use crate::tree::Tree;
use crate::units::{Bytes, BytesPerSecond, CpuId, Nanoseconds, NodeId};
use crate::{cxl, infer, measured, tiers};

/// Kinds of nodes stated by the user; they override everything read.
pub type Overrides = BTreeMap<NodeId, MemoryKind>;

/// The most that firmware's figures may be: a millisecond, and 100 TB/s.
const NS_MAX: u64 = 1_000_000;
const MBPS_MAX: u64 = 100_000_000;
/// A node's distance from itself, and the least that a distance may be (ACPI, SLIT).
const DISTANCE_MIN: u32 = 10;

impl Topology {
    /// Returns the machine in `tree`, and findings on parts that could not be understood. Never fails: an empty tree
    /// gives a machine without nodes.
    #[must_use]
    pub fn read(tree: &Tree) -> (Self, Vec<Finding>) {
        Self::read_with(tree, &Overrides::new())
    }

    /// As [`Topology::read`], with kinds of nodes stated by the user.
    #[must_use]
    pub fn read_with(tree: &Tree, overrides: &Overrides) -> (Self, Vec<Finding>) {
        let mut reader = Reader { tree, findings: Vec::new() };
        let mut machine = Self {
            product: product(tree),
            kernel: reader.text("proc/sys/kernel/osrelease").map(ToString::to_string),
            ..Self::default()
        };
        machine.controllers = controllers(&mut reader);
        nodes(&mut reader, &mut machine);
        claimed_twice(&mut reader, &machine);
        cxl::read(&mut reader, &mut machine);
        infer::kinds(&mut reader, &mut machine);
        for (id, kind) in overrides {
            match machine.nodes.get_mut(id) {
                Some(node) => (node.kind, node.known_by) = (*kind, KnownBy::User),
                None => reader.note(
                    &format!("{NODES}/node{id}"),
                    format!("said to be {kind}, but no such node is online; ignored"),
                ),
            }
        }
        measured::read(&mut reader, &mut machine);
        machine.tiers = tiers::tiers(&mut reader, &machine);
        (machine, reader.findings)
    }
}

/// Vendor and product, from firmware.
fn product(tree: &Tree) -> Option<String> {
    let parts = ["sys_vendor", "product_name"];
    let words: Vec<&str> = parts
        .iter()
        .filter_map(|part| tree.text(&format!("sys/class/dmi/id/{part}")))
        .filter(|text| !text.is_empty())
        .collect();
    (!words.is_empty()).then(|| words.join(" "))
}

fn nodes(reader: &mut Reader<'_>, machine: &mut Topology) {
    let path = format!("{NODES}/online");
    let present = directories(reader.tree);
    let listed = reader.ids(&path).unwrap_or_else(|| present.clone());
    let online = reader.possible(&path, &listed);
    let cpus_online = cpus_online(reader);
    let private = reader.nodes(&format!("{NODES}/has_private_memory")).unwrap_or_default();
    for id in online.iter() {
        let mut node = Node { private: private.contains(id), ..node(reader, id) };
        if let Some(online) = &cpus_online {
            let listed = node.cpus.len();
            node.cpus.retain(|cpu| online.contains(cpu));
            let gone = listed - node.cpus.len();
            if gone > 0 {
                let note = format!("{gone} of its CPUs are offline; left out");
                reader.note(&format!("{NODES}/node{id}"), note);
            }
        }
        machine.nodes.insert(id, node);
    }
    for id in present.difference(&listed) {
        reader.note(&format!("{NODES}/node{id}"), "present but not online; left out");
    }
    let possible = reader.nodes(&format!("{NODES}/possible")).unwrap_or_default();
    machine.offline = possible.without(&online);
    for from in online.iter() {
        distances(reader, machine, from, listed.len());
    }
}

/// The CPUs that are online, if the kernel lists them.
fn cpus_online(reader: &mut Reader<'_>) -> Option<BTreeSet<CpuId>> {
    const ONLINE: &str = "sys/devices/system/cpu/online";
    let text = reader.text(ONLINE)?;
    let parsed = CpuId::parse_list(text).filter(|cpus| !cpus.is_empty());
    if parsed.is_none() {
        reader.note(ONLINE, format!("`{}` is not a list of CPUs; ignored", brief(text)));
    }
    parsed.map(|cpus| cpus.into_iter().collect())
}

/// Notes CPUs that several nodes claim.
fn claimed_twice(reader: &mut Reader<'_>, machine: &Topology) {
    let mut owners: BTreeMap<CpuId, NodeId> = BTreeMap::new();
    for (id, node) in &machine.nodes {
        let others: Vec<(CpuId, NodeId)> = node
            .cpus
            .iter()
            .filter_map(|cpu| Some((*cpu, owners.insert(*cpu, *id).filter(|other| other != id)?)))
            .collect();
        if let Some((cpu, other)) = others.first() {
            let count = others.len();
            reader.note(
                &format!("{NODES}/node{id}"),
                format!("{count} of its CPUs, such as {cpu}, are those of node {other}, too; taken as CPUs of both"),
            );
        }
    }
}

/// The numbers of the nodes that have a directory.
fn directories(tree: &Tree) -> BTreeSet<u32> {
    tree.children(NODES).filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect()
}

fn node(reader: &mut Reader<'_>, id: NodeId) -> Node {
    let path = format!("{NODES}/node{id}");
    if !reader.tree.exists(&path) {
        reader.note(&path, "online, but has no directory");
        return Node::default();
    }
    Node {
        cpus: cpus(reader, &path),
        size: memory(reader, &path, "MemTotal"),
        free: memory(reader, &path, "MemFree"),
        access0: initiator(reader, &format!("{path}/access0/initiators")),
        access1: initiator(reader, &format!("{path}/access1/initiators")),
        caches: caches(reader, &format!("{path}/memory_side_cache")),
        failures: failures(reader, &format!("{path}/memory_failure")),
        ..Node::default()
    }
}

/// From `cpulist`, or else from `cpumap`, which some recordings have alone.
fn cpus(reader: &mut Reader<'_>, node: &str) -> Vec<CpuId> {
    let (list, map) = (format!("{node}/cpulist"), format!("{node}/cpumap"));
    let (path, what, parsed, text) = match (reader.tree.text(&list), reader.tree.text(&map)) {
        (Some(text), _) => (list, "list", CpuId::parse_list(text), text),
        (None, Some(text)) => (map, "map", CpuId::parse_map(text), text),
        (None, None) => return Vec::new(),
    };
    parsed.unwrap_or_else(|| {
        reader.note(&path, format!("`{}` is not a {what} of CPUs; ignored", brief(text)));
        Vec::new()
    })
}

fn failures(reader: &mut Reader<'_>, path: &str) -> Option<Failures> {
    let mut count = |name: &str| reader.number(&format!("{path}/{name}"));
    let total = count("total")?;
    let mut part = |name: &str| count(name).unwrap_or_default();
    Some(Failures {
        total,
        recovered: part("recovered"),
        delayed: part("delayed"),
        failed: part("failed"),
        ignored: part("ignored"),
    })
}

fn controllers(reader: &mut Reader<'_>) -> Vec<Controller> {
    const EDAC: &str = "sys/devices/system/edac/mc";
    let tree = reader.tree;
    let numbers = tree.children(EDAC).filter_map(|name| name.strip_prefix("mc")?.parse().ok());
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    let mut controller = |number: u32| {
        let path = format!("{EDAC}/mc{number}");
        Some(Controller {
            name: format!("mc{number}"),
            model: reader.text(&format!("{path}/mc_name")).map(ToString::to_string),
            corrected: reader.number(&format!("{path}/ce_count"))?,
            uncorrected: reader.number(&format!("{path}/ue_count"))?,
        })
    };
    numbers.into_iter().filter_map(&mut controller).collect()
}

/// Memory-side caches: `indexN/{size,line_size,indexing,write_policy}` (numaperf.rst).
fn caches(reader: &mut Reader<'_>, path: &str) -> Vec<SideCache> {
    let tree = reader.tree;
    let levels = tree.children(path).filter_map(|name| name.strip_prefix("index")?.parse().ok());
    let mut levels: Vec<u32> = levels.collect();
    levels.sort_unstable();
    let word = |number: Option<u64>, words: [&str; 2]| {
        let number = number?;
        let known = usize::try_from(number).ok().and_then(|number| words.get(number).copied());
        Some(known.map_or_else(|| number.to_string(), ToString::to_string))
    };
    let mut cache = |level: u32| {
        let mut number = |name: &str| reader.number(&format!("{path}/index{level}/{name}"));
        SideCache {
            level,
            size: number("size").map(Bytes),
            line: number("line_size").map(Bytes),
            associativity: word(number("indexing"), ["direct-mapped", "associative"]),
            write: word(number("write_policy"), ["write-back", "write-through"]),
        }
    };
    levels.into_iter().map(&mut cache).collect()
}

/// A field of `meminfo`, which is in kB; zero where it is missing.
fn memory(reader: &mut Reader<'_>, node: &str, field: &str) -> Bytes {
    let path = format!("{node}/meminfo");
    let text = reader.tree.text(&path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.split_once(field)?.1.strip_prefix(':'));
    let kilobytes = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok());
    let bytes = kilobytes.and_then(|kilobytes: u64| kilobytes.checked_mul(1024));
    if bytes.is_none() {
        reader.note(&path, format!("no {field} in kB; taken as none"));
    }
    Bytes(bytes.unwrap_or_default())
}

fn bytes_per_second(mbps: u64) -> BytesPerSecond {
    BytesPerSecond(mbps.saturating_mul(1_000_000))
}

fn initiator(reader: &mut Reader<'_>, path: &str) -> Option<Initiator> {
    if !reader.tree.exists(path) {
        return None;
    }
    let tree = reader.tree;
    let node = |name: &str| NodeId::new(name.strip_prefix("node")?.parse().ok()?);
    let nodes = tree.children(path).filter_map(node).collect();
    let mut figure = |name: &str, most: u64| {
        let file = format!("{path}/{name}");
        let figure = reader.number(&file)?;
        if figure > most {
            reader.note(&file, format!("{figure} is above {most}, as no memory has; ignored"));
        }
        // The kernel shows 0 where firmware reported nothing.
        (1..=most).contains(&figure).then_some(figure)
    };
    let attributes = Attributes {
        read_latency: figure("read_latency", NS_MAX).map(Nanoseconds),
        write_latency: figure("write_latency", NS_MAX).map(Nanoseconds),
        read_bandwidth: figure("read_bandwidth", MBPS_MAX).map(bytes_per_second),
        write_bandwidth: figure("write_bandwidth", MBPS_MAX).map(bytes_per_second),
    };
    Some(Initiator { nodes, attributes })
}

/// The row of distances from a node, with a column for each of so many nodes.
fn distances(reader: &mut Reader<'_>, machine: &mut Topology, from: NodeId, columns: usize) {
    let path = format!("{NODES}/node{from}/distance");
    let Some(text) = reader.text(&path) else { return };
    let values: Option<Vec<u32>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    match values {
        Some(values) if values.iter().any(|distance| *distance < DISTANCE_MIN) => {
            let note =
                format!("distances below {DISTANCE_MIN}, that of a node from itself; ignored");
            reader.note(&path, note);
        }
        Some(values) if values.len() == columns => {
            let row = machine.nodes.keys().copied().zip(values).collect();
            machine.distances.insert(from, row);
        }
        _ => {
            reader.note(&path, format!("not one number per online node ({columns}); ignored"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodeset::NodeSet;
    use proptest::prelude::*;
    use std::string::String;

    const TWO: &str = "\
@ sys/devices/system/node/online
0,1023
@ sys/devices/system/node/possible
0-3,1023
@ sys/devices/system/node/node0/cpulist
0-1
@ sys/devices/system/node/node0/meminfo
Node 0 MemTotal:       2048 kB
Node 0 MemFree:        1024 kB
@ sys/devices/system/node/node0/distance
10 20
@ sys/devices/system/node/node1023/cpulist

@ sys/devices/system/node/node1023/meminfo
Node 1023 MemTotal:       4096 kB
Node 1023 MemFree:        4096 kB
@ sys/devices/system/node/node1023/distance
20 10
@ sys/devices/system/node/node1023/access1/initiators/node0
-> ../../../node0
@ sys/devices/system/node/node1023/access1/initiators/read_latency
250
@ sys/devices/system/node/node1023/access1/initiators/read_bandwidth
13000
@ sys/devices/system/node/node1023/access1/initiators/write_bandwidth
0
";

    #[test]
    fn nodes_with_any_ids_are_read() {
        let (machine, findings) = Topology::read(&Tree::parse(TWO));
        assert_eq!(findings, []);
        assert_eq!(machine.nodes.len(), 2);
        assert_eq!(machine.nodes[&NodeId(0)].cpus, [CpuId(0), CpuId(1)]);
        assert_eq!(machine.nodes[&NodeId(1023)].size, Bytes(4 << 20));
        assert_eq!(machine.offline.to_string(), "1-3");
        assert_eq!(machine.distance(NodeId(0), NodeId(1023)), Some(20));
        let access = machine.nodes[&NodeId(1023)].access1.clone().unwrap();
        assert_eq!(access.nodes.to_string(), "0");
        assert_eq!(access.attributes.read_latency, Some(Nanoseconds(250)));
        assert_eq!(access.attributes.read_bandwidth, Some(BytesPerSecond(13_000_000_000)));
        assert_eq!(access.attributes.write_bandwidth, None);
    }

    #[test]
    fn unparsable_input_is_a_finding_and_the_rest_is_read() {
        for (from, to, path, part) in [
            ("0-1\n", "0-x\n", "node0/cpulist", "not a list of CPUs"),
            ("0,1023", "0;1023", "online", "not a list of nodes"),
            ("0,1023", "0,1023,70000", "online", "1 with a number above 1023"),
            ("10 20\n", "10\n", "node0/distance", "one number per online node (2)"),
            ("2048 kB", "lots", "node0/meminfo", "no MemTotal"),
            ("\n250\n", "\nslow\n", "read_latency", "`slow` is not a number"),
            ("0,1023", "0,7,1023", "node7", "no directory"),
        ] {
            let (machine, findings) = Topology::read(&Tree::parse(&TWO.replacen(from, to, 1)));
            let found = findings.iter().find(|f| f.path.ends_with(path));
            let found = found.unwrap_or_else(|| std::panic!("{path}: {findings:?}"));
            assert!(found.message.contains(part), "{found}");
            assert!(machine.nodes.contains_key(&NodeId(1023)), "{path}");
        }
    }

    #[test]
    fn driver_managed_memory_is_in_no_set_and_can_not_be_named() {
        let mut tree = Tree::parse(TWO);
        tree.insert("sys/devices/system/node/has_private_memory", "1023");
        let (machine, findings) = Topology::read(&tree);
        assert_eq!(findings, []);
        assert!(machine.nodes[&NodeId(1023)].private);
        assert_eq!((machine.memory_nodes().to_string(), machine.far().len()), ("0".into(), 0));
        let expr: crate::NodeExpr = "1023".parse().unwrap();
        let refused = expr.resolve(&machine, &[]).unwrap_err().to_string();
        assert!(refused.contains("node 1023 (private memory of its driver)"), "{refused}");
    }

    #[test]
    fn errors_are_counted_by_node_and_by_controller() {
        let mut tree = Tree::parse(TWO);
        for (path, text) in [
            ("node/node1023/memory_failure/total", "3"),
            ("node/node1023/memory_failure/recovered", "2"),
            ("node/node1023/memory_failure/failed", "1"),
            ("edac/mc/mc10/ce_count", "0"),
            ("edac/mc/mc10/ue_count", "0"),
            ("edac/mc/mc2/ce_count", "7"),
            ("edac/mc/mc2/ue_count", "1"),
            ("edac/mc/mc2/mc_name", "F19h"),
            ("edac/mc/mc3/ce_count", "7"),
        ] {
            tree.insert(&format!("sys/devices/system/{path}"), text);
        }
        let (machine, _) = Topology::read(&tree);
        let failures = Failures { total: 3, recovered: 2, failed: 1, ..Failures::default() };
        assert_eq!(machine.nodes[&NodeId(1023)].failures, Some(failures));
        assert_eq!(machine.nodes[&NodeId(0)].failures, None);
        let [first, last] = &machine.controllers[..] else {
            std::panic!("{:?}", machine.controllers)
        };
        assert_eq!((first.name.as_str(), first.corrected, first.uncorrected), ("mc2", 7, 1));
        assert_eq!((first.model.as_deref(), last.name.as_str()), (Some("F19h"), "mc10"));
    }

    #[test]
    fn a_statement_of_the_user_takes_precedence_and_an_absent_node_is_named() {
        let says = Overrides::from([(NodeId(1023), MemoryKind::Hbm), (NodeId(9), MemoryKind::Cxl)]);
        let (machine, findings) = Topology::read_with(&Tree::parse(TWO), &says);
        let node = &machine.nodes[&NodeId(1023)];
        assert_eq!((node.kind, node.known_by), (MemoryKind::Hbm, KnownBy::User));
        assert_eq!(machine.tier(0).to_string(), "1023");
        assert!(findings.iter().any(|f| f.path.ends_with("node9")), "{findings:?}");
    }

    #[test]
    fn an_empty_tree_is_a_machine_without_nodes() {
        assert_eq!(Topology::read(&Tree::new()), (Topology::default(), Vec::new()));
    }

    fn recorded() -> impl Strategy<Value = &'static str> {
        proptest::sample::select(crate::recorded::ALL.map(|(_, text)| text).to_vec())
    }

    proptest! {
        #[test]
        fn any_change_to_a_recording_is_read_without_panic(
            text in recorded(),
            cuts in proptest::collection::vec((any::<prop::sample::Index>(), "[ -~\n]{0,12}"), 0..8),
        ) {
            let mut text = String::from(text);
            for (at, with) in cuts {
                let at = at.index(text.len().max(1));
                if text.is_char_boundary(at) {
                    let end = (at + 1..=text.len()).find(|end| text.is_char_boundary(*end));
                    text.replace_range(at..end.unwrap_or(at), &with);
                }
            }
            let (machine, _) = Topology::read(&Tree::parse(&text));
            let _ = (machine.inventory(), machine.fingerprint(), machine.near(), machine.far(), machine.local(&[]));
        }

        #[test]
        fn any_values_in_the_right_places_are_read_without_panic(
            text in recorded(),
            values in proptest::collection::vec((any::<prop::sample::Index>(), "(-1|0x[0-9a-f]{1,17}|[0-9]{1,22}|[0-9,-]{0,12}|-> ../[a-z0-9/]{0,20}|[ -~]{0,12})"), 0..12),
        ) {
            let mut tree = Tree::parse(text);
            let paths: Vec<String> = tree.iter().map(|(path, _)| path.into()).collect();
            for (at, value) in values {
                tree.insert(&paths[at.index(paths.len())], &value);
            }
            let (machine, _) = Topology::read(&tree);
            let tiered: NodeSet = machine.tiers.iter().flat_map(|tier| tier.nodes.iter()).collect();
            prop_assert_eq!(tiered, machine.memory_nodes());
            let _ = (machine.inventory(), machine.fingerprint(), machine.near(), machine.far(), machine.local(&[]));
        }
    }
}
