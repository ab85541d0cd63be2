//! Determines the kind of a node's memory from the machine's description, by the first of these rules that has
//! evidence:
//!
//! 1. A dax device of a persistent-memory region names the node as its target: `pmem`.
//! 2. A CXL region's dax device, or the memory block at the region's start, names the node: `cxl`. A node with CPUs
//!    stays `dram`, with a finding: firmware put CXL memory beside the CPUs' own.
//! 3. A GPU's driver names the node, or has added its memory (`/proc/iomem`): `gpu`.
//! 4. The node has CPUs: `dram`, or `hbm` if the CPU's model has no other memory (A64FX), or firmware gives the node at
//!    least five times the bandwidth of other CPU nodes.
//! 5. The node has no CPUs and firmware's attributes (HMAT, CDAT) compare it with the DRAM of the CPU nodes, taking the
//!    best of those: at least 1.5 times the read bandwidth at less than 1.5 times the latency is `hbm`; at least 1.5
//!    times the latency, or at most half the bandwidth where no latency is given, is `cxl`, and three times the
//!    bandwidth then `hbm`; within a quarter of both is `dram`. HBM on a package has a latency like DRAM's (at most a fifth more in published values), memory behind a
//!    link more than twice DRAM's, so that the two do not overlap. The kind `cxl` then means "behaves like memory
//!    behind a link", which is the meaning needed by the node sets `cxl` and `far`; its source is `hmat`, not
//!    `cxl_region`.
//! 6. The node has no CPUs, and the CPU's model has HBM on its package (Xeon Phi, Xeon Max): `hbm`.
//! 7. The node has no CPUs and the kernel has it in another memory tier than all CPU nodes: slower `cxl`, faster `hbm`.
//! 8. Otherwise `unknown`.
//!
//! Figures from an initiator without CPUs (a generic initiator, such as an accelerator) are not those of the CPUs.

use alloc::format;
use alloc::vec::Vec;

use crate::cxl;
use crate::kernel_tiers;
use crate::kind::{KnownBy, MemoryKind};
use crate::machine::{Attributes, Initiator, Measured, Node, Topology};
use crate::nodeset::NodeSet;
use crate::reader::{NODES, Reader};
use crate::units::{Bytes, NodeId};

/// Sets kind and source of every node with memory.
pub(crate) fn kinds(reader: &mut Reader<'_>, machine: &mut Topology) {
    let evidence = Evidence::gather(reader, machine);
    let ids: Vec<NodeId> = machine.memory_nodes().iter().collect();
    for id in ids {
        let (kind, known_by) = kind_of(&evidence, id, &machine.nodes[&id]);
        if evidence.cxl.contains(id) && kind == MemoryKind::Dram {
            let note = format!(
                "a CXL region's memory is on this node too, with that of its CPUs; taken as {kind}"
            );
            reader.note(&format!("{NODES}/node{id}"), note);
        }
        if evidence.pmem.contains(id) && kind != MemoryKind::Pmem {
            let names =
                machine.dax.iter().filter(|dax| dax.persistent && dax.target_node == Some(id));
            let names: Vec<&str> = names.map(|dax| dax.name.as_str()).collect();
            let note = format!(
                "persistent memory ({}) is on this node, too, with that of its CPUs; the kernel does not tell one from the \
                 other by node, so this is taken as {kind}",
                names.join(", ")
            );
            reader.note(&format!("{NODES}/node{id}"), note);
        }
        if let Some(node) = machine.nodes.get_mut(&id) {
            (node.kind, node.known_by) = (kind, known_by);
        }
    }
}

/// Evidence for the rules besides the node itself.
struct Evidence {
    pmem: NodeSet,
    cxl: NodeSet,
    gpu: NodeSet,
    package: Package,
    cpus: NodeSet,
    /// CPU nodes whose memory has several times the bandwidth of other CPU nodes'.
    quick: NodeSet,
    dram: Figures,
    slower: NodeSet,
    faster: NodeSet,
}

/// The memory on the CPU's package, by its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Package {
    /// None that is known.
    None,
    /// HBM beside other memory.
    SomeHbm,
    /// HBM only.
    OnlyHbm,
}

impl Evidence {
    fn gather(reader: &mut Reader<'_>, machine: &Topology) -> Self {
        let dax = machine.dax.iter();
        let pmem = dax.filter(|dax| dax.persistent).filter_map(|dax| dax.target_node).collect();
        let cxl = machine.cxl_regions.iter().filter_map(|region| region.target_node).collect();
        let cpus = machine.cpu_nodes();
        let own = |node: &Node| !node.cpus.is_empty() && node.size > Bytes(0);
        let told = |owned: bool| -> Vec<(NodeId, Figures)> {
            let nodes =
                machine.nodes.iter().filter(|(_, node)| own(node) == owned && node.size > Bytes(0));
            nodes.map(|(id, node)| (*id, figures(node, &cpus))).collect()
        };
        let owned = told(true);
        let slowest = owned.iter().filter_map(|(_, node)| node.bandwidth).min();
        let is_quick = |node: &Figures| {
            let (Some(most), Some(least)) = (node.bandwidth, slowest) else { return false };
            most / 5 >= least
        };
        let quick = owned.iter().filter(|(_, node)| is_quick(node)).map(|(id, _)| *id).collect();
        let dram: Vec<Figures> =
            owned.iter().filter(|(_, node)| !is_quick(node)).map(|(_, node)| *node).collect();
        // Where no CPU has memory of its own, the quickest of the others stands for it.
        let others: Vec<Figures> = told(false).iter().map(|(_, node)| *node).collect();
        let dram = if owned.is_empty() { best(&others) } else { best(&dram) };
        let (faster, slower) = kernel_tiers::beside_cpu_nodes(reader, machine);
        let (gpu, package) = (gpus(reader), package(reader));
        Self { pmem, cxl, gpu, package, cpus, quick, dram, slower, faster }
    }
}

/// Nodes of GPUs' memory: `Node: N` in NVIDIA's `numa_status` of each GPU (POWER9, Grace), and memory that its driver has
/// added, `System RAM (NVIDIA)` in /proc/iomem, by its memory block. Other drivers add ordinary memory: virtio_mem and kmem.
fn gpus(reader: &mut Reader<'_>) -> NodeSet {
    const GPUS: &str = "proc/driver/nvidia/gpus";
    let tree = reader.tree;
    let mut found = NodeSet::new();
    for gpu in tree.children(GPUS) {
        let text = reader.text(&format!("{GPUS}/{gpu}/numa_status")).unwrap_or_default();
        let node =
            text.lines().find_map(|line| line.trim().strip_prefix("Node:")?.trim().parse().ok());
        found.extend(node.and_then(NodeId::new));
    }
    let added = reader.text("proc/iomem").unwrap_or_default().lines().filter_map(|line| {
        let (range, name) = line.split_once(" : ")?;
        let start = u64::from_str_radix(range.trim().split('-').next()?, 16).ok()?;
        (name.trim() == "System RAM (NVIDIA)" && start > 0).then_some(start)
    });
    found.extend(added.filter_map(|start| cxl::node_of_address(reader, start)));
    found
}

/// The memory on the package of the machine's CPUs, from the first CPU in /proc/cpuinfo.
fn package(reader: &Reader<'_>) -> Package {
    let text = reader.text("proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim())
        })
    };
    let model = field("model name").unwrap_or_default();
    if model.contains("Xeon") && (model.contains("Phi") || model.contains("CPU Max")) {
        return Package::SomeHbm;
    }
    // Xeon Phi (Knights Landing, Knights Mill); early firmware gives them no name.
    if field("vendor_id") == Some("GenuineIntel")
        && field("cpu family") == Some("6")
        && matches!(field("model"), Some("87" | "133"))
    {
        return Package::SomeHbm;
    }
    // Fujitsu's A64FX has no other memory.
    if field("CPU implementer") == Some("0x46") && field("CPU part") == Some("0x001") {
        return Package::OnlyHbm;
    }
    Package::None
}

fn kind_of(evidence: &Evidence, id: NodeId, node: &Node) -> (MemoryKind, KnownBy) {
    if evidence.pmem.contains(id) && node.cpus.is_empty() {
        return (MemoryKind::Pmem, KnownBy::NdRegion);
    }
    if evidence.cxl.contains(id) && node.cpus.is_empty() {
        return (MemoryKind::Cxl, KnownBy::CxlRegion);
    }
    if evidence.gpu.contains(id) && node.cpus.is_empty() {
        return (MemoryKind::Gpu, KnownBy::Driver);
    }
    if !node.cpus.is_empty() {
        return match evidence.package {
            Package::OnlyHbm => (MemoryKind::Hbm, KnownBy::CpuModel),
            _ if evidence.quick.contains(id) => (MemoryKind::Hbm, KnownBy::Hmat),
            _ => (MemoryKind::Dram, KnownBy::Cpus),
        };
    }
    if let Some(kind) = by_figures(&evidence.dram, &figures(node, &evidence.cpus)) {
        return (kind, KnownBy::Hmat);
    }
    if evidence.package == Package::SomeHbm {
        return (MemoryKind::Hbm, KnownBy::CpuModel);
    }
    if evidence.slower.contains(id) {
        return (MemoryKind::Cxl, KnownBy::MemoryTier);
    }
    if evidence.faster.contains(id) {
        return (MemoryKind::Hbm, KnownBy::MemoryTier);
    }
    (MemoryKind::Unknown, KnownBy::Nothing)
}

/// Read latency (ns) and bandwidth (bytes per second), where firmware reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    latency: Option<u64>,
    bandwidth: Option<u64>,
}

impl From<Measured> for Figures {
    fn from(measured: Measured) -> Self {
        let Measured { latency, read_bandwidth } = measured;
        Self { latency: Some(latency.0), bandwidth: Some(read_bandwidth.0) }
    }
}

/// A node's values for its best CPU, else for its best initiator, if that is one of the CPU nodes `cpus` or unknown.
pub(crate) fn figures(node: &Node, cpus: &NodeSet) -> Figures {
    let is_cpus = |access: &&Initiator| {
        access.nodes.is_empty() || access.nodes.iter().any(|from| cpus.contains(from))
    };
    let access = node.access1.as_ref().or(node.access0.as_ref().filter(is_cpus));
    let Attributes { read_latency, read_bandwidth, .. } =
        access.map(|access| access.attributes).unwrap_or_default();
    Figures { latency: read_latency.map(|ns| ns.0), bandwidth: read_bandwidth.map(|rate| rate.0) }
}

/// The best of each.
pub(crate) fn best(nodes: &[Figures]) -> Figures {
    Figures {
        latency: nodes.iter().filter_map(|node| node.latency).min(),
        bandwidth: nodes.iter().filter_map(|node| node.bandwidth).max(),
    }
}

/// Rule 5 of the head.
pub(crate) fn by_figures(dram: &Figures, node: &Figures) -> Option<MemoryKind> {
    let per_cent = |of: Option<u64>, to: Option<u64>| {
        let to = to.filter(|to| *to > 0)?;
        u64::try_from(u128::from(of?) * 100 / u128::from(to)).ok()
    };
    let latency = per_cent(node.latency, dram.latency);
    let bandwidth = per_cent(node.bandwidth, dram.bandwidth);
    match (latency, bandwidth) {
        (Some(latency), _) if latency >= 150 => Some(MemoryKind::Cxl),
        (Some(_), Some(bandwidth)) if bandwidth >= 150 => Some(MemoryKind::Hbm),
        (Some(75..=125), Some(75..=125)) => Some(MemoryKind::Dram),
        (None, Some(0..=50)) => Some(MemoryKind::Cxl),
        (None, Some(300..)) => Some(MemoryKind::Hbm),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn figures(latency: u64, bandwidth: u64) -> Figures {
        let given = |value: u64| (value > 0).then_some(value);
        Figures { latency: given(latency), bandwidth: given(bandwidth) }
    }

    #[test]
    fn firmware_figures_distinguish_kinds_by_a_gap() {
        let dram = figures(100, 40);
        for (node, kind) in [
            (figures(250, 13), Some(MemoryKind::Cxl)),
            (figures(150, 13), Some(MemoryKind::Cxl)),
            // A region over many devices may exceed one DRAM node's bandwidth, which does not make it HBM.
            (figures(220, 80), Some(MemoryKind::Cxl)),
            (figures(120, 160), Some(MemoryKind::Hbm)),
            (figures(100, 40), Some(MemoryKind::Dram)),
            (figures(130, 40), None),
            (figures(100, 20), None),
            (figures(0, 13), Some(MemoryKind::Cxl)),
            (figures(0, 400), Some(MemoryKind::Hbm)),
            (figures(0, 80), None),
            (figures(0, 0), None),
        ] {
            assert_eq!(by_figures(&dram, &node), kind, "{node:?}");
        }
        assert_eq!(by_figures(&figures(0, 0), &figures(250, 13)), None);
    }

    #[test]
    fn recorded_machines_have_their_known_kinds() {
        let shown = |text: &str| {
            let (machine, _) = Topology::read(&crate::Tree::parse(text));
            let tiers: Vec<_> = machine.tiers.iter().map(|tier| tier.nodes.to_string()).collect();
            let nodes = machine.nodes.iter().map(|(id, node)| match node.size {
                Bytes(0) => format!("{id} -"),
                _ => format!("{id} {} {}", node.kind, node.known_by),
            });
            (nodes.collect::<Vec<_>>().join(", "), tiers.join(" | "))
        };
        let expected = [
            ("laptop", "0 dram cpus", "0"),
            ("two-sockets", "0 dram cpus, 1 dram cpus", "0-1"),
            ("hbm-flat", "0 dram cpus, 1 dram cpus, 2 hbm hmat, 3 hbm hmat", "2-3 | 0-1"),
            ("memoryless", "0 dram cpus, 1 -", "0"),
            ("cxl-region-two-devices", "0 dram cpus, 1 dram cpus, 2 cxl cxl_region", "0-1 | 2"),
            ("sparse-ids", "0 dram cpus, 8 dram cpus, 1023 unknown nothing", "0,8 | 1023"),
            ("one-tier", "0 dram cpus, 1 unknown nothing", "0 | 1"),
            ("pmem-kmem", "0 dram cpus, 2 pmem nd_region", "0 | 2"),
            ("lab-cxl-2tier", "0 dram cpus, 1 cxl hmat", "0 | 1"),
            ("lab-hbm-dram-cxl", "0 dram cpus, 1 hbm hmat, 2 cxl hmat", "1 | 0 | 2"),
            ("lab-numa-4node", "0 dram cpus, 1 dram cpus, 2 dram cpus, 3 dram cpus", "0-3"),
            ("lab-cxl-device", "0 dram cpus, 1 cxl cxl_region", "0 | 1"),
        ];
        assert_eq!(crate::recorded::ALL.len(), expected.len());
        for ((name, text), (expected_name, nodes, tiers)) in
            crate::recorded::ALL.into_iter().zip(expected)
        {
            assert_eq!(name, expected_name);
            assert_eq!(shown(text), (nodes.into(), tiers.into()), "{name}");
        }
    }

    #[test]
    fn cxl_memory_beside_the_cpus_own_is_pointed_out() {
        let mut tree = crate::Tree::parse(crate::recorded::ALL[0].1);
        tree.insert("sys/bus/cxl/devices/region0/resource", "0x100000000");
        tree.insert("sys/devices/system/memory/memory2/node0", "-> ../../node/node0");
        let (machine, findings) = Topology::read(&tree);
        assert_eq!(machine.nodes[&NodeId(0)].kind, MemoryKind::Dram);
        assert!(findings[0].message.contains("CXL region"), "{findings:?}");
    }
}
