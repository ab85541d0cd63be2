//! Machines of many kinds, each with the right kinds, tiers, and near and far memory (`fixtures/corpus/machines`).
//!
//! A line of a machine has one of these words:
//! - `node ID [cpus=LIST|cpumap=MAP] [gib=N]`; `distance ID NUMBER...`, to all nodes in order;
//! - `hmat ID from=NODE NS MBPS`: firmware's figures for its best CPUs; `hmat-any`: for its best initiator of any kind;
//! - `kernel-tier NUMBER LIST`; `cxl NUMBER node=ID`: a region with a dax device; `cxl-block`: one known by its first block;
//! - `pmem NUMBER node=ID`: a dax device of persistent memory; `cache ID gib=N`: a memory-side cache;
//! - `gpu ID`: in NVIDIA's numa_status; `gpu-memory ID DRIVER`: memory that a driver has added;
//! - `measured ID NS BYTES_PER_S`: by a saved probe;
//! - `cpu MODEL`; `cpu-intel FAMILY MODEL`; `cpu-arm IMPLEMENTER PART`;
//! - `= kinds`, `= tiers`, `= near`, `= far` (from each node with CPUs), `= findings COUNT`: what is right.

use std::collections::BTreeMap;

use nearfar_topology::{
    BytesPerSecond, Measured, Nanoseconds, NodeId, Topology, Tree, View, measured,
};

const NODES: &str = "sys/devices/system/node";
/// Bytes of a memory block; the block of node N's region or GPU begins at N times this.
const BLOCK: u64 = 1 << 27;

/// A machine of the corpus.
#[derive(Debug, Default)]
struct Machine {
    name: String,
    tree: Tree,
    ids: Vec<u16>,
    measured: BTreeMap<NodeId, Measured>,
    right: BTreeMap<String, String>,
}

fn corpus() -> Vec<Machine> {
    let text = include_str!("../../../../fixtures/corpus/machines");
    let mut machines: Vec<Machine> = Vec::new();
    let lines = text.lines().map(|line| line.split('#').next().unwrap().trim());
    for line in lines.filter(|line| !line.is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap();
        if word == "machine" {
            machines.push(Machine { name: rest.to_owned(), ..Machine::default() });
            continue;
        }
        let machine = machines.last_mut().unwrap();
        if word == "=" {
            let (what, right) = rest.split_once(' ').unwrap();
            machine.right.insert(what.to_owned(), right.to_owned());
        } else {
            machine.line(word, &rest.split(' ').collect::<Vec<_>>());
        }
    }
    machines.iter_mut().for_each(Machine::finish);
    machines
}

/// The lines of /proc/cpuinfo that name a model.
fn cpuinfo(word: &str, words: &[&str]) -> String {
    let first = words[0];
    match word {
        "cpu" => format!("processor\t: 0\nmodel name\t: {}\n", words.join(" ")),
        "cpu-arm" => format!("CPU implementer\t: {first}\nCPU part\t: {}\n", words[1]),
        _ => format!("vendor_id\t: GenuineIntel\ncpu family\t: {first}\nmodel\t\t: {}\n", words[1]),
    }
}

/// The value of `key=value` among the words.
fn value<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

impl Machine {
    /// Adds the figures of a saved probe.
    fn finish(&mut self) {
        if !self.measured.is_empty() {
            let print = Topology::read(&self.tree).0.fingerprint();
            self.put(measured::FILE, &measured::text(&print, &self.measured.clone()));
        }
    }

    fn put(&mut self, path: &str, text: &str) {
        self.tree.insert(path, text);
    }

    fn line(&mut self, word: &str, words: &[&str]) {
        let first = words[0];
        let target = value(words, "node").unwrap_or(first);
        match word {
            "node" => self.node(first, words),
            "distance" => self.put(&format!("{NODES}/node{first}/distance"), &words[1..].join(" ")),
            "hmat" | "hmat-any" => {
                let class = if word == "hmat" { "access1" } else { "access0" };
                let path = format!("{NODES}/node{first}/{class}/initiators");
                let from = value(words, "from").unwrap();
                self.put(&format!("{path}/node{from}"), &format!("-> ../../../node{from}"));
                self.put(&format!("{path}/read_latency"), words[2]);
                self.put(&format!("{path}/read_bandwidth"), words[3]);
            }
            "measured" => {
                let [id, ns, rate] = [0, 1, 2].map(|at| words[at].parse::<u64>().unwrap());
                let id = NodeId(u16::try_from(id).unwrap());
                let (latency, read_bandwidth) = (Nanoseconds(ns), BytesPerSecond(rate));
                self.measured.insert(id, Measured { latency, read_bandwidth });
            }
            "kernel-tier" => {
                let tiers = "sys/devices/virtual/memory_tiering";
                self.put(&format!("{tiers}/memory_tier{first}/nodelist"), words[1]);
            }
            "cxl" | "pmem" => {
                let dax = format!("sys/bus/dax/devices/dax{first}.0");
                let above = match word {
                    "cxl" => format!("root0/decoder0.0/region{first}/dax_region{first}"),
                    _ => format!("LNXSYSTM:00/ndbus0/region{first}"),
                };
                self.put(&dax, &format!("-> ../../{above}/dax{first}.0"));
                self.put(&format!("{dax}/target_node"), target);
                if word == "cxl" {
                    self.put(&format!("sys/bus/cxl/devices/region{first}/mode"), "ram");
                }
            }
            "cxl-block" => {
                let start = self.block(target);
                let region = format!("sys/bus/cxl/devices/region{first}");
                self.put(&format!("{region}/resource"), &format!("{start:#x}"));
            }
            "gpu" => {
                let status = format!("Node:      {first}\nStatus:    online\n");
                let gpu = format!("proc/driver/nvidia/gpus/0035:{first}:00.0/numa_status");
                self.put(&gpu, &status);
            }
            "gpu-memory" => {
                let start = self.block(first);
                let end = start + BLOCK - 1;
                let line = format!("{start:x}-{end:x} : System RAM ({})\n", words[1]);
                self.put("proc/iomem", &format!("00001000-0009ffff : System RAM\n{line}"));
            }
            "cache" => {
                let path = format!("{NODES}/node{first}/memory_side_cache/index1");
                let gib: u64 = value(words, "gib").unwrap().parse().unwrap();
                self.put(&format!("{path}/size"), &(gib << 30).to_string());
                self.put(&format!("{path}/indexing"), "0");
            }
            "cpu" | "cpu-intel" | "cpu-arm" => self.put("proc/cpuinfo", &cpuinfo(word, words)),
            other => panic!("{}: no word {other}", self.name),
        }
    }

    fn node(&mut self, id: &str, words: &[&str]) {
        let path = format!("{NODES}/node{id}");
        let kib = value(words, "gib").map_or(0, |gib| gib.parse::<u64>().unwrap() << 20);
        let free = kib / 2;
        let meminfo = format!("Node {id} MemTotal: {kib} kB\nNode {id} MemFree: {free} kB\n");
        self.put(&format!("{path}/meminfo"), &meminfo);
        match value(words, "cpumap") {
            Some(map) => self.put(&format!("{path}/cpumap"), map),
            None => self.put(&format!("{path}/cpulist"), value(words, "cpus").unwrap_or_default()),
        }
        self.ids.push(id.parse().unwrap());
        let online: Vec<_> = self.ids.iter().map(u16::to_string).collect();
        self.put(&format!("{NODES}/online"), &online.join(","));
    }

    /// Puts the block of a node; returns its address.
    fn block(&mut self, node: &str) -> u64 {
        let memory = "sys/devices/system/memory";
        let number = 32 + node.parse::<u64>().unwrap();
        self.put(&format!("{memory}/block_size_bytes"), &format!("{BLOCK:x}"));
        let path = format!("{memory}/memory{number}/node{node}");
        self.put(&path, &format!("-> ../../node/node{node}"));
        number * BLOCK
    }

    /// What is wrong with a result.
    fn wrong(&self, what: &str, found: &str) -> Option<String> {
        let right = self.right.get(what).map_or("0", String::as_str);
        (right != found).then(|| format!("{}: {what}: found {found}, right {right}", self.name))
    }
}

fn list(nodes: impl IntoIterator<Item = NodeId>) -> String {
    let nodes: Vec<String> = nodes.into_iter().map(|node| node.to_string()).collect();
    if nodes.is_empty() { "-".to_owned() } else { nodes.join(",") }
}

fn from_each(machine: &Topology, nodes: impl Fn(&View) -> String) -> String {
    let views = machine.views();
    let each = views.iter().map(|view| format!("{}: {}", view.cpu_node, nodes(view)));
    each.collect::<Vec<_>>().join("; ")
}

#[test]
fn every_machine_has_its_kinds_tiers_and_near_and_far_memory() {
    let all = corpus();
    assert!(all.len() >= 40, "{}", all.len());
    let mut wrong: Vec<String> = Vec::new();
    for described in &all {
        let (machine, findings) = Topology::read(&described.tree);
        let with_memory = machine.nodes.iter().filter(|(_, node)| node.size.0 > 0);
        let kinds: Vec<_> = with_memory.map(|(id, node)| format!("{id} {}", node.kind)).collect();
        let tiers: Vec<_> = machine.tiers.iter().map(|tier| list(tier.nodes.iter())).collect();
        let near = from_each(&machine, |view| list(view.near.iter()));
        let far = from_each(&machine, |view| {
            let mut others = machine.others(view);
            others.sort_unstable();
            list(others)
        });
        let rows = [
            ("kinds", kinds.join(", ")),
            ("tiers", tiers.join(" | ")),
            ("near", near),
            ("far", far),
            ("findings", findings.len().to_string()),
        ];
        wrong.extend(rows.iter().filter_map(|(what, found)| described.wrong(what, found)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn near_and_far_divide_the_memory_of_every_machine() {
    for described in corpus() {
        let (machine, _) = Topology::read(&described.tree);
        for view in machine.views() {
            let others = machine.others(&view);
            let View { cpu_node, near, remote } = view;
            let mut all: Vec<NodeId> = near.iter().chain(others.iter().copied()).collect();
            all.sort_unstable();
            let memory: Vec<NodeId> = machine.memory_nodes().iter().collect();
            assert_eq!(all, memory, "{} from node {cpu_node}", described.name);
            assert!(remote.iter().all(|id| others.contains(&id)), "{}", described.name);
        }
    }
}
