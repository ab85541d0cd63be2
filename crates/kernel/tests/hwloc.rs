//! hwloc's snapshots of Linux machines, compared with hwloc's expected outputs: nodes, their CPUs and sizes. Run by
//! `make corpus`, which unpacks them from Debian's source package; hwloc's outputs are text (lstopo -v) or XML.

#![expect(clippy::unwrap_used, reason = "this is a test program")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use nearfar_kernel::fs::{RootFs, topology};
use nearfar_topology::{Bytes, CpuId, MemoryKind, Overrides, Topology};

/// A node: its bytes, and the CPUs beside it.
type Nodes = BTreeMap<u16, (u64, BTreeSet<u32>)>;

const CGROUP: &str = "hwloc leaves out what the snapshot's cgroup may not use";
const OLD: &str = "CPUs are offline by files of their own only, as before Linux 2.6.37";
const NO_NODES: &str = "the kernel has no nodes (no CONFIG_NUMA); hwloc makes one up";

/// Snapshots that differ, and why.
const DIFFERENT: &[(&str, &str)] = &[
    ("16amd64-4n4c-cgroup-distance-merge", CGROUP),
    ("16amd64-8n2c-cpusets", CGROUP),
    ("16em64t-4s2c2t-offlines", OLD),
    ("16em64t-4s2ca2c-cpusetreorder", CGROUP),
    ("20s390-2g6s4c", NO_NODES),
    ("2arm-2c", NO_NODES),
    ("2i386-2c-nohugepage", NO_NODES),
    ("2i386-2t-hugepagesizecount", NO_NODES),
    ("2s390-2c", NO_NODES),
    ("32amd64-4s2n4c-cgroup2", CGROUP),
    ("4em64t-2c2t-ignore-reorder", "hwloc's output is without details"),
    ("4fake-4gr1nu1pu", CGROUP),
    ("8em64t-2s2ca2c-buggynuma", "all nodes claim all CPUs; hwloc drops them, nearfar says so"),
];

fn attribute<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!(" {name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// The CPUs of a mask such as `0x0000000f,0x00000003`.
fn mask(text: &str) -> BTreeSet<u32> {
    let words = text.split(',').map(|word| word.trim_start_matches("0x"));
    let words = words.map(|word| format!("{word:0>8}")).collect::<Vec<_>>().join(",");
    CpuId::parse_map(&words).unwrap().into_iter().map(|cpu| cpu.0).collect()
}

fn of_xml(text: &str) -> Nodes {
    let nodes = text.lines().filter(|line| line.contains("<object type=\"NUMANode\""));
    nodes
        .map(|line| {
            let number = |name: &str| attribute(line, name).map_or(0, |text| text.parse().unwrap());
            let id = u16::try_from(number("os_index")).unwrap();
            (id, (number("local_memory"), mask(attribute(line, "cpuset").unwrap())))
        })
        .collect()
}

/// The number in `P#7`, or in `local=7KB`.
fn number(line: &str, before: &str) -> Option<u64> {
    let (_, rest) = line.split_once(before)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// A node's CPUs are those of the object that it is in; memory-side caches do not count.
fn of_text(text: &str) -> Nodes {
    let mut above: Vec<(usize, bool, usize)> = Vec::new();
    let mut cpus: Vec<BTreeSet<u32>> = Vec::new();
    let mut nodes: Vec<(u16, u64, usize)> = Vec::new();
    for line in text.lines().take_while(|line| !line.starts_with("depth")) {
        let depth = line.len() - line.trim_start().len();
        above.retain(|(at, ..)| *at < depth);
        let line = line.trim_start();
        if line.starts_with("NUMANode") {
            let parent = above.iter().rev().find(|(_, is_memory, _)| !is_memory).unwrap().2;
            let id = u16::try_from(number(line, "P#").unwrap()).unwrap();
            nodes.push((id, number(line, "local=").unwrap_or(0) * 1024, parent));
        } else if line.starts_with("PU ") {
            let cpu = u32::try_from(number(line, "P#").unwrap()).unwrap();
            above.iter().for_each(|(.., at)| {
                cpus[*at].insert(cpu);
            });
        }
        above.push((depth, line.starts_with("MemCache"), cpus.len()));
        cpus.push(BTreeSet::new());
    }
    nodes.into_iter().map(|(id, bytes, parent)| (id, (bytes, cpus[parent].clone()))).collect()
}

/// The differences of a machine from the expected output.
fn differences(machine: &Topology, expected: &Nodes) -> Vec<String> {
    let has_memory = |id: &u16| expected.get(id).is_some_and(|(bytes, _)| *bytes > 0);
    let mut found = Vec::new();
    for (id, node) in &machine.nodes {
        let shown = node.size > Bytes(0) && node.kind != MemoryKind::Gpu;
        match expected.get(&id.0) {
            None if shown => found.push(format!("node {id} is not hwloc's")),
            None => {}
            Some((bytes, _)) if *bytes != node.size.0 => {
                found.push(format!("node {id} has {} bytes, hwloc: {bytes}", node.size.0));
            }
            Some((_, cpus)) => {
                let own: BTreeSet<u32> = node.cpus.iter().map(|cpu| cpu.0).collect();
                // hwloc has nodes without CPUs beside those of the object they belong to.
                if !own.is_empty() && own != *cpus {
                    found.push(format!("node {id} has CPUs {own:?}, hwloc: {cpus:?}"));
                }
            }
        }
    }
    let missing = expected.keys().filter(|id| has_memory(id));
    let missing = missing.filter(|id| machine.nodes.keys().all(|own| own.0 != **id));
    found.extend(missing.map(|id| format!("node {id} is missing")));
    found
}

fn snapshots(dir: &Path) -> Vec<(String, PathBuf, Nodes)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(dir.join(format!("{name}.output")))
            .or_else(|_| fs::read_to_string(dir.join(format!("{name}.xml.output"))));
        let Ok(text) = text else { continue };
        let nodes = if text.contains("<topology") { of_xml(&text) } else { of_text(&text) };
        found.push((name, path, nodes));
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

#[test]
#[ignore = "needs hwloc's snapshots: make corpus"]
fn snapshots_have_the_nodes_cpus_and_sizes_that_hwloc_expects() {
    let dir = std::env::var_os("NEARFAR_CORPUS").unwrap();
    let (mut agree, mut wrong) = (0, Vec::new());
    let all = snapshots(Path::new(&dir));
    for (name, root, expected) in &all {
        let fs = RootFs::new(root).unwrap();
        let (machine, findings) = topology(&fs, &Overrides::new());
        let found = differences(&machine, expected);
        let reason = DIFFERENT.iter().find(|(one, _)| one == name).map(|(_, reason)| *reason);
        let (nodes, findings) = (machine.nodes.len(), findings.len());
        match (found.first(), reason) {
            (None, None) => {
                agree += 1;
                println!("{name:<40} {nodes:>3} nodes, {findings:>2} findings: agrees");
            }
            (Some(first), Some(reason)) => println!("{name:<40} differs: {first}; {reason}"),
            (Some(first), None) => wrong.push(format!("{name}: {first}")),
            (None, Some(_)) => wrong.push(format!("{name}: agrees, but is said to differ")),
        }
    }
    let differ = all.len() - agree - wrong.len();
    println!("{agree} of {} agree, {differ} differ for a reason", all.len());
    assert!(all.len() > 30, "{} snapshots", all.len());
    assert_eq!(wrong, [""; 0], "differences without a reason");
}
