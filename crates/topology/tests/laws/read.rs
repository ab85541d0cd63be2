//! Reading: a well-formed machine reads back as described, any other tree reads without panic.

use nearfar_topology::{
    Bytes, BytesPerSecond, CpuId, Nanoseconds, NodeId, NodeSet, Topology, Tree,
};
use proptest::prelude::*;

use crate::sysfs::{Sysfs, any_recorded, few, ids, recorded};

/// Names of files and directories that reading asks for, and some that it does not.
const SEGMENTS: [&str; 30] = [
    "sys",
    "devices",
    "system",
    "node",
    "node0",
    "node1",
    "node1023",
    "node9999",
    "memory",
    "memory0",
    "memory_tier4",
    "online",
    "possible",
    "distance",
    "cpulist",
    "meminfo",
    "access0",
    "access1",
    "initiators",
    "read_latency",
    "bus",
    "cxl",
    "dax",
    "dax0.0",
    "region0",
    "target0",
    "decoder0.0",
    "endpoint1",
    "resource",
    "target_node",
];

/// Directories that reading starts from.
const ROOTS: [&str; 8] = [
    "",
    "sys/devices/system/node/",
    "sys/devices/system/node/node0/",
    "sys/bus/cxl/devices/",
    "sys/bus/cxl/devices/region0/",
    "sys/bus/dax/devices/",
    "sys/devices/system/memory/",
    "sys/devices/virtual/memory_tiering/",
];

fn any_path() -> impl Strategy<Value = String> {
    let segments = prop::collection::vec(prop::sample::select(SEGMENTS.to_vec()), 1..4);
    (prop::sample::select(ROOTS.to_vec()), segments)
        .prop_map(|(root, rest)| root.to_string() + &rest.join("/"))
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9]{1,21}",
        "0x[0-9a-f]{1,17}",
        "[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,4}(-[0-9]{1,5})?){0,3}",
        "-> (\\.\\./){0,2}[a-z0-9./]{0,24}",
        "Node [0-9] Mem(Total|Free): [0-9]{1,22} kB",
        "\\PC{0,16}",
    ]
}

/// Invariants of every machine that was read.
fn check(machine: &Topology) -> Result<(), TestCaseError> {
    let all: Vec<NodeId> = machine.tiers.iter().flat_map(|tier| tier.nodes.iter()).collect();
    prop_assert_eq!(all.len(), machine.memory_nodes().len(), "a node is in one tier");
    prop_assert_eq!(all.into_iter().collect::<NodeSet>(), machine.memory_nodes());
    prop_assert!(machine.tiers.iter().all(|tier| !tier.nodes.is_empty()));
    for node in machine.nodes.values() {
        prop_assert!(node.cpus.windows(2).all(|pair| pair[0] < pair[1]));
    }
    prop_assert!(
        machine.nodes.keys().all(|id| *id <= NodeId::MAX && !machine.offline.contains(*id))
    );
    let known = |id: &NodeId| machine.nodes.contains_key(id);
    prop_assert!(machine.distances.iter().all(|(from, row)| known(from) && row.keys().all(known)));
    Ok(())
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn any_tree_is_read_without_panic(entries in prop::collection::vec((any_path(), any_text()), 0..24)) {
        let mut tree = Tree::new();
        entries.iter().for_each(|(path, text)| tree.insert(path, text));
        check(&Topology::read(&tree).0)?;
    }

    #[test]
    fn any_files_added_to_a_recording_are_read_without_panic(
        (_, text) in any_recorded(),
        entries in prop::collection::vec((any_path(), any_text()), 0..8),
    ) {
        let mut tree = Tree::parse(text);
        entries.iter().for_each(|(path, text)| tree.insert(path, text));
        check(&Topology::read(&tree).0)?;
    }

    #[test]
    fn a_recording_with_lines_missing_is_read_without_panic((_, text) in any_recorded(), keep in prop::collection::vec(any::<bool>(), 64)) {
        let lines = text.lines().zip(keep.iter().cycle()).filter(|(_, keep)| **keep).map(|(line, _)| line);
        check(&Topology::read(&Tree::parse(&lines.collect::<Vec<_>>().join("\n"))).0)?;
    }

    #[test]
    fn reading_twice_gives_the_same(entries in prop::collection::vec((any_path(), any_text()), 0..16)) {
        let mut tree = Tree::new();
        entries.iter().for_each(|(path, text)| tree.insert(path, text));
        prop_assert_eq!(Topology::read(&tree), Topology::read(&tree));
    }

    #[test]
    fn a_machine_reads_back_as_described(ids in ids(1..6), kib in prop::collection::vec(1u64..1 << 34, 6), first in 0u32..1000) {
        let mut sysfs = Sysfs::default();
        for (at, (id, kib)) in (0u32..).zip(ids.iter().zip(&kib)) {
            let cpus = first + at * 4;
            sysfs = sysfs.node(*id, &format!("{cpus}-{}", cpus + 3), *kib);
        }
        let machine = sysfs.machine();
        prop_assert_eq!(machine.nodes.len(), ids.len());
        for (at, (id, kib)) in (0u32..).zip(ids.iter().zip(&kib)) {
            let node = &machine.nodes[&NodeId(*id)];
            prop_assert_eq!((node.size, node.free), (Bytes(kib * 1024), Bytes(kib / 2 * 1024)));
            let cpus: Vec<CpuId> = (0..4).map(|cpu| CpuId(first + at * 4 + cpu)).collect();
            prop_assert_eq!(&node.cpus, &cpus);
            for to in &ids {
                let distance = machine.distance(NodeId(*id), NodeId(*to));
                prop_assert_eq!(distance, Some(if id == to { 10 } else { 20 }));
            }
        }
        check(&machine)?;
    }

    #[test]
    fn distances_are_in_the_order_of_ids_also_with_gaps(ids in ids(2..6), base in 10u32..100) {
        let sorted = { let mut ids = ids.clone(); ids.sort_unstable(); ids };
        let mut sysfs = ids.iter().fold(Sysfs::default(), |sysfs, id| sysfs.node(*id, "", 1024));
        let row: Vec<String> = (0..).zip(&sorted).map(|(at, _)| (base + at).to_string()).collect();
        sysfs = sysfs.file(&format!("node{}/distance", sorted[0]), &row.join(" "));
        let machine = sysfs.machine();
        for (at, to) in (0..).zip(&sorted) {
            prop_assert_eq!(machine.distance(NodeId(sorted[0]), NodeId(*to)), Some(base + at));
        }
    }

    #[test]
    fn offline_nodes_are_the_possible_ones_that_are_not_online(possible in ids(1..12)) {
        let list: NodeSet = possible.iter().copied().map(NodeId).collect();
        let machine = Sysfs::default().node(0, "0", 1024).file("possible", &list.to_string()).machine();
        let expected: NodeSet = list.iter().filter(|id| *id != NodeId(0)).collect();
        prop_assert_eq!(machine.offline, expected);
    }

    #[test]
    fn attributes_are_read_in_their_units_and_zero_is_unknown(latency in 0u64..10_000, mbps in prop_oneof![0u64..200_000_000, any::<u64>()]) {
        let (machine, findings) = Sysfs::default().node(0, "0", 1024).hmat(0, latency, mbps).read();
        prop_assert_eq!(findings.len(), usize::from(mbps > 100_000_000));
        let attributes = machine.nodes[&NodeId(0)].access().unwrap().attributes;
        prop_assert_eq!(attributes.read_latency, (latency > 0).then_some(Nanoseconds(latency)));
        let is_possible = (1..=100_000_000).contains(&mbps);
        let bandwidth = is_possible.then(|| BytesPerSecond(mbps * 1_000_000));
        prop_assert_eq!(attributes.read_bandwidth, bandwidth);
        prop_assert_eq!((attributes.write_latency, attributes.write_bandwidth), (None, None));
    }

    #[test]
    fn a_cpu_list_means_the_same_in_any_order(cpus in prop::collection::btree_set(0u32..500, 1..20).prop_map(Vec::from_iter).prop_shuffle()) {
        let text = cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let machine = Sysfs::default().node(0, &text, 1024).machine();
        let mut sorted = cpus;
        sorted.sort_unstable();
        let read: Vec<u32> = machine.nodes[&NodeId(0)].cpus.iter().map(|cpu| cpu.0).collect();
        prop_assert_eq!(read, sorted);
    }

    #[test]
    fn one_bad_file_is_one_finding_at_its_path(which in 0usize..9) {
        let (path, text) = [
            ("node1/cpulist", "4-x"),
            ("node1/distance", "10 20 30"),
            ("node1/access1/initiators/read_latency", "fast"),
            ("possible", "0-9999"),
            ("node7/cpulist", "1"),
            ("node1/distance", "0 0"),
            ("node1/access1/initiators/read_latency", "18446744073709551615"),
            ("node1/access1/initiators/read_bandwidth", "18446744073709"),
            ("node1/meminfo", "Node 1 MemTotal: 4 kB"),
        ][which];
        let good = Sysfs::default().node(0, "0-3", 1024).node(1, "", 1024).hmat(1, 250, 13_000);
        let (machine, findings) = good.file(path, text).read();
        prop_assert_eq!(findings.len(), 1, "{:?}", findings);
        let directory = path.split('/').next().unwrap();
        prop_assert!(findings[0].path.contains(directory), "{}", findings[0]);
        prop_assert!(findings[0].to_string().contains(": "));
        prop_assert_eq!(machine.nodes.len(), 2);
    }
}

#[test]
fn nodes_beyond_the_limit_of_linux_are_counted_in_one_finding() {
    let mut tree = Sysfs::default().at("sys/devices/system/node/online", "0-4095\n").tree;
    let row: Vec<String> = (0..4096).map(|to: u32| (20 + to % 100).to_string()).collect();
    for id in 0..4096 {
        let node = format!("sys/devices/system/node/node{id}");
        tree.insert(&format!("{node}/cpulist"), &id.to_string());
        let meminfo = format!("Node {id} MemTotal: 4 kB\nNode {id} MemFree: 4 kB\n");
        tree.insert(&format!("{node}/meminfo"), &meminfo);
        if id % 1000 == 7 {
            tree.insert(&format!("{node}/distance"), &row.join(" "));
        }
    }
    let mut unlisted = tree.clone();
    let (machine, findings) = Topology::read(&tree);
    assert_eq!(machine.memory_nodes().to_string(), "0-1023");
    assert_eq!(machine.distance(NodeId(7), NodeId(1023)), Some(43));
    let found: Vec<String> = findings.iter().map(ToString::to_string).collect();
    let expected =
        "sys/devices/system/node/online: left out: 3072 with a number above 1023, Linux's greatest";
    assert_eq!(found, [expected]);
    unlisted.insert("sys/devices/system/node/online", "none");
    let (machine, findings) = Topology::read(&unlisted);
    assert_eq!((machine.nodes.len(), findings.len()), (1024, 2), "{findings:?}");
}

#[test]
fn cxl_regions_and_dax_devices_are_in_the_order_of_their_numbers() {
    let sysfs =
        [10, 2, 1].into_iter().fold(Sysfs::default().node(0, "0", 1024), |sysfs, number| {
            sysfs.node(number, "", 1024).cxl_region(u32::from(number), number)
        });
    let machine = sysfs.machine();
    let regions: Vec<&str> =
        machine.cxl_regions.iter().map(|region| region.name.as_str()).collect();
    assert_eq!(regions, ["region1", "region2", "region10"]);
    let dax: Vec<&str> = machine.dax.iter().map(|dax| dax.name.as_str()).collect();
    assert_eq!(dax, ["dax1.0", "dax2.0", "dax10.0"]);
    for region in &machine.cxl_regions {
        assert_eq!(region.dax.len(), 1);
        assert_eq!(format!("region{}", region.target_node.unwrap()), region.name);
    }
}

#[test]
fn the_best_cpu_comes_before_the_best_initiator_of_any_type() {
    let both = Sysfs::default()
        .node(0, "0", 1024)
        .hmat(0, 100, 1)
        .file("node0/access0/initiators/read_latency", "50");
    let node = both.machine().nodes[&NodeId(0)].clone();
    assert_eq!(node.access(), node.access1.as_ref());
    let other =
        Sysfs::default().node(0, "0", 1024).file("node0/access0/initiators/read_latency", "50");
    let node = other.machine().nodes[&NodeId(0)].clone();
    assert_eq!(node.access().unwrap().attributes.read_latency, Some(Nanoseconds(50)));
}

#[test]
fn the_inventory_names_every_node_and_its_size() {
    for (name, _, machine) in recorded() {
        let text = machine.inventory();
        for (id, node) in &machine.nodes {
            let part = match node.size {
                Bytes(0) => format!("node {id} (no memory)"),
                size => format!("node {id} ({}, {size})", node.kind),
            };
            assert!(text.contains(&part), "{name}: {text}");
        }
    }
    assert_eq!(Topology::default().inventory(), "no nodes");
}
